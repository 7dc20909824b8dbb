"""The `subproc` back end: M worker processes with K envs each over one anonymous shared block."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import TimeoutError
from multiprocessing.context import BaseContext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from vecenv.arguments import check_callable_name, check_positive_int, values_per_env
from vecenv.base import EnvDescription, StepResult, VecEnv, VectorSettings
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.channel import dumps
from vecenv.cores import usable_cores
from vecenv.errors import EnvFailure, WorkerDied, env_error
from vecenv.infos import Infos, Signature, add_column, add_info
from vecenv.sync_backend import check_same_spaces, checked_env_fns
from vecenv.worker import SEQUENCE, SLOT, WIDE, BlockPlan, WorkerConfig, column_arrays
from vecenv.worker_group import WorkerGroup
from vecenv.worker_process import start_method_of

EnvFn = Callable[[], gym.Env[Any, Any]]
_ARENA_BYTES_PER_ENV = 4096


class SubprocVecEnv(VecEnv):
    """Runs envs in worker processes; swaps in for `gymnasium.vector.AsyncVectorEnv`.

    Args:
        env_fns: constructors of the envs; lambdas, closures and classes of `__main__` are fine.
        num_workers: processes; each hosts a contiguous slice of the envs. None: usable cores, at most one per env.
        context: start method, a name or a `multiprocessing` context. None: forkserver.
        preload: modules to import once in the fork server before workers are forked.
        settings: see `VectorSettings.checked`: autoreset_mode, copy, slots, statistics, seed.

    Raises:
        EnvError: a constructor raised.
        WorkerDied: a worker ended while building.
        TypeError: a space that cannot be carried, or a constructor that cannot be sent.
        RuntimeError: envs with different spaces.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        *,
        num_workers: int | None = None,
        context: str | BaseContext | None = None,
        preload: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.settings = VectorSettings.checked(**settings)
        self.env_fns = checked_env_fns(env_fns)
        num_envs = len(self.env_fns)
        method = start_method_of(context)
        wanted = usable_cores() if num_workers is None else check_positive_int("num_workers", num_workers)
        slices = slice_bounds(num_envs, min(wanted, num_envs))
        configs = worker_configs(self.env_fns, slices, self.settings)
        self._state = AsyncState.DEFAULT
        self._columns: list[tuple[Signature, Any, Any]] = []
        self._arena_used = 0
        self._group = WorkerGroup(slices)
        self._finalizer = weakref.finalize(self, WorkerGroup.shut_down, self._group, os.getpid(), 1.0)
        try:
            self._group.start(method, configs, preload)
            self._describe(self._wait_for_envs(), num_envs)
            self._share_block()
        except BaseException:
            self._finalizer.detach()
            self._group.shut_down(os.getpid(), 1.0)
            raise
        self.closed = False

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._group.slices)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, in the order of their slices."""
        return tuple(process.pid for process in self._group.processes)

    @property
    def processes(self) -> list[Any]:
        """Handles of the workers."""
        return self._group.processes

    # -- construction ------------------------------------------------------------------------------------------------

    def _wait_for_envs(self) -> EnvDescription:
        replies = self._group.first_messages("construction")
        failures = [failure for kind, value in replies if kind == "failed" for failure in value]
        if failures:
            error = env_error(failures, "construction")
            raise error from failures[0].exception
        for kind, value in replies:
            if kind == "differ":
                raise RuntimeError(value)
        descriptions: list[EnvDescription] = [value for _, value in replies]
        first = descriptions[0]
        for (start, _), other in zip(self._group.slices, descriptions, strict=True):
            check_same_spaces(
                (first.observation_space, first.action_space),
                (other.observation_space, other.action_space),
                0,
                start,
            )
        return first

    def _share_block(self) -> None:
        layout = Layout()
        layout.add("control", (3 + 2 * self.num_workers,), np.int64)
        plan_batch(layout, self.single_observation_space, self.single_action_space, self.num_envs, self.settings.slots)
        layout.add("info_arena", (self.num_envs * _ARENA_BYTES_PER_ENV,), np.uint8)
        descriptor = self._group.reserve(layout.size)
        block = Block(layout, descriptor)
        self._control = block["control"]
        self._arena = block["info_arena"]
        self._arrays = batch_arrays(block, self.single_observation_space, self.single_action_space)
        self._group.attach(self._control)
        self._control[SEQUENCE] = 1
        plan = BlockPlan(layout, self.num_envs, self.num_workers, self.settings.slots)
        self._group.send_all([dumps(plan)] * self.num_workers, "construction")
        self._group.wait("construction", None)

    # -- asynchronous pairs ------------------------------------------------------------------------------------------

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; `reset_wait` gives its result. Arguments as for `reset`."""
        self._check_idle("reset")
        self._begin_reset(seed, options)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """Wait for `reset_async`.

        Args:
            timeout: seconds. When they are over nothing is stopped: the call stays pending and a later `reset_wait`
                returns its result.

        Raises:
            multiprocessing.TimeoutError: it is not done yet.
        """
        self._check_pending(AsyncState.WAITING_RESET, "reset")
        return self._end_reset(timeout)

    def step_async(self, actions: Any) -> None:
        """Start a step; `step_wait` gives its result. Arguments as for `step`."""
        self._check_idle("step")
        self._begin_step(actions)

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for `step_async`; `timeout` as for `reset_wait`."""
        self._check_pending(AsyncState.WAITING_STEP, "step")
        return self._end_step(timeout)

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start a call; `call_wait` gives its results. Arguments as for `call`."""
        self._check_idle("call")
        check_callable_name(name)
        message = dumps(("call", name, args, kwargs))
        self._doing = f"call({name!r})"
        self._send([message] * self.num_workers, AsyncState.WAITING_CALL)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for `call_async`; `timeout` as for `reset_wait`."""
        self._check_pending(AsyncState.WAITING_CALL, "call")
        results: list[Any] = []
        for messages in self._finish(timeout):
            for kind, value in messages:
                if kind == "results":
                    results.extend(value)
        return tuple(results)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Begin new episodes; see `VecEnv.reset`."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def step(self, actions: Any) -> StepResult:
        """Step every env once; see `VecEnv.step`."""
        self.step_async(actions)
        return self.step_wait()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers; results are copies."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives."""
        self._check_idle("set_attr")
        each = values_per_env(name, values, self.num_envs)
        messages = [dumps(("set_attr", name, each[first:stop])) for first, stop in self._group.slices]
        self._doing = f"set_attr({name!r})"
        self._send(messages, AsyncState.WAITING_CALL)
        self._finish(None)

    # -- what VecEnv asks for ----------------------------------------------------------------------------------------

    def _send_reset(self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Any) -> None:
        messages = []
        for first, stop in self._group.slices:
            rows = None if selected is None else selected[first:stop].tolist()
            messages.append(dumps(("reset", slot, seeds[first:stop], options, rows)))
        self._doing = "reset"
        self._send(messages, AsyncState.WAITING_RESET)

    def _send_step(self, slot: int, wide: bool) -> None:
        self._doing = "step"
        self._group.check_alive()
        control = self._control
        control[SLOT] = slot
        control[WIDE] = wide
        control[SEQUENCE] += 1
        self._state = AsyncState.WAITING_STEP
        self._group.signal_all()

    def _receive(self, timeout: float | None) -> Infos:
        infos: Infos = {}
        odd: dict[int, dict[str, Any]] = {}
        for messages in self._finish(timeout):
            for kind, value in messages:
                if kind == "infos":
                    odd.update(value)
                elif kind == "columns":
                    self._add_columns(value)
        for row in sorted(odd):
            add_info(infos, odd[row], row, self.num_envs)
        for (key, _, _), values, mask in self._columns:
            add_column(infos, key, values, mask)
        return infos

    def _send(self, messages: list[bytes], state: AsyncState) -> None:
        self._group.check_alive()
        self._control[SEQUENCE] += 1
        self._state = state
        self._group.send_all(messages, self._doing)

    def _finish(self, timeout: float | None) -> list[list[Any]]:
        """Wait for all workers and give their messages; raises what the envs raised."""
        try:
            replies = self._group.wait(self._doing, timeout)
        except WorkerDied:
            self._state = AsyncState.DEFAULT
            raise
        if replies is None:
            raise TimeoutError(
                f"`{self._doing}` was not done after {timeout} seconds; it stays pending and waiting again is fine"
            )
        self._state = AsyncState.DEFAULT
        failures: list[EnvFailure] = [
            failure for messages in replies for kind, value in messages if kind == "failed" for failure in value
        ]
        if failures:
            for messages in replies:
                for kind, value in messages:
                    if kind == "columns":
                        self._add_columns(value)
            if self._doing in ("reset", "step"):
                self._note_failures(failure.env_index for failure in failures)
            raise env_error(failures, self._doing) from failures[0].exception
        return replies

    def _add_columns(self, signatures: Sequence[Signature]) -> None:
        """Give announced info fields a column each; the workers use them from the next call on."""
        for signature in signatures:
            if any(known == signature for known, _, _ in self._columns):
                continue
            _, dtype, shape = signature
            nbytes = self.num_envs * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            values_offset = self._arena_used
            mask_offset = values_offset + -(-nbytes // 64) * 64
            end = mask_offset + -(-self.num_envs // 64) * 64
            if end > len(self._arena):
                continue
            self._arena_used = end
            values, mask = column_arrays(self._arena, signature, values_offset, mask_offset, self.num_envs)
            self._columns.append((signature, values, mask))
            message = dumps(("column", signature, values_offset, mask_offset))
            self._group.send_all([message] * self.num_workers, self._doing)

    def _check_idle(self, doing: str) -> None:
        self._check_open(doing)
        if self._state is not AsyncState.DEFAULT:
            raise AlreadyPendingCallError(
                f"`{doing}` was called while a call to `{self._state.value}` is pending; wait for that first",
                str(self._state.value),
            )

    def _check_pending(self, state: AsyncState, doing: str) -> None:
        self._check_open(f"{doing}_wait")
        if self._state is not state:
            raise NoAsyncCallError(f"`{doing}_wait` was called without a prior call to `{doing}_async`", doing)

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the envs and end the workers, in bounded time whatever state they are in.

        Args:
            timeout: seconds that envs may take to close; None: 10.
            terminate: end the workers at once, without closing the envs.
            kwargs: accepted and ignored, as Gymnasium does.
        """
        self._finalizer.detach()
        self._state = AsyncState.DEFAULT
        self._group.shut_down(os.getpid(), 0.0 if terminate else 10.0 if timeout is None else timeout)


def slice_bounds(num_envs: int, num_workers: int) -> list[tuple[int, int]]:
    """Contiguous slices `[first, stop)` whose sizes differ by at most one."""
    bounds = [num_envs * worker // num_workers for worker in range(num_workers + 1)]
    return list(itertools.pairwise(bounds))


def worker_configs(
    env_fns: Sequence[EnvFn], slices: Sequence[tuple[int, int]], settings: VectorSettings
) -> list[WorkerConfig]:
    """What each worker is told, with the constructors pickled.

    Raises:
        TypeError: a constructor cannot be pickled; the message names it.
    """
    pickled: dict[int, bytes] = {}
    for index, function in enumerate(env_fns):
        if id(function) not in pickled:
            try:
                pickled[id(function)] = dumps(function)
            except Exception as error:
                raise TypeError(f"env_fns[{index}] cannot be sent to a worker process: {error}") from error
    return [
        WorkerConfig(
            tuple(pickled[id(function)] for function in env_fns[first:stop]), first, worker, settings.autoreset_mode
        )
        for worker, (first, stop) in enumerate(slices)
    ]
