"""The contract of every back end: call order, argument checks, and how results are put together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from multiprocessing import TimeoutError
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from vecenv.actions import read_actions, write_actions
from vecenv.arguments import out_like, seeds_of, split_reset_mask
from vecenv.batch import BatchArrays
from vecenv.call_order import CallOrder
from vecenv.errors import EnvError
from vecenv.infos import Infos
from vecenv.observations import ObjectBatches, batched_space
from vecenv.settings import EnvDescription, VectorSettings
from vecenv.spaces import copy_arrays, has_fixed_layout, map_arrays, row_of
from vecenv.statistics import EpisodeStatistics, add_episode_infos

if TYPE_CHECKING:
    from vecenv.preprocess.config import AtariConfig

Array = npt.NDArray[Any]
StepResult = tuple[Any, Array, Array, Array, Infos]


class VecEnv(CallOrder, VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` whose batches lie in one block of memory.

    Calls that reach the envs raise `ClosedEnvironmentError` after `close`, `EnvError` where envs raise and `WorkerDied`
    where a worker process ended.

    Attributes:
        slot: index in `observation_slots` of the observations returned last; every `reset` and `step` moves on by one.
        autoreset_mode: what happens when an episode ends.
        batch_size: how many environments `recv` returns.
        settings: as given at construction.
        config: the resolved Atari settings, None for other envs.
    """

    config: AtariConfig | None = None
    settings: VectorSettings
    autoreset_mode: AutoresetMode
    slot: int
    closed = True  # until it is built
    _arrays: BatchArrays
    # One observation per env where observations have no fixed layout (or are told to take the pipe), else None.
    _objects: dict[int, Any] | None = None
    _final_objects: dict[int, Any]
    # Actions as objects, where the action space has no fixed layout.
    _action_objects: list[Any]

    def _describe(self, description: EnvDescription, num_envs: int) -> None:
        """Take over what the envs say."""
        self.num_envs = num_envs
        self.copy = self.settings.copy
        self.observation_mode = self.settings.observation_mode
        self.autoreset_mode = self.settings.autoreset_mode
        self.metadata = {**description.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = description.render_mode
        self.single_observation_space, self.observation_space = batched_space(
            self.settings.observation_mode, description.observation_spaces
        )
        self.single_action_space = description.action_space
        self.action_space = batch_space(description.action_space, num_envs)
        self.batch_size = self.settings.checked_batch_size(num_envs)
        self.slot = self.settings.slots - 1
        self._first_seed = self.settings.seed
        self._seeds: list[int | None] = [None] * num_envs
        self._done = np.zeros(num_envs, np.bool_)
        self._failed: set[int] = set()
        self._outstanding: dict[int, None] = {}
        # Infos of finished rows that could not be returned yet.
        self._taken_infos: dict[int, dict[str, Any]] = {}
        self._received: list[int] = list(range(num_envs))
        self._whole_sent = False
        fixed = self.settings.shared_memory is not False and has_fixed_layout(self.single_observation_space)
        self._objects = None if fixed else {}
        self._object_batches = ObjectBatches(self.single_observation_space, self.settings.copy)
        self._slot_views: list[Any] = []
        self._final_objects = {}
        self._actions_fixed = has_fixed_layout(self.single_action_space)
        self._action_objects = [None] * num_envs

    @property
    def _planned_spaces(self) -> tuple[gym.Space[Any] | None, gym.Space[Any] | None]:
        """Single spaces that the block holds batches of; None where values travel as objects."""
        observation_space = self.single_observation_space if self._objects is None else None
        return observation_space, self.single_action_space if self._actions_fixed else None

    # -- what users call -------------------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        out: Any = None,
    ) -> tuple[Any, Infos]:
        """Begin new episodes.

        Args:
            seed: None: generators go on. An int s: env i gets s + i. A sequence: one int or None per env.
            options: passed to every env. ``options["reset_mask"]``, `[num_envs]` bool, selects the envs to reset; the
                others keep observation, flags and statistics. The dict is not changed.
            out: array (or nest of arrays) to write the observations into, in place of a new one.

        Returns:
            observations: `[num_envs, ...]`, the caller's own unless ``copy=False``.
            infos: dict of arrays with masks.

        Raises:
            TypeError, ValueError: `seed`, the mask or `out` does not fit; nothing was sent.
            ResetNeeded: the mask leaves out envs that failed before, or whose rows were dropped and had failed.
            AlreadyPendingCallError: a step of the whole batch was sent and not received, as in Gymnasium's
                `AsyncVectorEnv`; rows that were sent alone are waited for and dropped.
            EnvError, WorkerDied: see the class.
        """
        self._check_out(out)
        self._begin_reset(seed, options)
        return self._end_reset(None, out)

    def step(self, actions: Any, out: Any = None) -> StepResult:
        """Step every env once.

        Args:
            actions: `[num_envs, ...]`, a batch of the action space. Checked before any env gets one.
            out: array (or nest of arrays) to write the observations into, in place of a new one.

        Returns:
            observations: `[num_envs, ...]`, the caller's own unless ``copy=False``.
            rewards: `[num_envs] float64`.
            terminations: `[num_envs]` bool.
            truncations: `[num_envs]` bool.
            infos: dict of arrays with masks.

        Raises:
            TypeError, ValueError: the actions or `out` do not fit; nothing was sent.
            ResetNeeded: envs failed before and were not reset, or (`EpisodeEnded`) their episodes have ended and
                autoreset is disabled.
            AlreadyPendingCallError: results of envs that were sent actions are outstanding.
            EnvError, WorkerDied: see the class.
        """
        self._check_out(out)
        self._check_open("step")
        self._begin_step(actions)
        return self._end_step(None, out)

    def episode_statistics(self) -> EpisodeStatistics:
        """Returns of unclipped rewards and lengths in steps, as counted so far; counted always, on every back end."""
        return EpisodeStatistics.of(self._arrays)

    @property
    def observation_slots(self) -> Any:
        """`[slots, num_envs, ...]`: the ring that envs write their observations into (a nest of arrays for nests).

        The memory stays the vector env's: a slot is valid for `slots - 1` further calls of `reset` and `step`. Rows
        that are sent alone are written into the newest one.

        Raises:
            TypeError: observations of this space do not lie in arrays.
        """
        if self._objects is not None:
            raise TypeError(f"observations of {self.single_observation_space} do not lie in a ring of arrays")
        return self._arrays.observations

    @property
    def observations(self) -> Any:
        """The newest observations as views of the ring, `[num_envs, ...]`."""
        if self._objects is not None:
            return self._object_batches.batch([self._objects[row] for row in range(self.num_envs)])
        if not self._slot_views:
            self._slot_views = [
                map_arrays(self._arrays.observations, lambda array, slot=slot: array[slot])  # type: ignore[misc]
                for slot in range(self.settings.slots)
            ]
        return self._slot_views[self.slot]

    @property  # type: ignore[override]
    def np_random_seed(self) -> tuple[int, ...]:
        """The seeds of the envs' generators."""
        return self.get_attr("np_random_seed")

    @np_random_seed.setter
    def np_random_seed(self, value: Any) -> None:
        raise AttributeError("np_random_seed cannot be set; seed through reset(seed=...)")

    @property  # type: ignore[override]
    def np_random(self) -> tuple[np.random.Generator, ...]:
        """The envs' generators (copies where the envs live in other processes)."""
        return self.get_attr("np_random")

    @np_random.setter
    def np_random(self, value: Any) -> None:
        raise AttributeError("np_random cannot be set; seed through reset(seed=...)")

    def render(self) -> tuple[Any, ...] | None:
        """The frames of all envs."""
        return self.call("render")

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers.

        Returns:
            One result per env.
        """

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env, through wrappers."""
        return self.call(name)

    @abstractmethod
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives, in whichever wrapper or env has it.

        Args:
            name: the attribute.
            values: a list or tuple with one value per env, or one value for all.
        """

    @abstractmethod
    def get_state(self) -> list[bytes]:
        """The state of every env as bytes, generators, statistics and last observation included.

        Raises:
            EnvError: an env's state cannot be saved (it is pickled by its constructor's arguments, say).
        """

    @abstractmethod
    def set_state(self, states: Sequence[bytes]) -> None:
        """Continue where `get_state` was called, bit for bit; in this vector env or one with the same envs.

        Args:
            states: one per env. Only from a trusted source: they are unpickled.

        Raises:
            AlreadyPendingCallError: a step of the whole batch was sent and not received.
            ValueError: another number of states.
            EnvError: a state cannot be read.
        """

    # -- what back ends fill in --------------------------------------------------------------------------------------

    @abstractmethod
    def _send_reset(self, slot: int, seeds: list[int | None], options: Any, selected: Array | None) -> None:
        """Start a reset into a slot; the options are what `_passed_options` has made of them."""

    @abstractmethod
    def _send_step(self, slot: int, wide: bool) -> None:
        """Start a step into a slot; the actions stand in the block (or in `_action_objects`)."""

    @abstractmethod
    def _receive(self, timeout: float | None) -> Infos:
        """Wait for the end of what was started and give the infos of the envs."""

    @abstractmethod
    def _drop_outstanding(self) -> Exception | None:
        """Wait for rows that were sent and never received; a reset makes their results worthless.

        Returns:
            What the first env raised that has failed meanwhile.
        """

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _take_actions(self, actions: Any, rows: list[int] | None) -> bool:
        """Check actions and put them where the envs find them."""
        if not self._actions_fixed:
            objects = read_actions(self.action_space, actions, self.num_envs if rows is None else len(rows))
            for row, action in zip(range(self.num_envs) if rows is None else rows, objects, strict=True):
                self._action_objects[row] = action
            return False
        ignored = self._done if self.autoreset_mode is AutoresetMode.NEXT_STEP else None
        return write_actions(self.single_action_space, self._arrays.actions, actions, ignored, rows)

    def _note_seeds(self, seed: Any, seeds: list[int | None], rows: Iterable[int]) -> None:
        """Remember what envs were seeded with: a restarted env gets a seed derived from it."""
        if seed is None:
            return
        base = int(seed) if isinstance(seed, (int, np.integer)) else None
        for row in rows:
            if seeds[row] is not None:
                self._seeds[row] = seeds[row] if base is None else base

    def _begin_reset(self, seed: Any, options: dict[str, Any] | None) -> None:
        self._check_open("reset")
        self._check_not_outstanding("reset", () if not self._whole_sent else range(self.num_envs))
        is_first = seed is None
        seed = self._first_seed if is_first else seed
        seeds = seeds_of(seed, self.num_envs)
        selected, options = split_reset_mask(options, self.num_envs)
        rows = range(self.num_envs) if selected is None else np.flatnonzero(selected).tolist()
        self._check_failed_selected(rows)
        passed = self._passed_options(options)
        self._check_failed_selected(rows, self._drop_outstanding())
        self._send_reset(self._next_slot(), seeds, passed, selected)
        self._note_seeds(seed, seeds, rows)
        self._first_seed = self._first_seed if is_first else None  # kept for another try, where envs fail
        self._selected = selected

    def _end_reset(self, timeout: float | None = None, out: Any = None) -> tuple[Any, Infos]:
        infos = self._receive(timeout)
        self._first_seed = None
        self.slot = self._next_slot()
        self._received = list(range(self.num_envs))
        self._failed = set()
        if self._selected is None:
            self._done[:] = False
        else:
            self._done[self._selected] = False
        return self._returned_observations(out), infos

    def _begin_step(self, actions: Any) -> None:
        """Check the actions and start a step; whether the vector env is open has been looked at before."""
        if self._outstanding or self._whole_sent:
            self._check_not_outstanding("step", range(self.num_envs))
        self._check_can_step("step")
        wide = self._take_actions(actions, None)
        self._send_step(self._next_slot(), wide)

    def _end_step(self, timeout: float | None = None, out: Any = None) -> StepResult:
        try:
            infos = self._receive(timeout)
        except BaseException as error:
            # What is not done yet stays pending; that an env raises the same class does not mean that.
            self._whole_sent &= isinstance(error, TimeoutError) and not isinstance(error, EnvError)
            raise
        self._whole_sent = False
        self.slot = self._next_slot()
        arrays = self._arrays
        terminations, truncations = arrays.terminations.copy(), arrays.truncations.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._add_final_observations(infos, range(self.num_envs))
        else:
            np.logical_or(terminations, truncations, out=self._done)
        if self.settings.statistics and arrays.episode_ended.any():
            add_episode_infos(infos, arrays.episode_ended, self.episode_statistics())
        return self._returned_observations(out), arrays.rewards.copy(), terminations, truncations, infos

    def _note_failures(self, env_indices: Iterable[int], resets: Iterable[int] = ()) -> None:
        """After a step or reset in which envs failed: the rows of the others are real and stand in the new slot.

        Args:
            env_indices: the envs that failed.
            resets: the envs that were reset, which makes up for failures of before.
        """
        self._failed.difference_update(resets)
        self._failed.update(env_indices)
        self._whole_sent = False
        self.slot = self._next_slot()
        self._note_ends(slice(None))

    def _next_slot(self) -> int:
        return (self.slot + 1) % self.settings.slots

    def _returned_observations(self, out: Any = None) -> Any:
        self._object_batches.renew()
        views = self.observations
        if out is not None:
            copy_arrays(out_like(out, views), views)
            return out
        if not self.settings.copy or self._objects is not None:
            return views
        return views.copy() if type(views) is np.ndarray else map_arrays(views, np.copy)

    def _add_final_observations(self, infos: Infos, rows: Sequence[int]) -> None:
        mask = self._arrays.final_mask[rows]
        if mask.any():
            final = np.full(len(rows), None, dtype=object)
            for place in np.flatnonzero(mask).tolist():
                row = rows[place]
                if self._objects is not None:
                    final[place] = self._final_objects[row]
                else:
                    final[place] = row_of(self._arrays.final_observations, row)
            infos["final_obs"] = final
            infos["_final_obs"] = mask.copy()

    def __enter__(self) -> VecEnv:
        """The vector env itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __len__(self) -> int:
        """Number of environments."""
        return self.num_envs
