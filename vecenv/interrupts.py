"""Ctrl-C reaches every process of a terminal; children leave it to the user's process from their first moment on."""

from __future__ import annotations

import contextlib
import signal
import threading
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


@contextlib.contextmanager
def interrupts_afterwards() -> Iterator[None]:
    """Have a Ctrl-C wait for the end of what must not be left half-way, whichever thread the signal comes to."""
    if threading.current_thread() is not threading.main_thread():  # interrupts are none of its business
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        with interrupts_held_back():
            yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if noted:
            signal.raise_signal(signal.SIGINT)


def leave_interrupts_to_the_user() -> None:
    """In a child process: ignore Ctrl-C. The signal is not held back any more: an env may set a handler of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
