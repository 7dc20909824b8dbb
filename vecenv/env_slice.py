"""Runs a contiguous slice of envs into the rows of a batch: the one place where sub-envs are reset and stepped.

The `sync` back end runs one slice over all envs in the caller's process; a worker of the `subproc` back end runs one
over its share.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from vecenv.batch import BatchArrays
from vecenv.errors import EnvFailure
from vecenv.spaces import copy_arrays, map_arrays, write_array, write_value

#: What an env may raise that is reported as its failure. KeyboardInterrupt is the user's and passes through.
ENV_EXCEPTIONS = (Exception, SystemExit)


class InfoSink(Protocol):
    """Takes the infos of envs as they come."""

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info; numbers and arrays are copied before this returns or before the env runs again."""


class SliceFailed(Exception):
    """Some envs of the slice raised; the others finished the call.

    Args:
        failures: one per failing env.
    """

    def __init__(self, failures: list[EnvFailure]) -> None:
        super().__init__(f"{len(failures)} environments failed")
        self.failures = failures


def env_failure(env_index: int, exception: BaseException) -> EnvFailure:
    """Describe an exception that an env raised, from inside the handler that caught it."""
    try:
        message = str(exception)
    except Exception as error:  # __str__ is the user's code too
        message = f"<its message cannot be printed: {error!r}>"
    name = type(exception).__name__
    text = "".join(traceback.format_exception(exception))
    kept = exception if isinstance(exception, Exception) else None
    return EnvFailure(env_index, os.getpid(), kept, name, message, text)


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


class EnvSlice:
    """Envs and the rows of the batch that they fill.

    Args:
        envs: the environments, already built.
        first_index: index of the first one in the vector env, for messages.
        autoreset_mode: what happens when an episode ends.
    """

    def __init__(self, envs: list[gym.Env[Any, Any]], first_index: int, autoreset_mode: AutoresetMode) -> None:
        self.envs = envs
        self.first_index = first_index
        self.autoreset_mode = autoreset_mode
        self.observation_space = envs[0].observation_space
        self._pending = [False] * len(envs)
        self._writes_in_place = [hasattr(env, "step_into") for env in envs]
        self._counts_games = [_counts_games(env) for env in envs]
        self._reports_raw_rewards = any(self._counts_games)
        self._plain = isinstance(
            self.observation_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        )

    def attach(self, arrays: BatchArrays, observation_space: gym.Space[Any], slots: int, infos: InfoSink) -> None:
        """Set where results go.

        Args:
            arrays: views of exactly this slice's rows.
            observation_space: single observation space that the rows were planned for.
            slots: length of the observation ring.
            infos: takes the infos.
        """
        self.arrays = arrays
        self.observation_space = observation_space
        self._infos = infos
        self._slots = [map_arrays(arrays.observations, lambda array, s=slot: array[s]) for slot in range(slots)]  # type: ignore[misc]
        arrays.started.fill(time.monotonic())
        arrays.last_returns.fill(np.nan)
        arrays.last_seconds.fill(np.nan)

    def reset(
        self,
        slot: int,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        selected: Sequence[bool] | None = None,
    ) -> None:
        """Begin new episodes.

        Args:
            slot: slot of the ring that takes the observations.
            seeds: one per row.
            options: passed to every env.
            selected: rows to reset; the others keep their observation, flags and statistics. None: all.

        Raises:
            SliceFailed: some envs raised.
        """
        arrays, failures = self.arrays, []
        if selected is not None:
            copy_arrays(self._slots[slot], self._slots[slot - 1])
        for row, seed in enumerate(seeds):
            if selected is not None and not selected[row]:
                continue
            try:
                self._reset_row(row, slot, seed=seed, options=options)
            except ENV_EXCEPTIONS as exception:
                failures.append(env_failure(self.first_index + row, exception))
            self._pending[row] = False
            arrays.rewards[row] = 0.0
            arrays.terminations[row] = arrays.truncations[row] = False
            arrays.returns[row], arrays.lengths[row], arrays.started[row] = 0.0, 0, time.monotonic()
        arrays.episode_ended.fill(False)
        arrays.final_mask.fill(False)
        if failures:
            raise SliceFailed(failures)

    def step(self, slot: int, actions: Sequence[Any]) -> None:
        """Step every env once.

        Args:
            slot: slot of the ring that takes the observations.
            actions: one per row, the caller's to give away.

        Raises:
            SliceFailed: some envs raised; their rows hold nothing of use.
        """
        count = len(self.envs)
        rewards: list[Any] = [0.0] * count
        raw_rewards = rewards if not self._reports_raw_rewards else [0.0] * count
        terminations, truncations = [False] * count, [False] * count
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        arrays, pending = self.arrays, self._pending
        out = self._slots[slot]
        resets: list[int] = []
        ended: list[int] = []
        failures: list[EnvFailure] = []
        arrays.final_mask.fill(False)
        for row, env in enumerate(self.envs):
            try:
                if pending[row] and next_step:
                    self._reset_row(row, slot)
                    pending[row] = False
                    resets.append(row)
                    continue
                if self._writes_in_place[row]:
                    reward, terminated, truncated, info = env.step_into(actions[row], out[row])  # type: ignore[attr-defined]
                else:
                    observation, reward, terminated, truncated, info = env.step(actions[row])
                    self._write(out, row, observation)
                rewards[row], terminations[row], truncations[row] = reward, terminated, truncated
                done = bool(terminated or truncated)
                if self._counts_games[row]:
                    raw_rewards[row] = env.unwrapped.unclipped_reward  # type: ignore[attr-defined]
                    over = bool(env.unwrapped.game_over or truncated)  # type: ignore[attr-defined]
                else:
                    over = done
                    if self._reports_raw_rewards:
                        raw_rewards[row] = reward
                if over:
                    ended.append(row)
                if done and same_step:
                    self._reset_same_step(row, slot, info)
                else:
                    pending[row] = done
                    if info:
                        self._infos.record(row, info)
            except ENV_EXCEPTIONS as exception:
                failures.append(env_failure(self.first_index + row, exception))
        try:
            _fill_numbers(arrays.rewards, rewards)
            self._count(rewards if raw_rewards is rewards else raw_rewards, resets, ended)
            arrays.terminations[:] = terminations
            arrays.truncations[:] = truncations
        except RowError as error:
            failures.append(env_failure(self.first_index + error.row, error))
        if failures:
            raise SliceFailed(failures)

    def _reset_row(self, row: int, slot: int, **arguments: Any) -> None:
        env, out = self.envs[row], self._slots[slot]
        if self._writes_in_place[row]:
            info = env.reset_into(out[row], **arguments)  # type: ignore[attr-defined]
        else:
            observation, info = env.reset(**arguments)
            self._write(out, row, observation)
        if info:
            self._infos.record(row, info)

    def _reset_same_step(self, row: int, slot: int, info: dict[str, Any]) -> None:
        """Keep the end of the episode, then begin the next: an env may reuse the array and dict it returned."""
        arrays = self.arrays
        copy_arrays(
            map_arrays(arrays.final_observations, lambda array: array[row : row + 1]),
            map_arrays(self._slots[slot], lambda array: array[row : row + 1]),
        )
        arrays.final_mask[row] = True
        self._infos.record(row, {"final_info": _snapshot(info)})
        self._reset_row(row, slot)
        self._pending[row] = False

    def _write(self, out: Any, row: int, observation: Any) -> None:
        if self._plain:
            write_array(out, row, observation)
        else:
            write_value(self.observation_space, out, row, observation)

    def _count(self, raw_rewards: list[Any], resets: list[int], ended: list[int]) -> None:
        """Count the step into the statistics, on whole rows first and on the few special rows after."""
        arrays = self.arrays
        if raw_rewards is not None and self._reports_raw_rewards:
            arrays.returns += np.array(raw_rewards, np.float64)
        else:
            arrays.returns += arrays.rewards
        arrays.lengths += 1
        arrays.episode_ended.fill(False)
        for row in resets:
            arrays.lengths[row] -= 1
        if ended:
            now = time.monotonic()
            for row in ended:
                arrays.episode_ended[row] = True
                arrays.episode_counts[row] += 1
                arrays.last_returns[row] = arrays.returns[row]
                arrays.last_lengths[row] = arrays.lengths[row]
                arrays.last_seconds[row] = now - arrays.started[row]
                arrays.returns[row], arrays.lengths[row], arrays.started[row] = 0.0, 0, now

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


class RowError(ValueError):
    """A reward that is no single number.

    Args:
        row: index in the slice.
        message: what came.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def _fill_numbers(target: Any, values: list[Any]) -> None:
    """Write one number per row; rewards of shape (1,) count as numbers, on every step alike."""
    try:
        target[:] = values
        return
    except (TypeError, ValueError):
        pass
    for row, value in enumerate(values):
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise RowError(row, f"expected a single number as reward, got {value!r}")
        target[row] = array.reshape(())[()]


def _counts_games(env: gym.Env[Any, Any]) -> bool:
    """Whether the env tells raw rewards and the end of whole games apart from what the agent sees."""
    base = env.unwrapped
    return hasattr(base, "unclipped_reward") and hasattr(base, "game_over")


def _snapshot(info: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(info)
    except Exception:  # an object that cannot be copied: its identity is all that there is to keep
        return dict(info)
