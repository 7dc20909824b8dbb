"""Calls of the `subproc` back end that concern all envs: sent to all workers, waited for, put together."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import TimeoutError
from typing import Any

from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from vecenv.channel import dumps
from vecenv.errors import EnvFailure, WorkerDied, env_error
from vecenv.info_arena import InfoArena
from vecenv.infos import Infos, add_info
from vecenv.protocol import BlockPlan, Control
from vecenv.recovery import Recovery
from vecenv.send_recv import SendRecvVecEnv
from vecenv.spaces import copy_arrays, map_arrays
from vecenv.worker_group import WorkerGroup


class WorkerCalls(SendRecvVecEnv):
    """What `SubprocVecEnv` does for `VecEnv`, from the call to its results."""

    _group: WorkerGroup
    _control: Control
    _arena: InfoArena
    _recovery: Recovery
    _plan: BlockPlan
    _state: AsyncState
    _doing: str
    # Numbers of the newest call and the newest whole step, as they stand in the block.
    _sequence: int
    _steps: int

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._group.slices)

    # -- whole calls, as VecEnv asks for them ------------------------------------------------------------------------

    def _send_reset(self, slot: int, seeds: list[int | None], options: dict[str, Any] | None, selected: Any) -> None:
        messages = []
        for first, stop in self._group.slices:
            rows = None if selected is None else selected[first:stop].nonzero()[0].tolist()
            messages.append(dumps(("reset", slot, seeds[first:stop], options, rows)))
        self._doing = "reset"
        self._resets = messages
        self._send(messages, AsyncState.WAITING_RESET)

    def _send_step(self, slot: int, wide: bool) -> None:
        self._doing = "step"
        self._raise_deaths()
        if not self._actions_fixed:
            for worker, (first, stop) in enumerate(self._group.slices):
                self._group.send(worker, dumps(("actions", self._action_objects[first:stop])), "step")
        control = self._control
        self._steps += 1
        control.slot[0] = slot
        control.wide[0] = wide
        control.step[0] = self._steps
        self._sequence += 1
        control.sequence[0] = self._sequence
        self._state = AsyncState.WAITING_STEP
        self._recovery.start_clock()
        self._group.wake_all()

    def _send(self, messages: Sequence[bytes], state: AsyncState) -> None:
        self._raise_deaths()
        self._sequence += 1
        self._control.sequence[0] = self._sequence
        self._state = state
        self._recovery.start_clock()
        for worker, message in enumerate(messages):
            self._group.send(worker, message, self._doing)

    def _receive(self, timeout: float | None) -> Infos:
        infos: Infos = {}
        odd: dict[int, dict[str, Any]] = {}
        for messages in self._finish(timeout):
            for kind, value in messages:
                if kind == "infos":
                    odd.update(value)
                elif kind in ("observations", "final"):
                    self._take_objects(kind, value)
        for row in self._restarted:
            odd.setdefault(row, {})["worker_restarted"] = True
        for row in sorted(odd):
            add_info(infos, odd[row], row, self.num_envs)
        self._arena.collect(infos)
        return infos

    def _finish(self, timeout: float | None) -> list[list[tuple[str, Any]]]:
        """Wait for all workers and give their messages; raises what the envs raised."""
        if not self._wait(timeout):
            raise TimeoutError(
                f"The call to `{self._doing}_wait` has timed out after {timeout} second(s); it stays pending, nothing "
                "is lost, and waiting again is fine"
            )
        self._state = AsyncState.DEFAULT
        restarted = self._recover_call() if self._group.deaths else []
        self._restarted = restarted if self._doing == "step" else []
        if self._doing == "step" and self._recovery.restarts:
            self._recovery.note_finished_step(self._done, restarted)
        replies = self._group.take_messages()
        if not replies:
            return replies
        failures: list[EnvFailure] = []
        for messages in replies:
            for kind, value in messages:
                if kind == "failed":
                    failures.extend(value)
                elif kind == "columns":
                    self._add_columns(value)
        if failures:
            if self._doing in ("reset", "step"):
                self._note_failures(failure.env_index for failure in failures)
            raise env_error(failures, self._doing) from failures[0].exception
        return replies

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the workers; one that takes longer than `step_timeout` is killed and counts as dead."""
        limit = self._recovery.time_left()
        shorter = limit is not None and (timeout is None or limit < timeout)
        if self._group.wait(self._doing, limit if shorter else timeout):
            return True
        if not shorter:
            return False
        self._recovery.kill_unanswered()
        self._group.wait(f"{self._doing} (longer than step_timeout)", None)
        return True

    def _raise_deaths(self) -> None:
        """Raise what is known of a dead worker, unless dead workers are replaced."""
        for death in self._group.deaths.values():
            if not self._recovery.restarts:
                self._state = AsyncState.DEFAULT
                raise WorkerDied(death.env_indices, death.pid, death.exitcode, death.doing)

    def _recover_call(self) -> list[int]:
        """Replace workers that died during a whole call and finish it for their envs; gives the indices of those."""
        self._raise_deaths()
        if self._doing not in ("reset", "step"):
            death = next(iter(self._group.deaths.values()))  # replaced at the next step or reset
            raise WorkerDied(death.env_indices, death.pid, death.exitcode, self._doing)
        slot = self._next_slot()
        restarted: set[int] = set()
        while self._group.deaths:
            for worker in self._recovery.replace_dead(self._seeds, self._current_plan()):
                rows = range(*self._group.slices[worker])
                restarted.update(rows)
                if self._doing == "reset":
                    self._ask(worker, self._resets[worker])
                else:
                    self._truncate(worker, slot)
        return sorted(restarted)

    def _ask(self, worker: int, message: bytes) -> None:
        """Send a message to one worker and wait for its answer (or death)."""
        self._control.answered[worker] = 0
        self._group.send(worker, message, self._doing)
        self._group.wait(self._doing, None, [worker])

    def _truncate(self, worker: int, slot: int) -> None:
        """Fill the rows of a replaced worker: last known observation, reward 0, truncated; then reset if it is due."""
        first, stop = self._group.slices[worker]
        arrays = self._arrays.rows(first, stop)
        if self._objects is None:
            copy_arrays(
                map_arrays(arrays.observations, lambda array: array[slot]),
                map_arrays(arrays.observations, lambda array: array[self.slot]),
            )
        arrays.rewards[:], arrays.terminations[:], arrays.truncations[:] = 0.0, False, True
        arrays.episode_ended[:], arrays.returns[:], arrays.lengths[:] = False, 0.0, 0
        self._arena.clear(first, stop)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            if self._objects is None:
                last = map_arrays(arrays.observations, lambda array: array[self.slot].copy())
                copy_arrays(arrays.final_observations, last)
            else:
                self._final_objects[first:stop] = self._objects[first:stop]
            self._ask(worker, dumps(("reset", slot, [None] * (stop - first), None, None)))
            arrays.final_mask[:], arrays.truncations[:] = True, True

    def _take_objects(self, kind: str, value: dict[int, Any]) -> None:
        target = self._objects if kind == "observations" else self._final_objects
        for row, observation in value.items():
            if target is not None:
                target[row] = observation

    def _add_columns(self, signatures: Sequence[Any]) -> None:
        """Give announced info fields a column each; the workers use them from the next call on."""
        for column in self._arena.added(signatures):
            message = dumps(("column", *column))
            for worker in range(self.num_workers):
                self._group.send(worker, message, self._doing)

    def _check_idle(self, doing: str) -> None:
        self._check_open(doing)
        if self._state is not AsyncState.DEFAULT:
            asked = f"{doing}_async" if doing in ("reset", "step", "call") else doing
            raise AlreadyPendingCallError(
                f"Calling `{asked}` while waiting for a pending call to `{self._state.value}` to complete; finish that "
                f"with `{self._state.value}_wait` first",
                str(self._state.value),
            )

    def _current_plan(self) -> BlockPlan:
        return self._arena.added_to(self._plan)
