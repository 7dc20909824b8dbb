"""Observations that do not lie in arrays of the block: batched as Gymnasium batches them."""

from __future__ import annotations

import copy
import operator
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


class ObjectBatches:
    """Batches of the newest observations, made when they are asked for.

    Args:
        space: single observation space, of any kind.
        copy: whether each batch is the caller's own. False: the same one until there are newer observations.
    """

    def __init__(self, space: gym.Space[Any], copy: bool) -> None:
        self._space = space
        self._copy = copy
        self._made_of: list[Any] = []
        self._batch: Any = None

    def renew(self) -> None:
        """Make the next batch anew."""
        self._made_of = []

    def batch(self, observations: list[Any]) -> Any:
        """The batch of one observation per env."""
        if self._copy:
            return batch_observations(self._space, observations)
        if len(self._made_of) != len(observations) or any(map(operator.is_not, self._made_of, observations)):
            self._made_of, self._batch = observations, batch_observations(self._space, observations)
        return self._batch


def batch_observations(space: gym.Space[Any], observations: Sequence[Any]) -> Any:
    """A batch out of one observation per env, the caller's own.

    Args:
        space: single observation space, of any kind.
        observations: one per env.
    """
    empty: Any = create_empty_array(space, n=len(observations), fn=np.zeros)
    return copy.deepcopy(concatenate(space, observations, empty))
