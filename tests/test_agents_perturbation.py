"""The arithmetic of evolution strategies: keyed noise, ranks, the gradient estimate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vecenv.agents.perturbation import (
    FITNESS_SHAPING,
    centered_ranks,
    draw_env_seeds,
    draw_noise,
    estimate_gradient,
    normalised_fitness,
)


def test_centered_ranks_of_the_usual_example() -> None:
    assert centered_ranks(np.array([21.0, 5.8, 7.0])).tolist() == [0.5, -0.5, 0.0]


def test_ties_share_the_mean_of_their_ranks() -> None:
    assert centered_ranks(np.array([1.0, 3.0, 3.0, 3.0, 9.0])).tolist() == [-0.5, 0.0, 0.0, 0.0, 0.5]
    assert centered_ranks(np.array([2.0, 2.0, 1.0, 1.0])).tolist() == pytest.approx([1 / 3, 1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("shaping", FITNESS_SHAPING.values())
@pytest.mark.parametrize("returns", [[7.0] * 6, [0.0, 0.0], [-3.5]])
def test_flat_fitness_has_no_weights(shaping: object, returns: list[float]) -> None:
    assert callable(shaping)
    assert shaping(np.array(returns)).tolist() == [0.0] * len(returns)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30), st.integers(-1000, 1000))
def test_ranks_do_not_see_a_constant_and_sum_to_zero(returns: list[int], constant: int) -> None:
    ranks = centered_ranks(np.array(returns, np.float64))
    assert np.array_equal(ranks, centered_ranks(np.array(returns, np.float64) + constant))
    assert ranks.sum() == pytest.approx(0.0, abs=1e-9)
    # A definition by counting, in place of sorting: how many are below, and half of those that are equal.
    below = [sum(other < one for other in returns) + (returns.count(one) - 1) / 2 for one in returns]
    assert ranks == pytest.approx(np.array(below) / (len(returns) - 1) - 0.5)


def test_normalised_fitness_has_mean_zero_and_deviation_one() -> None:
    assert normalised_fitness(np.array([1.0, 3.0])).tolist() == [-1.0, 1.0]
    weights = normalised_fitness(np.array([1.0, 2.0, 6.0, 3.0]))
    assert weights.mean() == pytest.approx(0.0)
    assert weights.std() == pytest.approx(1.0)


def test_noise_depends_on_every_part_of_its_key_and_on_nothing_else() -> None:
    keys = [(seed, generation, pair) for seed in (0, 1, 2**64 - 1) for generation in (0, 1, 7) for pair in (0, 1, 9)]
    drawn = {key: draw_noise(*key, 1000) for key in keys}
    for key in reversed(keys):
        assert np.array_equal(draw_noise(*key, 1000), drawn[key])
    assert len({noise.tobytes() for noise in drawn.values()}) == len(keys)
    together = np.stack(list(drawn.values()))
    assert abs(np.corrcoef(together) - np.eye(len(keys))).max() < 0.2
    assert together.dtype == np.float32
    assert abs(together.mean()) < 0.02
    assert abs(together.std() - 1) < 0.02


def test_noise_never_repeats() -> None:
    starts = {draw_noise(0, generation, pair, 2).tobytes() for generation in range(300) for pair in range(10)}
    assert len(starts) == 3000


def test_env_seeds_differ_and_are_no_part_of_the_noise() -> None:
    seeds = {seed for generation in range(30) for pair in range(10) for seed in draw_env_seeds(5, generation, pair)}
    assert len(seeds) == 600
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert draw_env_seeds(5, 1, 2) == draw_env_seeds(5, 1, 2)


def test_the_gradient_is_the_mean_over_members_of_weight_times_noise() -> None:
    weights, noise_std, size = np.array([0.5, -0.2, 0.0, 0.0, 0.3, 0.1]), 0.1, 40
    expected = np.zeros(size)
    for member, weight in enumerate(weights):
        sign = -1.0 if member % 2 else 1.0
        expected += weight * sign * draw_noise(4, 2, member // 2, size)
    expected /= len(weights) * noise_std
    assert estimate_gradient(4, 2, weights, noise_std, size) == pytest.approx(expected, rel=1e-6)


def test_the_gradient_points_uphill() -> None:
    target, noise_std, num_pairs = np.linspace(-1.0, 1.0, 20), 0.01, 4000

    def fitness(point: np.ndarray) -> float:
        return -float(((point - target) ** 2).sum())

    noises = [noise_std * draw_noise(0, 0, pair, 20) for pair in range(num_pairs)]
    returns = np.array([fitness(sign * noise) for noise in noises for sign in (1, -1)])
    # Left as they are, returns give the gradient itself, here -2 (0 - target).
    assert estimate_gradient(0, 0, returns, noise_std, 20) == pytest.approx(2 * target, abs=0.4)
    ranked = estimate_gradient(0, 0, centered_ranks(returns), noise_std, 20)
    assert np.corrcoef(ranked, target)[0, 1] > 0.95
