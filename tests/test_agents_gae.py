"""Closed forms of advantage estimation: what counts after an end, and what is traced across it."""

from __future__ import annotations

import numpy as np
import pytest

from vecenv.agents.gae import compute_gae

GAMMA, LAMBDA = 0.5, 0.5
REWARDS = [1.0, 2.0, 4.0]
VALUES = [10.0, 20.0, 30.0]
LAST_VALUE = 40.0
# One-step differences where the next value counts: r + gamma * V(next) - V.
DELTAS = [1.0 + 0.5 * 20.0 - 10.0, 2.0 + 0.5 * 30.0 - 20.0, 4.0 + 0.5 * 40.0 - 30.0]  # 1, -3, -6


def gae(terminated=(), truncated=(), filler=(), next_values=(), num_envs=1):
    """GAE of the three-step sequence; the arguments name rows, ``next_values`` pairs of (row, true next value)."""
    rewards = np.repeat(np.array(REWARDS, np.float32)[:, None], num_envs, axis=1)
    values = np.repeat(np.array(VALUES, np.float32)[:, None], num_envs, axis=1)
    following = np.repeat(np.array([*VALUES[1:], LAST_VALUE], np.float32)[:, None], num_envs, axis=1)
    flags = [np.zeros((3, num_envs), bool) for _ in range(2)]
    for flag, rows in zip(flags, (terminated, truncated), strict=True):
        flag[list(rows), 0] = True
    valid = np.ones((3, num_envs), bool)
    valid[list(filler), 0] = False
    for row, value in next_values:
        following[row, 0] = value
    advantages, returns = compute_gae(rewards, values, following, *flags, valid, GAMMA, LAMBDA)
    np.testing.assert_array_equal(returns, advantages + values)
    return advantages


def test_no_end_traces_over_all_rows():
    second = DELTAS[1] + 0.25 * DELTAS[2]
    np.testing.assert_allclose(gae()[:, 0], [DELTAS[0] + 0.25 * second, second, DELTAS[2]])


def test_terminated_stops_bootstrap_and_trace():
    ended = 2.0 - 20.0  # no next value
    np.testing.assert_allclose(gae(terminated=[1])[:, 0], [DELTAS[0] + 0.25 * ended, ended, DELTAS[2]])


def test_truncated_keeps_bootstrap_and_stops_trace():
    np.testing.assert_allclose(gae(truncated=[1])[:, 0], [DELTAS[0] + 0.25 * DELTAS[1], DELTAS[1], DELTAS[2]])


def test_truncated_bootstraps_from_the_true_final_observation():
    cut = 2.0 + 0.5 * 100.0 - 20.0
    advantages = gae(truncated=[1], next_values=[(1, 100.0)])
    np.testing.assert_allclose(advantages[:, 0], [DELTAS[0] + 0.25 * cut, cut, DELTAS[2]])


def test_terminated_wins_over_truncated():
    np.testing.assert_array_equal(gae(terminated=[1], truncated=[1]), gae(terminated=[1]))


def test_truncated_at_the_last_row_bootstraps_from_the_observation_after_it():
    np.testing.assert_array_equal(gae(truncated=[2]), gae())
    terminated_last = gae(terminated=[2])
    assert terminated_last[2, 0] == pytest.approx(4.0 - 30.0)


def test_an_end_in_one_env_leaves_the_other_alone():
    advantages = gae(terminated=[1], num_envs=2)
    np.testing.assert_array_equal(advantages[:, 0], gae(terminated=[1])[:, 0])
    np.testing.assert_array_equal(advantages[:, 1], gae()[:, 0])


def test_filler_row_has_no_advantage_and_nothing_crosses_it():
    advantages = gae(truncated=[0], filler=[1])
    np.testing.assert_allclose(advantages[:, 0], [DELTAS[0], 0.0, DELTAS[2]])


def test_lambda_one_gives_discounted_sums():
    ones, no = np.ones((4, 1), np.float32), np.zeros((4, 1), bool)
    last = no.copy()
    last[-1] = True
    _, returns = compute_gae(ones, 7 * ones, 7 * ones, last, no, ~no, 0.5, 1.0)
    np.testing.assert_allclose(returns[:, 0], [1.875, 1.75, 1.5, 1.0])


def test_different_shapes_are_refused_by_name():
    good, flags = np.zeros((3, 2), np.float32), np.zeros((3, 2), bool)
    with pytest.raises(ValueError, match=r"next_values has shape \(4, 2\)"):
        compute_gae(good, good, np.zeros((4, 2), np.float32), flags, flags, flags, 0.9, 0.9)
