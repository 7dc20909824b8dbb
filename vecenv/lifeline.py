"""How a worker notices that the user's process is gone, however it went.

The user's process holds the write end of a pipe and nobody else does; workers hold read ends. When the process ends the
kernel closes the pipe. (A worker's parent is the fork server, so neither `getppid` nor PR_SET_PDEATHSIG would tell.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Sequence

from vecenv.interrupts import leave_interrupts_to_the_user
from vecenv.signals import uses_linux_means


def begin_child(descriptors: Sequence[int], lifeline_fd: int) -> None:
    """What a child process does first: it leaves Ctrl-C to the user's process, ends with it, and hands nothing on.

    Args:
        descriptors: all that it was given; processes that it starts do not inherit them.
        lifeline_fd: the one of them that is for `end_with`.
    """
    leave_interrupts_to_the_user()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    end_with(lifeline_fd)


def end_with(read_fd: int) -> None:
    """End this process when the other end of a pipe closes, even in the middle of native code.

    On Linux the kernel sends SIGIO at that moment, whose default action ends the process; it needs neither the GIL nor
    a thread. Elsewhere a thread waits for it. In both cases `close` of the envs does not run.

    Args:
        read_fd: read end of a pipe on which nothing is ever written.
    """
    if uses_linux_means():
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
        fcntl.fcntl(read_fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(read_fd, fcntl.F_SETFL, fcntl.fcntl(read_fd, fcntl.F_GETFL) | os.O_ASYNC)
        _end_if_already_closed(read_fd)
        return
    threading.Thread(target=_wait_and_end, args=(read_fd,), name="lifeline", daemon=True).start()


def _end_if_already_closed(read_fd: int) -> None:
    """The signal is sent at the moment of closing; one that came before O_ASYNC was set is looked for here."""
    os.set_blocking(read_fd, False)
    try:
        gone = os.read(read_fd, 1) == b""
    except BlockingIOError:
        return
    if gone:
        os._exit(1)


def _wait_and_end(read_fd: int) -> None:
    with contextlib.suppress(OSError):
        os.read(read_fd, 1)
    sys.stderr.flush()
    os._exit(1)
