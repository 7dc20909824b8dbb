"""Waiting for what comes in a moment: a short look around before going to sleep.

Waking a sleeping process costs more than a whole step of a cheap env. Both sides therefore look for the other's word in
the block for a moment, giving the core away between looks, and sleep only when it does not come. Where it usually takes
longer nobody looks: idle workers, slow envs and slow trainers cost nothing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

#: How long to look, in seconds; about what two wake-ups cost.
_LOOK_SECONDS = 250e-6

#: Stores become visible in the order in which they were made, which looking relies on; x86 guarantees it.
STORES_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")

_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class ShortWait:
    """Decides by what the last waits took whether looking pays."""

    def __init__(self) -> None:
        self._pays = STORES_IN_ORDER
        self._begun = 0.0

    def look(self, there: Callable[[], bool]) -> bool:
        """Look for a moment.

        Args:
            there: whether it has come.

        Returns:
            True: it has come. False: sleep, and call `slept` afterwards.
        """
        self._begun = time.perf_counter()
        if not self._pays:
            return False
        end = self._begun + _LOOK_SECONDS
        while True:
            if there():
                return True
            if time.perf_counter() >= end:
                self._pays = False
                return False
            _yield()

    def slept(self) -> None:
        """It came while sleeping: looking pays again if that was soon."""
        self._pays = STORES_IN_ORDER and time.perf_counter() - self._begun < _LOOK_SECONDS
