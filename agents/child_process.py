"""A process that plays for a learner: a channel to it, a lifeline that it does not outlive, and a certain end."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import subprocess
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TypeVar

from vecenv.channel import Channel, framed
from vecenv.fork_server import python_command, worker_environment
from vecenv.interrupts import interrupts_held_back
from vecenv.signals import poll_milliseconds
from vecenv.worker_process import WorkerProcess

TERMINATE_SECONDS = 0.5
"""What a process gets after SIGTERM, before it is killed."""
KILL_SECONDS = 5.0
"""How long the end of a killed process is waited for."""


class ChildProcess:
    """One process, seen from the learner's.

    Attributes:
        process: its handle.
        channel: messages to it and from it.
    """

    def __init__(self, main: str, given: Sequence[int] = (), held: Sequence[int] = ()) -> None:
        """Start it.

        Args:
            main: ``"module:function"``. The function gets the descriptors of channel, lifeline and ``given``, its own
                from then on, as a list.
            given: descriptors that it gets copies of; they stay the caller's.
            held: ends of pipes to it, closed together with the channel; owned from here on.
        """
        ours, theirs = socket.socketpair()
        # The write end of a pipe that nobody else holds: the kernel ends the child when this process is gone.
        lifeline, held_lifeline = os.pipe()
        self.channel = Channel(ours)
        self._cut_lifeline = weakref.finalize(self, os.close, held_lifeline)
        self._close_channel = weakref.finalize(self, _close, self.channel, tuple(held))
        _living().add(self)
        descriptors = (theirs.fileno(), lifeline, *given)
        module, _, function = main.partition(":")
        code = f"from {module} import {function}; {function}([int(word) for word in sys.argv[1:]])"
        try:
            command = python_command(code, *map(str, descriptors))
            with interrupts_held_back():
                popen = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env=worker_environment(), pass_fds=tuple(descriptors)
                )
        except BaseException:
            self.leave()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.process = WorkerProcess(popen.pid, popen.poll)

    def send_bytes(self, data: bytes) -> None:
        """Send a pickled message; waits while the process lives and does not read.

        One to a process that is gone is lost, which the next read will tell.
        """
        left = memoryview(framed(data))
        poller = select.poll()
        for descriptor, event in ((self.channel.fileno(), select.POLLOUT), (self.process.pidfd, select.POLLIN)):
            if descriptor is not None:
                poller.register(descriptor, event)
        with contextlib.suppress(OSError):
            while left := left[self.channel.send_part(left) :]:
                if self.process.pidfd in dict(poller.poll()):
                    return

    def let_go(self) -> None:
        """Close the channel, at which the process ends by itself once it looks; may be repeated."""
        self._close_channel()

    def end(self, deadline: float) -> int | None:
        """Let go, wait until ``deadline`` (`time.monotonic`) and then end it by force; may be repeated.

        Returns:
            Its exit status, see `WorkerProcess.exitcode`.
        """
        self.let_go()
        if not self.process.join(max(0.0, deadline - time.monotonic())):
            self.process.terminate()
            if not self.process.join(TERMINATE_SECONDS):
                self.process.kill()
                self.process.join(KILL_SECONDS)
        self.process.release()
        self._cut_lifeline()
        return self.process.exitcode

    def leave(self) -> None:
        """Close everything without waiting; where this process held the only copies, the child is gone at once."""
        self._close_channel()
        self._cut_lifeline()


Child = TypeVar("Child", bound=ChildProcess)


def read_children(children: Sequence[Child], seconds: float) -> Iterator[tuple[Child, list[bytes] | None]]:
    """Wait until something comes from processes, so long at most, and take what has come of one after the other.

    A process that an env has forked may hold the channel open after the end of its parent, so that is watched as well.

    Args:
        children: to listen to.
        seconds: the longest wait.

    Yields:
        A process and its messages, still pickled; None for those: it has ended, and all that it said was taken.
    """
    watched = [(child, child.channel.fileno(), child.process.pidfd) for child in children]
    poller = select.poll()
    for _, channel_fd, pidfd in watched:
        poller.register(channel_fd, select.POLLIN)
        if pidfd is not None:
            poller.register(pidfd, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(poll_milliseconds(seconds))}
    for child, channel_fd, pidfd in watched:
        if channel_fd not in ready and pidfd not in ready:
            continue
        messages: list[bytes] | None
        try:
            messages = child.channel.read_available()
        except EOFError:
            messages = None
        yield child, None if pidfd in ready and not messages else messages


@functools.cache
def _living() -> weakref.WeakSet[ChildProcess]:
    """Children of this process. A fork of it leaves them: its copies would hide this process's end from them."""
    children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()

    def leave() -> None:
        for child in list(children):
            child.leave()

    os.register_at_fork(after_in_child=leave)
    return children


def _close(channel: Channel, descriptors: Sequence[int]) -> None:
    channel.close()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
