"""What several trainings of one kind have in common: a median curve with its band, and how many reached the mark.

The curve of a training is its mean return over the last 100 finished episodes. Curves are laid on one grid, linearly
between their points; a training that has ended keeps its last value, and one whose first episode has not ended yet has
none, so a curve begins where every seed has a value. The line is the median over the seeds, the band reaches from the
10th to the 90th percentile over the seeds.

A training that has not reached the mark counts as longer than any that has, and so does one that failed. So the median
time to the mark is a number only where more than half of the trainings have reached it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BAND = (10, 90)
GRID_POINTS = 200

Points = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Band:
    """Curves of several seeds on one grid.

    Attributes:
        places: [n], seconds or env steps, rising.
        median: [n], mean return.
        lower: [n], the lower percentile of `BAND`.
        upper: [n], the upper one.
    """

    places: npt.NDArray[np.float64]
    median: npt.NDArray[np.float64]
    lower: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]


def band_of(curves: Sequence[Points], column: str) -> Band | None:
    """Median and band of some curves.

    Args:
        curves: with the columns `column` and ``mean_return``; those without a point are left out.
        column: ``"seconds"`` or ``"env_steps"``.

    Returns:
        None where no curve has a point.
    """
    curves = [curve for curve in curves if len(curve["mean_return"])]
    if not curves:
        return None
    xs = [np.asarray(curve[column], np.float64) for curve in curves]
    ys = [np.asarray(curve["mean_return"], np.float64) for curve in curves]
    first, last = max(x[0] for x in xs), max(x[-1] for x in xs)
    grid = np.linspace(first, max(first, last), GRID_POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
    lower, median, upper = np.percentile(values, (BAND[0], 50, BAND[1]), axis=0)
    return Band(grid, median, lower, upper)


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of some numbers; infinity stands for a mark that was not reached.

    Attributes:
        median: the middle one.
        lowest: the smallest.
        highest: the largest.
    """

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one number."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, pattern: str = "{:,.0f}") -> str:
        """As in a table: ``12 (10 - 15)``."""

        def shown(value: float) -> str:
            return pattern.format(value) if math.isfinite(value) else "not reached"

        if self.lowest == self.highest:
            return shown(self.median)
        return f"{shown(self.median)} ({shown(self.lowest)} - {shown(self.highest)})"


def to_the_mark(rows: Sequence[Mapping[str, Any]], column: str) -> Spread:
    """Seconds or env steps until the mark was reached.

    Args:
        rows: trainings as a result of the benchmark holds them, with ``solved`` and, where that is true, `column`.
        column: ``"seconds"`` or ``"env_steps"``.
    """
    return Spread.of([float(row[column]) if row["solved"] else math.inf for row in rows])


def grouped(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Trainings by algorithm and environment, in the order in which they come."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["env"]), []).append(row)
    return groups


HEADER = ("algorithm", "env", "seeds", "solved", "seconds to the mark", "steps to the mark", "final return", "steps/s")


def table_rows(rows: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]] = ()) -> list[list[str]]:
    """Cells below `HEADER`, a line for every algorithm and environment; medians over the seeds, and their range.

    Args:
        rows: trainings as a result of the benchmark holds them.
        failed: those that failed, as it holds them: they count as trainings without the mark, and have no return.
    """
    cells = []
    ended = grouped(rows)
    for (algorithm, env_id), group in grouped([*rows, *failed]).items():
        own = ended.get((algorithm, env_id), [])
        has_mark = any(row["solve_at"] is not None for row in group)
        returns = [row["mean_return"] for row in own if row["mean_return"] is not None]
        lost = len(group) - len(own)
        line = [algorithm, env_id, f"{len(group)}, {lost} failed" if lost else str(len(group))]
        line.append(f"{sum(row['solved'] for row in group)} of {len(group)}" if has_mark else "-")
        line.append(to_the_mark(group, "seconds").text("{:,.1f}") if has_mark else "-")
        line.append(to_the_mark(group, "env_steps").text() if has_mark else "-")
        line.append(Spread.of(returns).text("{:,.1f}") if returns else "no episode ended" if own else "-")
        line.append(Spread.of([row["steps_per_second"] for row in own]).text() if own else "-")
        cells.append(line)
    return cells
