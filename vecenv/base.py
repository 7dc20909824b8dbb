"""The contract of every back end: call order, argument checks, and how results are put together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from vecenv.actions import write_actions
from vecenv.arguments import check_positive_int, seeds_of, split_reset_mask
from vecenv.autoreset import autoreset_mode_of
from vecenv.batch import BatchArrays
from vecenv.infos import Infos
from vecenv.spaces import has_fixed_layout, map_arrays, row_of
from vecenv.statistics import EpisodeStatistics, add_episode_infos

if TYPE_CHECKING:
    from vecenv.preprocess.config import AtariConfig

Array = npt.NDArray[Any]
StepResult = tuple[Any, Array, Array, Array, Infos]


@dataclass(frozen=True)
class VectorSettings:
    """What every back end can be told.

    Attributes:
        autoreset_mode: what happens when an episode ends.
        copy: whether returned observations belong to the caller. False: they are views of the ring, valid until it
            comes round again, `slots` calls of `reset` or `step` later.
        slots: length of the ring of observation batches, at least 1.
        statistics: whether ended episodes are reported in ``infos["episode"]``.
        seed: for the first `reset` that gets none.
    """

    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    copy: bool = True
    slots: int = 2
    statistics: bool = False
    seed: int | Sequence[int | None] | None = None

    @classmethod
    def checked(cls, **settings: Any) -> VectorSettings:
        """Read settings as users give them.

        Raises:
            UnknownSetting: the autoreset mode does not exist.
            TypeError, ValueError: `slots` is no positive int.
        """
        settings["autoreset_mode"] = autoreset_mode_of(settings.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        result = cls(**settings)
        check_positive_int("slots", result.slots)
        return result


@dataclass(frozen=True)
class EnvDescription:
    """What built envs say about themselves.

    Attributes:
        observation_space: of one env.
        action_space: of one env.
        metadata: of the first env.
        render_mode: of the first env.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None


class VecEnv(VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` whose batches lie in one block of memory.

    Attributes:
        slot: index in `observation_slots` of the observations returned last; every `reset` and `step` moves on by one.
        autoreset_mode: what happens when an episode ends.
        settings: as given at construction.
        config: the resolved Atari settings, None for other envs.
    """

    config: AtariConfig | None = None
    settings: VectorSettings
    autoreset_mode: AutoresetMode
    slot: int
    _arrays: BatchArrays
    closed = True

    def _describe(self, description: EnvDescription, num_envs: int) -> None:
        """Take over what the envs say, and refuse spaces that this package cannot carry."""
        for role, space in (
            ("observation", description.observation_space),
            ("action", description.action_space),
        ):
            if not has_fixed_layout(space):
                raise TypeError(
                    f"{role} space {space}: only Box, Discrete, MultiDiscrete, MultiBinary and Dict/Tuple of these "
                    "are supported"
                )
        self.num_envs = num_envs
        self.autoreset_mode = self.settings.autoreset_mode
        self.metadata = {**description.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = description.render_mode
        self.single_observation_space = description.observation_space
        self.single_action_space = description.action_space
        self.observation_space = batch_space(description.observation_space, num_envs)
        self.action_space = batch_space(description.action_space, num_envs)
        self.slot = self.settings.slots - 1
        self._first_seed = self.settings.seed
        self._done = np.zeros(num_envs, np.bool_)
        self._failed: tuple[int, ...] = ()

    # -- what users call -------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Begin new episodes.

        Args:
            seed: None: generators go on. An int s: env i gets s + i. A sequence: one int or None per env.
            options: passed to every env. ``options["reset_mask"]``, `[num_envs]` bool, selects the envs to reset; the
                others keep observation, flags and statistics. The dict is not changed.

        Returns:
            observations: `[num_envs, ...]`, the caller's own unless ``copy=False``.
            infos: dict of arrays with masks.

        Raises:
            EnvError: some envs raised.
            WorkerDied: a worker process ended.
        """
        self._begin_reset(seed, options)
        return self._end_reset()

    def step(self, actions: Any) -> StepResult:
        """Step every env once.

        Args:
            actions: `[num_envs, ...]`, a batch of the action space. Checked before any env gets one.

        Returns:
            observations: `[num_envs, ...]`, the caller's own unless ``copy=False``.
            rewards: `[num_envs] float64`.
            terminations: `[num_envs]` bool.
            truncations: `[num_envs]` bool.
            infos: dict of arrays with masks.

        Raises:
            TypeError, ValueError: the actions do not fit; nothing was sent.
            EnvError: some envs raised.
            WorkerDied: a worker process ended.
        """
        self._begin_step(actions)
        return self._end_step()

    def episode_statistics(self) -> EpisodeStatistics:
        """Returns of unclipped rewards and lengths in steps, as counted so far; counted always, on every back end."""
        arrays = self._arrays
        return EpisodeStatistics(
            returns=arrays.returns.copy(),
            lengths=arrays.lengths.copy(),
            episode_counts=arrays.episode_counts.copy(),
            last_returns=arrays.last_returns.copy(),
            last_lengths=arrays.last_lengths.copy(),
            last_seconds=arrays.last_seconds.copy(),
        )

    @property
    def observation_slots(self) -> Any:
        """`[slots, num_envs, ...]`: the ring that envs write their observations into (a nest of arrays for nests).

        The memory stays the vector env's: a slot is valid until the ring comes round to it again.
        """
        return self._arrays.observations

    @property
    def observations(self) -> Any:
        """The newest observations as views of the ring, `[num_envs, ...]`."""
        return map_arrays(self._arrays.observations, lambda array: array[self.slot])

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

    # -- what back ends fill in --------------------------------------------------------------------------------------

    @abstractmethod
    def _send_reset(
        self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Array | None
    ) -> None:
        """Start a reset into a slot."""

    @abstractmethod
    def _send_step(self, slot: int, wide: bool) -> None:
        """Start a step into a slot; the actions stand in the block."""

    @abstractmethod
    def _receive(self, timeout: float | None) -> Infos:
        """Wait for the end of what was started and give the infos of the envs."""

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _check_open(self, doing: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"`{doing}` was called on a vector env that is closed")

    def _begin_reset(self, seed: Any, options: dict[str, Any] | None) -> None:
        self._check_open("reset")
        if seed is None and self._first_seed is not None:
            seed = self._first_seed
        seeds = seeds_of(seed, self.num_envs)
        selected, options = split_reset_mask(options, self.num_envs)
        if selected is not None and not set(self._failed) <= set(np.flatnonzero(selected).tolist()):
            raise ResetNeeded(f"reset: environments {self._failed} failed before; select them in reset_mask too")
        self._send_reset(self._next_slot(), seeds, options, selected)
        self._first_seed = None
        self._selected = selected

    def _end_reset(self, timeout: float | None = None) -> tuple[Any, Infos]:
        infos = self._receive(timeout)
        self.slot = self._next_slot()
        self._failed = ()
        if self._selected is None:
            self._done[:] = False
        else:
            self._done[self._selected] = False
        return self._returned_observations(), infos

    def _begin_step(self, actions: Any) -> None:
        self._check_open("step")
        if self._failed:
            raise ResetNeeded(f"step: environments {self._failed} failed before; reset them first")
        ignored = None
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            ignored = self._done
        elif self.autoreset_mode is AutoresetMode.DISABLED and self._done.any():
            rows = np.flatnonzero(self._done).tolist()
            raise ResetNeeded(
                f"step: the episodes of environments {rows} have ended and autoreset is disabled; call "
                "reset(options={'reset_mask': terminations | truncations}) first"
            )
        wide = write_actions(self.single_action_space, self._arrays.actions, actions, ignored)
        self._send_step(self._next_slot(), wide)

    def _end_step(self, timeout: float | None = None) -> StepResult:
        infos = self._receive(timeout)
        self.slot = self._next_slot()
        arrays = self._arrays
        terminations, truncations = arrays.terminations.copy(), arrays.truncations.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._add_final_observations(infos)
        else:
            np.logical_or(terminations, truncations, out=self._done)
        if self.settings.statistics and arrays.episode_ended.any():
            add_episode_infos(infos, arrays.episode_ended, self.episode_statistics())
        return self._returned_observations(), arrays.rewards.copy(), terminations, truncations, infos

    def _note_failures(self, env_indices: Iterable[int]) -> None:
        """After a step or reset in which envs failed: the rows of the others are real and stand in the new slot."""
        self._failed = tuple(sorted(set(env_indices)))
        self.slot = self._next_slot()
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            np.logical_or(self._arrays.terminations, self._arrays.truncations, out=self._done)

    def _next_slot(self) -> int:
        return (self.slot + 1) % self.settings.slots

    def _returned_observations(self) -> Any:
        views = self.observations
        return map_arrays(views, np.copy) if self.settings.copy else views

    def _add_final_observations(self, infos: Infos) -> None:
        mask = self._arrays.final_mask
        if mask.any():
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(mask):
                final[row] = row_of(self._arrays.final_observations, int(row))
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
