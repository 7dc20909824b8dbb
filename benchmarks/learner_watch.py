"""Watches a learner at work: how long some of its methods and its network take, how rough its curve of returns is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from vecenv.agents.learner import UpdateReport
from vecenv.agents.ppo import PPO


class Stopwatch:
    """Adds up the wall-clock seconds that are spent in some methods of some objects.

    Attributes:
        seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def attach(self, target: object, *names: str) -> None:
        """Time these methods of one object from now on; they must not call one another."""
        for name in names:
            setattr(target, name, self._timed(getattr(target, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class BusyShare:
    """How much of the wall-clock a learner computes: its network deciding or learning, and its process on a core.

    Args:
        learner: watched from now on; it must keep its policy, as PPO does without images.
    """

    def __init__(self, learner: PPO) -> None:
        self._deciding, self._learning = Stopwatch(), Stopwatch()
        self._deciding.attach(learner.collector.policy, "act", "values")
        self._learning.attach(learner.update, "learn")
        self._clocks: tuple[Callable[[], float], ...] = (
            time.perf_counter,
            lambda: self._deciding.seconds,
            lambda: self._learning.seconds,
            time.process_time,
        )
        self._spent = [0.0] * len(self._clocks)

    def during(self, work: Callable[[], Any]) -> Any:
        """Call `work` and count its time; what is done outside of such calls does not count."""
        before = [clock() for clock in self._clocks]
        try:
            return work()
        finally:
            for place, clock in enumerate(self._clocks):
                self._spent[place] += clock() - before[place]

    def figures(self) -> Mapping[str, float]:
        """Shares of the wall-clock counted so far, 0 to 1; the process's is above 1 where threads compute at once."""
        wall, deciding, learning, process = self._spent
        if wall == 0.0:
            return {}
        return {
            "busy share": (deciding + learning) / wall,
            "learning alone": learning / wall,
            "process on CPU": process / wall,
        }


class ReturnCurve:
    """Mean returns of the episodes that ended in each report of a learner, in order.

    Attributes:
        means: one per report in which any episode ended.
    """

    def __init__(self) -> None:
        self.means: list[float] = []

    def add(self, report: UpdateReport) -> None:
        """Take in one report."""
        if report.episodes:
            self.means.append(fmean(episode.total_reward for episode in report.episodes))

    def figures(self) -> Mapping[str, float]:
        """The `roughness` of the curve; nothing where it is too short to have one."""
        rough = roughness(self.means)
        return {} if rough is None else {"roughness": rough}


def roughness(means: Sequence[float]) -> float | None:
    """Standard deviation of the differences of successive means, over the range of the means.

    A straight line has none, however steep; a curve that jumps from end to end in every step has the most.

    Args:
        means: mean returns per equal stretch of env steps.

    Returns:
        A number without unit, or None for fewer than three means or means that are all equal.
    """
    if len(means) < 3 or max(means) == min(means):
        return None
    differences = [after - before for before, after in pairwise(means)]
    return pstdev(differences) / (max(means) - min(means))
