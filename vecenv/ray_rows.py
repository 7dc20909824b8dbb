"""Rows of the Ray back end that are sent alone: asked of actors in small groups, collected as those are finished.

A group costs a message, so rows whose steps are short share one. How many is learnt from what their steps took: a group
is full as soon as its steps are worth a message, which leaves slow envs alone.
"""

from __future__ import annotations

import time
from multiprocessing import TimeoutError
from typing import Any, NamedTuple

from vecenv.errors import LATE, EnvFailure, env_error
from vecenv.pickling import dumps, dumps_options
from vecenv.ray_calls import Question, RayCalls
from vecenv.ray_worker import SliceReply

#: Steps that take this long together, in seconds, are worth a message.
_WORTH_A_MESSAGE = 0.005


class _Group(NamedTuple):
    """Rows that one message asks for."""

    worker: int
    rows: list[int]
    question: Question


class RayRows(RayCalls):
    """What `RayVecEnv` does for `send` and `recv`."""

    # What was asked for and has not come, by reference, in the order of asking.
    _groups: dict[Any, _Group]
    # Rows that have come and were not received, the first to come first.
    _finished: list[int]
    _row_records: dict[int, dict[str, Any] | EnvFailure]
    # `[num_envs] float64`, what the last step of each env took alone.
    _row_seconds: Any
    # When each worker last began or finished something, in seconds of the monotonic clock.
    _progress: dict[int, float]

    # -- single rows, as VecEnv asks for them ------------------------------------------------------------------------

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        self._begin_rows()
        for worker, own in self._split(rows):
            places = [row - self._group.rows[worker][0] for row in own]
            self._ask_for(_Group(worker, own, ("step_rows", places, self._actions_of(own, wide), wide)))

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        given = dumps_options(options)
        self._begin_rows()
        for worker, own in self._split(rows):
            places = [row - self._group.rows[worker][0] for row in own]
            data = dumps((places, [seeds[row] for row in own], given))
            self._ask_for(_Group(worker, own, ("reset_rows", data)))

    def _begin_rows(self) -> None:
        self._settle()
        self._doing = "recv"
        self._raise_deaths()

    def _split(self, rows: list[int]) -> list[tuple[int, list[int]]]:
        """Groups of rows in the order in which they were sent, each of one worker."""
        filling: dict[int, list[int]] = {}
        groups: list[tuple[int, list[int]]] = []
        for row in rows:
            worker = self._worker_of[row]
            own = filling.get(worker)
            if own is None or self._row_seconds[own].sum() + self._row_seconds[row] > _WORTH_A_MESSAGE:
                own = filling[worker] = []
                groups.append((worker, own))
            own.append(row)
        return groups

    @property
    def _worker_of(self) -> dict[int, int]:
        return {row: worker for worker, own in enumerate(self._group.rows) for row in own}

    def _ask_for(self, group: _Group) -> None:
        self._progress[group.worker] = time.monotonic()
        self._groups[self._group.ask(group.worker, *group.question)] = group

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        deadline = None if timeout is None else time.monotonic() + timeout
        looked = False
        while len(self._finished) < count:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left == 0.0 and looked:
                raise TimeoutError(
                    f"`recv` had {len(self._finished)} of {count} environments after {timeout} seconds; nothing is lost"
                )
            self._take_ready(left)
            looked = left == 0.0
            if self._group.deaths:
                self._raise_deaths()
                self._recover_rows()
        chosen, self._finished = self._finished[:count], self._finished[count:]
        return chosen

    def _give_back(self, rows: list[int]) -> None:
        self._finished = rows + self._finished

    def _take_ready(self, timeout: float | None) -> None:
        """Wait for the next group of rows, or for the moment at which a worker is late."""
        limit = self._time_left()
        shorter = limit is not None and (timeout is None or limit < timeout)
        ready = self._group.wait(
            {ref: group.worker for ref, group in self._groups.items()}, limit if shorter else timeout
        )
        if not ready and shorter:
            for worker in {group.worker for group in self._groups.values()}:
                if self._late_at(worker) <= time.monotonic():
                    self._group.note_death(worker, f"recv {LATE}")
        for reference in ready:
            reply = self._group.fetch(self._groups[reference].worker, reference, "recv")
            if reply is not None:
                self._take_group(self._groups.pop(reference), reply)

    def _take_group(self, group: _Group, reply: SliceReply | bytes) -> None:
        self._progress[group.worker] = time.monotonic()
        if isinstance(reply, bytes):
            first = self._group.rows[group.worker][0]
            reply = self._shared[group.worker].reply(reply, [row - first for row in group.rows])
        self._odd, self._failures = {}, []
        self._take_rows(reply, group.rows, group.rows, self.slot)
        self._take_messages(group.worker, reply)
        self._row_seconds[group.rows] = reply.seconds
        for row in group.rows:
            self._row_records[row] = self._odd.get(row, {})
        for failure in self._failures:
            self._row_records[failure.env_index] = failure
        if self._replacements.on_trial and group.question[0] == "step_rows":
            told = {row: {**self._odd.get(row, {}), **self._arena.row(row)} for row in group.rows}
            self._replacements.note_finished_rows(
                [row for row in group.rows if not self._done[row] and "worker_restarted" not in told[row]]
            )
        self._finished += group.rows

    def _late_at(self, worker: int) -> float:
        return self._progress[worker] + (self._ray_settings.step_timeout or 0.0)

    def _time_left(self) -> float | None:
        if self._ray_settings.step_timeout is None or not self._groups:
            return None
        return max(0.0, min(self._late_at(group.worker) for group in self._groups.values()) - time.monotonic())

    def _drop_outstanding(self) -> Exception | None:
        self._replacements.forgive()  # else what was given up would be so again before the reset has a chance
        return super()._drop_outstanding()

    def _recover_rows(self) -> None:
        """Replace workers that died while rows were outstanding; the new ones are asked for the same."""
        self._replacements.replace_all(self._seeds, self._start_rows_again)

    def _start_rows_again(self, worker: int, seeds: tuple[int | None, ...]) -> bool:
        if not self._start_again(worker, seeds):
            return False
        kept = {reference: group for reference, group in self._groups.items() if group.worker != worker}
        lost = [group for group in self._groups.values() if group.worker == worker]
        asked = {self._group.ask(worker, *group.question): group for group in lost}
        self._progress[worker] = time.monotonic()
        self._groups = kept | asked  # at once: a Ctrl-C before leaves all that is to be asked for in its place
        return True

    def _row_infos(self, row: int) -> dict[str, Any]:
        record = self._row_records.pop(row, {})
        if isinstance(record, EnvFailure):
            raise env_error([record], "recv") from record.exception
        return {**record, **self._arena.row(row)}
