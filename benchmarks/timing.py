"""Paired timing: the things compared take turns in one run, so that a slow minute of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


class Contestant(Protocol):
    """Something whose rate can be measured."""

    name: str

    def measure(self, seconds: float) -> float:
        """Work for about `seconds` seconds.

        Returns:
            Units of work per second.
        """
        ...


@dataclass(frozen=True)
class Rates:
    """The measured rates of one contestant.

    Attributes:
        name: the contestant.
        samples: one rate per round, in the order of the rounds.
    """

    name: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)

    @property
    def lowest(self) -> float:
        """The slowest round."""
        return min(self.samples)

    @property
    def highest(self) -> float:
        """The fastest round."""
        return max(self.samples)

    def ratio_to(self, other: Rates) -> float:
        """How many times as fast as `other`: the median of the ratios of each round.

        Both sides of one round ran within seconds of each other, so a drift of the machine cancels out, which it
        does not in a ratio of medians.
        """
        return statistics.median(ours / theirs for ours, theirs in zip(self.samples, other.samples, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {**asdict(self), "median": self.median, "lowest": self.lowest, "highest": self.highest}


def alternate(
    contestants: Sequence[Contestant],
    *,
    rounds: int = 5,
    seconds: float = 2.0,
    warm_up_seconds: float = 1.0,
    on_sample: Callable[[int, str, float], None] | None = None,
) -> list[Rates]:
    """Measure all contestants in alternating rounds.

    Every second round goes through them backwards: with a drift in one direction nobody always comes last.

    Args:
        contestants: what to compare; each name once.
        rounds: samples per contestant, at least 1.
        seconds: length of one sample in seconds.
        warm_up_seconds: length of one unrecorded turn before the first round, in seconds; 0 for none.
        on_sample: called as ``on_sample(round, name, rate)`` after each recorded sample.

    Returns:
        The rates in the order of `contestants`.

    Raises:
        ValueError: for no contestant, a repeated name, rounds below 1 or a length that is not positive.
    """
    names = [contestant.name for contestant in contestants]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"contestants must be at least one, each name once; got {names}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    if seconds <= 0 or warm_up_seconds < 0:
        raise ValueError(f"seconds must be positive and warm_up_seconds not negative; got {seconds}, {warm_up_seconds}")
    if warm_up_seconds > 0:
        for contestant in contestants:
            contestant.measure(warm_up_seconds)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for contestant in contestants if turn % 2 == 0 else reversed(contestants):
            rate = contestant.measure(seconds)
            samples[contestant.name].append(rate)
            if on_sample is not None:
                on_sample(turn, contestant.name, rate)
    return [Rates(name, tuple(samples[name])) for name in names]


def measure_rate(work: Callable[[], int], seconds: float) -> float:
    """Call `work` until `seconds` have passed.

    Args:
        work: does some units of work and returns how many.
        seconds: shortest duration in seconds; the last call is always finished.

    Returns:
        Units of work per second.
    """
    done = 0
    start = time.perf_counter()
    while True:
        done += work()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return done / elapsed
