"""Calls of the Ray back end that concern all envs: asked of every actor, waited for, put together."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import TimeoutError
from typing import Any

import numpy as np

from vecenv.arguments import check_callable_name, values_per_env
from vecenv.env_failures import env_failure, unpack_failures
from vecenv.errors import LATE, EnvFailure, WorkerDied, env_error
from vecenv.info_arena import InfoArena, RowInfoError
from vecenv.infos import Infos, Signature, value_in
from vecenv.pickling import dumps, dumps_given, dumps_options
from vecenv.protocol import WorkerConfig, column_arrays
from vecenv.ray_cluster import NotEnoughResources
from vecenv.ray_group import ActorGroup
from vecenv.ray_settings import RaySettings
from vecenv.ray_shared_rows import SharedRows
from vecenv.ray_worker import SlicePlan, SliceReply, read_row_fields, write_row_fields
from vecenv.recovery import Replacements
from vecenv.send_recv import SendRecvVecEnv
from vecenv.slice_replies import loads_by_row
from vecenv.slice_stepper import index_of
from vecenv.spaces import map_arrays

#: Seconds in which no death is looked for, so that a step costs one request.
_AT_ONCE_SECONDS = 0.5
#: Method of `SliceActor` and its arguments.
Question = tuple[Any, ...]


class RayCalls(SendRecvVecEnv):
    """What `RayVecEnv` does for `VecEnv`, from the call to its results."""

    _ray_settings: RaySettings
    _group: ActorGroup
    _replacements: Replacements
    _config_of: Callable[[int], WorkerConfig]
    _arena: InfoArena
    _arena_memory: Any
    # Info columns of the whole batch.
    _columns: dict[Signature, tuple[Any, Any]]
    # Memory of the workers on this machine, by worker.
    _shared: dict[int, SharedRows]
    # Index of each worker's rows into arrays of the batch.
    _own: list[Any]
    # References of the running whole call, with the workers they were asked of.
    _pending: dict[Any, int]
    # What that call asks of each worker, its name, and the slot that takes its observations.
    _questions: list[Question]
    _doing: str
    _target: int
    _reset_rows: list[int]
    # What has come in for the running call.
    _odd: dict[int, dict[str, Any]]
    _results: dict[int, Any]
    _failures: list[EnvFailure]

    @property
    def num_workers(self) -> int:
        """Number of actors."""
        return len(self._group.rows)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the actors, in order, each on its own machine."""
        return tuple(host.pid for host in self._group.hosts)

    @property
    def worker_machines(self) -> tuple[str, ...]:
        """Names of the machines that the actors run on, in order."""
        return tuple(host.machine for host in self._group.hosts)

    # -- whole calls, as VecEnv asks for them ------------------------------------------------------------------------

    def _passed_options(self, options: dict[str, Any] | None) -> bytes | None:
        return dumps_options(options)

    def _send_reset(self, slot: int, seeds: list[int | None], options: bytes | None, selected: Any) -> None:
        questions: list[Question] = []
        for own in self._group.rows:
            places = [place for place, row in enumerate(own) if selected is None or selected[row]]
            questions.append(("reset", dumps((places, [seeds[own[place]] for place in places], options))))
        self._reset_rows = list(range(self.num_envs)) if selected is None else selected.nonzero()[0].tolist()
        self._replacements.forgive()
        self._ask_all("reset", questions, slot)

    def _send_step(self, slot: int, wide: bool) -> None:
        self._ask_all("step", [("step", self._actions_of(own, wide), wide) for own in self._own], slot)

    def _actions_of(self, own: Any, wide: bool) -> Any:
        """Actions of some rows as they travel."""
        if self._actions_fixed:
            return map_arrays(self._arrays.actions, lambda array: array[own])
        return dumps(self._action_objects[own] if isinstance(own, slice) else [self._action_objects[i] for i in own])

    def _ask_all(self, doing: str, questions: list[Question], slot: int) -> None:
        self._settle()
        self._doing, self._questions, self._target = doing, questions, slot
        self._raise_deaths()
        self._odd, self._results, self._failures = {}, {}, []
        self._replacements.start_clock()
        in_runs = doing == "step" and self._actions_fixed and len(self._group.runs) == len(questions)
        for worker, question in enumerate(questions):
            if worker in self._group.deaths:
                continue
            if in_runs:
                self._shared[worker].put_actions(*question[1:])
                self._pending[self._group.run_of(worker)] = worker
                self._group.runs[worker].ask()
            else:
                self._pending[self._ask(worker, question)] = worker

    def _ask(self, worker: int, question: Question) -> Any:
        """Ask a worker; where its memory is shared, that is the way of a step's actions."""
        shared = self._shared.get(worker)
        if shared is not None and question[0] == "step" and self._actions_fixed:
            shared.put_actions(*question[1:])
            question = ("step_from_memory",)
        return self._group.ask(worker, *question)

    def _settle(self) -> None:
        """Take in what a call that was interrupted has left, so that what is known of the envs is true again."""
        if self._pending:
            for run in self._group.runs.values():  # which may not have been told of the step
                run.wake()
            with contextlib.suppress(Exception):  # it was reported, or its caller has given up on it
                self._gather(None)
            self._pending.clear()
            self._note_ends(slice(None))

    def _receive(self, timeout: float | None) -> Infos:
        self._finish(timeout)
        try:
            return self._arena.collect(self._odd)
        except RowInfoError as error:
            failures = [env_failure(row, cause) for row, cause in error.causes.items()]
            self._note_failures(error.causes, self._reset_rows if self._doing == "reset" else ())
            raise env_error(failures, self._doing) from failures[0].exception

    def _finish(self, timeout: float | None) -> None:
        """Wait for all workers; raises what the envs raised."""
        self._gather(timeout)
        restarted = self._recover_call() if self._group.deaths else []
        if self._doing == "step" and self._replacements.restarts:
            self._replacements.note_finished_step(self._done, restarted)
        if self._failures:
            failures = sorted(self._failures, key=lambda failure: failure.env_index)
            if self._doing in ("reset", "step"):
                resets = self._reset_rows if self._doing == "reset" else ()
                self._note_failures((failure.env_index for failure in failures), resets)
            raise env_error(failures, self._doing) from failures[0].exception

    def _gather(self, timeout: float | None) -> None:
        """Take the replies of the running call as they come, until all are there or a worker is known to be dead."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not (self._group.deaths or self._group.in_runs(self._pending)) and self._gather_at_once(timeout):
            return
        while self._pending and (self._replacements.restarts or not self._group.deaths):
            limit = self._replacements.time_left()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            shorter = limit is not None and (left is None or limit < left)
            ready = self._group.wait(self._pending, limit if shorter else left)
            if not ready and not shorter:
                raise TimeoutError(
                    f"`{self._doing}` was not finished after {timeout} seconds; it stays pending, nothing is lost"
                )
            if not ready:
                for worker in self._pending.values():
                    self._group.note_death(worker, f"{self._doing} {LATE}")
                self._pending.clear()
            for reference in ready:
                self._take_pending(reference, None)

    def _gather_at_once(self, timeout: float | None) -> bool:
        """The everyday case, all replies within a moment, by one request; False: not that case."""
        limits = [limit for limit in (timeout, self._replacements.time_left()) if limit is not None]
        replies = self._group.fetch_all(list(self._pending), min([_AT_ONCE_SECONDS, *limits]))
        if replies is None:
            return False
        for worker, reply in zip(list(self._pending.values()), replies, strict=True):
            self._take(worker, reply)
        self._pending.clear()
        return True

    def _take_pending(self, reference: Any, limit: float | None) -> None:
        """Fetch and take in one reply; after Ctrl-C in the midst of it, it is pending still, for `_settle`."""
        worker = self._pending[reference]
        try:
            self._take(worker, self._group.fetch(worker, reference, self._doing, limit))
        except Exception:
            del self._pending[reference]
            raise
        del self._pending[reference]

    def _take(self, worker: int, reply: SliceReply | bytes | None) -> None:
        """Take in the reply of a worker to a whole call."""
        if reply is not None:
            if isinstance(reply, bytes):
                reply = self._shared[worker].reply(reply, None)
            self._take_rows(reply, self._group.rows[worker], self._own[worker], self._target)
            self._take_messages(worker, reply)

    def _take_rows(self, reply: SliceReply, rows: Sequence[int], own: Any, slot: int) -> None:
        """Write what a reply says of some rows into the batch.

        Args:
            reply: of one worker.
            rows: the rows it is about, in its order.
            own: the same as an index into arrays.
            slot: slot of the ring that takes the observations.
        """
        if reply.row_fields is None:  # a call that is about no rows
            return
        write_row_fields(self._arrays, own, reply.row_fields)
        if reply.observations is not None:
            _write_nest(self._arrays.observations, (slot, own), reply.observations)
        if reply.final_observations is not None:
            ended = [row for row in rows if self._arrays.final_mask[row]]
            _write_nest(self._arrays.final_observations, ended, reply.final_observations)
        self._arena.clear(own)
        for signature, values, mask in reply.columns:
            column = self._column(signature)
            if column is not None:
                column[0][own], column[1][own] = values, mask
                continue
            for place in np.flatnonzero(mask).tolist():
                self._odd.setdefault(rows[place], {})[signature[0]] = value_in(signature, values, place)

    def _column(self, signature: Signature) -> tuple[Any, Any] | None:
        """The column of an info field, made where there is none yet; None: there is no room for it."""
        if signature not in self._columns:
            for column in self._arena.added([signature]):
                self._columns[column[0]] = column_arrays(self._arena_memory, *column, self.num_envs)
        return self._columns.get(signature)

    def _take_messages(self, worker: int, reply: SliceReply) -> None:
        for data in reply.messages:
            word, value = loads_by_row(data, self._group.hosts[worker].pid)
            if word == "failed":
                self._failures += value
            elif word == "infos":
                for row, info in value.items():
                    self._odd.setdefault(row, {}).update(info)
            elif word == "results":
                self._results.update(value)
            elif word == "final":
                self._final_objects.update(value)
            elif self._objects is not None:
                self._objects.update(value)

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _raise_deaths(self) -> None:
        """Raise what is known of a dead worker, unless dead workers are replaced."""
        for death in self._group.deaths.values():
            if not self._replacements.restarts:
                raise WorkerDied(death.env_indices, death.pid, death.exitcode, death.doing)

    def _recover_call(self) -> list[int]:
        """Replace workers that died before or during a whole call and finish it for their envs; gives those."""
        self._raise_deaths()
        if self._doing not in ("reset", "step"):
            death = next(iter(self._group.deaths.values()))
            advice = "The worker is replaced at the next step or reset"
            raise WorkerDied(death.env_indices, death.pid, death.exitcode, self._doing, advice)
        restarted: set[int] = set()
        while self._group.deaths:
            for worker in self._replace_dead():
                restarted.update(self._group.rows[worker])
                self._replacements.start_clock()  # the repeated call has the time limit to itself
                reference = self._ask(worker, self._questions[worker])
                self._pending[reference] = worker
                self._take_pending(reference, self._replacements.time_left())
        return sorted(restarted)

    def _replace_dead(self) -> list[int]:
        return self._replacements.replace_all(self._seeds, self._start_again)

    def _start_again(self, worker: int, seeds: tuple[int | None, ...]) -> bool:
        rows, own = self._group.rows[worker], self._own[worker]
        last = None if self._objects is None else {row: self._objects[row] for row in rows if row in self._objects}
        config = replace(self._config_of(worker), restart_seeds=seeds, last_observations=last)
        death = self._group.deaths[worker]
        self._shared.pop(worker, None)
        try:
            reference = self._group.replace(worker, config)
        except NotEnoughResources as error:
            self._group.deaths[worker] = death
            advice = f"There is no room for another one: {error}"
            raise WorkerDied(death.env_indices, death.pid, death.exitcode, death.doing, advice) from error
        except WorkerDied as again:
            self._group.deaths[worker] = again
            return False
        limit = self._replacements.build_limit
        built = self._group.fetch(worker, reference, "construction", limit)
        if built is None:
            return False
        word, value = pickle.loads(built)
        if word == "failed":
            self._replacements.causes[worker] = env_error(unpack_failures(value), "construction")
            self._group.note_death(worker, "construction")
            return False
        observations = None
        if self._objects is None:
            observations = map_arrays(self._arrays.observations, lambda array: array[self.slot][own])
        plan = SlicePlan(*self._planned_spaces, observations, read_row_fields(self._arrays, own, len(rows)))
        self._attach({worker: plan}, limit)
        return worker not in self._group.deaths

    def _attach(self, plans: Mapping[int, SlicePlan], timeout: float | None) -> None:
        """Have workers make room for their rows; those whose memory is in reach leave the rows there."""
        asked = {worker: self._group.ask(worker, "attach", plan) for worker, plan in plans.items()}
        for worker, reference in asked.items():
            address = self._group.fetch(worker, reference, "construction", timeout)
            if not self._ray_settings.share_memory:
                continue
            shared = SharedRows.of(address, *self._planned_spaces, len(self._group.rows[worker]))
            if shared is not None:
                pipes = self._group.fetch(worker, self._group.ask(worker, "leave_rows"), "construction", timeout)
                run = None if pipes is None else shared.open_run(address.pid, pipes)
                if run is not None:
                    self._group.runs[worker] = run
                elif pipes is not None:
                    self._group.ask(worker, "give_up_runs")
                self._shared[worker] = shared

    # -- calls of envs -----------------------------------------------------------------------------------------------

    def _ask_and_wait(self, doing: str, questions: list[Question]) -> dict[int, Any]:
        """Ask all workers and wait; gives results by row."""
        self._check_open(doing.partition("(")[0])
        self._check_not_outstanding(doing.partition("(")[0], range(self.num_envs))
        self._ask_all(doing, questions, self.slot)
        if self._group.deaths:
            self._recover_call()
        self._finish(None)
        return self._results

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute, through wrappers; results are copies."""
        self._check_open("call")
        check_callable_name(name)
        doing = f"call({name!r})"
        question: Question = ("call", name, dumps_given(doing, (args, kwargs)))
        results = self._ask_and_wait(doing, [question] * self.num_workers)
        return tuple(results[row] for row in range(self.num_envs))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env where it lives."""
        self._check_open("set_attr")
        each = values_per_env(name, values, self.num_envs)
        doing = f"set_attr({name!r})"
        questions: list[Question] = [
            ("set_attr", name, dumps_given(doing, [each[row] for row in own])) for own in self._group.rows
        ]
        self._ask_and_wait(doing, questions)

    def get_state(self) -> list[bytes]:
        """The state of every env; see `VecEnv.get_state`."""
        states = self._ask_and_wait("get_state", [("get_state",)] * self.num_workers)
        return [states[row] for row in range(self.num_envs)]

    def set_state(self, states: Sequence[bytes]) -> None:
        """Continue where `get_state` was called; see `VecEnv.set_state`."""
        self._check_states(states)
        self._drop_outstanding()
        loads: list[Question] = [("load_states", [states[row] for row in own]) for own in self._group.rows]
        self._ask_and_wait("set_state", loads)
        self._ask_and_wait("set_state", [("place_states",)] * self.num_workers)
        self._take_over_states()

    def _check_open(self, doing: str) -> None:
        super()._check_open(doing)
        self._check_no_fork(doing, self._group.belongs_here)


def own_indices(rows: Sequence[Sequence[int]]) -> list[Any]:
    """Each worker's rows as an index into arrays."""
    return [index_of(own) for own in rows]


def _write_nest(target: Any, place: Any, source: Any) -> None:
    """Write a nest of arrays into a place of each array of another nest."""
    if isinstance(target, dict):
        for key, part in target.items():
            _write_nest(part, place, source[key])
    elif isinstance(target, tuple):
        for part, value in zip(target, source, strict=True):
            _write_nest(part, place, value)
    else:
        target[place] = source
