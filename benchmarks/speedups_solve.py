"""Trainings of a ladder's rungs to the mark; each that has ended is kept in a CSV file, so that the list can go on."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vecenv.errors import UnknownSetting

from .compare import Samples
from .ladder import Ladder, LadderTable, Rung, SolveResult
from .learning_curves import Spread, to_the_mark
from .report import commit, print_table

COLUMNS = (
    "ladder",
    "rung",
    "settings",
    "seed",
    "solved",
    "seconds",
    "env_steps",
    "mean_return",
    "limit_seconds",
    "figures",
    "ended",
    "commit",
)


@dataclass(frozen=True)
class Solution:
    """A training that has ended.

    Attributes:
        ladder: key of the ladder.
        rung: name of the rung.
        settings: digest of the rung's settings.
        seed: of the training.
        limit_seconds: it would have been ended after this.
        result: what came of it.
        ended: time of day.
        commit: of the sources, None outside of a checkout.
    """

    ladder: str
    rung: str
    settings: str
    seed: int
    limit_seconds: float
    result: SolveResult
    ended: str
    commit: str | None

    def as_row(self) -> dict[str, Any]:
        """One row of the CSV file, by `COLUMNS`."""
        result = self.result
        return {
            **{name: getattr(self, name) for name in ("ladder", "rung", "settings", "seed", "limit_seconds", "ended")},
            "solved": int(result.solved),
            "seconds": round(result.seconds, 3),
            "env_steps": result.env_steps,
            "mean_return": "" if result.mean_return is None else result.mean_return,
            "figures": json.dumps(dict(result.figures)),
            "commit": self.commit or "",
        }

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> Solution:
        """From one row of the CSV file.

        Raises:
            KeyError, ValueError: it is no such row.
        """
        mean_return = float(row["mean_return"]) if row["mean_return"] else None
        solved = bool(int(row["solved"]))
        figures = json.loads(row["figures"])
        result = SolveResult(float(row["seconds"]), int(row["env_steps"]), solved, mean_return, figures)
        return cls(
            row["ladder"],
            row["rung"],
            row["settings"],
            int(row["seed"]),
            float(row["limit_seconds"]),
            result,
            row["ended"],
            row["commit"] or None,
        )


def digest(rung: Rung) -> str:
    """Short word that is the same for the same settings only."""
    text = json.dumps(dict(rung.settings), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_solutions(path: Path) -> list[Solution]:
    """Everything in a CSV file of earlier trainings; nothing where there is none.

    Raises:
        UnknownSetting: the file is something else.
    """
    if not path.exists():
        return []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is not None and tuple(reader.fieldnames) != COLUMNS:
                raise ValueError("it has other columns")
            return [Solution.of_row(row) for row in reader]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnknownSetting(f"{path} cannot be read as a list of trainings ({error}); name another file") from error


def append_solution(path: Path, solution: Solution) -> None:
    """Add a row to the CSV file, which is made where it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow(solution.as_row())


def solve_ladder(ladder: Ladder, *, seeds: int, limit_seconds: float, path: Path) -> list[Solution]:
    """Train every rung to the mark with every seed, but for what the CSV file holds already.

    The first seed of all rungs comes first: a list that is cut short says something about each of them.

    Args:
        ladder: the rungs.
        seeds: seeds 0 to this number - 1.
        limit_seconds: of one training.
        path: the CSV file.

    Returns:
        One per rung and seed.

    Raises:
        UnknownSetting: the CSV file is something else.
    """
    found = {(each.ladder, each.rung, each.settings, each.seed): each for each in read_solutions(path)}
    solutions, commit_now = [], commit()
    for seed in range(seeds):
        for rung in solvable(ladder):
            key = (ladder.key, rung.name, digest(rung), seed)
            old = found.get(key)
            if old is not None and (old.result.solved or old.limit_seconds >= limit_seconds):
                at = "" if old.commit == commit_now else f", with commit {old.commit}"
                print(f"{rung.name}, seed {seed}: {told(old.result)} (found in {path}{at})")
                solutions.append(old)
                continue
            assert rung.solve is not None
            result = rung.solve(seed, limit_seconds)
            solution = Solution(*key, limit_seconds, result, time.strftime("%Y-%m-%dT%H:%M:%S%z"), commit_now)
            append_solution(path, solution)
            print(f"{rung.name}, seed {seed}: {told(result)}", flush=True)
            solutions.append(solution)
    return solutions


def solvable(ladder: Ladder) -> Iterator[Rung]:
    """Rungs that can be trained here, each once, also where it stands in two tables."""
    seen = set()
    for table in ladder.tables:
        for rung in table.rungs:
            if rung.solve is not None and rung.name not in seen and rung.not_applicable() is None:
                seen.add(rung.name)
                yield rung


def told(result: SolveResult) -> str:
    """A result in words."""
    verdict = "solved" if result.solved else "not solved"
    reached = "no finished episode" if result.mean_return is None else f"mean return {result.mean_return:.1f}"
    return f"{verdict} after {result.seconds / 60:.1f} min, {result.env_steps:,} steps, {reached}"


def show_solutions(ladder: Ladder, solutions: Sequence[Solution]) -> None:
    """Print a table for every table of the ladder: minutes to the mark beside the document's figures."""
    for table in ladder.tables:
        own = {rung.name: [each for each in solutions if each.rung == rung.name] for rung in table.rungs}
        rows = [_cells(table, rung, own) for rung in table.rungs if own[rung.name]]
        if rows:
            extra = _figure_names(solutions)
            rows = [[*cells[:-1], *_figures(own[cells[0]], extra), cells[-1]] for cells in rows]
            header = ["rung", "what changes", "solved", "minutes", "steps", "x base"]
            title = f"{ladder.title}: {table.title}; medians and range to the mark: {ladder.mark}"
            print_table(title, [*header, *extra, "theirs, on their hardware"], rows, width=180)


def _cells(table: LadderTable, rung: Rung, own: Mapping[str, Sequence[Solution]]) -> list[str]:
    solutions, base = own[rung.name], own[table.rungs[0].name]
    minutes = _to_the_mark(solutions, "minutes")
    base_minutes = _to_the_mark(base, "minutes").median if base and rung is not table.rungs[0] else math.inf
    return [
        rung.name,
        rung.changes,
        f"{sum(each.result.solved for each in solutions)} of {len(solutions)}",
        minutes.text("{:,.1f}"),
        _to_the_mark(solutions, "env_steps").text(),
        f"{base_minutes / minutes.median:.2f}" if math.isfinite(base_minutes + minutes.median) else "",
        "; ".join(map(str, rung.documents)),
    ]


def _to_the_mark(solutions: Sequence[Solution], column: str) -> Spread:
    rows = [{**each.as_row(), "minutes": each.result.seconds / 60} for each in solutions]
    return to_the_mark(rows, column)


def _figure_names(solutions: Sequence[Solution]) -> list[str]:
    return list(dict.fromkeys(name for each in solutions for name in each.result.figures))


def _figures(solutions: Sequence[Solution], names: Sequence[str]) -> list[str]:
    values = [[each.result.figures[name] for each in solutions if name in each.result.figures] for name in names]
    return [f"{statistics.median(each):,.3g}" if each else "" for each in values]


def solution_samples(solutions: Sequence[Solution]) -> dict[str, Samples]:
    """Seconds to the mark by rung, of rungs whose trainings all reached it."""
    samples = {}
    for ladder, rung in dict.fromkeys((each.ladder, each.rung) for each in solutions):
        own = [each.result for each in solutions if (each.ladder, each.rung) == (ladder, rung)]
        if all(result.solved for result in own):
            values = tuple(result.seconds for result in own)
            samples[f"{ladder} {rung} to the mark"] = Samples(values, "s", higher_is_better=False)
    return samples
