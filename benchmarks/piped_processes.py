"""Processes for measurements, each with a pipe to this one."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

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
                with _sparing_sigint():
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


@contextlib.contextmanager
def _sparing_sigint() -> Iterator[None]:
    """A process started in here is not interrupted by a Ctrl-C before `_main` has taken charge of the signal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited; what comes meanwhile waits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(pipe: Connection, serve: Serve, setup: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent ends us
    serve(pipe, setup)
