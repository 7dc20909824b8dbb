"""When a training run ends: the target, the limits, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Literal

from .learner import Episode

StopReason = Literal["solved", "total_steps", "stop_at_steps", "max_seconds", "interrupted", "not_finite"]


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
    """Turns the first Ctrl-C into a request to stop at the next safe point; the second one interrupts as usual.

    ``torchrun`` passes on what it gets, and ends the ranks that are left by SIGTERM: with ``also_sigterm`` that is a
    request to stop too. Outside the main thread, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self, *, also_sigterm: bool = False) -> None:
        """Nothing is asked for yet."""
        self.is_set = False
        self._signals = (signal.SIGINT, signal.SIGTERM) if also_sigterm else (signal.SIGINT,)
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> InterruptFlag:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_interrupt) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.is_set = True


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
