"""A vector env whose environments are rows of arrays, stepped by one compiled kernel in the caller's thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.actions import write_actions
from vecenv.arguments import check_positive_int, env_ids_of
from vecenv.array_pool import ArrayPool, aligned_empty, aligned_zeros
from vecenv.base import StepResult, VecEnv
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.compiled_attributes import CompiledAttributes
from vecenv.compiled_batch import DISABLED, NEXT_STEP, SAME_STEP, STARTED, Batch, Results, Rules, columns_of_state
from vecenv.compiled_env import CompiledEnv, note_functions
from vecenv.compiled_kernels import kernels_of, machine_code
from vecenv.infos import Infos
from vecenv.pcg64 import GENERATOR_SIZE, row_of_seed, seed_words
from vecenv.settings import EnvDescription, VectorSettings
from vecenv.statistics import EpisodeStatistics

Array = npt.NDArray[Any]

_MODES = {
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.DISABLED: DISABLED,
}
_NEVER = 2**62  # more steps than anyone takes
_WORD = 8


class CompiledVecEnv(CompiledAttributes, VecEnv):
    """Steps a `CompiledEnv` for all rows at once; start states come from the generators that Gymnasium's envs use.

    Args:
        env: what is stepped.
        num_envs: number of environments.
        frame_skip: inner steps per step, with the action repeated and rewards added up; the step limit counts inner
            steps.
        settings: the settings of `VectorSettings`, but that `batch_size` can only be `num_envs`.

    Raises:
        UnknownSetting, TypeError, ValueError: a setting that does not fit.
        NotImplementedError: `batch_size` below `num_envs`.
    """

    def __init__(self, env: CompiledEnv, num_envs: int, frame_skip: int = 1, **settings: Any) -> None:
        self.settings = VectorSettings.checked(**settings)
        num_envs = check_positive_int("num_envs", num_envs)
        check_positive_int("frame_skip", frame_skip)
        if self.settings.checked_batch_size(num_envs) < num_envs:
            raise NotImplementedError(
                f"batch_size={self.settings.batch_size}: the compiled back end steps all environments in one call; use "
                f"batch_size={num_envs} or backend='subproc'"
            )
        self._env = env
        parameters_class: Any = type(env.parameters)
        note_functions(env, "CompiledVecEnv")
        self._kernels = kernels_of(parameters_class)
        spaces_of_envs = (env.observation_space,) * num_envs
        self._step_code: Callable[..., int] | None = None
        self._describe(EnvDescription(spaces_of_envs, env.action_space, {"render_modes": []}, None), num_envs)
        self._allocate(num_envs)
        space = env.action_space
        self._rules = Rules(
            mode=_MODES[self.autoreset_mode],
            first_action=int(space.start) if isinstance(space, spaces.Discrete) else 0,
            num_actions=int(space.n) if isinstance(space, spaces.Discrete) else 0,
            max_steps=_NEVER if env.max_episode_steps is None else env.max_episode_steps,
            frame_skip=int(frame_skip),
            advances_ended=bool(env.advances_ended),
            reports=bool(self.settings.statistics),
        )
        self._bounds = tuple(float(bound) for bound in env.bounds)
        # Rows that no reset has started yet; None once there are none.
        self._not_started: Array | None = np.ones(num_envs, np.bool_)
        self._env_seeds: list[int] = [-1] * num_envs  # -1: its generator was never seeded
        self._result: StepResult | None = None
        self._ring_is_behind = False
        self._keeps_ring = not self.settings.copy
        self.closed = False

    def _allocate(self, num_envs: int) -> None:
        env = self._env
        layout = Layout()
        plan_batch(layout, env.observation_space, env.action_space, num_envs, self.settings.slots)
        self._arrays = batch_arrays(Block(layout), env.observation_space, env.action_space)
        self._discrete = isinstance(env.action_space, spaces.Discrete)
        # Actions of a Discrete space that had to be converted first.
        self._given = np.zeros(num_envs if self._discrete else 0, np.int64)
        over = aligned_zeros(-(-num_envs // _WORD) * _WORD, np.bool_)
        self._batch = Batch(
            state=aligned_zeros((env.state_size, columns_of_state(num_envs))),
            generators=aligned_zeros((num_envs, GENERATOR_SIZE), np.uint64),
            steps=aligned_zeros(num_envs, np.int64),
            returns=aligned_zeros(num_envs),
            over=over[:num_envs],
            over_words=over.view(np.uint64),
            episodes=np.zeros((num_envs, 5)),
            actions=np.zeros_like(self._given if self._discrete else self._arrays.actions),
            found=np.zeros(len(over) // _WORD, np.int64),
            rows=np.zeros(num_envs, np.int64),
            listed=np.full(1, -1),
            starts=np.zeros((num_envs, env.state_size)),
            draws=np.zeros((num_envs, 2), np.uint64),
        )
        self._batch.episodes[:, STARTED] = time.monotonic()
        self._done = self._batch.over
        self._views = [self._arrays.observations[slot] for slot in range(self.settings.slots)]
        self._shape, self._dtype = self._views[0].shape, self._views[0].dtype
        self._pool, self._final_pool = ArrayPool(self._new_results), ArrayPool(self._new_finals)
        self._renew_finals()

    # -- step --------------------------------------------------------------------------------------------------------

    def step(self, actions: Any, out: Any = None) -> StepResult:
        """Step every env once; see `VecEnv.step`."""
        if out is not None:
            self._check_out(out)
        self._check_may_step("step")
        return self._play(actions, out)

    def _check_may_step(self, doing: str) -> None:
        if self.closed:
            self._check_open(doing)
        if self._whole_sent:
            self._check_not_outstanding(doing, range(self.num_envs))
        if self._not_started is not None:
            rows = np.flatnonzero(self._not_started).tolist()
            raise ResetNeeded(f"{doing}: environments {rows} were never reset; call reset first")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_can_step(doing)

    def _play(self, actions: Any, out: Any) -> StepResult:
        """Run the kernel into arrays that are the caller's from then on."""
        if not (
            self._discrete
            and type(actions) is np.ndarray
            and actions.dtype == np.int64
            and actions.shape == self._given.shape
            and actions.flags.carray
        ):
            actions = self._taken(actions)
        slot = self._next_slot()
        observations, rewards, terminations, truncations = self._pool.take()
        if out is not None and out.flags.carray:
            observations = out
        elif not self.settings.copy:
            observations = self._views[slot]
        results = Results(observations, rewards, terminations, truncations, *self._finals)
        arguments = (actions, self._batch, results, self._rules, self._bounds, self._env.parameters, time.monotonic())
        if self._step_code is None:
            self._step_code = machine_code(self._kernels.step, arguments)
        count = self._step_code(*arguments)
        if count < 0:
            self._refuse(actions, -1 - count)
        self.slot = slot
        if observations is not self._views[slot]:
            self._ring_is_behind = True
            if self._keeps_ring:
                self._catch_up()
        if out is not None and observations is not out:
            out[...] = observations
            observations = out
        infos = self._infos_of_ends() if count else {}
        return observations, rewards, terminations, truncations, infos

    def bare_step(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """The compiled step and what it takes behind the actions, for measurements: it skips all that `step` checks.

        Returns:
            The function, and arguments whose arrays of results no other call gets.
        """
        results = Results(*self._new_results(), *self._new_finals())
        arguments = (self._batch, results, self._rules, self._bounds, self._env.parameters, time.monotonic())
        actions = self._given if self._discrete else self._batch.actions
        return machine_code(self._kernels.step, (actions, *arguments)), arguments

    def _taken(self, actions: Any) -> Array:
        """Check actions that are not simply an array of the right form, and give them as one.

        Raises:
            TypeError, ValueError: see `write_actions`.
        """
        ignored = self._done if self.autoreset_mode is AutoresetMode.NEXT_STEP else None
        taken: Array = self._given if self._discrete else self._batch.actions
        write_actions(self.single_action_space, taken, actions, ignored)
        return taken

    def _refuse(self, actions: Array, row: int) -> None:
        """Raise what the other back ends raise for an action out of range."""
        raise ValueError(f"actions: action {actions[row]!r} of environment {row} is not in {self.single_action_space}")

    def _new_results(self) -> tuple[Array, ...]:
        copied = self.num_envs if self.settings.copy else 0
        flags = aligned_empty(self.num_envs, np.bool_), aligned_empty(self.num_envs, np.bool_)
        return aligned_empty((copied, self._shape[1]), self._dtype), aligned_empty(self.num_envs), *flags

    def _new_finals(self) -> tuple[Array, ...]:
        finals = self.num_envs if self.autoreset_mode is AutoresetMode.SAME_STEP else 0
        reported = self.num_envs if self.settings.statistics else 0
        numbers = aligned_empty(reported), aligned_empty(reported, np.int64), aligned_empty(reported)
        return aligned_empty((finals, self._shape[1]), self._dtype), *numbers

    def _renew_finals(self) -> None:
        """Zeroed arrays for what is told of ended episodes; those that were handed out are the caller's."""
        self._finals = self._final_pool.take()
        for array in self._finals:
            array.fill(0)

    def _infos_of_ends(self) -> Infos:
        """Infos of a step in which episodes ended, made of arrays that the kernel has filled."""
        infos: Infos = {}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        if not same_step and not self.settings.statistics:
            return infos
        final, returns, lengths, seconds = self._finals
        self._renew_finals()
        if same_step:
            infos["final_info"], infos["_final_info"] = {}, self._done.copy()
            infos["final_obs"], infos["_final_obs"] = final, self._done.copy()
        if self.settings.statistics:
            infos["episode"], infos["_episode"] = {"r": returns, "l": lengths, "t": seconds}, self._done.copy()
        return infos

    def episode_statistics(self) -> EpisodeStatistics:
        """Returns and lengths in steps, as counted so far; see `VecEnv.episode_statistics`."""
        batch, skip = self._batch, self._rules.frame_skip
        _, counts, last_returns, last_lengths, last_seconds = batch.episodes.T
        never = counts == 0
        return EpisodeStatistics(
            returns=batch.returns.copy(),
            lengths=(batch.steps + skip - 1) // skip,
            episode_counts=counts.astype(np.int64),
            last_returns=np.where(never, np.nan, last_returns),
            last_lengths=last_lengths.astype(np.int64),
            last_seconds=np.where(never, np.nan, last_seconds),
        )

    # -- reset -------------------------------------------------------------------------------------------------------

    def _send_reset(self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Any) -> None:
        bounds = self._bounds
        if options and self._env.read_options is not None:
            bounds = tuple(float(bound) for bound in self._env.read_options(options))
            if len(bounds) != len(self._bounds):
                raise ValueError(f"read_options: expected {len(self._bounds)} bounds, got {bounds}")
        rows = np.arange(self.num_envs) if selected is None else np.flatnonzero(selected)
        self._seed_rows(rows, seeds)
        parameters, now = self._env.parameters, time.monotonic()
        self._kernels.reset(rows, self._batch, self._views[slot], bounds, parameters, now)
        self._ring_is_behind = False
        if self._not_started is not None:
            self._not_started[rows] = False
            if not self._not_started.any():
                self._not_started = None

    def _seed_rows(self, rows: Array, seeds: list[int | None]) -> None:
        """Seed the generators that are told to be, and those that never were."""
        known, chosen, numbers = self._env_seeds, [], []
        for row in rows.tolist():
            seed = seeds[row]
            if seed is None:
                if known[row] >= 0:
                    continue
                seed = secrets.randbits(128)  # as NumPy does for a generator without a seed
            known[row] = seed
            if seed >= 2**128:
                self._batch.generators[row] = row_of_seed(seed)
            else:
                chosen.append(row)
                numbers.append(seed)
        if chosen:
            self._kernels.seed(seed_words(numbers), np.array(chosen), self._batch.generators)

    def _send_step(self, slot: int, wide: bool) -> None:
        raise NotImplementedError("the compiled back end steps in one go; see `step`")

    def _receive(self, timeout: float | None) -> Infos:
        return {}

    def _drop_outstanding(self) -> None:
        self._result = None

    # -- the ring ----------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Write the newest observations into their slot."""
        if self._ring_is_behind:
            self._kernels.observe(self._batch, self._views[self.slot], self._env.parameters)
            self._ring_is_behind = False

    @property
    def observation_slots(self) -> Any:
        """`[slots, num_envs, ...]`: the ring of observations; with ``copy=True`` filled once it was asked for.

        The memory stays the vector env's: a slot is valid for `slots - 1` further calls.
        """
        self._keeps_ring = True
        self._catch_up()
        return self._arrays.observations

    @property
    def observations(self) -> Any:
        """The newest observations as views of the ring, `[num_envs, ...]`."""
        self._catch_up()
        newest: Array = self._views[self.slot]
        return newest

    # -- send and recv -----------------------------------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Step all envs; `recv` gives the results.

        Args:
            actions: `[num_envs, ...]`.
            env_ids: None, or every index in order.

        Raises:
            NotImplementedError: only some envs.
        """
        self._check_open("send")
        if env_ids is not None and env_ids_of(env_ids, self.num_envs) != list(range(self.num_envs)):
            raise NotImplementedError("send: the compiled back end steps all environments at once, in their order")
        self._check_may_step("send")
        self._result = self._play(actions, None)
        self._whole_sent = True

    def send_reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Reset all envs; `recv` gives the first observations, with rewards of 0 and no ends.

        Args:
            seed: as for `reset`.
            options: as for `reset`, but without ``reset_mask``.

        Raises:
            NotImplementedError: only some envs.
        """
        self._check_open("send_reset")
        if options is not None and "reset_mask" in options:
            raise NotImplementedError("send_reset: the compiled back end takes all environments; use reset for some")
        observations, infos = self.reset(seed=seed, options=options)
        nobody = np.zeros(self.num_envs, np.bool_)
        self._result = (observations, np.zeros(self.num_envs), nobody, nobody.copy(), infos)
        self._whole_sent = True

    #: EnvPool's name for `send_reset`.
    async_reset = send_reset

    def recv(self, timeout: float | None = None, out: Any = None) -> StepResult:
        """The results of what was sent, in env order, with ``infos["env_id"]``.

        Args:
            timeout: nothing waits, so it does not matter.
            out: array to write the observations into.

        Raises:
            NoAsyncCallError: nothing was sent.
        """
        self._check_open("recv")
        self._check_out(out)
        if self._result is None:
            raise NoAsyncCallError("`recv` was called, but nothing was sent; call `send` first", "send")
        observations, *rest, infos = self._result
        self._result, self._whole_sent = None, False
        if out is not None:
            out[...] = observations
            observations = out
        infos["env_id"], infos["_env_id"] = np.arange(self.num_envs), np.ones(self.num_envs, np.bool_)
        return (observations, *rest, infos)

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing is open but memory.

        Args:
            kwargs: accepted and ignored, as Gymnasium does.
        """
