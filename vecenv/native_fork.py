"""Engines in a fork of their process: it has none of their threads, so that a call would wait for ever."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Protocol


class HasEngine(Protocol):
    """What holds an engine.

    Attributes:
        belongs_here: whether this process has the threads of the engine.
    """

    belongs_here: bool

    def _kept_in_fork(self) -> list[Any]:
        """What a fork must not let go, because that waits for threads or ends them."""


_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def watch_forks(holder: HasEngine) -> None:
    """From now on a fork knows that the engine is not its own, and keeps what it must not let go."""
    holder.belongs_here = True
    _holders.add(holder)


def _keep_in_fork() -> None:
    for holder in list(_holders):
        holder.belongs_here = False
        for kept in holder._kept_in_fork():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never let go, not even when the interpreter ends


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_in_fork)
