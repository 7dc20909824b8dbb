"""Attributes and saved states of compiled envs: what can be asked of rows of arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.arguments import check_callable_name, values_per_env
from vecenv.call_order import CallOrder
from vecenv.env_failures import env_failure
from vecenv.errors import EnvFailure, env_error
from vecenv.pcg64 import GENERATOR_SIZE, generator_of_row

if TYPE_CHECKING:
    from vecenv.compiled_batch import Batch
    from vecenv.compiled_env import CompiledEnv

_FORMAT = b"vecenv-compiled-1"


class CompiledAttributes(CallOrder):
    """What a `CompiledVecEnv` answers without stepping."""

    _env: CompiledEnv
    _batch: Batch
    _env_seeds: list[int]
    _not_started: Any
    _ring_is_behind: bool

    # -- attributes --------------------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Read an attribute of every env: `np_random`, `np_random_seed`, `state` or a parameter; copies all.

        Raises:
            NotImplementedError: `render`; no frames are drawn.
            AttributeError: anything else, as compiled envs are rows of arrays and have no methods.
        """
        self._check_open("call")
        self._check_not_outstanding("call", range(self.num_envs) if self._whole_sent else ())
        check_callable_name(name)
        if name == "get_wrapper_attr" and args:  # as any env has it; who addresses single envs asks so
            name = args[0]
        if name == "render":
            raise NotImplementedError("render: the compiled back end draws no frames; use backend='sync' to watch")
        if name == "np_random":
            return tuple(generator_of_row(row) for row in self._batch.generators)
        if name == "np_random_seed":
            return tuple(self._env_seeds)
        if name == "state":
            return tuple(self._batch.state[:, : self.num_envs].T.copy())
        if name in self._env.parameters._fields:
            return (getattr(self._env.parameters, name),) * self.num_envs
        raise AttributeError(
            f"compiled envs have no attribute {name!r}; there are np_random, np_random_seed, state and the parameters "
            f"{', '.join(self._env.parameters._fields)}"
        )

    def set_attr(self, name: str, values: Any) -> None:
        """Set `state`, the numbers that `advance` works on.

        Args:
            name: ``"state"``; nothing else can be set.
            values: a list or tuple with one array of `[state_size]` per env, or one array for all.

        Raises:
            NotImplementedError: another attribute.
            ValueError: a value of another shape, or another number of values.
        """
        self._check_open("set_attr")
        self._check_not_outstanding("set_attr", range(self.num_envs) if self._whole_sent else ())
        if name != "state":
            raise NotImplementedError(
                f"set_attr({name!r}): compiled envs share their parameters, which are set when they are made; only "
                "'state' can be set"
            )
        states = [np.asarray(value, np.float64) for value in values_per_env(name, values, self.num_envs)]
        for row, state in enumerate(states):
            if state.shape != (self._env.state_size,):
                raise ValueError(
                    f"set_attr('state'): expected {self._env.state_size} numbers for environment {row}, got {state!r}"
                )
        self._batch.state[:, : self.num_envs] = np.stack(states, axis=1)
        self._ring_is_behind = True

    # -- saved states ------------------------------------------------------------------------------------------------

    @property
    def _header(self) -> bytes:
        return b"%s %s %d" % (_FORMAT, type(self._env.parameters).__name__.encode(), self._env.state_size)

    @property
    def _record(self) -> np.dtype[Any]:
        return np.dtype(
            [
                ("state", np.float64, self._env.state_size),
                ("generators", np.uint64, GENERATOR_SIZE),
                ("steps", np.int64),
                ("returns", np.float64),
                ("over", np.bool_),
                ("started", np.bool_),
                ("episodes", np.float64, 5),
            ]
        )

    def get_state(self) -> list[bytes]:
        """The rows of the arrays, one env each; see `VecEnv.get_state`."""
        self._check_open("get_state")
        self._check_not_outstanding("get_state", range(self.num_envs) if self._whole_sent else ())
        batch = self._batch
        records = np.zeros(self.num_envs, self._record)
        records["state"] = batch.state[:, : self.num_envs].T
        records["episodes"] = batch.episodes
        records["episodes"][:, 0] -= time.monotonic()
        for name in ("generators", "steps", "returns", "over"):
            records[name] = getattr(batch, name)
        records["started"] = True if self._not_started is None else ~self._not_started
        header = self._header
        return [b"%s %d\n%s" % (header, self._env_seeds[row], record.tobytes()) for row, record in enumerate(records)]

    def set_state(self, states: Sequence[bytes]) -> None:
        """Continue where `get_state` was called; see `VecEnv.set_state`."""
        self._check_states(states)
        records = np.zeros(self.num_envs, self._record)
        seeds, failures = [0] * self.num_envs, list[EnvFailure]()
        for row, state in enumerate(states):
            try:
                records[row], seeds[row] = self._read_state(state)
            except ValueError as error:
                failures.append(env_failure(row, error))
        if failures:
            raise env_error(failures, "set_state") from failures[0].exception
        self._drop_outstanding()
        self._first_seed = None  # the generators of the states go on at the next reset
        batch = self._batch
        batch.state[:, : self.num_envs] = records["state"].T
        batch.episodes[...] = records["episodes"]
        batch.episodes[:, 0] += time.monotonic()
        for name in ("generators", "steps", "returns", "over"):
            getattr(batch, name)[...] = records[name]
        batch.listed[0] = -1
        self._env_seeds = seeds
        self._not_started = None if records["started"].all() else ~records["started"]
        self._ring_is_behind = True

    def _read_state(self, state: bytes) -> tuple[Any, int]:
        header, _, data = state.partition(b"\n")
        head, _, seed = header.rpartition(b" ")
        if head != self._header or len(data) != self._record.itemsize:
            raise ValueError(f"no state of {self._header.decode()!r}: it begins with {state[:40]!r}")
        return np.frombuffer(data, self._record)[0], int(seed)

    def _drop_outstanding(self) -> None:
        raise NotImplementedError
