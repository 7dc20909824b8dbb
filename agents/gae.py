"""Generalised advantage estimation as a pure, compiled function.

Two masks decide everything, and they are not the same:

* the value of the next observation counts unless the episode **terminated** (``~terminated``): a time limit or any
  other truncation cuts the episode short, but its last state still has a future;
* the recursion over time goes on unless the episode ended in **either** way (``~(terminated | truncated)``).

When both flags are set on one step, terminated wins.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


def compute_gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    next_values: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns (value targets) of a rollout.

    Args:
        rewards: [T, N] float32, reward of the step taken from row t.
        values: [T, N] float32, value of the observation that row t acted on.
        next_values: [T, N] float32, value of the **true** next observation of row t: the last observation of the
            episode where it ended, never the first one of the next episode.
        terminated: [T, N] bool, the step of row t ended the episode for good.
        truncated: [T, N] bool, the step of row t was cut off (a time limit).
        valid: [T, N] bool, False on filler rows (the reset row that next-step autoreset puts after an end), whose
            action was never executed. They get advantage 0 and their own value as return.
        gamma: discount per step.
        gae_lambda: 0 gives one-step temporal differences, 1 gives discounted sums of rewards.

    Returns:
        ``(advantages, returns)``, both [T, N] float32 and owned by the caller; ``returns = advantages + values``.

    Raises:
        ValueError: when the arrays do not all have the same [T, N] shape.
    """
    shape = rewards.shape
    named = {
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }
    for name, array in named.items():
        if array.shape != shape or len(shape) != 2:
            raise ValueError(f"{name} has shape {array.shape}; rewards has {shape}, and all must be the same [T, N]")
    advantages = np.empty(shape, np.float32)
    _scan_backwards(rewards, values, next_values, terminated, truncated, valid, gamma, gae_lambda, advantages)
    return advantages, advantages + values


@njit(cache=True, nogil=True)
def _scan_backwards(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    next_values: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
    advantages: NDArray[np.float32],
) -> None:
    num_steps, num_envs = rewards.shape
    for env in range(num_envs):
        trace = 0.0
        for t in range(num_steps - 1, -1, -1):
            if not valid[t, env]:
                # A filler row stands between two episodes: nothing is traced across it.
                trace = 0.0
                advantages[t, env] = 0.0
                continue
            bootstrap = 0.0 if terminated[t, env] else next_values[t, env]
            delta = rewards[t, env] + gamma * bootstrap - values[t, env]
            if terminated[t, env] or truncated[t, env]:
                trace = delta
            else:
                trace = delta + gamma * gae_lambda * trace
            advantages[t, env] = trace
