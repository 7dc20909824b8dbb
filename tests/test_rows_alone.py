"""The parts behind `send` and `recv` of single rows, one by one: chunks, waiting, batching of infos."""

from __future__ import annotations

import dataclasses
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from vecenv import row_wait
from vecenv.info_arena import InfoArena
from vecenv.protocol import Control
from vecenv.row_chunks import RowChunks
from vecenv.row_wait import RowWait, note_finished_rows

# -- chunks -----------------------------------------------------------------------------------------------------------


def test_rows_of_unknown_cost_go_alone():
    chunks = RowChunks()
    assert chunks.first_of([4, 2, 7]) == [4]
    chunks.note([4], 1e-5)
    assert chunks.first_of([4, 2, 7]) == [4]
    assert chunks.first_of([2, 4]) == [2]


def test_cheap_rows_go_together_up_to_a_millisecond():
    chunks = RowChunks()
    chunks.note(range(20), 20 * 3e-4)
    assert chunks.first_of(range(20)) == [0, 1, 2]
    chunks.note(range(20), 20 * 1e-6)
    assert chunks.first_of(range(20)) == list(range(20))
    assert chunks.first_of([]) == []


def test_an_expensive_row_is_neither_joined_nor_joins():
    chunks = RowChunks()
    chunks.note([0, 1, 3], 3e-5)
    chunks.note([2], 5.0)
    assert chunks.first_of([0, 1, 2, 3]) == [0, 1]
    assert chunks.first_of([2, 0, 1]) == [2]
    chunks.note([2], 1e-5)  # what it took last decides
    assert chunks.first_of([0, 1, 2, 3]) == [0, 1, 2, 3]


def test_the_order_of_waiting_is_kept():
    chunks = RowChunks()
    chunks.note([5, 1, 3], 3e-6)
    assert chunks.first_of([5, 1, 3]) == [5, 1, 3]


# -- waiting ----------------------------------------------------------------------------------------------------------


class Workers:
    """Stands in for the group of workers: what they finish happens in `on_wait`, and deaths are set by the test."""

    def __init__(self, on_wait=lambda: None):
        self.deaths = {}
        self.waits = []
        self._on_wait = on_wait

    def take_events(self, timeout, doing):
        self.waits.append(timeout)
        self._on_wait()


def make_control(num_rows=6, workers=2):
    """The parts of the block that waiting looks at."""
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Control))
    fields["requested"] = np.zeros(num_rows, np.int64)
    fields["completed"] = np.zeros(num_rows, np.int64)
    fields["finished"] = np.zeros(num_rows)
    fields["rows_finished"] = np.zeros(workers, np.int64)
    fields["rows_wanted"] = np.full(1, row_wait._NOBODY_WAITS)
    return Control(**fields)


def finish(control, rows, worker=0, at=0.0):
    """What a worker does for rows that are finished; gives whether it would wake the caller."""
    control.finished[rows] = at
    control.completed[rows] = control.requested[rows]
    return note_finished_rows(control, worker, len(rows))


def test_finished_rows_come_in_the_order_of_finishing():
    control = make_control()
    control.requested[:] = range(1, 7)
    for at, row in enumerate([4, 0, 5]):
        finish(control, [row], at=float(at))
    workers = Workers()
    assert RowWait(workers, control).wait([5, 4, 3, 0], 2, "recv", None) == [4, 0, 5]
    assert RowWait(workers, control).wait([5, 3], 1, "recv", None) == [5]
    assert control.rows_wanted[0] == row_wait._NOBODY_WAITS


def test_the_caller_sleeps_until_as_many_are_finished_as_it_waits_for(monkeypatch):
    monkeypatch.setattr(row_wait, "STORES_IN_ORDER", True)
    control = make_control()
    control.requested[:] = 1
    woken, left = [], [[0], [1, 2], [3]]

    def work():
        if control.rows_wanted[0] != row_wait._NOBODY_WAITS and left:
            woken.append(finish(control, left.pop(0), worker=len(left) % 2))

    wait = RowWait(Workers(work), control)
    assert wait.wait(range(6), 4, "recv", 30.0) == [0, 1, 2, 3]
    assert woken == [False, False, True]


def test_workers_wake_for_every_row_where_stores_may_be_seen_late(monkeypatch):
    monkeypatch.setattr(row_wait, "STORES_IN_ORDER", False)
    control = make_control()
    assert finish(control, [0])


def test_nobody_is_woken_who_does_not_wait(monkeypatch):
    monkeypatch.setattr(row_wait, "STORES_IN_ORDER", True)
    assert not finish(make_control(), [0, 1, 2])


def test_a_timeout_gives_what_there_is():
    control = make_control()
    control.requested[:] = 1
    finish(control, [2])
    start = time.monotonic()
    assert RowWait(Workers(lambda: time.sleep(0.01)), control).wait([1, 2], 2, "recv", 0.05) == [2]
    assert time.monotonic() - start >= 0.05
    assert RowWait(Workers(), control).wait([1, 2], 2, "recv", 0.0) == [2]


def test_no_sleep_is_longer_than_the_time_left():
    control = make_control()
    control.requested[:] = 1
    workers = Workers(lambda: time.sleep(0.002))
    RowWait(workers, control).wait([1], 1, "recv", 0.02)
    assert max(workers.waits) <= 0.02
    assert max(workers.waits) <= row_wait._LOOK_AGAIN_SECONDS


def test_a_death_ends_the_wait():
    control = make_control()
    control.requested[:] = 1
    finish(control, [3])
    workers = Workers()

    def die():
        workers.deaths[0] = "gone"

    workers._on_wait = die
    assert RowWait(workers, control).wait([1, 3], 2, "recv", None) == [3]


def test_a_death_is_looked_for_though_rows_always_come_at_once(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(row_wait, "time", SimpleNamespace(monotonic=lambda: now[0]))
    control = make_control()
    control.requested[:] = 1
    finish(control, [0, 1])
    workers = Workers()
    wait = RowWait(workers, control)
    wait.wait([0, 1], 1, "recv", None)
    seen = len(workers.waits)
    assert seen == 1
    wait.wait([0, 1], 1, "recv", None)
    assert len(workers.waits) == seen  # not every time
    now[0] += 1.5 * row_wait._LOOK_AGAIN_SECONDS
    wait.wait([0, 1], 1, "recv", None)
    assert len(workers.waits) == seen + 1


def test_rows_that_another_thread_finishes_are_seen():
    control = make_control()
    control.requested[:] = 1

    def later():
        for row in range(4):
            time.sleep(0.01)
            finish(control, [row], worker=row % 2, at=float(row))

    thread = threading.Thread(target=later)
    thread.start()
    assert RowWait(Workers(lambda: time.sleep(0.001)), control).wait(range(6), 3, "recv", 30.0)[:3] == [0, 1, 2]
    thread.join(30)


# -- infos ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (2,)])
def test_infos_of_rows_are_copied_out_of_the_block_and_zeroed_outside_the_mask(shape):
    arena = InfoArena(np.zeros(4096, np.uint8), 4, {"speed": (np.float64, shape)})
    [(_, values, mask)] = arena._views
    values[...] = np.arange(1, values.size + 1).reshape(values.shape)
    mask[[1, 3]] = True
    before = values.copy(), mask.copy()
    infos = arena.rows([3, 2, 1])
    assert infos["_speed"].tolist() == [True, False, True]
    np.testing.assert_array_equal(infos["speed"], np.stack([values[3], np.zeros(shape), values[1]]))
    for array in infos.values():
        assert not any(np.shares_memory(array, part) for part in (values, mask))
    infos["speed"][...] = -1
    infos["_speed"][...] = False
    np.testing.assert_array_equal(values, before[0])
    np.testing.assert_array_equal(mask, before[1])
    assert arena.rows([0, 2]) == {}
