"""Starting worker processes by forkserver, spawn or fork, and a handle that looks like a `multiprocessing.Process`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext

from vecenv.errors import UnknownSetting
from vecenv.fork_server import fork_server, python_command, worker_environment
from vecenv.forked_process import begin_process, run_to_end
from vecenv.interrupts import interrupts_held_back
from vecenv.signals import poll_milliseconds

START_METHODS = ("forkserver", "spawn", "fork")


def start_method_of(context: str | BaseContext | None) -> str:
    """Name of the start method that a `context` argument asks for.

    Args:
        context: a name, a `multiprocessing` context, or None for the default, forkserver.

    Raises:
        UnknownSetting: no such start method.
    """
    if context is None:
        return "forkserver"
    method = context if isinstance(context, str) else getattr(context, "get_start_method", lambda: None)()
    if method not in START_METHODS:
        raise UnknownSetting(f"context={context!r} does not exist; expected one of {', '.join(START_METHODS)}")
    return method


class WorkerProcess:
    """A started worker, known by its process id.

    Args:
        pid: process id.
        read_exit_code: asks whoever is the parent of the process for its exit status, None while unknown.

    Attributes:
        pidfd: descriptor that turns readable when the process ends; None where the system has none.
    """

    #: Workers always end with the user's process.
    daemon = True

    def __init__(self, pid: int, read_exit_code: Callable[[], int | None]) -> None:
        self.pid = pid
        self._read_exit_code = read_exit_code
        self._exit_code: int | None = None
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._gone = False

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        if self._gone:
            return False
        if self.pidfd is None:
            try:
                os.kill(self.pid, 0)
                return self.exitcode is None
            except ProcessLookupError:
                self._gone = True
        else:
            self._gone = _readable(self.pidfd, 0.0)
        return not self._gone

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process.

        Args:
            timeout: seconds; None: without limit.

        Returns:
            Whether it has ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.pidfd is not None and not self._gone:
            self._gone = _readable(self.pidfd, timeout)
            return self._gone
        while self.is_alive():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        return True

    @property
    def exitcode(self) -> int | None:
        """Exit status; negative: minus the signal number; None: running or unknown."""
        if self._exit_code is None:
            self._exit_code = self._read_exit_code()
        return self._exit_code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if not self.is_alive():
            return
        try:
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            self._gone = True

    def release(self) -> None:
        """Close what the handle holds; the exit status is read first."""
        _ = self.exitcode
        if self.pidfd is not None:
            self.is_alive()
            os.close(self.pidfd)
            self.pidfd = None


def _readable(descriptor: int, timeout: float | None) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(poll_milliseconds(timeout)))


def launch_worker(method: str, descriptors: Sequence[int], preload: Sequence[str]) -> WorkerProcess:
    """Start a worker that gets copies of some descriptors.

    Args:
        method: one of `START_METHODS`.
        descriptors: what the worker gets, in the order that `worker_main` expects.
        preload: modules worth importing once before workers are forked.
    """
    if method == "forkserver":
        server = fork_server()
        pid = server.launch(descriptors, preload)
        return WorkerProcess(pid, lambda: server.exit_code(pid))
    if method == "spawn":
        return _spawn(descriptors)
    return _fork(descriptors)


def _spawn(descriptors: Sequence[int]) -> WorkerProcess:
    words = [str(descriptor) for descriptor in descriptors]
    command = python_command(
        "from vecenv.forked_process import run_to_end; from vecenv.worker import worker_main; "
        "run_to_end(lambda: worker_main([int(word) for word in sys.argv[1:]]))",
        *words,
    )
    with interrupts_held_back():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=worker_environment(), pass_fds=tuple(descriptors)
        )
    process.returncode = 0  # it is waited for below, where an unknown status stays unknown
    return WorkerProcess(process.pid, _exit_code_reader(process.pid))


def _fork(descriptors: Sequence[int]) -> WorkerProcess:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        run_to_end(lambda: _work(descriptors))
    return WorkerProcess(pid, _exit_code_reader(pid))


def _work(descriptors: Sequence[int]) -> None:
    """What a fork does."""
    begin_process()
    from vecenv.worker import worker_main

    worker_main(list(descriptors))


def _exit_code_reader(pid: int) -> Callable[[], int | None]:
    """Reads the exit status of a child of this process, None while it runs or where it cannot be known."""
    codes: list[int] = []

    def read_exit_code() -> int | None:
        if not codes:
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if ended:
                codes.append(os.waitstatus_to_exitcode(status))
        return codes[0] if codes else None

    return read_exit_code
