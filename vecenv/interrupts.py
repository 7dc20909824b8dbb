"""Ctrl-C reaches every process of a terminal; children leave it to the user's process from their first moment on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """A process started in here gets no Ctrl-C before it calls `leave_interrupts_to_the_user`; ours waits for the end.

    Without it, a Ctrl-C in the moment in which the interpreter of the child starts ends the child with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # children inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts_to_the_user() -> None:
    """In a child process: ignore Ctrl-C. The signal is not held back any more: an env may set a handler of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
