"""Some envs of a vector env, as a vector env or one of its workers runs it.

The `sync` back end runs one slice of all envs in the caller's process; a worker of the `subproc` back end runs one of
its share.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, OneOf, Tuple

from vecenv.env_failures import SliceFailed, env_failure
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


def build_envs(env_fns: Mapping[int, Callable[[], gym.Env[Any, Any]]]) -> dict[int, gym.Env[Any, Any]]:
    """Call the constructors in order; where one raises, close what was built.

    Args:
        env_fns: constructors by index in the vector env.

    Raises:
        SliceFailed: a constructor raised.
    """
    envs: dict[int, gym.Env[Any, Any]] = {}
    for index, env_fn in env_fns.items():
        try:
            envs[index] = _checked_env(env_fn())
        except BaseException as exception:
            failure = env_failure(index, exception)
            for env in envs.values():
                with contextlib.suppress(Exception):
                    env.close()
            raise SliceFailed([failure]) from exception
    return envs


def _checked_env(env: Any) -> gym.Env[Any, Any]:
    """Refuse what is no env; a forgotten `return` is the usual reason."""
    missing = [
        name for name in ("reset", "step", "observation_space", "action_space") if getattr(env, name, None) is None
    ]
    if missing:
        raise TypeError(f"the constructor returned {env!r}, expected a gymnasium.Env (it has no {', '.join(missing)})")
    return env  # type: ignore[no-any-return]


def _checked_state(state: tuple[Any, Any], present: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], Any]:
    """Refuse what `EnvSlice.get_state` did not give for an env like the one that is there."""
    env, extra = state
    standing = extra[0] if isinstance(extra, tuple) and len(extra) == 3 and isinstance(extra[2], dict) else None
    if isinstance(standing, bool):  # saved when it was only whether the reset is due
        standing = (standing, None, False)
    if not (isinstance(standing, tuple) and len(standing) == 3):
        raise ValueError("the bytes are no state of an environment, or one that another version saved")
    if extra[2].keys() != set(_KEPT_FIELDS):
        raise ValueError(f"another version saved the state: it counts {sorted(extra[2])}, not {sorted(_KEPT_FIELDS)}")
    for name in ("observation_space", "action_space"):
        saved, expected = getattr(env, name, None), getattr(present, name)
        if _surely_differ(saved, expected):
            raise ValueError(f"the state is of an environment with the {name} {saved}, expected {expected}")
    return env, (standing, *extra[1:])


def _surely_differ(saved: Any, expected: Any) -> bool:
    """Whether two spaces are not the same; one without an `__eq__` equals only itself, which no state can hold."""
    if saved == expected:
        return False
    facts = [
        (type(space).__qualname__, getattr(space, "shape", None), getattr(space, "dtype", None))
        for space in (saved, expected)
    ]
    if facts[0] != facts[1] or _can_be_compared(expected):
        return True
    parts, others = _parts(saved), _parts(expected)
    return parts.keys() != others.keys() or any(_surely_differ(part, others[name]) for name, part in parts.items())


def _can_be_compared(space: Any) -> bool:
    equality: Any = type(space).__eq__
    return equality is not object.__eq__ and all(_can_be_compared(part) for part in _parts(space).values())


def _parts(space: Any) -> dict[Any, Any]:
    """The spaces that a space is made of, by name or place."""
    if isinstance(space, Dict):
        return dict(space.spaces)
    if isinstance(space, (Tuple, OneOf)):
        return dict(enumerate(space.spaces))
    names = ("feature_space", "node_space", "edge_space")  # of Sequence and Graph
    return {name: part for name in names if isinstance(part := getattr(space, name, None), gym.Space)}


class EnvSlice(SliceStepper):
    """What can be asked of the envs of a slice besides `reset` and `step`."""

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[int, Any]:
        """Read an attribute of every env through its wrappers; where it is callable, the result of the call.

        Returns:
            Results by row.

        Raises:
            SliceFailed: some envs raised, or have no such attribute; the others were called all the same.
        """
        results, failures = {}, []
        for row in self.rows:
            try:
                value = self.envs[row].get_wrapper_attr(name)
                results[row] = value(*arguments, **keywords) if callable(value) else value
            except BaseException as exception:
                failures.append(env_failure(row, exception))
        if failures:
            raise SliceFailed(failures)
        return results

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute where it lives: in the wrapper or env that has it.

        Args:
            name: the attribute.
            values: one per row of `rows`.

        Raises:
            SliceFailed: some envs raised.
        """
        failures = []
        for row, value in zip(self.rows, values, strict=True):
            try:
                self.envs[row].set_wrapper_attr(name, value)
            except BaseException as exception:
                failures.append(env_failure(row, exception))
        if failures:
            raise SliceFailed(failures)

    def get_state(self, row: int, slot: int) -> bytes:
        """All that an env and its row need to continue bit-equally.

        Raises:
            SliceFailed: the env's state cannot be saved.
        """
        arrays = self.arrays
        if self.objects is None:
            observation = map_arrays(self._slots[slot], lambda array: np.array(array[row]))
        else:
            observation = self._last_objects.get(row) if row in self._lost else self.objects[row]
        counted = {name: getattr(arrays, name)[row].item() for name in _KEPT_FIELDS}
        counted["started"] -= time.monotonic()
        try:
            return dump_env(self.envs[row], (self._standing(row), observation, counted))
        except BaseException as exception:
            raise SliceFailed([env_failure(row, exception)]) from exception

    def _standing(self, row: int) -> tuple[bool, int | None, bool]:
        """What `_take_in` is to be told besides where an env goes on."""
        return self._pending[row], self._restart_seeds[row], row in self._lost

    def load_states(self, states: Mapping[int, bytes]) -> dict[int, Any]:
        """Read states, without changing anything yet.

        Raises:
            SliceFailed: some cannot be read, or are of other envs than those here.
        """
        loaded, failures = {}, []
        for row, data in states.items():
            try:
                loaded[row] = _checked_state(load_env(data), self.envs[row])
            except BaseException as exception:
                failures.append(env_failure(row, exception))
        if failures:
            raise SliceFailed(failures)
        return loaded

    def place_states(self, slot: int, loaded: Mapping[int, Any]) -> None:
        """Take up where `get_state` was called; the envs that were there are closed."""
        arrays = self.arrays
        for row, (env, (standing, observation, counted)) in loaded.items():
            with contextlib.suppress(Exception):
                self.envs[row].close()
            self._take_in(row, env, *standing)
            if self.objects is not None:
                self.objects[row] = self._last_objects[row] = observation
            else:
                copy_arrays(map_arrays(self._slots[slot], lambda array, row=row: array[row : row + 1]), observation)  # type: ignore[misc]
            counted["started"] += time.monotonic()
            for name, value in counted.items():
                getattr(arrays, name)[row] = value

    def offer(self, row: int) -> bytes | None:
        """An env with its state, for another worker; None where that cannot be saved. It stays until `let_go`."""
        try:
            last = self._last_objects.get(row) if row in self._lost else None
            return dump_env(self.envs[row], (self._standing(row), last))
        except Exception:
            return None

    def adopt(self, row: int, data: bytes) -> bool:
        """Take over an env that another worker has offered; False where it cannot be built from the offer."""
        try:
            env, (standing, last) = load_env(data)
        except Exception:
            return False
        self._take_in(row, env, *standing)
        self._last_objects[row] = last
        return True

    def close(self) -> list[EnvFailure]:
        """Close every env; one that raises does not keep the others open.

        Returns:
            What was raised.
        """
        failures = []
        for row, env in self.envs.items():
            try:
                env.close()
            except BaseException as exception:
                failures.append(env_failure(row, exception))
        return failures
