"""Rows of the `subproc` back end that are sent alone: requested in the block, collected as they are finished."""

from __future__ import annotations

import time
from multiprocessing import TimeoutError
from typing import Any

from vecenv.channel import dumps
from vecenv.errors import EnvFailure, env_error
from vecenv.protocol import RESET_ROW, STEP_ROW
from vecenv.subproc_calls import WorkerCalls


class WorkerRows(WorkerCalls):
    """What `SubprocVecEnv` does for `send` and `recv`."""

    _row_records: dict[int, dict[str, Any] | EnvFailure]
    # Envs whose worker was replaced since they were received last: truncated when they are sent next.
    _lost: set[int]

    # -- single rows, as VecEnv asks for them ------------------------------------------------------------------------

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        self._check_idle("send")
        self._raise_deaths()
        self._control.wide_rows[rows] = wide
        if not self._actions_fixed:
            self._send_to_owners("row_actions", {row: self._action_objects[row] for row in rows})
        self._request_rows(rows, STEP_ROW)

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        self._check_idle("send_reset")
        self._raise_deaths()
        self._send_to_owners("row_resets", {row: (seeds[row], options) for row in rows})
        self._request_rows(rows, RESET_ROW)

    def _send_to_owners(self, word: str, values: dict[int, Any]) -> None:
        """Send each worker the values of its rows."""
        for worker, own in enumerate(self._group.rows):
            chosen = {row: values[row] for row in own if row in values}
            if chosen:
                self._group.send(worker, dumps((word, chosen)), "send")

    def _request_rows(self, rows: list[int], kind: int) -> None:
        control = self._control
        control.slot[0] = self.slot
        self._complete_lost(rows)
        rows = [row for row in rows if row not in self._row_records]
        control.kinds[rows] = kind
        number = int(control.requested.max())
        for row in rows:
            number += 1
            control.requested[row] = number
        for worker, own in enumerate(self._group.rows):
            count = len(set(own).intersection(rows))
            if count:
                control.row_requests[worker] += count
                self._group.wake(worker)

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        done = self._group.wait_for_rows(outstanding, count, "recv", timeout)
        if self._group.deaths:
            self._raise_deaths()
            self._recover_rows(outstanding)
            return self._receive_rows(outstanding, count, timeout)
        if len(done) < count:
            raise TimeoutError(
                f"`recv` had {len(done)} of {count} environments after {timeout} seconds; nothing is lost"
            )
        chosen = done[:count]
        for worker, own in enumerate(self._group.rows):
            if self._control.has_messages[list(set(own).intersection(chosen))].any():
                self._group.read_now(worker, "recv")
        for messages in self._group.take_messages():
            for kind, value in messages:
                self._take_row_message(kind, value)
        return chosen

    def _recover_rows(self, outstanding: list[int]) -> None:
        """Replace workers that died while rows were outstanding; rows that were not are truncated when sent next."""
        self._doing = "recv"
        for worker in self._recovery.replace_dead(self._seeds, self._current_plan()):
            self._truncate(worker, self.slot)
            rows = set(self._group.rows[worker])
            self._lost |= rows
            self._complete_lost([row for row in outstanding if row in rows])

    def _complete_lost(self, rows: list[int]) -> None:
        """Finish rows whose worker was replaced since they were received last, without asking anyone."""
        for row in self._lost.intersection(rows):
            self._lost.discard(row)
            self._control.completed[row] = self._control.requested[row]
            self._control.finished[row] = time.monotonic()
            self._row_records[row] = {"worker_restarted": True}

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

    def _row_infos(self, row: int) -> dict[str, Any]:
        record = self._row_records.pop(row, {})
        if isinstance(record, EnvFailure):
            raise env_error([record], "recv") from record.exception
        return {**record, **self._arena.row(row)}
