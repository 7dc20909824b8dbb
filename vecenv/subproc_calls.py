"""Calls of the `subproc` back end that concern all envs: sent to all workers, waited for, put together."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import TimeoutError
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from vecenv.balance import Balancer
from vecenv.early_copy import EarlyCopy
from vecenv.env_failures import env_failure
from vecenv.errors import INTERRUPTED, LATE, EnvFailure, WorkerDied, env_error
from vecenv.info_arena import InfoArena, RowInfoError
from vecenv.infos import Infos
from vecenv.interrupts import interrupts_afterwards
from vecenv.pickling import dumps, dumps_options
from vecenv.protocol import BlockPlan, Control
from vecenv.recovery import Recovery
from vecenv.send_recv import SendRecvVecEnv
from vecenv.slice_stepper import index_of
from vecenv.spaces import copy_arrays
from vecenv.worker_group import WorkerGroup
from vecenv.worker_settings import WorkerSettings


class WorkerCalls(SendRecvVecEnv):
    """What `SubprocVecEnv` does for `VecEnv`, from the call to its results."""

    _worker_settings: WorkerSettings
    _group: WorkerGroup
    _control: Control
    _arena: InfoArena
    _recovery: Recovery
    _balancer: Balancer | None
    _plan: BlockPlan
    _state: AsyncState
    _doing: str
    # Numbers of the newest call and the newest whole step, as they stand in the block.
    _sequence: int
    _steps: int
    # Of the step that is under way, where that pays.
    _early_copy: EarlyCopy | None
    # What the newest reset asked each worker for (None: nothing), and its rows.
    _resets: list[bytes | None]
    _reset_rows: list[int]

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._group.rows)

    # -- whole calls, as VecEnv asks for them ------------------------------------------------------------------------

    def _passed_options(self, options: dict[str, Any] | None) -> bytes | None:
        return dumps_options(options)

    def _send_reset(self, slot: int, seeds: list[int | None], options: bytes | None, selected: Any) -> None:
        self._resets = []
        for own in self._group.rows:
            rows = own if selected is None else [row for row in own if selected[row]]
            message = dumps(("reset", slot, rows, [seeds[row] for row in rows], options)) if rows else None
            self._resets.append(message)
        self._doing = "reset"
        self._reset_rows = list(range(self.num_envs)) if selected is None else selected.nonzero()[0].tolist()
        self._recovery.forgive()
        self._send(self._resets, AsyncState.WAITING_RESET)

    def _leave_alone(self, worker: int) -> None:
        """Answer a reset in place of a worker none of whose envs it concerns: their rows keep what they hold."""
        rows = self._group.rows[worker]
        self._arena.clear(rows)
        if self._objects is None:
            last = self.observations
            copy_arrays(self._slot_views[self._next_slot()], last, index_of(rows))
        self._control.message_counts[worker] = 0
        self._control.answered[worker] = self._sequence

    def _move_envs(self) -> None:
        """Let envs change their workers while that makes the steps shorter; between calls, when their episode ended."""
        if self._balancer is None:
            return
        ended = self._arrays.final_mask if self.autoreset_mode is AutoresetMode.SAME_STEP else self._done
        candidates = set(np.flatnonzero(ended).tolist())
        while candidates and not self._group.deaths:
            move = self._balancer.move(candidates)
            if move is None:
                return
            row, source, target = move
            candidates.discard(row)
            with interrupts_afterwards():  # half-way the env would be in two workers
                if not self._move(row, source, target):
                    self._balancer.refuse(row)

    def _move(self, row: int, source: int, target: int) -> bool:
        """Let an env change its worker; False: it cannot."""
        self._sequence += 1
        self._control.sequence[0] = self._sequence
        data = self._ask(source, dumps(("offer", row))).get(row)
        if data is None or not self._ask(target, dumps(("adopt", row, data))).get(row):
            return False
        self._group.rows[source].remove(row)
        self._group.rows[target] = sorted([*self._group.rows[target], row])
        self._ask(source, dumps(("let_go", row)))
        return True

    def _send_step(self, slot: int, wide: bool) -> None:
        self._doing = "step"
        self._raise_deaths()
        self._drop_messages()
        self._move_envs()
        if not self._actions_fixed:
            for worker, own in enumerate(self._group.rows):
                actions = {row: self._action_objects[row] for row in own}
                self._tell(worker, dumps(("actions", actions)), "step")
        control = self._control
        self._sequence += 1
        self._steps += 1
        control.sequence[0] = self._sequence
        control.slot[0] = slot
        control.wide[0] = wide
        control.step[0] = self._steps  # last: workers may look at it without being woken, and go at once
        self._state = AsyncState.WAITING_STEP
        self._recovery.start_clock()
        self._group.wake_all()
        source = self._slot_views[slot] if self.settings.copy and self._slot_views else None
        self._early_copy = EarlyCopy.of(source, self._group.rows)

    def _send(self, messages: Sequence[bytes | None], state: AsyncState) -> None:
        self._raise_deaths()
        self._drop_messages()
        self._sequence += 1
        self._control.sequence[0] = self._sequence
        self._early_copy = None
        for worker, message in enumerate(messages):
            if message is None:  # before others are asked: a Ctrl-C in between would leave it unanswered
                self._leave_alone(worker)
        self._state = state
        self._recovery.start_clock()
        for worker, message in enumerate(messages):
            if message is not None:
                self._tell(worker, message, self._doing)

    def _tell(self, worker: int, message: bytes, doing: str) -> None:
        """Send a message to one worker; one that does not take it within `step_timeout` is killed, as in any call."""
        self._group.send(worker, message, doing, self._worker_settings.step_timeout)

    def _receive(self, timeout: float | None) -> Infos:
        odd: dict[int, dict[str, Any]] = {}
        for messages in self._finish(timeout):
            for kind, value in messages:
                if kind == "infos":
                    odd.update(value)
                elif kind in ("observations", "final"):
                    self._take_objects(kind, value)
        try:
            return self._arena.collect(odd)
        except RowInfoError as error:
            failures = [env_failure(row, cause) for row, cause in error.causes.items()]
            self._note_failures(error.causes, self._reset_rows if self._doing == "reset" else ())
            raise env_error(failures, self._doing) from failures[0].exception

    def _returned_observations(self, out: Any = None) -> Any:
        early, self._early_copy = self._early_copy, None
        return super()._returned_observations(out) if early is None or out is not None else early.finish()

    def _finish(self, timeout: float | None) -> list[list[tuple[str, Any]]]:
        """Wait for all workers and give their messages; raises what the envs raised."""
        if not self._wait(timeout):
            raise TimeoutError(
                f"The call to `{self._doing}_wait` has timed out after {timeout} second(s); it stays pending, nothing "
                "is lost, and waiting again is fine"
            )
        self._state = AsyncState.DEFAULT
        if self._group.deaths:
            self._early_copy = None  # rows of a worker that takes the place of another come later
        try:
            restarted = self._recover_call() if self._group.deaths else []
        except BaseException:
            self._drop_messages()  # else they would count for the next call
            raise
        if self._doing == "step" and self._recovery.restarts:
            self._recovery.note_finished_step(self._done, restarted)
        replies = self._group.inboxes.take()
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
                resets = self._reset_rows if self._doing == "reset" else ()
                self._note_failures((failure.env_index for failure in failures), resets)
            raise env_error(failures, self._doing) from failures[0].exception
        return replies

    def _drop_messages(self) -> None:
        """Take what workers told of a call that failed or was interrupted; info fields are announced only once."""
        for messages in self._group.inboxes.take():
            for kind, value in messages:
                if kind == "columns":
                    self._add_columns(value)

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the workers; one that takes longer than `step_timeout` is killed and counts as dead."""
        limit = self._recovery.time_left()
        shorter = limit is not None and (timeout is None or limit < timeout)
        early = self._early_copy
        answered = None if early is None else early.take
        if self._group.wait(self._doing, limit if shorter else timeout, answered=answered):
            return True
        if not shorter:
            return False
        self._recovery.kill_unanswered()
        self._group.wait(f"{self._doing} {LATE}", None)
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
            advice = "The worker is replaced at the next step or reset"
            raise WorkerDied(death.env_indices, death.pid, death.exitcode, self._doing, advice)
        restarted: set[int] = set()
        while self._group.deaths:
            for worker in self._recovery.replace_all(self._seeds, self._start_again):
                restarted.update(self._group.rows[worker])
                self._arena.clear(self._group.rows[worker])
                asked = self._resets[worker] if self._doing == "reset" else dumps(("step",))
                try:
                    self._ask(worker, asked or dumps(("reset", self._next_slot(), [], [], None)))
                except BaseException:  # it was ended
                    self._recovery.take_back(worker)
                    raise
        return sorted(restarted)

    def _start_again(self, worker: int, seeds: tuple[int | None, ...]) -> bool:
        return self._recovery.start_again(worker, seeds, self._current_plan(), self._objects)

    def _ask(self, worker: int, message: bytes) -> dict[int, Any]:
        """Send a message to one worker and wait for its answer (or death); gives its results by row.

        It has `step_timeout` to itself: a worker that is over it is killed, as in any call.
        """
        self._control.answered[worker] = 0
        self._recovery.start_clock()
        try:
            self._tell(worker, message, self._doing)
            if not self._group.wait(self._doing, self._recovery.time_left(), [worker]):
                self._group.end_late(worker, self._doing)
        except BaseException:  # Ctrl-C, say: a late answer would be taken for that to the next call
            self._group.end(worker, f"{self._doing} {INTERRUPTED}")
            raise
        return results_by_row([self._group.inboxes.take_results(worker)])

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
                self._tell(worker, message, self._doing)

    def _check_open(self, doing: str) -> None:
        super()._check_open(doing)
        self._check_no_fork(doing, self._group.belongs_here)
        if self._group.closed:
            raise ClosedEnvironmentError(f"`{doing}` was called after the workers had been ended")

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


def results_by_row(replies: Sequence[Sequence[tuple[str, Any]]]) -> dict[int, Any]:
    """What calls of envs gave, out of the messages of all workers."""
    results: dict[int, Any] = {}
    for messages in replies:
        for kind, value in messages:
            if kind == "results":
                results.update(value)
    return results
