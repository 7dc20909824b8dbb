"""What every vector env over an engine of someone else needs: results, infos and statistics brought into our form.

Such an engine steps a whole batch in threads of its own and hands out a fresh array of observations each time. That
array is given to the caller as it is: with ``copy=True`` an adapter adds no copy of its own. With ``copy=False`` each
batch is copied once, into the ring.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.arguments import out_like
from vecenv.base import StepResult
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.infos import Infos
from vecenv.native_batch import EngineBatch, masked_infos, only_rows
from vecenv.native_calls import EngineCalls
from vecenv.native_fork import watch_forks
from vecenv.native_plain import PlainSteps
from vecenv.native_refusals import EngineRefusals
from vecenv.settings import EnvDescription, VectorSettings
from vecenv.spaces import allocate_batch, copy_arrays, has_fixed_layout, map_arrays
from vecenv.statistics import EpisodeStatistics, add_episode_infos, begin_episodes, end_episodes

Array = npt.NDArray[Any]


class NativeVecEnv(EngineRefusals):
    """A vector env whose envs live in an engine that steps all of them at once."""

    # Rewards are clipped here, so that statistics see them unclipped.
    _clips_rewards = False
    # Whether this process has the threads of the engine; a fork of it has not.
    belongs_here = True
    # Whether resets of some envs need the observations of the others from here.
    _keeps_observations = False
    # Whether the engine gives a whole batch at once.
    _steps_at_once = True
    steps_rows_alone = False

    def _prepare(
        self,
        settings: VectorSettings,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        render_mode: str | None = None,
    ) -> None:
        """Take over spaces and settings; afterwards the vector env counts as open.

        Raises:
            NotImplementedError: the spaces have no fixed layout.
        """
        for space in (observation_space, action_space):
            if not has_fixed_layout(space):
                raise NotImplementedError(f"backend={self.engine!r} cannot serve {space}, which has no fixed layout")
        self.settings = settings
        metadata = {"render_modes": [] if render_mode is None else [render_mode]}
        self._describe(EnvDescription((observation_space,) * num_envs, action_space, metadata, render_mode), num_envs)
        layout = Layout()
        plan_batch(layout, None, action_space, num_envs, settings.slots)
        self._arrays = batch_arrays(Block(layout), None, action_space)
        self._ring = self._kept = None
        if not settings.copy:
            shape = (settings.slots, num_envs)
            self._ring = allocate_batch(observation_space, lambda _, s, d: np.zeros((*shape, *s), d))
        elif self._keeps_observations:
            self._kept = allocate_batch(observation_space, lambda _, s, d: np.zeros((num_envs, *s), d))
        self._newest: Any = self._kept if self._ring is None else map_arrays(self._ring, lambda array: array[self.slot])
        self._engine_seeds = [-1] * num_envs
        self._started = False
        self._calls = EngineCalls()
        self._reset_infos: Infos | None = None
        self._row_batch: EngineBatch | None = None
        self._sent_resets: list[int | None] | None = None
        self._only_reset = np.zeros(num_envs, np.bool_)  # rows sent a reset alone and not received
        self._plain = PlainSteps(self._arrays, action_space, self._clips_rewards)
        self._is_plain = False  # whether no env was waiting for its reset when the step was sent
        self._raw: Any = None  # received, but not yet read
        self.closed = False
        watch_forks(self)

    def _check_open(self, doing: str) -> None:
        if self.closed or not self.belongs_here:
            super()._check_open(doing)
            self._check_no_fork(doing, self.belongs_here)

    # -- what adapters fill in ---------------------------------------------------------------------------------------

    def _kept_in_fork(self) -> list[Any]:
        """What a fork must not let go, because that waits for threads or ends them."""
        return []

    @abstractmethod
    def _engine_reset(self, seeds: list[int | None], rows: list[int] | None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or some.

        Args:
            seeds: one per env of the vector env.
            rows: None: all.

        Returns:
            Observations of all envs and infos as in `EngineBatch`, rows that were not reset holding anything.
        """

    @abstractmethod
    def _engine_send(self, actions: Any) -> None:
        """Start a step of all envs; actions are checked, those without effect replaced."""

    @abstractmethod
    def _receive_raw(self) -> Any:
        """Wait for all envs, rows in env order, and give what the engine gives."""

    @abstractmethod
    def _read_batch(self, raw: Any) -> EngineBatch:
        """What the engine gave, as a batch."""

    @abstractmethod
    def _plain_parts(self, raw: Any) -> tuple[Any, Array, Any] | None:
        """Observations, rewards and what holds the infos in what the engine gave; None: an episode or game ended."""

    def _info_places(self) -> dict[str, Any]:
        """Key -> index of an info in the last of the plain parts."""
        return {}

    def _engine_receive(self) -> EngineBatch:
        """Wait for all envs, rows in env order."""
        return self._read_batch(self._receive_raw())

    def _games_over(self, batch: EngineBatch) -> Array:
        """`[rows]` bool, where a whole game ended, which statistics count."""
        return batch.terminations | batch.truncations

    def _check_reset_options(self, options: dict[str, Any] | None) -> None:
        """Refuse options that the engine does not have."""
        if options:
            raise NotImplementedError(
                f"backend={self.engine!r} has no reset options besides 'reset_mask', got {sorted(map(str, options))}"
            )

    def _passed_options(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        self._check_reset_options(options)
        return options

    def _note_engine_seeds(self, seeds: Sequence[int | None], rows: Iterable[int]) -> None:
        """Remember what the generators of some envs were seeded with."""
        for row in rows:
            seed = seeds[row]
            if seed is not None:
                self._engine_seeds[row] = seed

    # -- observations ------------------------------------------------------------------------------------------------

    @property
    def observation_slots(self) -> Any:
        """`[slots, num_envs, ...]`: the ring of observations; see `VecEnv.observation_slots`.

        Raises:
            TypeError: with ``copy=True`` every batch is an array of its own.
        """
        if self._ring is None:
            raise TypeError(f"backend={self.engine!r} has a ring of observations with copy=False only")
        return self._ring

    @property
    def observations(self) -> Any:
        """The newest observations, `[num_envs, ...]`: with ``copy=True`` the arrays returned last, or a copy."""
        return self._newest if self._kept is None else self._kept

    def _take_observations(self, observations: Any) -> None:
        """Note a batch of all envs as the newest; it belongs to the next slot."""
        self._newest = observations
        if self._ring is not None:
            slot = self._next_slot()
            self._newest = map_arrays(self._ring, lambda array: array[slot])
            copy_arrays(self._newest, observations)
        elif self._kept is not None:
            copy_arrays(self._kept, observations)

    def _returned_observations(self, out: Any = None) -> Any:
        if out is None:
            return self._newest
        copy_arrays(out_like(out, self._newest), self._newest)
        return out

    # -- reset and step ----------------------------------------------------------------------------------------------

    def _check_can_step(self, doing: str, rows: Any = None) -> None:
        if not self._started:
            raise ResetNeeded(f"{doing}: call reset first")
        super()._check_can_step(doing, rows)

    def _send_reset(
        self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Array | None
    ) -> None:
        rows = None if selected is None or selected.all() else np.flatnonzero(selected).tolist()
        if rows is not None and not self._started:
            raise ResetNeeded("reset: the first one must be of all environments, without reset_mask")
        self._await_batch()
        observations, raw = self._engine_reset(seeds, rows)
        self._started = True
        self._begin_rows(slice(None) if rows is None else rows)
        self._take_observations(observations)
        mask = np.ones(self.num_envs, np.bool_) if selected is None else selected
        self._reset_infos = masked_infos(raw, mask)

    def _begin_rows(self, rows: Any) -> None:
        """Note that rows begin new episodes."""
        arrays = self._arrays
        arrays.rewards[rows] = 0.0
        arrays.terminations[rows] = arrays.truncations[rows] = arrays.episode_ended[rows] = False
        begin_episodes(arrays, rows)

    # -- steps in which nothing ends, which nearly all are ------------------------------------------------------------

    def _begin_step(self, actions: Any) -> None:
        self._raw = None  # a Ctrl-C may have left it
        plain = self._plain
        busy = self._outstanding or self._whole_sent or self._failed or self._calls.pending
        self._is_plain = plain.is_ready and self._started and not busy and not np.count_nonzero(self._done)
        if not self._is_plain:
            super()._begin_step(actions)
            return
        own = plain.checked_actions(actions)
        if own is None:
            self._take_actions(actions, None)
            own = self._arrays.actions
        self._engine_send(own)
        plain.prepare()

    def _end_step(self, timeout: float | None = None, out: Any = None) -> StepResult:
        """As for all back ends; a step in which nothing ended takes a shorter way to the same results."""
        if not self._is_plain:
            return super()._end_step(timeout, out)
        self._is_plain = False
        try:
            raw = self._receive_raw()
        except BaseException:
            self._whole_sent = False
            raise
        plain = self._plain_parts(raw)
        if plain is None:
            self._raw = raw
            return super()._end_step(timeout, out)
        observations, rewards, columns = plain
        self._whole_sent = False
        self._take_observations(observations)
        self.slot = self._next_slot()
        result = self._plain.result(rewards, columns)
        return (self._newest if out is None else self._returned_observations(out), *result)

    # -- any step ----------------------------------------------------------------------------------------------------

    def _send_step(self, slot: int, wide: bool) -> None:
        self._count_interrupted()
        self._replace_ignored_actions()
        self._engine_send(self._arrays.actions)

    def _replace_ignored_actions(self) -> None:
        """Under NEXT_STEP the action after an end may be anything; engines would still look at it."""
        if np.count_nonzero(self._done):  # a tenth of the time of any()
            map_arrays(self._arrays.actions, lambda array: only_rows(array, ~self._done))

    def _await_batch(self) -> None:
        """Take out what an interrupted call left in the engine; a reset makes it worthless."""
        self._reset_infos = None
        if self._calls.pending:
            self._engine_receive()

    def _count_interrupted(self) -> None:
        """Take a step that was interrupted into the statistics: it was played, though nobody sees its results."""
        self._reset_infos = None
        if self._calls.pending:
            self._take_batch(self._engine_receive(), slice(None))
            if self.autoreset_mode is not AutoresetMode.SAME_STEP:
                self._done[:] = self._arrays.terminations | self._arrays.truncations

    def _receive(self, timeout: float | None) -> Infos:
        if self._reset_infos is not None:
            infos, self._reset_infos = self._reset_infos, None
            return infos
        raw, self._raw = self._raw, None
        batch = self._engine_receive() if raw is None else self._read_batch(raw)
        if self._steps_at_once and not self._plain.is_ready:
            self._plain.learn(batch.infos, self._info_places())
        self._take_observations(batch.observations)
        return self._take_batch(batch, slice(None))

    def _take_batch(self, batch: EngineBatch, rows: Any) -> Infos:
        """Write rewards, flags and statistics of rows, and bring their infos into Gymnasium's form."""
        arrays = self._arrays
        rewards = batch.rewards
        arrays.rewards[rows] = np.sign(rewards) if self._clips_rewards else rewards
        arrays.terminations[rows], arrays.truncations[rows] = batch.terminations, batch.truncations
        arrays.episode_ended[rows] = False
        arrays.returns[rows] += rewards
        arrays.lengths[rows] += 1
        # `_done` stands from the step before: under NEXT_STEP these rows were only reset.
        only_reset = self._done[rows] | self._only_reset[rows]
        if np.count_nonzero(only_reset):
            arrays.lengths[rows] -= only_reset
        over = self._games_over(batch)
        if np.count_nonzero(over):
            end_episodes(arrays, np.arange(self.num_envs)[rows][over])
        infos = masked_infos(batch.infos, np.ones(len(rewards), np.bool_))
        if batch.final_observations is not None:
            ended = batch.terminations | batch.truncations
            infos["final_obs"] = map_arrays(batch.final_observations, lambda array: only_rows(array, ended))
            infos["_final_obs"] = ended
            if batch.final_infos is not None:
                infos["final_info"] = masked_infos(batch.final_infos, ended)
                infos["_final_info"] = ended.copy()
        return infos

    def _add_final_observations(self, infos: Infos, rows: Sequence[int]) -> None:
        """They came with the batch."""

    # -- send and recv -----------------------------------------------------------------------------------------------

    def recv(self, timeout: float | None = None, out: Any = None) -> StepResult:
        """Wait for envs that were sent an action; see `SendRecvVecEnv.recv`.

        Raises:
            NotImplementedError: a timeout, which the engine does not have; nothing was received.
        """
        if timeout is not None:
            raise NotImplementedError(f"backend={self.engine!r} cannot stop waiting: recv takes no timeout")
        return super().recv(None, out)

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        """The engine steps whole batches: rows wait here until all are sent."""

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        self._check_reset_options(options)
        if len(rows) < self.num_envs:
            raise NotImplementedError(f"backend={self.engine!r} resets some envs with reset alone, not with send_reset")
        self._sent_resets = seeds

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        rows = list(range(self.num_envs))
        if self._sent_resets is not None:
            self._send_reset(self._next_slot(), self._sent_resets, None, None)
            self._sent_resets = None
            return rows
        self._send_step(self._next_slot(), False)
        self._row_batch = self._engine_receive()
        self._take_observations(self._row_batch.observations)
        return rows

    def _row_infos(self, row: int) -> dict[str, Any]:
        """Infos come by batches."""
        return {}

    def _drop_outstanding(self) -> None:
        """Rows that wait here were never sent."""
        self._outstanding = {}
        self._sent_resets = None

    def _rows_result(self, rows: list[int], out: Any) -> StepResult:
        self.slot = self._next_slot()
        return self._rows_of_batch(rows, out)

    def _rows_of_batch(self, rows: list[int], out: Any) -> StepResult:
        """Put the result of `recv` together, from the batch in `_row_batch` or a reset of all."""
        arrays, batch, self._row_batch = self._arrays, self._row_batch, None
        if batch is None:
            infos, self._reset_infos = self._reset_infos or {}, None
            observations = self._newest
        else:
            infos = self._take_batch(batch, rows)
            observations = batch.observations
        self._only_reset[rows] = False
        for row in rows:
            self._outstanding.pop(row)
        self._received = rows
        if out is not None:
            copy_arrays(out_like(out, observations), observations)
            observations = out
        terminations, truncations = arrays.terminations[rows], arrays.truncations[rows]
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._done[rows] = terminations | truncations
        if self.settings.statistics and np.count_nonzero(arrays.episode_ended[rows]):
            add_episode_infos(infos, arrays.episode_ended[rows], EpisodeStatistics.of(arrays, rows))
        infos["env_id"], infos["_env_id"] = np.array(rows), np.ones(len(rows), np.bool_)
        return observations, arrays.rewards[rows], terminations, truncations, infos
