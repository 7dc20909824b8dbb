"""When a run ends."""

from __future__ import annotations

import signal

import pytest

from vecenv.agents.learner import Episode
from vecenv.agents.stopping import EpisodeWindow, InterruptFlag, StopRule


def window_of(returns, size=100):
    window = EpisodeWindow(size)
    window.add(Episode(float(total), 1) for total in returns)
    return window


def test_ninety_nine_perfect_episodes_are_not_enough():
    rule = StopRule(total_steps=10**9, solve_at=475)
    assert rule.reason(window_of([500] * 99), 1, 1.0) is None
    assert rule.reason(window_of([500] * 100), 1, 1.0) == "solved"


def test_only_the_last_hundred_count():
    window = window_of([0] * 50 + [500] * 100)
    assert (window.mean_return, window.finished) == (500.0, 150)
    assert StopRule(1000, solve_at=500).reason(window, 1, 1.0) == "solved"
    window.add([Episode(499.0, 1)])
    assert StopRule(1000, solve_at=500).reason(window, 1, 1.0) is None


def test_the_target_itself_counts_also_when_it_is_negative():
    assert StopRule(1000, solve_at=-20.5).reason(window_of([-20, -21] * 50), 1, 1.0) == "solved"


def test_limits():
    nothing = EpisodeWindow()
    assert nothing.mean_return is None
    assert nothing.mean_length is None
    assert StopRule(1000).reason(window_of([1e9] * 100), 999, 1e9) is None
    assert StopRule(1000).reason(nothing, 1000, 0.0) == "total_steps"
    assert StopRule(1000, max_seconds=5).reason(nothing, 0, 5.0) == "max_seconds"
    assert StopRule(1000, max_seconds=5).reason(nothing, 0, 4.9) is None
    assert StopRule(1000, 1.0, 5).reason(window_of([1] * 100), 1000, 5.0) == "solved"


def test_window_goes_on_from_its_state():
    window = window_of(range(150))
    again = EpisodeWindow()
    again.load_state_dict(window.state_dict())
    assert again == window
    again.add([Episode(1000.0, 1)])
    assert again.mean_return == (sum(range(51, 150)) + 1000.0) / 100


def test_first_interrupt_asks_and_the_second_one_stops():
    before = signal.getsignal(signal.SIGINT)
    with InterruptFlag() as flag:
        assert not flag.is_set
        signal.raise_signal(signal.SIGINT)
        assert flag.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
