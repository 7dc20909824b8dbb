"""The `subproc` back end: M worker processes with K envs each over one anonymous shared block."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from vecenv.arguments import check_callable_name, checked_env_fns, values_per_env
from vecenv.balance import Balancer
from vecenv.base import StepResult
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.errors import EnvFailure, env_error
from vecenv.info_arena import ARENA_BYTES_PER_ENV, InfoArena
from vecenv.infos import Infos
from vecenv.pickling import dumps, dumps_given
from vecenv.protocol import BlockPlan, control_arrays, plan_control
from vecenv.recovery import Recovery
from vecenv.registered_ids import pickled_specs
from vecenv.row_wait import RowWait
from vecenv.settings import EnvDescription, ObservationMode, VectorSettings, joined_descriptions
from vecenv.spaces import check_shared
from vecenv.subproc_calls import results_by_row
from vecenv.subproc_rows import WorkerRows
from vecenv.worker_group import WorkerGroup
from vecenv.worker_settings import WorkerSettings, pickled_functions, shares, worker_config

EnvFn = Callable[[], gym.Env[Any, Any]]


class SubprocVecEnv(WorkerRows):
    """Runs envs in worker processes; swaps in for `gymnasium.vector.AsyncVectorEnv`.

    Args:
        env_fns: constructors of the envs; lambdas, closures and classes of `__main__` are fine.
        shared_memory: see `VectorSettings`; True, as Gymnasium's default, refuses custom spaces, Graph and Sequence.
        copy: see `VectorSettings`.
        context: start method, a name or a `multiprocessing` context. None: forkserver.
        daemon: accepted for Gymnasium's sake; workers always end with the user's process and may have children.
        worker: refused; a worker of one's own cannot be combined with the shared block.
        observation_mode: see `VectorSettings`.
        autoreset_mode: see `VectorSettings`.
        settings: the other settings of `VectorSettings` and those of `WorkerSettings`.

    Raises:
        EnvError: a constructor raised.
        WorkerDied: a worker ended while building.
        ValueError: a custom space with ``shared_memory=True``.
        TypeError: a constructor that cannot be sent; Graph or Sequence with ``shared_memory=True``.
        RuntimeError: envs with different spaces.
        NotImplementedError: `worker`, which Gymnasium's class takes.

    Examples:
        >>> from vecenv.testing import CountEnv
        >>> with SubprocVecEnv([lambda: CountEnv(length=3)] * 4, num_workers=2) as envs:
        ...     observations, infos = envs.reset(seed=0)
        ...     envs.step_async([0, 0, 0, 0])
        ...     observations, rewards, terminations, truncations, infos = envs.step_wait(timeout=60)
        >>> rewards.tolist(), infos["time"].tolist()
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1])
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        shared_memory: bool | None = True,
        copy: bool = True,
        context: str | BaseContext | None = None,
        daemon: bool = True,
        worker: Any = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        if worker is not None:
            raise NotImplementedError(
                "worker: functions of one's own are not supported; wrap the envs, or use Gymnasium's AsyncVectorEnv"
            )
        self._worker_settings, settings = WorkerSettings.split(settings, context=context)
        self.settings = VectorSettings.checked(
            shared_memory=shared_memory,
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            **settings,
        )
        self.env_fns = checked_env_fns(env_fns)
        self.settings.checked_batch_size(len(self.env_fns))
        self.shared_memory, self.daemon, self.context, self.worker = shared_memory, daemon, context, worker
        own = self._worker_settings
        self.max_concurrency = own.max_concurrency
        rows = shares(len(self.env_fns), own.workers_for(len(self.env_fns)))
        self._pickled = pickled_functions(self.env_fns)
        self._state = AsyncState.DEFAULT
        self._row_records: dict[int, dict[str, Any] | EnvFailure] = {}
        self._group = WorkerGroup(rows, stop_at_death=own.on_worker_failure == "raise")
        # No method of this object: a cycle would keep it, and its workers, alive after `del`.
        self._config_of = functools.partial(
            worker_config, self._pickled, pickled_specs(), self._group.rows, self.settings.autoreset_mode
        )
        self._finalizer = weakref.finalize(self, WorkerGroup.shut_down, self._group, os.getpid(), 1.0)
        try:
            configs = [self._config_of(worker) for worker in range(len(rows))]
            self._group.start(own.start_method, configs, own.preload)
            self._describe(self._wait_for_envs(), len(self.env_fns))
            self._share_block()
        except BaseException:
            self._finalizer.detach()
            self._group.shut_down(os.getpid(), 1.0)
            raise
        self.closed = False

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers, in order."""
        return tuple(process.pid for process in self._group.processes)

    @property
    def processes(self) -> list[Any]:
        """Handles of the workers."""
        return self._group.processes

    # -- construction ------------------------------------------------------------------------------------------------

    def _wait_for_envs(self) -> EnvDescription:
        replies = [self._group.first_message(worker) for worker in range(self.num_workers)]
        failures = [failure for kind, value in replies if kind == "failed" for failure in value]
        if failures:
            raise env_error(failures, "construction") from failures[0].exception
        descriptions = [description for _, value in replies for description in value]
        return joined_descriptions(descriptions, self.settings.observation_mode)

    def _share_block(self) -> None:
        own = self._worker_settings
        if self.settings.shared_memory:
            check_shared(self.single_observation_space)
        spaces = self._planned_spaces
        layout = Layout()
        plan_control(layout, self.num_envs, self.num_workers)
        plan_batch(layout, *spaces, self.num_envs, self.settings.slots)
        layout.add("info_arena", (self.num_envs * ARENA_BYTES_PER_ENV,), np.uint8)
        block = Block(layout, self._group.reserve(layout.size))
        self._arrays = batch_arrays(block, *spaces)
        self._control = control_arrays(block)
        self._arena = InfoArena(block["info_arena"], self.num_envs, own.info_spec)
        self._plan = BlockPlan(
            layout,
            self.num_envs,
            self.settings.slots,
            *spaces,
            measures=own.balance,
            groups_rows=own.step_timeout is None,
        )
        self._recovery = Recovery(self._group, self._config_of, own)
        self._balancer = Balancer(self._group, self._control.step_seconds) if own.balance else None
        self._sent_at, self._row_resets = {}, {}
        self._group.attach(self._control)
        self._row_wait = RowWait(self._group, self._control)
        self._sequence, self._steps = 1, 0
        self._control.sequence[0] = self._sequence
        self._doing = "construction"
        for worker in range(self.num_workers):
            self._group.send(worker, dumps(self._current_plan()), self._doing)
        self._group.wait(self._doing, None)
        self._raise_deaths()

    # -- asynchronous pairs ------------------------------------------------------------------------------------------

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; `reset_wait` gives its result. Arguments as for `reset`.

        Raises:
            AlreadyPendingCallError: another call is pending.
            WorkerDied: a worker process has ended and is not replaced.
        """
        self._check_idle("reset")
        self._begin_reset(seed, options)

    def reset_wait(self, timeout: float | None = None, out: Any = None) -> tuple[Any, Infos]:
        """Wait for `reset_async`.

        Args:
            timeout: seconds. When they are over nothing is stopped: the call stays pending and a later `reset_wait`
                returns its result.
            out: array (or nest of arrays) to write the observations into.

        Raises:
            NoAsyncCallError: no reset was started.
            multiprocessing.TimeoutError: it is not done yet.
            EnvError: some envs raised.
            WorkerDied: a worker process ended.
        """
        self._check_pending(AsyncState.WAITING_RESET, "reset")
        self._check_out(out)
        return self._end_reset(timeout, out)

    def step_async(self, actions: Any) -> None:
        """Start a step; `step_wait` gives its result. Arguments as for `step`.

        Raises:
            AlreadyPendingCallError: another call is pending.
            TypeError, ValueError: the actions do not fit; nothing was sent.
            WorkerDied: a worker process has ended and is not replaced.
        """
        self._check_idle("step")
        self._begin_step(actions)

    def step_wait(self, timeout: float | None = None, out: Any = None) -> StepResult:
        """Wait for `step_async`; arguments as for `reset_wait`, result as of `step`.

        Raises:
            NoAsyncCallError: no step was started.
            multiprocessing.TimeoutError: it is not done yet; it stays pending.
            EnvError: some envs raised.
            WorkerDied: a worker process ended.
        """
        self._check_pending(AsyncState.WAITING_STEP, "step")
        self._check_out(out)
        return self._end_step(timeout, out)

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call; `call_wait` gives its results. Arguments as for `call`.

        Raises:
            AlreadyPendingCallError: another call is pending.
            ValueError: `reset`, `step` or `close`, which the vector env has itself.
        """
        self._check_idle("call")
        self._check_not_outstanding("call", range(self.num_envs))
        check_callable_name(name)
        self._doing = f"call({name!r})"
        message = dumps(("call", name, dumps_given(self._doing, (args, kwargs))))
        self._send([message] * self.num_workers, AsyncState.WAITING_CALL)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for `call_async`; `timeout` as for `reset_wait`.

        Raises:
            NoAsyncCallError: no call was started.
            multiprocessing.TimeoutError: it is not done yet; it stays pending.
            EnvError: some envs raised.
            WorkerDied: a worker process ended.
        """
        self._check_pending(AsyncState.WAITING_CALL, "call")
        results = results_by_row(self._finish(timeout))
        return tuple(results[row] for row in range(self.num_envs))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        out: Any = None,
    ) -> tuple[Any, Infos]:
        """Begin new episodes; see `VecEnv.reset`."""
        self._check_out(out)
        self.reset_async(seed, options)
        return self.reset_wait(None, out)

    def step(self, actions: Any, out: Any = None) -> StepResult:
        """Step every env once; see `VecEnv.step`."""
        self._check_out(out)
        self._check_idle("step")
        self._begin_step(actions)
        return self._end_step(None, out)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers; results are copies."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives."""
        self._check_idle("set_attr")
        self._check_not_outstanding("set_attr", range(self.num_envs))
        each = values_per_env(name, values, self.num_envs)
        self._doing = f"set_attr({name!r})"
        messages = [
            dumps(("set_attr", name, dumps_given(self._doing, [each[row] for row in own]))) for own in self._group.rows
        ]
        self._send(messages, AsyncState.WAITING_CALL)
        self._finish(None)

    def get_state(self) -> list[bytes]:
        """The state of every env; see `VecEnv.get_state`."""
        self._check_idle("get_state")
        self._check_not_outstanding("get_state", range(self.num_envs))
        self._doing = "get_state"
        self._send([dumps(("get_state", self.slot))] * self.num_workers, AsyncState.WAITING_CALL)
        states = results_by_row(self._finish(None))
        return [states[row] for row in range(self.num_envs)]

    def set_state(self, states: Sequence[bytes]) -> None:
        """Continue where `get_state` was called; see `VecEnv.set_state`."""
        self._check_idle("set_state")
        self._check_states(states)
        self._drop_outstanding()
        self._doing = "set_state"
        messages = [dumps(("load_states", {row: states[row] for row in own})) for own in self._group.rows]
        for each in (messages, [dumps(("place_states", self.slot))] * self.num_workers):
            self._send(each, AsyncState.WAITING_CALL)
            self._finish(None)
        self._take_over_states()

    # -- order and end -----------------------------------------------------------------------------------------------

    def _check_pending(self, state: AsyncState, doing: str) -> None:
        self._check_open(f"{doing}_wait")
        if self._state is not state:
            raise NoAsyncCallError(
                f"Calling `{doing}_wait` without any prior call to `{doing}_async`.", AsyncState(doing).value
            )

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the envs and end the workers, in bounded time whatever state they are in.

        Args:
            timeout: seconds that envs may take to close; None: 10.
            terminate: end the workers at once, without closing the envs.
            kwargs: accepted and ignored, as Gymnasium does.
        """
        self._finalizer.detach()
        if self._state is not AsyncState.DEFAULT and self._group.belongs_here:
            gym.logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        self._state = AsyncState.DEFAULT
        self._group.shut_down(os.getpid(), 0.0 if terminate else 10.0 if timeout is None else timeout)
