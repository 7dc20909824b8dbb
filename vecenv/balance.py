"""Which env should move to which worker, so that uneven envs keep all workers equally busy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from vecenv.worker_group import WorkerGroup

#: A move must shorten the step by at least this share.
_GAIN = 0.01


class Balancer:
    """Chooses moves by the measured time of each env's steps.

    Args:
        group: knows which worker hosts which envs.
        step_seconds: `[num_envs] float64` running means, kept by the workers.
    """

    def __init__(self, group: WorkerGroup, step_seconds: npt.NDArray[np.float64]) -> None:
        self._group = group
        self._seconds = step_seconds
        self._stay: set[int] = set()

    def refuse(self, row: int) -> None:
        """Note that an env cannot move."""
        self._stay.add(row)

    def move(self, candidates: Iterable[int]) -> tuple[int, int, int] | None:
        """The move that shortens the step most.

        Args:
            candidates: envs that may move now.

        Returns:
            Env, the worker it leaves, the worker it goes to; None: nothing worth it.
        """
        movable = set(candidates) - self._stay
        if not movable:
            return None
        loads = [float(self._seconds[rows].sum()) for rows in self._group.rows]
        source, target = int(np.argmax(loads)), int(np.argmin(loads))
        if len(self._group.rows[source]) < 2:
            return None
        best, chosen = loads[source] * (1.0 - _GAIN), None
        for row in movable.intersection(self._group.rows[source]):
            seconds = float(self._seconds[row])
            longest = max(loads[source] - seconds, loads[target] + seconds)
            if longest < best:
                best, chosen = longest, row
        return None if chosen is None else (chosen, source, target)
