"""A fork server of our own: a small single-threaded process that forks workers with the heavy imports done.

The standard library's fork server belongs to everyone in the process, ignores the `sys.path` it is given (so preloads
silently fail), imports the user's `__main__`, and passes thread settings too late for libraries that read them once.
This one is started with `sys.path` in place, thread variables in its environment, and never imports `__main__`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import spawn, util
from typing import Any

from vecenv.forked_process import begin_process, end_process, run_to_end
from vecenv.interrupts import interrupts_held_back, leave_interrupts_to_the_user

#: Read once by numeric libraries when they are loaded, so they must stand in the environment before that.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_BASE_PRELOAD = ("numpy", "gymnasium", "vecenv.worker")
_LENGTH = struct.Struct("=I")
_GRACE_SECONDS = 2.0
_MAX_FDS = 16


def worker_environment() -> dict[str, str]:
    """The user's environment with one thread per numeric library, unless the user has set a number."""
    environment = dict(os.environ)
    for name in THREAD_VARIABLES:
        environment.setdefault(name, "1")
    return environment


def import_path() -> list[str]:
    """The user's `sys.path` with the current folder written out, as a started program must see it."""
    here = _current_folder()
    entries = [here if entry == "" else entry for entry in sys.path if isinstance(entry, str)]
    return [entry for entry in entries if entry is not None]


def python_command(code: str, *arguments: str) -> list[str]:
    """Command line that runs code in a fresh interpreter with the user's `sys.path` and interpreter flags.

    Args:
        code: statements to run after `sys.path` is set; `sys.argv[1:]` holds the arguments.
        arguments: words for the code.
    """
    count = len(arguments)
    prologue = f"import sys; sys.path[:] = sys.argv[{count + 1}:]; del sys.argv[{count + 1}:]; "
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    executable = os.fsdecode(spawn.get_executable())
    return [executable, *flags, "-P", "-c", prologue + code, *arguments, *import_path()]


class ForkServer:
    """Handle on a fork server process; started at the first launch. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._preloaded: set[str] = set()
        # Servers that are out of step with us, kept for the sake of their workers, which end with their server.
        self._given_up: list[tuple[socket.socket | None, subprocess.Popen[bytes] | None]] = []
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def launch(self, descriptors: Sequence[int], preload: Sequence[str] = ()) -> int:
        """Fork a worker.

        Args:
            descriptors: what the worker gets; copies, the caller's stay open.
            preload: modules to import in the server first; ones that fail to import are the worker's business.

        Returns:
            Process id of the worker.

        Raises:
            RuntimeError: the server cannot be started.
        """
        with self._lock:
            wanted = [name for name in preload if name not in self._preloaded]
            standard = [fd for fd in (1, 2) if _is_open(fd)]
            request = {
                "word": "fork",
                "preload": wanted,
                "path": import_path(),
                "environment": worker_environment(),
                "folder": _current_folder(),
                "standard": standard,
            }
            for attempt in range(2):
                try:
                    self._start()
                    reply = self._ask(request, [*standard, *descriptors])
                    break
                except TimeoutError:  # the user's own alarm: nothing here has a time limit
                    raise
                except (OSError, EOFError) as error:
                    if attempt:
                        raise RuntimeError(f"the fork server cannot be started: {error}") from error
            if isinstance(reply, str):
                raise RuntimeError(f"the fork server cannot fork a worker: {reply}")
            self._preloaded.update(wanted)
            return int(reply)

    def exit_code(self, pid: int) -> int | None:
        """Exit status of a worker that has ended (negative: minus a signal number); None: unknown or still running."""
        with self._lock:
            if self._socket is None:
                return None
            try:
                code = self._ask({"word": "exit", "pid": pid}, [])
            except TimeoutError:  # as in `launch`
                raise
            except (OSError, EOFError):
                return None
            return None if code is None else int(code)

    def _start(self) -> None:
        if self._socket is not None:
            return
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # the user may have set a default timeout for sockets
            end.setblocking(True)
        command = python_command(
            "from vecenv.fork_server import serve; serve(int(sys.argv[1]))",
            str(theirs.fileno()),
        )
        with theirs, interrupts_held_back():
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=worker_environment(), pass_fds=[theirs.fileno()]
            )
        self._socket = ours
        self._preloaded = set(_BASE_PRELOAD)

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int]) -> Any:
        """Have the server's reply to a request; without one the server is forgotten."""
        if self._socket is None:
            raise EOFError
        data = pickle.dumps(request)
        try:
            socket.send_fds(self._socket, [_LENGTH.pack(len(data))], list(descriptors))
            self._socket.sendall(data)
            (size,) = _LENGTH.unpack(_read_exactly(self._socket, _LENGTH.size))
            return pickle.loads(_read_exactly(self._socket, size))
        except BaseException:  # Ctrl-C, say: the reply would be taken for that to the next request
            self._forget()
            raise

    def _leave_to_parent(self) -> None:
        """In a fork of the user's process: the server is the parent's, the lock may be held by a thread not copied."""
        self._lock = threading.Lock()
        for connection, process in [*self._given_up, (self._socket, self._process)]:
            if connection is not None:
                connection.close()
            if process is not None:
                process.poll()  # it is no child of the fork's, which is not to be warned that it still runs
        self._given_up, self._socket, self._process = [], None, None

    def _forget(self) -> None:
        """Let go of the server: the next request starts another one. One that still runs keeps its workers."""
        if self._process is not None and self._process.poll() is None:
            self._given_up.append((self._socket, self._process))
        elif self._socket is not None:
            self._socket.close()
        self._socket = None
        self._process = None


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this process; shared by all vector envs in it, so that imports are done once."""
    return ForkServer()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise EOFError("the fork server is gone")
        data += chunk
    return data


def serve(control_fd: int) -> None:
    """Main of the fork server: answer requests until the user's process is gone, then see the workers off.

    Args:
        control_fd: descriptor of the socket to the user's process.
    """
    leave_interrupts_to_the_user()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    control = socket.socket(fileno=control_fd)
    control.setblocking(True)
    _preload(_BASE_PRELOAD)
    children = _Children()
    while True:
        if not children.wait(control):
            continue
        try:
            header, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, _MAX_FDS)
            if not header:
                break
            request = pickle.loads(_read_exactly(control, _LENGTH.unpack(header)[0]))
        except (OSError, EOFError):
            break
        reply: Any
        if request["word"] == "exit":
            reply = children.exit_code(request["pid"])
        else:
            reply = _fork(control, request, descriptors, children)
        data = pickle.dumps(reply)
        try:
            control.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            break
    children.see_off()
    end_process(0)


def _preload(modules: Sequence[str]) -> None:
    for name in modules:
        try:
            module = importlib.import_module(name)
            if hasattr(module, "warm_up"):
                module.warm_up()
        except Exception:  # the worker that needs the module reports its error in full
            pass
    gc.collect()
    gc.freeze()


def _fork(control: socket.socket, request: dict[str, Any], descriptors: list[int], children: _Children) -> int | str:
    for entry in request["path"]:
        if entry not in sys.path:
            sys.path.append(entry)
    if request["preload"]:
        _preload(request["preload"])
    try:
        pid = os.fork()
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        return str(error)
    if pid == 0:
        control.close()
        children.leave()
        run_to_end(lambda: _run_worker(request, descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    children.add(pid)
    return pid


def _run_worker(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the fork: take over the user's surroundings as they are now, then work."""
    begin_process()
    standard = request["standard"]
    for target, descriptor in zip(standard, descriptors, strict=False):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    if request["folder"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(request["folder"])
    from vecenv.worker import worker_main

    worker_main(descriptors[len(standard) :])


class _Children:
    """The forked workers, seen from the server: reaped as they end, their exit codes kept."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._codes: dict[int, int] = {}
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def add(self, pid: int) -> None:
        """Watch a new child."""
        self._running.add(pid)

    def leave(self) -> None:
        """In a fork: give back the signal handling that is the server's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._reader.close()
        self._writer.close()

    def wait(self, control: socket.socket) -> bool:
        """Wait until the control socket has something (True) or a child has ended (False)."""
        ready, _, _ = select.select([control, self._reader], [], [])
        if self._reader in ready:
            self._reader.recv(4096)
            self._reap()
        return control in ready

    def _reap(self) -> None:
        for pid in list(self._running):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                self._running.discard(pid)
                continue
            if ended:
                self._running.discard(pid)
                self._codes[pid] = os.waitstatus_to_exitcode(status)

    def exit_code(self, pid: int) -> int | None:
        """Code of an ended child; waits a moment for one that is just ending."""
        deadline = time.monotonic() + 0.5
        while pid in self._running and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.002)
        return self._codes.get(pid)

    def see_off(self) -> None:
        """After the user's process is gone: the workers end by themselves; end those that have not soon after."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._running and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
