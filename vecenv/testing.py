"""Toy environments and comparisons for testing vector envs; importable in workers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

__all__ = ["CountEnv", "assert_same"]


class CountEnv(gym.Env[npt.NDArray[np.float32], np.int64]):
    """Every observation says where it came from: `[uid, episode, step] float32`; the reward is the step.

    Args:
        uid: first component of the observations.
        length: steps of an episode.
        truncates: whether episodes end by truncation instead of termination.
        reuses: whether the same observation array and info dict are returned by every call.
        fails_at: step at which `step` raises ValueError; None: never.
        dies_at: step at which the process kills itself with SIGKILL; None: never.
        seconds: time that a step sleeps.
    """

    def __init__(
        self,
        uid: int = 0,
        length: int = 5,
        truncates: bool = False,
        reuses: bool = False,
        fails_at: int | None = None,
        dies_at: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.uid, self.length, self.truncates, self.reuses = uid, length, truncates, reuses
        self.fails_at, self.dies_at, self.seconds = fails_at, dies_at, seconds
        self.episode, self.time = -1, 0
        self._buffer, self._info = np.zeros(3, np.float32), {}  # type: ignore[var-annotated]

    def _observation(self) -> npt.NDArray[np.float32]:
        values = (self.uid, self.episode, self.time)
        if self.reuses:
            self._buffer[:] = values
            return self._buffer
        return np.array(values, np.float32)

    def _infos(self, **items: Any) -> dict[str, Any]:
        if self.reuses:
            self._info.update(items)
            return self._info
        return items

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; the info holds `time` and the options as text."""
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return self._observation(), self._infos(time=0, options=str(options))

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Count one step; the info holds `time`."""
        if self.seconds:
            time.sleep(self.seconds)
        self.time += 1
        if self.time == self.fails_at:
            raise ValueError(f"boom from env {self.uid}")
        if self.time == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        end = self.time >= self.length
        ended = (end and not self.truncates, end and self.truncates)
        return self._observation(), float(self.time), *ended, self._infos(time=self.time)


def assert_same(one: Any, two: Any, where: str = "value") -> None:
    """Compare nests of dicts, tuples, lists and arrays: structure, types, dtypes, shapes and every value.

    Raises:
        AssertionError: saying where they differ.
    """
    if type(one) is not type(two):
        raise AssertionError(f"{where}: types differ: {type(one).__name__} and {type(two).__name__}")
    if isinstance(one, dict):
        if one.keys() != two.keys():
            raise AssertionError(f"{where}: keys differ: {sorted(one)} and {sorted(two)}")
        for key in one:
            assert_same(one[key], two[key], f"{where}[{key!r}]")
    elif isinstance(one, (tuple, list)):
        if len(one) != len(two):
            raise AssertionError(f"{where}: lengths differ: {len(one)} and {len(two)}")
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(one, np.ndarray):
        if one.dtype != two.dtype or one.shape != two.shape:
            raise AssertionError(f"{where}: {one.dtype}{one.shape} and {two.dtype}{two.shape}")
        if one.dtype == object:
            assert_same(one.tolist(), two.tolist(), where)
        elif not np.array_equal(one, two, equal_nan=one.dtype.kind in "fc"):
            raise AssertionError(f"{where}: values differ:\n{one}\n{two}")
    elif one != two and not (one != one and two != two):
        raise AssertionError(f"{where}: {one!r} and {two!r}")
