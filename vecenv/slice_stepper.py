"""Resets and steps some envs of a vector env, each into its own row of the batch: the one place where that is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from vecenv.batch import BatchArrays
from vecenv.env_failures import SliceFailed, env_failure
from vecenv.infos import own_copy
from vecenv.spaces import copy_arrays, map_arrays, write_array, write_value
from vecenv.statistics import begin_episodes, end_episodes
from vecenv.step_record import OwnColumns, StepRecord, numbers

_PLAIN_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class InfoSink(Protocol):
    """Takes the infos of envs as they come."""

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info; numbers and arrays are copied before this returns or before the env runs again."""


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
        self._attached = False
        self._next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._pending: dict[int, bool] = {}
        self._restart_seeds: dict[int, int | None] = {}
        self._writes_in_place: dict[int, bool] = {}
        # By row: the env that tells raw rewards and whole games apart from what the agent sees, or None.
        self._games: dict[int, Any] = {}
        self._lost: set[int] = set()
        # Last known observations of lost rows, where observations are objects.
        self._last_objects: dict[int, Any] = {}
        self.objects: dict[int, Any] | None = None
        self.final_objects: dict[int, Any] = {}
        self.step_seconds: Any = None
        for row, env in envs.items():
            self._take_in(row, env)

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
        self.arrays, self._attached = arrays, True
        self._note_rows()
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
        # None, where there are no rows: the dtype None would equal that of float64
        self._row_shape = self._slots[0].shape[1:] if self._plain else None
        arrays.started[self.own] = time.monotonic()

    def _take_in(
        self,
        row: int,
        env: gym.Env[Any, Any],
        pending: bool = False,
        restart_seed: int | None = None,
        lost: bool = False,
    ) -> None:
        """Put an env into its row and note what it can do beyond Gymnasium's interface.

        Args:
            row: of the batch.
            env: an environment, new or as it was elsewhere.
            pending: whether its episode has ended and its reset is due.
            restart_seed: for its next reset, where it was built in the place of one that was lost.
            lost: whether it is still to report that.
        """
        self.envs[row] = env
        self._pending[row], self._restart_seeds[row] = pending, restart_seed
        if lost:
            self._lost.add(row)
        else:
            self._lost.discard(row)
        # Asked of the class: a wrapper that forwards attributes has methods of its own that must not be passed by.
        self._writes_in_place[row] = self.objects is None and hasattr(type(env), "step_into")
        self._games[row] = env.unwrapped if _counts_games(env) else None
        self._note_rows()

    def let_go(self, row: int) -> None:
        """Forget an env that moves elsewhere."""
        for known in (self.envs, self._pending, self._restart_seeds, self._writes_in_place, self._games):
            known.pop(row)
        self._lost.discard(row)
        self._note_rows()

    def _note_rows(self) -> None:
        self.rows = sorted(self.envs)
        self._separate_raw_rewards = any(game is not None for game in self._games.values())
        self.own = index_of(self.rows)
        # Not where balancing has left gaps between the rows, nor before there are arrays.
        self._own_columns = OwnColumns(self.arrays, self.own) if self._attached and type(self.own) is slice else None

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
            begin_episodes(arrays, row)
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
        own: Any = self.own if rows is None else index_of(rows)
        rows = self.rows if rows is None else rows
        record = StepRecord(len(rows), self._separate_raw_rewards, whole)
        self.arrays.final_mask[own] = False
        if self._lost or self.step_seconds is not None:
            self._step_with_care(rows, slot, actions, record)
        else:
            self._step_plainly(rows, slot, actions, record)
        self._write_record(record, rows, own)
        if record.failures:
            raise SliceFailed(record.failures)

    def _step_plainly(
        self, rows: Sequence[int], slot: int, actions: Sequence[Any], record: StepRecord, first_place: int = 0
    ) -> None:
        """Step rows that need nothing but stepping; `_step_with_care` says what there can be besides."""
        envs, pending, in_place, games = self.envs, self._pending, self._writes_in_place, self._games
        rewards, raw_rewards, separate = record.rewards, record.raw_rewards, self._separate_raw_rewards
        out, shape, infos = self._slots[slot], self._row_shape, self._infos
        dtype = out.dtype if self._plain else None
        for place, row in enumerate(rows, first_place):
            try:
                if pending[row] and self._next_step:
                    self._step_pending(row, slot, record)
                    continue
                if in_place[row]:
                    reward, terminated, truncated, info = envs[row].step_into(actions[place], out[row])  # type: ignore[attr-defined]
                else:
                    observation, reward, terminated, truncated, info = envs[row].step(actions[place])
                    if type(observation) is np.ndarray and observation.dtype == dtype and observation.shape == shape:
                        out[row] = observation
                    else:
                        self._write(slot, row, observation)
                # Copied at once where it is an array: envs may share one, and fill it again in the next row.
                rewards[place] = reward if type(reward) is float else own_copy(reward)
                if separate:
                    game = games[row]
                    raw_rewards[place] = rewards[place] if game is None else game.unclipped_reward
                    if truncated or (terminated if game is None else game.game_over or (terminated and _drops(game))):
                        record.episodes.append(row)
                if terminated or truncated:
                    if not separate:
                        record.episodes.append(row)
                    self._end_row(row, slot, terminated, truncated, info, record)
                elif info:
                    infos.record(row, info)
            except BaseException as exception:
                record.failures.append(env_failure(row, exception))

    def _step_with_care(self, rows: Sequence[int], slot: int, actions: Sequence[Any], record: StepRecord) -> None:
        """As `_step_plainly`, and: rows cut off by a restart, the time of each step."""
        for place, row in enumerate(rows):
            start = time.perf_counter()
            if row in self._lost:
                try:
                    self._report_loss(row, slot, record)
                except BaseException as exception:
                    record.failures.append(env_failure(row, exception))
            else:
                self._step_plainly([row], slot, actions, record, place)
            if self.step_seconds is not None:
                self.step_seconds[row] += 0.1 * (time.perf_counter() - start - self.step_seconds[row])

    def _step_pending(self, row: int, slot: int, record: StepRecord) -> None:
        """Under NEXT_STEP the step after an end only resets."""
        record.resets.append(row)
        self._reset_row(row, slot)
        self._pending[row] = False

    def _end_row(
        self, row: int, slot: int, terminated: Any, truncated: Any, info: dict[str, Any], record: StepRecord
    ) -> None:
        """An episode ended, for the agent at least."""
        record.ends.append((row, bool(terminated), bool(truncated)))
        if self._same_step:
            self._reset_same_step(row, slot, info)
            return
        self._pending[row] = True
        if info:
            self._infos.record(row, info)

    def _report_loss(self, row: int, slot: int, record: StepRecord) -> None:
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
            write_array(self._slots[slot], row, observation)
        elif self.objects is not None:
            self.objects[row] = own_copy(observation)
        else:
            write_value(self._observation_space, self._slots[slot], row, observation)

    def _write_record(self, record: StepRecord, rows: Sequence[int], own: Any) -> None:
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
        raw_rewards = numbers(record.raw_rewards)[0] if self._separate_raw_rewards else rewards
        if record.whole and self._own_columns is not None:
            self._own_columns.count(rewards, raw_rewards)
        else:
            arrays.rewards[own] = rewards
            arrays.terminations[own] = False
            arrays.truncations[own] = False
            arrays.episode_ended[own] = False
            arrays.returns[own] += raw_rewards
            arrays.lengths[own] += 1
        for row in record.resets:
            arrays.lengths[row] -= 1
        for row, terminated, truncated in record.ends:
            arrays.terminations[row], arrays.truncations[row] = terminated, truncated
        for row in record.episodes:
            end_episodes(arrays, row)
        for row in record.lost:
            begin_episodes(arrays, row)


def index_of(rows: Sequence[int]) -> Any:
    """A slice where rows are contiguous, which NumPy indexes fastest, else the rows."""
    if rows and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return list(rows)


def _counts_games(env: gym.Env[Any, Any]) -> bool:
    """Whether the env tells raw rewards and the end of whole games apart from what the agent sees."""
    base = env.unwrapped
    return hasattr(base, "unclipped_reward") and hasattr(base, "game_over")


def _drops(game: Any) -> bool:
    """Whether the env begins a new game wherever an episode ends: no game is ever played to its own end."""
    return bool(getattr(game, "drops_games", False))
