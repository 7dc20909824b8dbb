"""What storing a rollout costs where environments do not write it: every batch copied into an array of its own."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vecenv import VecEnv


class CopiedStorage:
    """A vector env that returns copies, with a rollout's storage beside it that each returned batch is copied into.

    To a collector it looks like an env whose slots are the storage; everything else is the env's own. Results are the
    same bits as with storage that the env fills in place.

    Args:
        envs: made with ``copy=True``; closed by `close`.
        num_steps: rows of a rollout (T); the storage has one more.

    Attributes:
        observation_slots: the storage, [T + 1, N, ...].
        slot: index of the observations returned last.
    """

    def __init__(self, envs: VecEnv, num_steps: int) -> None:
        self._envs = envs
        ring = envs.observation_slots
        self.observation_slots: NDArray[Any] = np.zeros((num_steps + 1, *ring.shape[1:]), ring.dtype)
        self.slot = 0

    def reset(self, **keywords: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        """As of the env."""
        observations, infos = self._envs.reset(**keywords)
        self._store(observations)
        return observations, infos

    def step(self, actions: NDArray[Any]) -> Any:
        """As of the env."""
        result = self._envs.step(actions)
        self._store(result[0])
        return result

    def _store(self, observations: NDArray[Any]) -> None:
        self.slot = (self.slot + 1) % len(self.observation_slots)
        self.observation_slots[self.slot] = observations

    def __getattr__(self, name: str) -> Any:
        """What is not about storage."""
        return getattr(self._envs, name)


def with_copied_storage(envs: VecEnv, num_steps: int) -> VecEnv:
    """`CopiedStorage` as what it stands in for."""
    return cast(VecEnv, CopiedStorage(envs, num_steps))
