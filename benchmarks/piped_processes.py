"""Processes for measurements, each with a pipe to this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from vecenv.interrupts import interrupts_held_back, leave_interrupts_to_the_user

#: Runs in a process of its own: says anything once it is ready, then serves until the pipe ends.
Serve = Callable[[Connection, Any], None]


class PipedProcesses:
    """One spawned process per setup; all are ready when it is built.

    Args:
        serve: what each runs, with its end of the pipe and its setup; a function of a module.
        setups: one for each process; they are pickled.

    Attributes:
        processes: in the order of `setups`.
        pipes: our ends, in the same order.

    Raises:
        EOFError: a process ended before it was ready; none is left.
    """

    def __init__(self, serve: Serve, setups: Sequence[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        try:
            for setup in setups:
                ours, theirs = context.Pipe()
                self.pipes.append(ours)
                process = context.Process(target=_main, args=(theirs, serve, setup), daemon=True)
                with interrupts_held_back():
                    process.start()
                self.processes.append(process)
                theirs.close()
            for pipe in self.pipes:
                pipe.recv()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes, in the middle of their work if need be: they hold nothing that could be lost."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()


def _main(pipe: Connection, serve: Serve, setup: Any) -> None:
    leave_interrupts_to_the_user()  # which ends us
    serve(pipe, setup)
