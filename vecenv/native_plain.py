"""Steps of an engine in which nothing ended: their results, with as few operations as there can be.

While the threads of an engine play, the core's caches forget Python: what runs between two steps costs several times
what it costs in a loop of its own, by the number of different things that it touches. So the ordinary step has a way of
its own, where every operation is needed by its results, and what can be made ahead is made while the engine plays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from vecenv.batch import BatchArrays
from vecenv.infos import Infos

Array = npt.NDArray[Any]


class PlainSteps:
    """Actions and results of steps of a whole batch in which no episode ends and no env is only reset.

    Args:
        arrays: of the batch; returns and lengths are counted here, the other columns stay as they are.
        action_space: of one env.
        clips_rewards: whether rewards are returned as their signs.

    Attributes:
        is_ready: whether it was told of infos that it can serve.
    """

    def __init__(self, arrays: BatchArrays, action_space: Space[Any], clips_rewards: bool) -> None:
        self.is_ready = False
        self._returns, self._lengths = arrays.returns, arrays.lengths
        self._one_step = np.ones_like(self._lengths)  # adding an array is twice as fast as adding a number
        self._raw_rewards = np.zeros_like(arrays.rewards)
        self._clips_rewards = clips_rewards
        # Place among what the engine gives, key, name of the mask, and dtype to convert to, of every info.
        self._columns: list[tuple[Any, str, str, Any]] = []
        self._flags = np.zeros((2, len(arrays.rewards)), np.bool_)
        self._prepared: list[Array] = []
        self._actions: Array | None = None
        if type(action_space) is spaces.Discrete and action_space.start == 0 and arrays.actions.dtype == np.int64:
            self._actions = np.zeros_like(arrays.actions)
            self._unsigned = self._actions.view(np.uint64)  # what lies below 0 is huge
            self._counts = np.full_like(self._unsigned, action_space.n)
            self._are_wrong = np.zeros_like(self._flags[0])

    def learn(self, infos: Mapping[str, Any], places: Mapping[str, Any]) -> None:
        """Take notice of the infos of an engine, which are the same at every step.

        Args:
            infos: arrays with one row per env; with nests of them it does not get ready.
            places: key -> index of the array in what `result` is given.
        """
        self.is_ready = all(isinstance(values, np.ndarray) for values in infos.values())
        if self.is_ready:
            self._columns = [
                (places[key], key, f"_{key}", np.int64 if values.dtype == np.int32 else None)
                for key, values in infos.items()
            ]
            masks = np.ones((len(infos), self._flags.shape[1]), np.bool_)
            self._flags = np.concatenate([self._flags[:2], masks])

    def checked_actions(self, actions: Any) -> Array | None:
        """The everyday case at once: a right batch for a Discrete space, copied; None: not that, or something is wrong.

        Args:
            actions: what the user gave.
        """
        own = self._actions
        if own is None or type(actions) is not np.ndarray or actions.dtype != own.dtype or actions.shape != own.shape:
            return None
        own[...] = actions
        np.greater_equal(self._unsigned, self._counts, self._are_wrong)
        return None if np.count_nonzero(self._are_wrong) else own

    def prepare(self) -> None:
        """Make flags and masks of the next result."""
        self._prepared = list(self._flags.copy())

    def result(self, rewards: Array, columns: Any) -> tuple[Array, Array, Array, Infos]:
        """Count a step and give rewards, terminations, truncations and infos, all of them the caller's own.

        Args:
            rewards: `[num_envs]`, unclipped.
            columns: what the engine gave, infos where `learn` was told.
        """
        raw = self._raw_rewards
        raw[...] = rewards
        np.add(self._returns, raw, self._returns)
        np.add(self._lengths, self._one_step, self._lengths)
        terminations, truncations, *masks = self._prepared
        infos: Infos = {}
        for (place, key, name, dtype), mask in zip(self._columns, masks, strict=True):
            values = columns[place]
            infos[key] = values if dtype is None else values.astype(dtype)
            infos[name] = mask
        return np.sign(raw) if self._clips_rewards else raw.copy(), terminations, truncations, infos
