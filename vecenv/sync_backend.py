"""The `sync` back end: all envs in the caller's process, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from vecenv.actions import split_actions
from vecenv.arguments import check_callable_name, checked_env_fns, values_per_env
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.env_failures import SliceFailed
from vecenv.env_slice import EnvSlice, build_envs
from vecenv.errors import EnvError, EnvFailure, env_error
from vecenv.infos import InfoBatch, Infos, own_copy
from vecenv.send_recv import SendRecvVecEnv
from vecenv.settings import ObservationMode, VectorSettings, describe_env, joined_descriptions

EnvFn = Callable[[], gym.Env[Any, Any]]


class SyncVecEnv(SendRecvVecEnv):
    """Runs envs serially; swaps in for `gymnasium.vector.SyncVectorEnv`.

    Args:
        env_fns: constructors of the envs.
        copy: see `VectorSettings`.
        observation_mode: see `VectorSettings`.
        autoreset_mode: see `VectorSettings`.
        settings: the other settings of `VectorSettings`.

    Attributes:
        envs: the environments.

    Raises:
        EnvError: a constructor raised; the envs built before it are closed.
        RuntimeError: envs with different spaces.

    Examples:
        >>> from vecenv.testing import CountEnv
        >>> with SyncVecEnv([CountEnv, CountEnv], autoreset_mode="Disabled") as envs:
        ...     observations, infos = envs.reset(seed=0)
        ...     observations, *_ = envs.step([0, 1])
        >>> observations[:, 2].tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        self.settings = VectorSettings.checked(
            copy=copy, observation_mode=observation_mode, autoreset_mode=autoreset_mode, **settings
        )
        self.env_fns = checked_env_fns(env_fns)
        self.settings.checked_batch_size(len(self.env_fns))
        try:
            self.envs = list(build_envs(dict(enumerate(self.env_fns))).values())
        except SliceFailed as failed:
            raise env_error(failed.failures, "construction") from failed.failures[0].exception
        try:
            self._prepare()
        except BaseException:
            for env in self.envs:
                with contextlib.suppress(Exception):
                    env.close()
            raise
        self.closed = False

    def _prepare(self) -> None:
        num_envs = len(self.envs)
        self._slice = EnvSlice(dict(enumerate(self.envs)), self.settings.autoreset_mode)
        descriptions = [describe_env(env) for env in self.envs]
        self._describe(joined_descriptions(descriptions, self.settings.observation_mode), num_envs)
        spaces = self._planned_spaces
        layout = Layout()
        plan_batch(layout, *spaces, num_envs, self.settings.slots)
        self._arrays = batch_arrays(Block(layout), *spaces)
        self._infos: Any = InfoBatch(num_envs)
        self._slice.attach(self._arrays, spaces[0], self.settings.slots, self)
        if self._slice.objects is not None:
            self._objects, self._final_objects = self._slice.objects, self._slice.final_objects
        self._row_records: dict[int, dict[str, Any] | EnvFailure] = {}
        self._rows_alone = False
        self._failure: EnvError | None = None

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info (for the slice, not for users)."""
        if self._rows_alone:
            known = self._row_records.setdefault(row, {})
            if isinstance(known, dict):
                known.update({key: own_copy(value) for key, value in info.items()})
        else:
            self._infos.record(row, info)

    def _send_reset(self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Any) -> None:
        self._failure = None
        rows = list(range(self.num_envs))
        if selected is not None:
            rows = selected.nonzero()[0].tolist()
            self._slice.keep_observations(slot)
        self._infos.take()  # what an interrupted call may have left
        try:
            self._slice.reset(slot, rows, [seeds[row] for row in rows], options)
        except SliceFailed as failed:
            self._failure = self._noted_failure("reset", failed, rows)  # `_receive` raises it, as elsewhere

    def _send_step(self, slot: int, wide: bool) -> None:
        self._infos.take()  # what an interrupted call may have left
        try:
            self._slice.step(slot, self._actions(wide))
        except SliceFailed as failed:
            self._failure = self._noted_failure("step", failed)  # `recv` raises it, and not `send`, as elsewhere

    def _actions(self, wide: bool) -> list[Any]:
        if not self._actions_fixed:
            return list(self._action_objects)
        return split_actions(self.single_action_space, self._arrays.actions, wide, slice(None), self.num_envs)

    def _receive(self, timeout: float | None) -> Infos:
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None
        infos: Infos = self._infos.take()
        return infos

    def _run(self, doing: str, function: Callable[[], Any]) -> Any:
        self._infos.take()  # what an interrupted call may have left
        try:
            return function()
        except SliceFailed as failed:
            raise self._noted_failure(doing, failed)  # noqa: B904 - its cause is the env's own exception

    def _noted_failure(self, doing: str, failed: SliceFailed, resets: Iterable[int] = ()) -> EnvError:
        """What to raise where envs failed, once it is noted which."""
        self._infos.take()
        if doing in ("reset", "step"):
            self._note_failures((failure.env_index for failure in failed.failures), resets)
        error = env_error(failed.failures, doing)
        error.__cause__ = failed.failures[0].exception
        return error

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        actions = self._actions(wide)
        for row in rows:
            self._run_row(row, lambda row=row: self._slice.step(self.slot, [actions[row]], [row]))  # type: ignore[misc]

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        for row in rows:
            self._run_row(row, lambda row=row: self._slice.reset(self.slot, [row], [seeds[row]], options))  # type: ignore[misc]

    def _run_row(self, row: int, function: Callable[[], None]) -> None:
        self._rows_alone = True
        self._row_records[row] = {}
        try:
            function()
        except SliceFailed as failed:
            self._row_records[row] = failed.failures[0]
        finally:
            self._rows_alone = False

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        return outstanding[:count]

    def _row_infos(self, row: int) -> dict[str, Any]:
        record = self._row_records.pop(row, {})
        if isinstance(record, EnvFailure):
            raise env_error([record], "recv") from record.exception
        return record

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers."""
        self._check_open("call")
        self._check_not_outstanding("call", range(self.num_envs))
        check_callable_name(name)
        results = self._run(f"call({name!r})", lambda: self._slice.call(name, args, kwargs))
        return tuple(results[row] for row in range(self.num_envs))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives."""
        self._check_open("set_attr")
        self._check_not_outstanding("set_attr", range(self.num_envs))
        each = values_per_env(name, values, self.num_envs)
        self._run(f"set_attr({name!r})", lambda: self._slice.set_attr(name, each))

    def get_state(self) -> list[bytes]:
        """The state of every env; see `VecEnv.get_state`."""
        self._check_open("get_state")
        self._check_not_outstanding("get_state", range(self.num_envs))
        rows = range(self.num_envs)
        states: list[bytes] = self._run("get_state", lambda: [self._slice.get_state(row, self.slot) for row in rows])
        return states

    def set_state(self, states: Sequence[bytes]) -> None:
        """Continue where `get_state` was called; see `VecEnv.set_state`."""
        self._check_states(states)
        self._drop_outstanding()
        loaded = self._run("set_state", lambda: self._slice.load_states(dict(enumerate(states))))
        self._slice.place_states(self.slot, loaded)
        self.envs[:] = [self._slice.envs[row] for row in range(self.num_envs)]
        self._take_over_states()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs; one that raises does not keep the others open.

        Args:
            kwargs: accepted and ignored, as Gymnasium does.
        """
        failures = self._slice.close()
        if failures:
            self.closed = True
            raise env_error(failures, "close")
