"""When a training run ends: the target, the limits, Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Literal

from .learner import Episode

StopReason = Literal["solved", "total_steps", "stop_at_steps", "max_seconds", "interrupted", "not_finite"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks a run to stop."""
SECONDS_OF_ONE_REQUEST = 1.0
"""A SIGTERM so soon after the first signal is that one once more: `timeout` sends it to its child and to its group."""


@dataclass
class EpisodeWindow:
    """The last ``size`` finished episodes, and how many finished in all."""

    size: int = 100
    finished: int = 0
    recent: deque[Episode] = field(default_factory=deque)

    def add(self, episodes: Iterable[Episode]) -> None:
        """Put newly finished episodes into the window, oldest first."""
        for episode in episodes:
            self.recent.append(episode)
            self.finished += 1
            if len(self.recent) > self.size:
                self.recent.popleft()

    @property
    def mean_return(self) -> float | None:
        """Mean return of the episodes in the window; None before the first one."""
        return _mean([episode.total_reward for episode in self.recent])

    @property
    def mean_length(self) -> float | None:
        """Mean length in env steps of the episodes in the window; None before the first one."""
        return _mean([float(episode.length) for episode in self.recent])

    @property
    def is_full(self) -> bool:
        """Whether there are ``size`` episodes."""
        return len(self.recent) >= self.size

    def reaches(self, target: float) -> bool:
        """Whether a full window of episodes has a mean return of at least ``target``."""
        mean = self.mean_return
        return self.is_full and mean is not None and mean >= target

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {"finished": self.finished, "recent": [tuple(episode) for episode in self.recent]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.finished = int(state["finished"])
        self.recent = deque(Episode(float(total), int(length)) for total, length in state["recent"])


@dataclass(frozen=True)
class StopRule:
    """The limits of a run; None is no limit."""

    total_steps: int
    """Env steps after which the run is complete."""
    solve_at: float | None = None
    """Mean unclipped return of a full window of episodes."""
    max_seconds: float | None = None
    """Seconds of the run, as `reason` is given them: with earlier parts of a resumed one."""
    stop_at_steps: int | None = None
    """Env steps after which the run pauses; it can be resumed."""

    def reason(self, window: EpisodeWindow, env_steps: int, seconds: float) -> StopReason | None:
        """Why the run should end now, or None. A target that is reached comes before a limit that is."""
        if self.solve_at is not None and window.reaches(self.solve_at):
            return "solved"
        if env_steps >= self.total_steps:
            return "total_steps"
        if self.stop_at_steps is not None and env_steps >= self.stop_at_steps:
            return "stop_at_steps"
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return "max_seconds"
        return None


class InterruptFlag:
    """Turns the first Ctrl-C or SIGTERM into a request to stop at the next safe point; a second one interrupts.

    SIGTERM comes from whoever ends a program in good order: ``kill``, a service manager, a cluster that wants its
    machine back. It may come twice for one request, see `SECONDS_OF_ONE_REQUEST`; ``torchrun`` passes on what it gets
    and ends the ranks that are left by it, so that ``among_ranks`` it never interrupts.

    Outside the main thread, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self, *, among_ranks: bool = False) -> None:
        """Nothing is asked for yet."""
        self.is_set = False
        self._among_ranks = among_ranks
        self._asked_at = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> InterruptFlag:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_set:
            self.is_set, self._asked_at = True, time.monotonic()
            return
        is_the_same_request = self._among_ranks or time.monotonic() - self._asked_at < SECONDS_OF_ONE_REQUEST
        if number == signal.SIGINT or not is_the_same_request:
            raise KeyboardInterrupt


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
