"""``vecenv bench learning``: return against wall clock and against steps, for algorithms, environments and seeds.

Every training is a process of its own (``vecenv train``), one after the other, so that it has the machine alone; the
first seed of everything comes first. Trainings are kept in ``--run-dir``: those that have ended are not run again, one
that was interrupted goes on from its checkpoint, one that has none begins anew. After Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vecenv.agents.algorithms import ALGORITHMS
from vecenv.doctor import describe_machine
from vecenv.errors import UnknownSetting
from vecenv.writable import check_writable

from .arguments import add_output, check_known, make_parser, positive_int, positive_number, some_words, words
from .compare import Samples
from .learning_curves import HEADER, grouped, table_rows
from .learning_plot import plot_learning
from .learning_runs import (
    LearningRun,
    Outcome,
    RunFailed,
    check_folder,
    forget,
    make_run,
    outcome_of,
    state_of,
    thinned,
    train,
)
from .report import check_output, print_table, publish

_STATES = {
    "finished": "has ended before",
    "unfinished": "goes on from its checkpoint",
    "lost": "begins anew: it has left no checkpoint that can be read",
    "new": "begins",
}
#: What this command says itself to every training; after ``--`` it would make trainings alike, or lose their files.
_OWN_WORDS = ("--env", "--seed", "--run-dir", "--resume")
#: Limits that this command has a word for, too -> that word.
_LIMITS = {"--solve-at": "solve_at", "--max-seconds": "minutes", "--total-steps": "total_steps"}
CSV_COLUMNS = ("algorithm", "env", "seed", "env_steps", "seconds", "mean_return")


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print a table, write points and result, and, if asked, draw and compare.

    Args:
        argv: words after ``vecenv bench learning``; None: those of this process.

    Returns:
        The exit code: 0; 1 if a training failed or, with ``--compare``, something got slower beyond noise.

    Raises:
        KeyboardInterrupt: Ctrl-C; the training at work has left a checkpoint.
        UnknownSetting: an algorithm, environment or setting that does not exist or does not fit.
    """
    own_words, train_words = _parted(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(own_words)
    check_output(arguments, "learning")
    path: Path = arguments.csv or arguments.run_dir / "learning.csv"
    check_writable(path, "--csv" if arguments.csv else "--run-dir")
    runs = plan(arguments, train_words)
    print(describe_machine())
    failures = train_all(runs, fresh=arguments.fresh)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    outcomes = [outcome_of(run) for run in runs if state_of(run) == "finished"]
    if not outcomes:
        return 1
    rows = [as_row(outcome) for outcome in outcomes]
    write_points(path, outcomes)
    failed = [failure.as_row() for failure in failures]
    print_table("medians over the seeds, and their range", HEADER, table_rows(rows, failed))
    for outcome in outcomes:
        if outcome.resumed:
            print(f"  {outcome.run.title}: went on from a checkpoint {outcome.resumed} times")
    print(f"all points in {path}")
    if arguments.plot is not None:
        plot_learning(arguments.plot, rows)
        print(f"picture in {arguments.plot}")
    results = {"runs": rows, "failures": failed}
    settings = _settings(arguments, train_words)
    found = samples(rows, failed)
    return publish(arguments, "learning", settings=settings, results=results, samples=found) or int(bool(failures))


def plan(arguments: argparse.Namespace, train_words: Sequence[str]) -> list[LearningRun]:
    """All trainings in the order in which they run: the first seed of everything, then the second.

    Args:
        arguments: as the parser of this command reads them.
        train_words: further settings for ``vecenv train``.

    Raises:
        UnknownSetting: something does not exist or does not fit, or there is no limit at all.
    """
    check_known(arguments.algorithms, list(ALGORITHMS), "algorithm")
    _check_train_words(arguments, train_words)
    marks = arguments.solve_at or [None]
    if len(marks) not in (1, len(arguments.envs)):
        raise UnknownSetting(f"--solve-at: one return, or one for each of the {len(arguments.envs)} environments")
    limits: list[str] = []
    if arguments.minutes is not None:
        limits += ["--max-seconds", repr(60.0 * arguments.minutes)]
    if arguments.total_steps is not None:
        limits += ["--total-steps", str(arguments.total_steps)]
    runs = []
    for seed in range(arguments.seeds):
        for index, env_id in enumerate(arguments.envs):
            mark = marks[index % len(marks)]
            own = [*limits, *([] if mark is None else ["--solve-at", repr(mark)]), *train_words]
            runs += [make_run(name, env_id, seed, own, arguments.run_dir) for name in arguments.algorithms]
    if not (arguments.total_steps or "--total-steps" in _flags(train_words)) and not _has_limit(runs[0]):
        raise UnknownSetting("there is no limit: give --solve-at, --minutes or --total-steps")
    for run in runs:
        check_folder(run, fresh=arguments.fresh)
    return runs


def _check_train_words(arguments: argparse.Namespace, train_words: Sequence[str]) -> None:
    """Refuse what the training would not take from after ``--``, or would take in place of what stands before."""
    flags = _flags(train_words)
    for flag in _OWN_WORDS:
        if flag in flags:
            raise UnknownSetting(f"{flag} cannot stand after --: use --envs, --seeds and --run-dir before it")
    for flag, name in _LIMITS.items():
        if flag in flags and getattr(arguments, name) is not None:
            raise UnknownSetting(f"{flag} after -- and --{name.replace('_', '-')} before it: give one of them")


def _flags(words: Sequence[str]) -> set[str]:
    """Names of the flags in words for ``vecenv train``, which takes underscores, too, and a value after ``=``."""
    return {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}


def _has_limit(run: LearningRun) -> bool:
    return any(run.config[name] is not None for name in ("solve_at", "stop_at_steps", "max_seconds"))


def train_all(runs: Sequence[LearningRun], *, fresh: bool = False) -> list[RunFailed]:
    """Train them one after the other.

    Args:
        runs: the trainings.
        fresh: begin all of them anew.

    Returns:
        Those that failed; the others were not stopped by it.

    Raises:
        KeyboardInterrupt: Ctrl-C; the training at work has left a checkpoint.
    """
    failures = []
    for number, run in enumerate(runs):
        if fresh:
            forget(run)
        state = state_of(run)
        print(f"[{number + 1}/{len(runs)}] {run.title} {_STATES[state]}", flush=True)
        if state == "finished":
            continue
        start = time.perf_counter()
        try:
            train(run)
        except RunFailed as failure:
            failures.append(failure)
            continue
        except KeyboardInterrupt:
            print(f"{run.title} was interrupted; the same command goes on with it", file=sys.stderr)
            raise
        summary = outcome_of(run).summary
        print(
            f"        {summary['stopped_by']}: mean return {summary['mean_return']} after {summary['env_steps']:,} "
            f"env steps, {summary['seconds']:.1f} s ({time.perf_counter() - start:.1f} s with start and end)",
            flush=True,
        )
    return failures


def as_row(outcome: Outcome) -> dict[str, Any]:
    """Plain values of a training for the result."""
    summary, run = outcome.summary, outcome.run
    return {
        "algorithm": run.algorithm,
        "env": run.env_id,
        "seed": run.seed,
        "solve_at": run.config["solve_at"],
        **{key: summary[key] for key in ("solved", "stopped_by", "seconds", "env_steps", "mean_return")},
        "steps_per_second": summary["env_steps"] / summary["seconds"],
        "resumed": outcome.resumed,
        "commit": outcome.commit,
        "config": dict(run.config),
        "points": thinned(outcome.points),
    }


def samples(rows: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]] = ()) -> dict[str, Samples]:
    """Raw samples, one per seed; times to the mark only where all have reached it and none has failed."""
    found = {}
    lost = grouped(failed)
    for (algorithm, env_id), group in grouped(rows).items():
        name = f"{algorithm} on {env_id}"
        found[f"{name}: speed"] = Samples(tuple(row["steps_per_second"] for row in group), "steps/s")
        if (algorithm, env_id) not in lost and all(row["solved"] for row in group):
            for column, unit in (("seconds", "s"), ("env_steps", "steps")):
                values = tuple(float(row[column]) for row in group)
                found[f"{name}: {unit} to the mark"] = Samples(values, unit, higher_is_better=False)
    return found


def write_points(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write every point of every training as CSV, with the columns `CSV_COLUMNS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CSV_COLUMNS)
        for outcome in outcomes:
            run = outcome.run
            columns = [outcome.points.get(name, []) for name in CSV_COLUMNS[3:]]
            for steps, seconds, mean_return in zip(*columns, strict=True):
                writer.writerow([run.algorithm, run.env_id, run.seed, int(steps), seconds, mean_return])


def _settings(arguments: argparse.Namespace, train_words: Sequence[str]) -> dict[str, Any]:
    names = ("algorithms", "envs", "seeds", "solve_at", "minutes", "total_steps")
    return {**{name: getattr(arguments, name) for name in names}, "train_words": list(train_words)}


def _parted(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first ``--``."""
    argv = list(argv)
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def _returns(text: str) -> list[float]:
    """Numbers between commas."""
    try:
        values = [float(word) for word in words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers, got {text!r}") from None
    if not values:
        raise argparse.ArgumentTypeError("must be at least one number")
    return values


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench learning", __doc__)
    parser.usage = "%(prog)s [options] [-- OPTIONS OF vecenv train]"
    text = f"comma-separated: {', '.join(ALGORITHMS)} (default ppo)"
    parser.add_argument("--algorithms", type=some_words, metavar="NAMES", default=["ppo"], help=text)
    text = "environments, comma-separated (default CartPole-v1)"
    parser.add_argument("--envs", type=some_words, metavar="IDS", default=["CartPole-v1"], help=text)
    parser.add_argument("--seeds", type=positive_int, metavar="N", default=5, help="seeds 0 to N - 1 (default 5)")
    text = "the mark: a training ends at this mean return of 100 episodes; one number, or one per environment"
    parser.add_argument("--solve-at", type=_returns, metavar="R,R", help=text)
    parser.add_argument("--minutes", type=positive_number, metavar="M", help="a training ends after M minutes")
    text = "a training ends after N env steps, and its schedules are made for that"
    parser.add_argument("--total-steps", type=positive_int, metavar="N", help=text)
    text = "where trainings are kept and looked for (default results/learning)"
    parser.add_argument("--run-dir", type=Path, metavar="FOLDER", default=Path("results/learning"), help=text)
    parser.add_argument("--fresh", action="store_true", help="train anew what is there already")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="all points (default: learning.csv in --run-dir)")
    add_output(parser, "learning", plot="return against seconds and steps: median and band over the seeds")
    return parser
