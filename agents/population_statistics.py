"""Running mean and variance of observations, merged from what single pairs saw; the same bits whoever played them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenv import VecEnv

from .normalisation import merge_moments

LEAST_STD = 1e-2
"""Components that hardly vary are not blown up further than by this."""
PAYLOAD_BYTES = 160
"""Bytes of statistics that a pair may send on average; see :func:`sends_statistics`."""


MEAN_IMAGE_STEPS = 200
"""Random steps that give the mean image."""
_MEAN_IMAGE = 2**64 - 1
"""In the place of a generation, for the stream of those steps."""


def sends_statistics(generation: int, pair: int, num_features: int) -> bool:
    """Whether a pair's statistics are used: in turn, only as many pairs as keep the payload per pair small.

    Mean and variance are 8 bytes per feature. Up to 20 features every pair sends them; of 348 features every 18th pair
    does, another one in each generation, which still is thousands of observations.
    """
    stride = -(-8 * num_features // PAYLOAD_BYTES)
    return (pair + generation) % stride == 0


def play_mean_image(envs: VecEnv, seed: int) -> NDArray[np.float32]:
    """Mean of the images of some random steps, in whole numbers: [D] float32, owned by the caller.

    It is the first environment's alone, so that the number of environments does not matter.
    """
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, _MEAN_IMAGE], np.uint64)))
    observations, _ = envs.reset(seed=[int(stream.integers(2**31 - 1))] * envs.num_envs)
    space = copy.deepcopy(envs.single_action_space)
    space.seed(int(stream.integers(2**31 - 1)))
    total = np.zeros(observations[0].size)
    for _ in range(MEAN_IMAGE_STEPS):
        total += observations[0].reshape(-1)
        action = space.sample()
        observations, *_ = envs.step(np.stack([action] * envs.num_envs))
    return np.asarray((total / MEAN_IMAGE_STEPS).round(), np.float32)


class ObservationMoments:
    """Sums over the observations that each of N members saw, relative to a known mean."""

    def __init__(self, num_members: int, reference: NDArray[np.float32]) -> None:
        """Nothing seen yet.

        Args:
            num_members: N.
            reference: [D] float32, subtracted from everything first: sums of squares stay small and exact.
        """
        self.num_features = len(reference)
        self._reference = reference.astype(np.float64)
        self._sums, self._squares, self._difference = (np.zeros((num_members, len(reference))) for _ in range(3))

    def add(self, observations: NDArray[Any], active: NDArray[np.bool_]) -> None:
        """Count one observation [N, ...] of every member that still plays, ``active`` [N] bool."""
        difference = self._difference
        np.subtract(observations.reshape(difference.shape), self._reference, out=difference)
        if np.count_nonzero(active) < len(active):  # a tenth of the time of all()
            difference[~active] = 0.0
        self._sums += difference
        difference *= difference
        self._squares += difference

    def of_pair(self, row: int, count: int) -> NDArray[np.float32]:
        """What the members in ``row`` and ``row + 1`` saw together.

        Returns:
            [2, D] float32, owned by the caller: the mean's difference from the reference, and the variance.
        """
        mean = (self._sums[row] + self._sums[row + 1]) / count
        variance = (self._squares[row] + self._squares[row + 1]) / count - mean * mean
        return np.stack([mean, np.maximum(variance, 0.0)]).astype(np.float32)


class ObservationStatistics:
    """Mean and variance of all observations so far, [D] float64."""

    def __init__(self, num_features: int) -> None:
        """Nothing seen yet: normalisation then changes nothing."""
        self.count = 0
        self.mean = np.zeros(num_features)
        self.variance = np.ones(num_features)

    def normalisation(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What to subtract and what to multiply with afterwards, [D] float32 each, owned by the caller."""
        scale = 1.0 / np.maximum(np.sqrt(self.variance), LEAST_STD)
        return self.mean.astype(np.float32), scale.astype(np.float32)

    def merge(self, count: int, mean: NDArray[np.float64], variance: NDArray[np.float64]) -> None:
        """Add ``count`` observations of known mean and variance, [D] each."""
        merged = merge_moments(self.count, self.mean, self.variance, count, mean, variance)
        self.count, self.mean, self.variance = int(merged[0]), merged[1], merged[2]

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {"count": self.count, "mean": self.mean.tolist(), "variance": self.variance.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.count = int(state["count"])
        self.mean, self.variance = (np.array(state[name], np.float64) for name in ("mean", "variance"))
