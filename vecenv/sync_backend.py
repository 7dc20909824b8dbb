"""The `sync` back end: all envs in the caller's process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym

from vecenv.actions import split_actions
from vecenv.arguments import check_callable_name, values_per_env
from vecenv.base import EnvDescription, VecEnv, VectorSettings
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.env_slice import EnvSlice, SliceFailed, build_envs
from vecenv.errors import env_error
from vecenv.infos import InfoBatch, Infos

EnvFn = Callable[[], gym.Env[Any, Any]]


class SyncVecEnv(VecEnv):
    """Runs envs serially; swaps in for `gymnasium.vector.SyncVectorEnv`.

    Args:
        env_fns: constructors of the envs.
        settings: see `VectorSettings.checked`: autoreset_mode, copy, slots, statistics, seed.

    Raises:
        EnvError: a constructor raised; the envs built before it are closed.
        TypeError: a space that cannot be carried.
        RuntimeError: envs with different spaces.
    """

    def __init__(self, env_fns: Iterable[EnvFn], **settings: Any) -> None:
        self.settings = VectorSettings.checked(**settings)
        self.env_fns = checked_env_fns(env_fns)
        num_envs = len(self.env_fns)
        try:
            self.envs = build_envs(self.env_fns, 0)
        except SliceFailed as failed:
            raise env_error(failed.failures, "construction") from failed.failures[0].exception
        try:
            self._slice = EnvSlice(self.envs, 0, self.settings.autoreset_mode)
            self._describe(describe_envs(self.envs), num_envs)
            layout = Layout()
            plan_batch(layout, self.single_observation_space, self.single_action_space, num_envs, self.settings.slots)
            self._arrays = batch_arrays(Block(layout), self.single_observation_space, self.single_action_space)
            self._infos = InfoBatch(num_envs)
            self._slice.attach(self._arrays, self.single_observation_space, self.settings.slots, self._infos)
        except BaseException:
            for env in self.envs:
                env.close()
            raise
        self.closed = False

    def _send_reset(self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Any) -> None:
        self._run("reset", lambda: self._slice.reset(slot, seeds, options, selected))

    def _send_step(self, slot: int, wide: bool) -> None:
        actions = split_actions(self.single_action_space, self._arrays.actions, wide)
        self._run("step", lambda: self._slice.step(slot, actions))

    def _receive(self, timeout: float | None) -> Infos:
        return self._infos.take()

    def _run(self, doing: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except SliceFailed as failed:
            self._infos.take()
            if doing in ("reset", "step"):
                self._note_failures(failure.env_index for failure in failed.failures)
            raise env_error(failed.failures, doing) from failed.failures[0].exception

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers."""
        self._check_open("call")
        check_callable_name(name)
        return tuple(
            self._run(f"call({name!r})", lambda row=row: self._slice.call(name, row, args, kwargs))  # type: ignore[misc]
            for row in range(self.num_envs)
        )

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives."""
        self._check_open("set_attr")
        each = values_per_env(name, values, self.num_envs)
        self._run(f"set_attr({name!r})", lambda: self._slice.set_attr(name, each))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs; one that raises does not keep the others open."""
        failures = self._slice.close()
        if failures:
            self.closed = True
            raise env_error(failures, "close")


def checked_env_fns(env_fns: Iterable[EnvFn]) -> list[EnvFn]:
    """A list of constructors.

    Raises:
        ValueError: there are none.
        TypeError: one of them cannot be called.
    """
    functions = list(env_fns)
    if not functions:
        raise ValueError("env_fns: expected at least one constructor, got none")
    for index, function in enumerate(functions):
        if not callable(function):
            raise TypeError(f"env_fns[{index}]: expected a function that builds an env, got {function!r}")
    return functions


def describe_envs(envs: Sequence[gym.Env[Any, Any]], first_index: int = 0) -> EnvDescription:
    """What envs say about themselves, after checking that they agree.

    Raises:
        RuntimeError: spaces differ; the message names the envs.
    """
    first = envs[0]
    for index, env in enumerate(envs):
        check_same_spaces(
            (first.observation_space, first.action_space),
            (env.observation_space, env.action_space),
            first_index,
            first_index + index,
        )
    metadata = {key: value for key, value in (first.metadata or {}).items() if key != "autoreset_mode"}
    return EnvDescription(first.observation_space, first.action_space, metadata, first.render_mode)


def check_same_spaces(expected: tuple[Any, Any], found: tuple[Any, Any], index: int, other: int) -> None:
    """Refuse envs with different spaces.

    Raises:
        RuntimeError: naming both envs and both spaces.
    """
    for role, one, two in zip(("observation", "action"), expected, found, strict=True):
        if one != two:
            raise RuntimeError(
                f"the {role} spaces of environments {index} and {other} differ: {one} and {two}; all environments of a "
                "vector env need the same spaces"
            )
