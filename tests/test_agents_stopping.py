"""When a run ends."""

from __future__ import annotations

import signal
import threading

import pytest

from vecenv.agents import stopping
from vecenv.agents.learner import Episode
from vecenv.agents.stopping import STOP_SIGNALS, EpisodeWindow, InterruptFlag, StopRule


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


@pytest.fixture
def own_handlers():
    """Signals that handlers of the program's own were called with: none while a run has taken them over."""
    called = []
    before = {number: signal.signal(number, lambda number, frame: called.append(number)) for number in STOP_SIGNALS}
    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_the_first_signal_asks_and_ctrl_c_after_it_interrupts(first, own_handlers):
    with InterruptFlag() as flag:
        assert not flag.is_set
        signal.raise_signal(first)
        assert flag.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert own_handlers == []
    for number in STOP_SIGNALS:
        signal.raise_signal(number)
    assert own_handlers == list(STOP_SIGNALS)  # they are the program's again


@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.usefixtures("own_handlers")
def test_sigterm_interrupts_unless_it_is_the_same_request_once_more(first, monkeypatch):
    with InterruptFlag() as flag:
        signal.raise_signal(first)
        monkeypatch.setattr(stopping, "SECONDS_OF_ONE_REQUEST", 1e9)
        signal.raise_signal(signal.SIGTERM)
        assert flag.is_set
        monkeypatch.setattr(stopping, "SECONDS_OF_ONE_REQUEST", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("own_handlers")
def test_among_ranks_sigterm_never_interrupts(monkeypatch):
    monkeypatch.setattr(stopping, "SECONDS_OF_ONE_REQUEST", 0.0)
    with InterruptFlag(among_ranks=True) as flag:
        for _ in range(3):  # torchrun sends it again and again
            signal.raise_signal(signal.SIGTERM)
            assert flag.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("own_handlers")
def test_a_run_in_another_thread_leaves_signals_alone():
    before, seen = [signal.getsignal(number) for number in STOP_SIGNALS], []

    def look():
        with InterruptFlag():
            seen.append([signal.getsignal(number) for number in STOP_SIGNALS])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60.0)
    assert seen == [before]
