"""The arrays of one batch: what every back end fills and hands out, planned once for private and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space

from vecenv.buffers import Block, Layout
from vecenv.spaces import allocate_batch

Array = npt.NDArray[Any]

_ROW_FIELDS: dict[str, Any] = {
    "rewards": np.float64,
    "terminations": np.bool_,
    "truncations": np.bool_,
    "final_mask": np.bool_,
    "episode_ended": np.bool_,
    "returns": np.float64,
    "lengths": np.int64,
    "started": np.float64,
    "episode_counts": np.int64,
    "last_returns": np.float64,
    "last_lengths": np.int64,
    "last_seconds": np.float64,
}


@dataclass
class BatchArrays:
    """Views of a block, first axis rows (envs) unless said otherwise.

    Attributes:
        observations: nest of `[slots, rows, ...]`, the ring of observation batches.
        final_observations: nest of `[rows, ...]`: last observation of an episode under SAME_STEP.
        actions: nest of `[rows, ...]`.
        rewards: float64.
        terminations: bool.
        truncations: bool.
        final_mask: bool, rows of `final_observations` written in this step.
        episode_ended: bool, rows whose episode (whole game) ended in this step.
        returns: float64, running sum of unclipped rewards.
        lengths: int64, steps of the running episode.
        started: float64, monotonic clock in seconds at its start.
        episode_counts: int64, episodes ended.
        last_returns: float64, of the last ended episode.
        last_lengths: int64, likewise.
        last_seconds: float64, likewise.
    """

    observations: Any
    final_observations: Any
    actions: Any
    rewards: Array
    terminations: Array
    truncations: Array
    final_mask: Array
    episode_ended: Array
    returns: Array
    lengths: Array
    started: Array
    episode_counts: Array
    last_returns: Array
    last_lengths: Array
    last_seconds: Array


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype that carries actions: float spaces travel as float64, so that wider actions reach the env unrounded."""
    return np.dtype(np.float64) if dtype.kind == "f" else dtype


def plan_batch(
    layout: Layout,
    observation_space: Space[Any] | None,
    action_space: Space[Any] | None,
    num_envs: int,
    slots: int,
) -> None:
    """Plan the arrays of a batch in a layout.

    Args:
        layout: grows by the arrays.
        observation_space: single observation space with a fixed layout; None: observations lie elsewhere.
        action_space: single action space with a fixed layout; None: actions lie elsewhere.
        num_envs: number of rows.
        slots: length of the ring of observation batches.
    """

    def plan(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        layout.add(name, shape, dtype)
        return None

    if observation_space is not None:
        allocate_batch(observation_space, lambda n, s, d: plan(f"observations{n}", (slots, num_envs, *s), d))
        allocate_batch(observation_space, lambda n, s, d: plan(f"final{n}", (num_envs, *s), d))
    if action_space is not None:
        allocate_batch(action_space, lambda n, s, d: plan(f"actions{n}", (num_envs, *s), wide_dtype(d)))
    for name, dtype in _ROW_FIELDS.items():
        layout.add(name, (num_envs,), dtype)


def batch_arrays(block: Block, observation_space: Space[Any] | None, action_space: Space[Any] | None) -> BatchArrays:
    """The planned arrays as views of a block; parts that lie elsewhere are empty tuples."""
    observations, final, actions = (), (), ()
    if observation_space is not None:
        observations = allocate_batch(observation_space, lambda n, s, d: block[f"observations{n}"])
        final = allocate_batch(observation_space, lambda n, s, d: block[f"final{n}"])
    if action_space is not None:
        actions = allocate_batch(action_space, lambda n, s, d: block[f"actions{n}"])
    return BatchArrays(
        observations=observations,
        final_observations=final,
        actions=actions,
        **{name: block[name] for name in _ROW_FIELDS},
    )
