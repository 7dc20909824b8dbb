"""How workers end: they are asked to close their envs, then ended by force; all in bounded time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from vecenv.channel import Channel
from vecenv.worker_process import WorkerProcess

#: After asking in vain, how long a worker that ends by SIGTERM gets before SIGKILL, in seconds.
_TERMINATE_SECONDS = 0.5
#: How long is waited for the end of workers that were sent SIGKILL, in seconds.
_KILL_SECONDS = 5.0
#: How long a worker that is busy with a step or reset gets to take notice of the closing, in seconds.
_BUSY_SECONDS = 2.0


def ask_to_close(
    processes: Sequence[WorkerProcess], channels: Sequence[Channel], message: bytes, timeout: float
) -> None:
    """Let workers close their envs; one that does not even read its message is not waited for as long.

    Args:
        processes: the workers.
        channels: to each of them.
        message: asks them, pickled.
        timeout: seconds that they may take.
    """
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.send_now(message)
    start = time.monotonic()
    while time.monotonic() - start < timeout:
        for channel in channels:
            with contextlib.suppress(EOFError, OSError):
                channel.read_available()  # an answer still under way must not block a worker
        running = [worker for worker, process in enumerate(processes) if process.is_alive()]
        if not running:
            return
        waited = time.monotonic() - start
        if waited > _BUSY_SECONDS and all(channels[worker].unread() for worker in running):
            return
        processes[running[0]].join(0.01)


def end_by_force(processes: Sequence[WorkerProcess]) -> None:
    """Send SIGTERM to workers that still run, and SIGKILL to those that it does not end."""
    for how, seconds in ((WorkerProcess.terminate, _TERMINATE_SECONDS), (WorkerProcess.kill, _KILL_SECONDS)):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            how(process)
        deadline = time.monotonic() + seconds
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
