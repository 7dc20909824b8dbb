"""Resets and steps a contiguous slice of envs into the rows of a batch: the one place where that is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from vecenv.batch import BatchArrays
from vecenv.env_failures import SliceFailed, env_failure
from vecenv.errors import EnvFailure
from vecenv.infos import own_copy
from vecenv.spaces import copy_arrays, map_arrays, write_array, write_value

_PLAIN_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class InfoSink(Protocol):
    """Takes the infos of envs as they come."""

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info; numbers and arrays are copied before this returns or before the env runs again."""


class _StepRecord:
    """What the envs of a slice gave in one step, gathered before it is written to arrays at once.

    Attributes:
        whole: whether all envs were stepped (into the next slot) or some alone (in their slot).
        rewards: one per env, in the order of stepping.
        raw_rewards: likewise, the same list where envs do not tell them apart.
        ends: (row, terminated, truncated) of the few rows where either is set.
        episodes: rows whose episode (whole game) ended.
        resets: rows that were only reset.
        lost: rows whose episode a restart of the worker has cut off.
        failures: of envs that raised.
    """

    __slots__ = ("ends", "episodes", "failures", "lost", "raw_rewards", "resets", "rewards", "whole")

    def __init__(self, count: int, separate_raw_rewards: bool, whole: bool) -> None:
        self.whole = whole
        self.rewards: list[Any] = [0.0] * count
        self.raw_rewards: list[Any] = [0.0] * count if separate_raw_rewards else self.rewards
        self.ends: list[tuple[int, Any, Any]] = []
        self.episodes: list[int] = []
        self.resets: list[int] = []
        self.lost: list[int] = []
        self.failures: list[EnvFailure] = []


class SliceStepper:
    """Envs and the rows of the batch that they fill.

    Args:
        envs: the environments, already built, by their index in the vector env, which is their row of the batch.
        autoreset_mode: what happens when an episode ends.

    Attributes:
        rows: rows of the envs, in order.
        own: the same as an index into arrays.
        objects: observations by row where they are not arrays of the batch, else None.
        final_objects: likewise, the last observation of an episode under SAME_STEP.
        step_seconds: `[num_envs] float64`, takes a running mean of each env's time of a step; None: not measured.
    """

    def __init__(self, envs: dict[int, gym.Env[Any, Any]], autoreset_mode: AutoresetMode) -> None:
        self.envs: dict[int, gym.Env[Any, Any]] = {}
        self._next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._pending: dict[int, bool] = {}
        self._restart_seeds: dict[int, int | None] = {}
        self._writes_in_place: dict[int, bool] = {}
        self._counts_games: dict[int, bool] = {}
        self._lost: set[int] = set()
        self.objects: dict[int, Any] | None = None
        self.final_objects: dict[int, Any] = {}
        self.step_seconds: Any = None
        for row, env in envs.items():
            self._take_in(row, env, pending=False)

    def attach(
        self, arrays: BatchArrays, observation_space: gym.Space[Any] | None, slots: int, infos: InfoSink
    ) -> None:
        """Set where results go.

        Args:
            arrays: of the whole batch; only the rows of `envs` are touched.
            observation_space: single space that the rows were planned for; None: observations are kept as objects.
            slots: length of the observation ring.
            infos: takes the infos.
        """
        self.arrays = arrays
        self._infos = infos
        self._slots: list[Any] = [None] * slots
        if observation_space is None:
            self.objects = {}
            self._writes_in_place = dict.fromkeys(self.rows, False)
        else:
            self._observation_space = observation_space
            self._slots = [
                map_arrays(arrays.observations, lambda array, slot=slot: array[slot])  # type: ignore[misc]
                for slot in range(slots)
            ]
        self._plain = isinstance(observation_space, _PLAIN_SPACES)
        self._row_shape = self._slots[0].shape[1:] if self._plain else ()
        arrays.started[self.own] = time.monotonic()

    def _take_in(self, row: int, env: gym.Env[Any, Any], pending: bool) -> None:
        """Put an env into its row and note what it can do beyond Gymnasium's interface."""
        self.envs[row] = env
        self._pending[row] = pending
        self._restart_seeds[row] = None
        # Asked of the class: a wrapper that forwards attributes has methods of its own that must not be passed by.
        self._writes_in_place[row] = self.objects is None and hasattr(type(env), "step_into")
        self._counts_games[row] = _counts_games(env)
        self._note_rows()

    def let_go(self, row: int) -> None:
        """Forget an env that moves elsewhere."""
        for known in (self.envs, self._pending, self._restart_seeds, self._writes_in_place, self._counts_games):
            known.pop(row)
        self._note_rows()

    def _note_rows(self) -> None:
        self.rows = sorted(self.envs)
        self._separate_raw_rewards = any(self._counts_games[row] for row in self.rows)
        self.own = index_of(self.rows)

    def take_over(self, seeds: Sequence[int | None], objects: dict[int, Any] | None) -> None:
        """Stand in for a worker that died: every row reports at its next step that its episode was cut off.

        Args:
            seeds: one per row, for the reset that follows.
            objects: last known observations, where those are objects.
        """
        self._restart_seeds = dict(zip(self.rows, seeds, strict=True))
        self._lost = set(self.rows)
        self._last_objects = objects or {}

    # -- reset -------------------------------------------------------------------------------------------------------

    def reset(
        self, slot: int, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        """Begin new episodes.

        Args:
            slot: slot of the ring that takes the observations.
            rows: rows to reset; the others keep observation, flags and statistics.
            seeds: one per row named.
            options: passed to every env.

        Raises:
            SliceFailed: some envs raised.
        """
        arrays = self.arrays
        failures = []
        for row, seed in zip(rows, seeds, strict=True):
            self._lost.discard(row)
            try:
                # each env its own options: one that changes them must not change the others', or the caller's
                self._reset_row(row, slot, seed=seed, options=own_copy(options))
            except BaseException as exception:
                failures.append(env_failure(row, exception))
            self._pending[row] = False
            arrays.rewards[row] = 0.0
            arrays.terminations[row] = arrays.truncations[row] = False
            arrays.episode_ended[row] = arrays.final_mask[row] = False
            arrays.returns[row], arrays.lengths[row], arrays.started[row] = 0.0, 0, time.monotonic()
        if failures:
            raise SliceFailed(failures)

    def keep_observations(self, slot: int) -> None:
        """Carry all observations over from the slot before, for rows that the next call leaves alone."""
        if self.objects is None:
            copy_arrays(self._slots[slot], self._slots[slot - 1], self.own)

    def _reset_row(self, row: int, slot: int, **arguments: Any) -> None:
        env = self.envs[row]
        if self._restart_seeds[row] is not None:
            if arguments.get("seed") is None:
                arguments["seed"] = self._restart_seeds[row]
            self._restart_seeds[row] = None
        if self._writes_in_place[row]:
            info = env.reset_into(self._slots[slot][row], **arguments)  # type: ignore[attr-defined]
        else:
            observation, info = env.reset(**arguments)
            self._write(slot, row, observation)
        if info:
            self._infos.record(row, info)

    # -- step --------------------------------------------------------------------------------------------------------

    def step(self, slot: int, actions: Sequence[Any], rows: Sequence[int] | None = None) -> None:
        """Step envs once.

        Args:
            slot: slot of the ring that takes the observations.
            actions: one per row that is stepped, the caller's to give away.
            rows: rows to step; None: all.

        Raises:
            SliceFailed: some envs raised; their rows hold nothing of use.
        """
        whole = rows is None
        own: Any = self.own if rows is None else rows
        rows = self.rows if rows is None else rows
        record = _StepRecord(len(rows), self._separate_raw_rewards, whole)
        self.arrays.final_mask[own] = False
        for place, row in enumerate(rows):
            try:
                if self.step_seconds is None:
                    self._step_row(place, row, slot, actions[place], record)
                else:
                    start = time.perf_counter()
                    self._step_row(place, row, slot, actions[place], record)
                    self.step_seconds[row] += 0.1 * (time.perf_counter() - start - self.step_seconds[row])
            except BaseException as exception:
                record.failures.append(env_failure(row, exception))
        self._write_record(record, rows, own)
        if record.failures:
            raise SliceFailed(record.failures)

    def _step_row(self, place: int, row: int, slot: int, action: Any, record: _StepRecord) -> None:
        if self._lost and row in self._lost:
            self._report_loss(row, slot, record)
            return
        if self._pending[row] and self._next_step:
            record.resets.append(row)
            self._reset_row(row, slot)
            self._pending[row] = False
            return
        env = self.envs[row]
        if self._writes_in_place[row]:
            reward, terminated, truncated, info = env.step_into(action, self._slots[slot][row])  # type: ignore[attr-defined]
        else:
            observation, reward, terminated, truncated, info = env.step(action)
            self._write(slot, row, observation)
        # Copied at once where it is an array: envs may share one, and fill it again in the next row.
        record.rewards[place] = reward if type(reward) is float else own_copy(reward)
        done = terminated or truncated
        if done:
            record.ends.append((row, bool(terminated), bool(truncated)))
        if self._separate_raw_rewards:
            self._count_game(place, row, truncated, record)
        elif done:
            record.episodes.append(row)
        if done and self._same_step:
            self._reset_same_step(row, slot, info)
            return
        self._pending[row] = bool(done)
        if info:
            self._infos.record(row, info)

    def _report_loss(self, row: int, slot: int, record: _StepRecord) -> None:
        """Say that the episode was cut off: last known observation, reward 0, truncated; then what the mode does."""
        self._lost.discard(row)
        if self.objects is not None:
            self.objects[row] = self._last_objects.get(row)
        elif record.whole:
            copy_arrays(self._slots[slot], self._slots[slot - 1], [row])
        record.ends.append((row, False, True))
        record.lost.append(row)
        if self._same_step:
            self._reset_same_step(row, slot, {})
        else:
            self._pending[row] = True
        self._infos.record(row, {"worker_restarted": True})

    def _count_game(self, place: int, row: int, truncated: Any, record: _StepRecord) -> None:
        """Take raw reward and the end of the game from an env that tells them apart from what the agent sees."""
        if not self._counts_games[row]:
            record.raw_rewards[place] = record.rewards[place]
            over = bool(record.ends and record.ends[-1][0] == row)
        else:
            base: Any = self.envs[row].unwrapped
            record.raw_rewards[place] = base.unclipped_reward
            over = bool(base.game_over or truncated)
        if over:
            record.episodes.append(row)

    def _reset_same_step(self, row: int, slot: int, info: dict[str, Any]) -> None:
        """Keep the end of the episode, then begin the next: an env may reuse the array and dict it returned."""
        arrays = self.arrays
        if self.objects is not None:
            self.final_objects[row] = self.objects[row]
        else:
            copy_arrays(
                map_arrays(arrays.final_observations, lambda array: array[row : row + 1]),
                map_arrays(self._slots[slot], lambda array: array[row : row + 1]),
            )
        arrays.final_mask[row] = True
        self._infos.record(row, {"final_info": own_copy(info)})
        self._reset_row(row, slot)

    def _write(self, slot: int, row: int, observation: Any) -> None:
        if self._plain:
            out = self._slots[slot]
            if (
                type(observation) is np.ndarray
                and observation.shape == self._row_shape
                and observation.dtype == out.dtype
            ):
                out[row] = observation
            else:
                write_array(out, row, observation)
        elif self.objects is not None:
            self.objects[row] = own_copy(observation)
        else:
            write_value(self._observation_space, self._slots[slot], row, observation)

    def _write_record(self, record: _StepRecord, rows: Sequence[int], own: Any) -> None:
        """Write a step into the arrays: whole columns first, the few special rows after.

        Args:
            record: what the envs gave.
            rows: rows that were stepped.
            own: the same as an index into arrays.
        """
        arrays = self.arrays
        rewards, wrong = numbers(record.rewards)
        for place in wrong:
            reward = record.rewards[place]
            error = ValueError(f"expected a single number as reward, got {reward!r}")
            record.failures.append(env_failure(rows[place], error))
        arrays.rewards[own] = rewards
        arrays.terminations[own] = False
        arrays.truncations[own] = False
        arrays.episode_ended[own] = False
        arrays.returns[own] += numbers(record.raw_rewards)[0] if self._separate_raw_rewards else rewards
        arrays.lengths[own] += 1
        for row in record.resets:
            arrays.lengths[row] -= 1
        for row, terminated, truncated in record.ends:
            arrays.terminations[row], arrays.truncations[row] = terminated, truncated
        for row in record.episodes:
            self._end_episode(row)
        for row in record.lost:
            arrays.returns[row], arrays.lengths[row], arrays.started[row] = 0.0, 0, time.monotonic()

    def _end_episode(self, row: int) -> None:
        arrays, now = self.arrays, time.monotonic()
        arrays.episode_ended[row] = True
        arrays.episode_counts[row] += 1
        arrays.last_returns[row] = arrays.returns[row]
        arrays.last_lengths[row] = arrays.lengths[row]
        arrays.last_seconds[row] = now - arrays.started[row]
        arrays.returns[row], arrays.lengths[row], arrays.started[row] = 0.0, 0, now


def index_of(rows: Sequence[int]) -> Any:
    """A slice where rows are contiguous, which NumPy indexes fastest, else the rows."""
    if rows and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return list(rows)


def numbers(values: list[Any]) -> tuple[npt.NDArray[np.float64], list[int]]:
    """One number per env; rewards of shape (1,) count as numbers, on every step alike.

    Returns:
        The numbers, 0 where a value is no single number, and the places of those values.
    """
    try:
        plain = np.array(values)  # without a dtype: None and text would quietly become numbers
        if plain.ndim == 1 and plain.dtype.kind in "biuf":
            return plain.astype(np.float64, copy=False), []
    except (TypeError, ValueError):
        pass
    array, wrong = np.zeros(len(values), np.float64), []
    for place, value in enumerate(values):
        single = np.asarray(value)
        if single.size != 1 or single.dtype.kind not in "biuf":
            wrong.append(place)
        else:
            array[place] = single.reshape(())[()]
    return array, wrong


def _counts_games(env: gym.Env[Any, Any]) -> bool:
    """Whether the env tells raw rewards and the end of whole games apart from what the agent sees."""
    base = env.unwrapped
    return hasattr(base, "unclipped_reward") and hasattr(base, "game_over")
