"""Rows of the `subproc` back end that are sent alone: requested in the block, collected as they are finished."""

from __future__ import annotations

import time
from multiprocessing import TimeoutError
from typing import Any

import numpy as np

from vecenv.errors import EnvFailure, env_error
from vecenv.infos import Infos
from vecenv.pickling import dumps, dumps_options
from vecenv.protocol import RESET_ROW, STEP_ROW
from vecenv.row_wait import RowWait
from vecenv.spaces import copy_arrays, map_arrays
from vecenv.subproc_calls import WorkerCalls


class WorkerRows(WorkerCalls):
    """What `SubprocVecEnv` does for `send` and `recv`."""

    _row_records: dict[int, dict[str, Any] | EnvFailure]
    # When each outstanding env was sent, in seconds of the monotonic clock.
    _sent_at: dict[int, float]
    # Seed and pickled options of the newest reset of each row, for a worker that takes the place of one that died.
    _row_resets: dict[int, tuple[int | None, bytes | None]]
    _row_wait: RowWait
    # Observations as the caller saw them last, of rows that were sent; kept where dead workers are replaced.
    _last_seen: Any = None

    # -- single rows, as VecEnv asks for them ------------------------------------------------------------------------

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        self._raise_deaths()
        self._control.wide_rows[rows] = wide
        if not self._actions_fixed:
            self._send_to_owners("row_actions", {row: self._action_objects[row] for row in rows})
        if self._recovery.restarts:
            self._keep_last_seen(rows)
        self._request_rows(rows, STEP_ROW)

    def _keep_last_seen(self, rows: list[int]) -> None:
        """Keep what the rows show: a worker writes over it, and may die before anyone is told of what it wrote."""
        if self._objects is not None:
            self._last_seen = self._last_seen or {}
            self._last_seen.update({row: self._objects[row] for row in rows if row in self._objects})
            return
        newest = self.observations
        if self._last_seen is None:
            self._last_seen = map_arrays(newest, np.empty_like)
        copy_arrays(self._last_seen, newest, rows)

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        self._raise_deaths()
        given = dumps_options(options)
        self._row_resets.update({row: (seeds[row], given) for row in rows})
        self._send_to_owners("row_resets", {row: self._row_resets[row] for row in rows})
        self._request_rows(rows, RESET_ROW)

    def _send_to_owners(self, word: str, values: dict[int, Any]) -> None:
        """Send each worker the values of its rows."""
        for worker, own in enumerate(self._group.rows):
            chosen = {row: values[row] for row in own if row in values}
            if chosen:
                self._tell(worker, dumps((word, chosen)), "send")

    def _request_rows(self, rows: list[int], kind: int) -> None:
        control = self._control
        control.slot[0] = self.slot
        control.kinds[rows] = kind
        number = int(control.requested.max()) + 1
        control.requested[rows] = np.arange(number, number + len(rows))
        self._sent_at.update(dict.fromkeys(rows, time.monotonic()))
        asked = set(rows)
        for worker, own in enumerate(self._group.rows):
            count = len(asked.intersection(own))
            if count:
                control.row_requests[worker] += count
                self._group.wake(worker)

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        limit = self._time_left(outstanding)
        shorter = limit is not None and (timeout is None or limit < timeout)
        start = time.monotonic()
        done = self._row_wait.wait(outstanding, count, "recv", limit if shorter else timeout)
        if self._group.deaths or (len(done) < count and shorter):
            self._end_late_workers(outstanding)
            self._raise_deaths()
            self._recover_rows()
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
            return self._receive_rows(outstanding, count, left)
        if len(done) < count:
            raise TimeoutError(
                f"`recv` had {len(done)} of {count} environments after {timeout} seconds; nothing is lost"
            )
        chosen = done[:count]
        if np.count_nonzero(self._control.has_messages[chosen]):
            for worker, own in enumerate(self._group.rows):
                if self._control.has_messages[list(set(own).intersection(chosen))].any():
                    self._group.read_now(worker, "recv")
        self._take_row_messages()
        return chosen

    def _late_at(self, rows: list[int]) -> dict[int, float]:
        """When each worker with unfinished rows is late: `step_timeout` after its last sign of progress."""
        late: dict[int, float] = {}
        limit = self._worker_settings.step_timeout
        if limit is None:
            return late
        control = self._control
        for worker, own in enumerate(self._group.rows):
            waiting = [row for row in own if row in rows and control.completed[row] != control.requested[row]]
            if waiting:
                begun = min(self._sent_at[row] for row in waiting)
                late[worker] = max(begun, float(control.finished[own].max())) + limit
        return late

    def _time_left(self, rows: list[int]) -> float | None:
        late = self._late_at(rows)
        return max(0.0, min(late.values()) - time.monotonic()) if late else None

    def _end_late_workers(self, rows: list[int]) -> None:
        for worker, moment in self._late_at(rows).items():
            if worker not in self._group.deaths and moment <= time.monotonic():
                self._group.end_late(worker, "recv")

    def _drop_outstanding(self) -> Exception | None:
        self._recovery.forgive()  # else what was given up would be so again before the reset has a chance
        return super()._drop_outstanding()

    def _recover_rows(self) -> None:
        """Replace workers that died while rows were outstanding; the new ones go on with what is asked of those."""
        self._doing = "recv"
        self._recovery.replace_all(self._seeds, self._start_rows_again)

    def _start_rows_again(self, worker: int, seeds: tuple[int | None, ...]) -> bool:
        # What the dead one told of rows that it finished stays true; the others are told of anew.
        self._take_row_messages()
        self._forget_unfinished(self._group.rows[worker])
        plan = self._current_plan()
        return self._recovery.start_again(worker, seeds, plan, self._objects, lambda: self._ask_again(worker))

    def _unfinished(self, rows: list[int]) -> list[int]:
        return [row for row in rows if self._control.completed[row] != self._control.requested[row]]

    def _forget_unfinished(self, rows: list[int]) -> None:
        unfinished = self._unfinished(rows)
        self._arena.clear(unfinished)
        for row in unfinished:
            self._row_records.pop(row, None)
        stepped = [row for row in unfinished if self._control.kinds[row] == STEP_ROW]
        if self._last_seen is None or not stepped:
            return
        if self._objects is not None:
            self._objects.update({row: self._last_seen[row] for row in stepped if row in self._last_seen})
        else:
            copy_arrays(self.observations, self._last_seen, stepped)

    def _ask_again(self, worker: int) -> None:
        """Send what does not stand in the block to the worker that takes the place of one that died over it."""
        unfinished = self._unfinished(self._group.rows[worker])
        self._sent_at.update(dict.fromkeys(unfinished, time.monotonic()))  # it is not late because the dead one was
        resets = {row: self._row_resets[row] for row in unfinished if self._control.kinds[row] == RESET_ROW}
        self._send_to_owners("row_resets", resets)
        if not self._actions_fixed:
            steps = {row: self._action_objects[row] for row in unfinished if row not in resets}
            self._send_to_owners("row_actions", steps)
        self._group.wake(worker)

    def _take_row_messages(self) -> None:
        for messages in self._group.inboxes.take():
            for kind, value in messages:
                self._take_row_message(kind, value)

    def _take_row_message(self, kind: str, value: Any) -> None:
        if kind == "failed":
            for failure in value:
                self._row_records[failure.env_index] = failure
        elif kind == "infos":
            for row, info in value.items():
                self._row_records.setdefault(row, info)
        elif kind == "columns":
            self._add_columns(value)
        else:
            self._take_objects(kind, value)

    def _infos_of_rows(self, rows: list[int]) -> Infos:
        infos = None
        if not self._taken_infos and (not self._row_records or self._row_records.keys().isdisjoint(rows)):
            infos = self._arena.rows(rows)
        infos = super()._infos_of_rows(rows) if infos is None else infos
        if self._recovery.on_trial:
            cut_off = infos.get("_worker_restarted", np.zeros(len(rows), np.bool_))
            only_reset = (self._control.kinds[rows] == RESET_ROW) | self._done[rows]
            self._recovery.note_finished_rows(np.array(rows)[~(cut_off | only_reset)].tolist())
        return infos

    def _row_infos(self, row: int) -> dict[str, Any]:
        record = self._row_records.pop(row, {})
        if isinstance(record, EnvFailure):
            raise env_error([record], "recv") from record.exception
        return {**record, **self._arena.row(row)}
