"""The arithmetic of evolution strategies: keyed noise, fitness shaping, the gradient estimate.

Whoever knows seed, generation and pair can draw the same noise again, so perturbed weights never travel: a worker draws
them, plays, and names the pair. A counter-based generator makes the key the stream itself. Generators that are seeded
with numbers drawn from one another can run into short cycles; a key can not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_NOISE, _ENVIRONMENTS = 0, 1
"""Streams of one pair; each has 2**128 numbers before it would reach the next one."""
_SEED_RANGE = 2**31 - 1
"""Seeds of environments: every back end takes a 32-bit signed whole number."""


def draw_noise(seed: int, generation: int, pair: int, size: int) -> NDArray[np.float32]:
    """Standard normal noise of one antithetic pair, [size] float32: the first member adds it, the second subtracts it.

    Args:
        seed: of the run, 0 to 2**64 - 1.
        generation: number of updates before this one.
        pair: index of the pair in its generation.
        size: number of parameters.
    """
    return _stream(seed, generation, pair, _NOISE).standard_normal(size, dtype=np.float32)


def draw_env_seeds(seed: int, generation: int, pair: int) -> tuple[int, int]:
    """Two seeds for the environments of one pair.

    Both members of an antithetic pair play with the first one: the difference of their returns then comes from their
    weights. Members that share their weights take one each.
    """
    first, second = _stream(seed, generation, pair, _ENVIRONMENTS).integers(0, _SEED_RANGE, 2)
    return int(first), int(second)


def _stream(seed: int, generation: int, pair: int, purpose: int) -> np.random.Generator:
    key = np.array([seed, generation], np.uint64)
    counter = np.array([0, 0, pair, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def centered_ranks(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks of ``returns`` [M] scaled to -0.5 ... 0.5; equal returns share the mean of their ranks.

    Sharing makes a flat fitness give no direction at all, where an arbitrary order of ties would give a random one.
    """
    if len(returns) < 2:
        return np.zeros(len(returns))
    _, place, counts = np.unique(returns, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts) - 1
    ranks: NDArray[np.float64] = (last_ranks - (counts - 1) / 2)[place.reshape(-1)]
    return ranks / (len(returns) - 1) - 0.5


def normalised_fitness(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """``returns`` [M] with mean 0 and standard deviation 1; all 0 where they are all equal."""
    deviation = returns.std()
    if deviation == 0.0:
        return np.zeros(len(returns))
    return np.asarray((returns - returns.mean()) / deviation)


FITNESS_SHAPING: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "centered-ranks": centered_ranks,
    "normalised": normalised_fitness,
}
"""Name -> function from the returns of all members [M] to their weights [M] in the gradient estimate."""


def estimate_gradient(
    seed: int,
    generation: int,
    weights: Sequence[float] | NDArray[np.float64],
    noise_std: float,
    size: int,
    pairs: Sequence[int] | None = None,
) -> NDArray[np.float64]:
    """Direction in which the shaped fitness rises, [size] float64.

    The mean over all members of weight times noise, divided by the noise's standard deviation (Salimans et al., 2017);
    members of a pair have opposite noise, so a pair counts with the difference of its weights. Always summed in the
    order of the pairs, so that the result does not depend on who played which of them.

    Args:
        seed: of the run.
        generation: as the noise was drawn.
        weights: shaped fitness of all members [2 * pairs]; of each pair first the member that added its noise, then
            the one that subtracted it.
        noise_std: standard deviation of the noise in the parameters.
        size: number of parameters.
        pairs: indices of the pairs in their generation, in the order of ``weights``; None: 0, 1, 2, ...
    """
    shaped = np.asarray(weights, np.float64)
    differences = shaped[0::2] - shaped[1::2]
    gradient = np.zeros(size)
    for pair, difference in zip(range(len(differences)) if pairs is None else pairs, differences, strict=True):
        if difference != 0.0:
            gradient += difference * draw_noise(seed, generation, pair, size)
    gradient /= len(shaped) * noise_std
    return gradient
