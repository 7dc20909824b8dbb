"""Processes with a pipe each end with the object that started them, and are not left where one fails."""

from __future__ import annotations

import multiprocessing

import pytest

from vecenv.benchmarks import parallel_players
from vecenv.benchmarks.piped_processes import PipedProcesses

pytestmark = pytest.mark.timeout(60)


def test_each_has_its_setup_and_its_pipe_and_all_end_at_close():
    before = multiprocessing.active_children()
    processes = PipedProcesses(parallel_players._serve, [dict, dict])  # builds a {}, which nobody calls
    assert len(processes.pipes) == 2
    assert len(multiprocessing.active_children()) == len(before) + 2
    processes.close()
    processes.close()
    assert multiprocessing.active_children() == before


class Interrupting:
    """Becomes `dict` where it is unpickled, by a process that has only begun, and interrupts that process."""

    def __reduce__(self):
        return eval, ("[__import__('signal').raise_signal(2), dict][1]",)


def test_ctrl_c_does_not_end_one_that_has_only_begun():
    processes = PipedProcesses(parallel_players._serve, [Interrupting()])
    processes.close()


def test_none_is_left_where_one_ends_before_it_is_ready():
    before = multiprocessing.active_children()
    with pytest.raises(EOFError):
        PipedProcesses(print, [1])
    assert multiprocessing.active_children() == before
