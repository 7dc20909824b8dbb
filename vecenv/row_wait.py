"""Rows that are sent alone, and who wakes whom: a worker wakes the caller when as many are finished as it waits for.

Each side writes what the other looks at, then looks at what the other writes; a fence between the two makes sure that
one of them sees the other. Where the processor promises less than x86 does, workers wake the caller for every row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vecenv.protocol import Control
from vecenv.short_wait import STORES_IN_ORDER, ShortWait

if TYPE_CHECKING:
    from vecenv.worker_group import WorkerGroup

#: `Control.rows_wanted` while the caller does not wait.
_NOBODY_WAITS = 2**62
#: The caller looks again after this many seconds, whoever should have woken it.
_LOOK_AGAIN_SECONDS = 0.05


def _fence() -> None:
    """No store before it is still on its way when a load after it is done: taking a lock is an atomic instruction."""
    with threading.Lock():
        pass


def _total(control: Control) -> int:
    """How many rows all workers together ever finished."""
    return sum(control.rows_finished.tolist())


def note_finished_rows(control: Control, worker: int, count: int) -> bool:
    """Count rows that a worker has finished.

    Returns:
        Whether the caller wants to be woken.
    """
    control.rows_finished[worker] += count
    if not STORES_IN_ORDER:
        return True
    _fence()
    return _total(control) >= int(control.rows_wanted[0])


class RowWait:
    """Waits for rows that were sent alone.

    Args:
        group: the workers.
        control: of their block.
    """

    def __init__(self, group: WorkerGroup, control: Control) -> None:
        self._group = group
        self._control = control
        self._short_wait = ShortWait()
        self._events_taken = 0.0

    def wait(self, rows: Sequence[int], count: int, doing: str, timeout: float | None) -> list[int]:
        """Wait until some of the rows are finished.

        Args:
            rows: rows that were sent.
            count: how many to wait for.
            doing: name of the call, for errors.
            timeout: seconds; None: without limit.

        Returns:
            Finished rows, the first to finish first; fewer than `count` when the time is over or a worker has died.
        """
        control, index = self._control, np.array(rows)
        start = time.monotonic()
        deadline = None if timeout is None else start + timeout
        if start - self._events_taken > _LOOK_AGAIN_SECONDS:  # rows that always come at once must not hide a death
            self._take_events(0.0, doing)
        looked = False
        while True:
            total = _total(control)  # first: rows that finish meanwhile only wake us too early
            finished = control.completed[index] == control.requested[index]
            missing = count - int(np.count_nonzero(finished))
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if missing <= 0 or self._group.deaths or (left == 0.0 and looked):
                control.rows_wanted[0] = _NOBODY_WAITS
                done = index[finished]
                in_order: list[int] = done[np.argsort(control.finished[done], kind="stable")].tolist()
                return in_order
            self._sleep(total + missing, doing, left)
            looked = left == 0.0

    def _sleep(self, wanted: int, doing: str, left: float | None) -> None:
        """Wait until so many rows were ever finished, or something else happens."""
        control = self._control

        def there() -> bool:
            return _total(control) >= wanted

        if left != 0.0 and self._short_wait.look(there):
            return
        control.rows_wanted[0] = wanted
        _fence()
        if not there():
            self._take_events(_LOOK_AGAIN_SECONDS if left is None else min(left, _LOOK_AGAIN_SECONDS), doing)
        self._short_wait.slept()

    def _take_events(self, timeout: float, doing: str) -> None:
        self._group.take_events(timeout, doing)
        self._events_taken = time.monotonic()
