"""Wake-ups between two processes: eventfds on Linux, socket pairs elsewhere."""

from __future__ import annotations

import os
import socket
import sys

#: The longest time that `poll` takes, in milliseconds.
_LONGEST_POLL = 2**31 - 1


def poll_milliseconds(seconds: float | None) -> float | None:
    """A time limit as `poll` takes it, which rounds parts of a millisecond up; None: without limit."""
    return None if seconds is None else min(max(0.0, float(seconds)) * 1000, _LONGEST_POLL)


def uses_linux_means() -> bool:
    """Whether memfds, eventfds and SIGIO are there, and the portable path was not asked for."""
    return sys.platform == "linux" and not os.environ.get("VECENV_PORTABLE")


class Signal:
    """A wake-up that one side sends and the other polls for; many sends may arrive as one.

    Args:
        read_fd: descriptor that turns readable.
        write_fd: descriptor to write to; the same as `read_fd` for an eventfd.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def create(cls) -> Signal:
        """A new signal, not inherited by programs that are started, never blocking."""
        if uses_linux_means():
            descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return cls(descriptor, descriptor)
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        return cls(reader.detach(), writer.detach())

    def send(self) -> None:
        """Wake the other side. Never blocks: a full pipe already means that it is awake."""
        try:  # not `suppress`, which costs as much as the call: this is part of every step
            os.write(self.write_fd, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return

    def clear(self) -> None:
        """Take back all wake-ups sent so far."""
        try:
            os.read(self.read_fd, 512)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both descriptors; a second call does nothing."""
        for descriptor in {self.read_fd, self.write_fd} - {-1}:
            os.close(descriptor)
        self.read_fd = self.write_fd = -1
