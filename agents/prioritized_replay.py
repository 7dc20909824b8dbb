"""Prioritized sampling (Schaul et al., 2016, proportional variant): rows are drawn by how wrong they last were."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import prioritized_kernels

SMALLEST = 1e-6
"""Added to every error, so that a row that is learnt by heart is still drawn now and then."""


class Priorities:
    """Priorities of the rows of a replay, in a sum tree; 0 is a row that may not be drawn.

    Attributes:
        exponent: alpha; 0 draws uniformly, 1 in proportion to the error.
        largest: the largest priority so far; new rows get it, so that each is seen soon.
    """

    def __init__(self, num_places: int, exponent: float) -> None:
        """No row may be drawn yet.

        Args:
            num_places: rows of the replay.
            exponent: alpha.
        """
        self.exponent = exponent
        self.largest = 1.0
        half = 1
        while half < num_places:
            half *= 2
        self._tree = np.zeros(2 * half, np.float64)
        self._num_places = num_places

    def apply(self, changes: NDArray[np.int64]) -> None:
        """Let new rows in and old ones out.

        Args:
            changes: [C] int64 as `advance_streams` fills them: a place that comes in, or -1 minus one that goes out.
        """
        places = np.where(changes >= 0, changes, -1 - changes)
        values = np.where(changes >= 0, self.largest**self.exponent, 0.0)
        prioritized_kernels.set_leaves(self._tree, places, values)

    def draw(self, numbers: NDArray[np.float64], num_rows: int, beta: float) -> tuple[Any, NDArray[np.float32]]:
        """Draw rows.

        Args:
            numbers: [B] float64, random numbers in [0, 1).
            num_rows: rows that may be drawn.
            beta: how far the importance weights make up for the unequal chances; 1 wholly.

        Returns:
            Places [B] int64 and importance weights [B] float32, the largest of which is 1.

        Raises:
            RuntimeError: no row may be drawn.
        """
        if not self._tree[1] > 0.0:
            raise RuntimeError("no row of the replay may be drawn yet")
        places, probabilities = np.empty(len(numbers), np.int64), np.empty(len(numbers))
        prioritized_kernels.draw_stratified(self._tree, numbers, places, probabilities)
        weights = (num_rows * probabilities) ** -beta
        return places, (weights / weights.max()).astype(np.float32)

    def update(self, places: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Set the priorities of rows that were just learnt from.

        Args:
            places: [B] int64.
            errors: [B] float32, absolute errors.
        """
        priorities = errors.astype(np.float64) + SMALLEST
        # A row may have gone out since it was drawn; it must not come back.
        values = np.where(self._leaves[places] > 0.0, priorities**self.exponent, 0.0)
        prioritized_kernels.set_leaves(self._tree, places, values)
        self.largest = max(self.largest, float(priorities.max()))

    @property
    def _leaves(self) -> NDArray[np.float64]:
        half = len(self._tree) // 2
        return self._tree[half : half + self._num_places]

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from; the leaves stand in an array [rows] float64."""
        return {"largest": self.largest, "leaves": self._leaves.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; which rows may be drawn stays as it is, those unknown there count as new."""
        self.largest = float(state["largest"])
        saved = np.asarray(state["leaves"], np.float64)
        leaves = np.where(self._leaves > 0.0, np.where(saved > 0.0, saved, self.largest**self.exponent), 0.0)
        prioritized_kernels.set_leaves(self._tree, np.arange(len(leaves)), leaves)
