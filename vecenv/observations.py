"""Observations that do not lie in arrays of the block: batched as Gymnasium batches them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array


def batched_space(mode: Any, spaces: Sequence[gym.Space[Any]]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Single and batched observation space.

    Args:
        mode: observation mode, already checked.
        spaces: one per env.
    """
    if isinstance(mode, tuple):
        return mode[1], mode[0]
    if mode == "different":
        return spaces[0], batch_differing_spaces(list(spaces))
    return spaces[0], batch_space(spaces[0], len(spaces))


def batch_observations(space: gym.Space[Any], observations: Sequence[Any]) -> Any:
    """A batch out of one observation per env, the caller's own.

    Args:
        space: single observation space, of any kind.
        observations: one per env.
    """
    empty: Any = create_empty_array(space, n=len(observations), fn=np.zeros)
    return copy.deepcopy(concatenate(space, observations, empty))
