"""Copies observations for the caller while some workers are at work: a core is idle then, later it would not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.slice_stepper import index_of

#: Smaller batches are copied sooner than somebody is asked to.
LEAST_BYTES = 1 << 16


class EarlyCopy:
    """A copy of one batch of observations, made part by part.

    Args:
        source: `[num_envs, ...]` the slot that the workers are writing to.
    """

    def __init__(self, source: npt.NDArray[Any]) -> None:
        self._source = source
        self._copy = np.empty_like(source)
        self._missing = [True] * len(source)

    def take(self, rows: Sequence[int]) -> None:
        """Copy rows that their worker has finished."""
        index = index_of(rows)
        self._copy[index] = self._source[index]
        for row in rows:
            self._missing[row] = False

    def finish(self) -> npt.NDArray[Any]:
        """Copy what is missing and give the batch, which is the caller's from then on."""
        rows = [row for row, missing in enumerate(self._missing) if missing]
        if rows:
            self.take(rows)
        return self._copy

    @classmethod
    def of(cls, observations: Any, workers: Sequence[Any]) -> EarlyCopy | None:
        """A copy made early, where a batch is an array so large, and spread over several workers, that it pays."""
        if type(observations) is np.ndarray and observations.nbytes >= LEAST_BYTES and len(workers) > 1:
            return cls(observations)
        return None
