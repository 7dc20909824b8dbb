"""``vecenv bench speedups``: the speed ladders of DQN, PPO and ES, beside the figures of earlier implementations.

Those figures are quoted from written accounts, the documents, as context only; the notes of each ladder say what is
known of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vecenv.doctor import describe_machine
from vecenv.errors import UnknownSetting
from vecenv.writable import check_writable

from .arguments import add_output, add_timing, check_known, make_parser, positive_int, positive_number, words
from .ladder import LADDERS, HasFigures, Ladder, LadderTable, Rung, RungContestant, find_ladder
from .report import check_output, print_table, publish, samples_of
from .speedups_solve import Solution, read_solutions, show_solutions, solution_samples, solve_ladder
from .timing import Rates, alternate

ROUNDS, SECONDS = 5, 5.0
QUICK_ROUNDS, QUICK_SECONDS = 3, 1.0
SEEDS = 5
DEFAULT_SOLUTIONS = Path("results") / "speedups-solved.csv"


@dataclass(frozen=True)
class MeasuredTable:
    """Rates of one table.

    Attributes:
        table: the rungs.
        rates: by the name of the rung, of those that could be measured.
        figures: further figures by the name of the rung.
        left_out: why a rung was not measured, by its name.
    """

    table: LadderTable
    rates: Mapping[str, Rates]
    figures: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]

    @property
    def base(self) -> Rates | None:
        """Rates of the first rung, the base that all are compared with; None where it could not be measured."""
        return self.rates.get(self.table.rungs[0].name)

    def before(self, rung: Rung) -> Rates | None:
        """Rates of the rung that this one changes: named by it, or the nearest measured one before it."""
        if rung.base is not None:
            return self.rates.get(rung.base)
        if not self.table.cumulative:
            return self.base
        place = self.table.rungs.index(rung)
        return next((self.rates[r.name] for r in reversed(self.table.rungs[:place]) if r.name in self.rates), None)


@dataclass
class _Named:
    """A contestant under its rung's name."""

    name: str
    contestant: RungContestant = field(repr=False)

    def measure(self, seconds: float) -> float:
        """As of the contestant."""
        return self.contestant.measure(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the ladders asked for, print a table each, write a JSON file and, if asked, draw and compare.

    Args:
        argv: words after ``vecenv bench speedups``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if a rung got slower beyond noise.

    Raises:
        MissingExtra: what a rung needs is not installed.
        UnknownSetting: for a ladder or rung that does not exist, or an option that would have no effect.
    """
    arguments = _parser().parse_args(argv)
    _refuse_idle_options(arguments)
    check_known(arguments.ladders, list(LADDERS), "ladder")
    if arguments.only == []:
        raise UnknownSetting("--only needs at least one rung")
    check_output(arguments, "speedups")
    ladders = choose([find_ladder(key) for key in arguments.ladders or LADDERS], arguments.only)
    if arguments.solve:
        return _solve(arguments, ladders)
    if all(rung.build is None for ladder in ladders for table in ladder.tables for rung in table.rungs):
        raise UnknownSetting(f"{', '.join(arguments.only)}: nothing with a rate of its own; train it with --solve")
    print(describe_machine())
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    measured = []
    for ladder in ladders:
        for table in ladder.tables:
            result = measure_table(table, rounds=rounds, seconds=seconds)
            measured.append((ladder, result))
            show_rates(ladder, result, rounds, seconds)
        _show_notes(ladder.notes)
    if arguments.plot is not None:
        from .speedups_plot import plot_speedups

        plot_speedups(arguments.plot, measured)
        print(f"picture in {arguments.plot}")
    return _publish(arguments, measured, rounds, seconds)


def _refuse_idle_options(arguments: argparse.Namespace) -> None:
    """Refuse what would be ignored: options of rates with ``--solve``, options of trainings without it.

    Raises:
        UnknownSetting: the message names the options.
    """
    idle = ("quick", "rounds", "seconds", "plot") if arguments.solve else ("seeds", "minutes", "solved")
    given = " and ".join(f"--{name}" for name in idle if getattr(arguments, name))
    if given and arguments.solve:
        raise UnknownSetting(f"{given}: for rates; --solve trains to the mark, --minutes limits it")
    if given:
        raise UnknownSetting(f"{given}: for trainings to the mark; add --solve")


def _solve(arguments: argparse.Namespace, ladders: Sequence[Ladder]) -> int:
    """Train every rung to its ladder's mark, print a table each and write the result."""
    path, seeds = arguments.solved or DEFAULT_SOLUTIONS, arguments.seeds or SEEDS
    read_solutions(path)
    check_writable(path, "--solved")
    print(describe_machine())
    every: list[Solution] = []
    for ladder in ladders:
        limit = 60.0 * (arguments.minutes or ladder.solve_minutes)
        print(f"{ladder.title}: {ladder.mark}; at most {limit / 60:g} minutes a training, kept in {path}")
        solutions = solve_ladder(ladder, seeds=seeds, limit_seconds=limit, path=path)
        show_solutions(ladder, solutions)
        _show_notes([*ladder.notes, *ladder.solve_notes])
        every += solutions
    if not every:
        raise UnknownSetting("none of these rungs can be trained to a mark here")
    return publish(
        arguments,
        "speedups",
        settings={"ladders": [ladder.key for ladder in ladders], "only": arguments.only, "seeds": seeds},
        results={"solutions": [solution.as_row() for solution in every]},
        samples=solution_samples(every),
        file_name="speedups-solved",
    )


def _show_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"  {note}")


def choose(ladders: Sequence[Ladder], only: Sequence[str] | None) -> list[Ladder]:
    """The ladders with the rungs that were asked for; tables and ladders without any are left out.

    Raises:
        UnknownSetting: for a rung that none of the ladders has.
    """
    if only is None:
        return list(ladders)
    known = [rung.name for ladder in ladders for table in ladder.tables for rung in table.rungs]
    check_known(only, list(dict.fromkeys(known)), "rung")
    chosen = []
    for ladder in ladders:
        tables = []
        for table in ladder.tables:
            rungs = tuple(rung for rung in table.rungs if rung.name in only)
            if rungs:
                tables.append(dataclasses.replace(table, rungs=rungs))
        if tables:
            chosen.append(dataclasses.replace(ladder, tables=tuple(tables)))
    return chosen


def measure_table(table: LadderTable, *, rounds: int, seconds: float) -> MeasuredTable:
    """Build the rungs of a table, let them take turns, close them.

    Args:
        table: what to measure; rungs that are only for training to the mark are left out.
        rounds: samples per rung.
        seconds: length of one sample in seconds.
    """
    left_out: dict[str, str] = {}
    figures: dict[str, Mapping[str, float]] = {}
    with ExitStack() as stack:
        named: list[_Named] = []
        for rung in table.rungs:
            if rung.build is None:
                continue
            reason = rung.not_applicable()
            if reason is not None:
                left_out[rung.name] = reason
                continue
            print(f"building {rung.name} ...", file=sys.stderr)
            named.append(_Named(rung.name, stack.enter_context(closing(rung.build()))))
        rates = []
        if named:
            rates = alternate(
                named,
                rounds=rounds,
                seconds=seconds,
                warm_up_seconds=min(1.0, seconds),
                on_sample=lambda turn, name, rate: print(
                    f"round {turn + 1}/{rounds}  {name:<24} {rate:>12,.0f} a second", file=sys.stderr
                ),
            )
        for each in named:
            if isinstance(each.contestant, HasFigures):
                figures[each.name] = dict(each.contestant.figures())
    return MeasuredTable(table, {row.name: row for row in rates}, figures, left_out)


def show_rates(ladder: Ladder, measured: MeasuredTable, rounds: int, seconds: float) -> None:
    """Print a table: every rung beside the document's figures."""
    extra = list(dict.fromkeys(name for figures in measured.figures.values() for name in figures))
    header = ["rung", "what changes", ladder.unit, "spread", "x base", "x before", *extra, "theirs, on their hardware"]
    rows = []
    for rung in measured.table.rungs:
        if rung.build is None:
            continue
        theirs = "; ".join(map(str, rung.documents))
        row = measured.rates.get(rung.name)
        if row is None:
            rows.append([rung.name, measured.left_out[rung.name], "-", "", "", "", *[""] * len(extra), theirs])
            continue
        base, before = measured.base, measured.before(rung)
        figures = measured.figures.get(rung.name, {})
        cells = [rung.name, rung.changes, f"{row.median:,.0f}", f"{row.lowest:,.0f} - {row.highest:,.0f}"]
        cells += ["" if other is None or other is row else f"{row.ratio_to(other):.2f}" for other in (base, before)]
        cells += [f"{figures[name]:,.4g}" if name in figures else "" for name in extra]
        rows.append([*cells, theirs])
    if rows:
        title = f"{ladder.title}: {measured.table.title}; {rounds} alternating rounds of {seconds:.2g} s"
        print_table(title, header, rows, width=180)


def _publish(
    arguments: argparse.Namespace, measured: Sequence[tuple[Ladder, MeasuredTable]], rounds: int, seconds: float
) -> int:
    """Write everything down: rates, ratios, the documents' figures, raw samples."""
    rows: list[dict[str, Any]] = []
    samples = {}
    for ladder, result in measured:
        for rung in result.table.rungs:
            if rung.build is None:
                continue
            row = result.rates.get(rung.name)
            base, before = result.base, result.before(rung)
            rows.append(
                {
                    "ladder": ladder.key,
                    "table": result.table.key,
                    "rung": rung.name,
                    "changes": rung.changes,
                    "settings": dict(rung.settings),
                    "theirs": [dataclasses.asdict(each) for each in rung.documents],
                    "left_out": result.left_out.get(rung.name),
                    "rates": None if row is None else row.as_dict(),
                    "times_base": None if row is None or base is None else row.ratio_to(base),
                    "times_before": None if row is None or before is None else row.ratio_to(before),
                    "figures": result.figures.get(rung.name, {}),
                }
            )
        for name, each in samples_of(list(result.rates.values()), ladder.unit).items():
            samples[f"{ladder.key} {result.table.key} {name}"] = each
    settings = {"ladders": arguments.ladders or list(LADDERS), "only": arguments.only}
    settings.update(quick=arguments.quick, rounds=rounds, seconds=seconds)
    results = {"rungs": rows, "tables": [_described(ladder, result.table) for ladder, result in measured]}
    return publish(arguments, "speedups", settings=settings, results=results, samples=samples)


def _described(ladder: Ladder, table: LadderTable) -> dict[str, Any]:
    """What a table is called, what its rates count and what its reader must know; rungs are in it by both keys."""
    title = f"{ladder.title}: {table.title}"
    return {"ladder": ladder.key, "table": table.key, "title": title, "unit": ladder.unit, "notes": list(ladder.notes)}


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench speedups", __doc__)
    parser.add_argument(
        "ladders",
        type=words,
        nargs="?",
        default=[],
        metavar="LADDERS",
        help=f"which, comma-separated: {', '.join(LADDERS)} (default: all)",
    )
    parser.add_argument(
        "--only",
        type=words,
        metavar="RUNG,RUNG",
        help="these rungs alone, the first is the base; an unknown one lists all",
    )
    add_timing(parser, rounds=ROUNDS, seconds=SECONDS)
    parser.set_defaults(rounds=None, seconds=None)  # so that --solve can refuse them, and --quick can have its own
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of {QUICK_SECONDS:g} s unless told otherwise"
    )
    parser.add_argument("--solve", action="store_true", help="train every rung to the mark, in place of its rate")
    parser.add_argument(
        "--seeds",
        type=positive_int,
        metavar="R",
        help=f"with --solve: trainings of each, with seeds 0 to R - 1 (default {SEEDS})",
    )
    text = "with --solve: limit of one training (default: the ladder's own)"
    parser.add_argument("--minutes", type=positive_number, metavar="M", help=text)
    text = f"with --solve: trainings that have ended; they are not run again (default {DEFAULT_SOLUTIONS})"
    parser.add_argument("--solved", type=Path, metavar="FILE.csv", help=text)
    add_output(parser, "speedups", plot="the speed of every rung beside theirs, each relative to its own base")
    return parser
