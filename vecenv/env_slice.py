"""A contiguous slice of envs, as a vector env or one of its workers runs it.

The `sync` back end runs one slice over all envs in the caller's process; a worker of the `subproc` back end runs one
over its share.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from vecenv.env_failures import ENV_EXCEPTIONS, SliceFailed, env_failure
from vecenv.env_state import dump_env, load_env
from vecenv.errors import EnvFailure
from vecenv.slice_stepper import SliceStepper
from vecenv.spaces import copy_arrays, map_arrays

#: What is counted for an env and goes with its state.
_KEPT_FIELDS = (
    "returns",
    "lengths",
    "started",
    "episode_counts",
    "last_returns",
    "last_lengths",
    "last_seconds",
    "terminations",
    "truncations",
)


def build_envs(env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], first_index: int) -> list[gym.Env[Any, Any]]:
    """Call the constructors in order; where one raises, close what was built.

    Args:
        env_fns: constructors.
        first_index: index of the first env in the vector env, for messages.

    Raises:
        SliceFailed: a constructor raised.
    """
    envs: list[gym.Env[Any, Any]] = []
    for index, env_fn in enumerate(env_fns, first_index):
        try:
            envs.append(env_fn())
        except ENV_EXCEPTIONS as exception:
            failure = env_failure(index, exception)
            for env in envs:
                with contextlib.suppress(*ENV_EXCEPTIONS):
                    env.close()
            raise SliceFailed([failure]) from exception
    return envs


class EnvSlice(SliceStepper):
    """What can be asked of the envs of a slice besides `reset` and `step`."""

    def call(self, name: str, row: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Read an attribute of an env through its wrappers; where it is callable, the result of the call.

        Raises:
            SliceFailed: the env raised, or has no such attribute.
        """
        try:
            value = self.envs[row].get_wrapper_attr(name)
            return value(*arguments, **keywords) if callable(value) else value
        except ENV_EXCEPTIONS as exception:
            raise SliceFailed([env_failure(self.first_index + row, exception)]) from exception

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute where it lives: in the wrapper or env that has it.

        Raises:
            SliceFailed: some envs raised.
        """
        failures = []
        for row, (env, value) in enumerate(zip(self.envs, values, strict=True)):
            try:
                env.set_wrapper_attr(name, value)
            except ENV_EXCEPTIONS as exception:
                failures.append(env_failure(self.first_index + row, exception))
        if failures:
            raise SliceFailed(failures)

    def get_state(self, row: int, slot: int) -> bytes:
        """All that an env and its row need to continue bit-equally.

        Raises:
            SliceFailed: the env's state cannot be saved.
        """
        arrays = self.arrays
        if self.objects is not None:
            observation = self.objects[row]
        else:
            observation = map_arrays(self._slots[slot], lambda array: np.array(array[row]))
        counted = {name: getattr(arrays, name)[row].item() for name in _KEPT_FIELDS}
        counted["started"] -= time.monotonic()
        try:
            return dump_env(self.envs[row], (self._pending[row], observation, counted))
        except ENV_EXCEPTIONS as exception:
            raise SliceFailed([env_failure(self.first_index + row, exception)]) from exception

    def set_state(self, row: int, slot: int, data: bytes) -> None:
        """Take up where `get_state` was called; the env that was there is closed.

        Raises:
            SliceFailed: the bytes cannot be read; the env that was there stays.
        """
        arrays = self.arrays
        try:
            env, (pending, observation, counted) = load_env(data)
            self.envs[row].close()
        except ENV_EXCEPTIONS as exception:
            raise SliceFailed([env_failure(self.first_index + row, exception)]) from exception
        self.envs[row] = env
        self._pending[row] = pending
        self._restart_seeds[row] = None
        self._look_at(row)
        if self.objects is not None:
            self.objects[row] = observation
        else:
            copy_arrays(map_arrays(self._slots[slot], lambda array: array[row : row + 1]), observation)
        counted["started"] += time.monotonic()
        for name, value in counted.items():
            getattr(arrays, name)[row] = value

    def close(self) -> list[EnvFailure]:
        """Close every env; one that raises does not keep the others open.

        Returns:
            What was raised.
        """
        failures = []
        for row, env in enumerate(self.envs):
            try:
                env.close()
            except ENV_EXCEPTIONS as exception:
                failures.append(env_failure(self.first_index + row, exception))
        return failures
