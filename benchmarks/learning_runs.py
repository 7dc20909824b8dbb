"""The trainings behind ``vecenv bench learning``: which there are, what became of each, and how one goes on.

A training is recognised by the ``summary.json`` in its folder. One that was interrupted goes on from its checkpoint
(``vecenv train --resume``); one that was killed before its first checkpoint, or whose checkpoint cannot be read, begins
anew.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vecenv.agents.checkpoint import CheckpointError
from vecenv.agents.checkpoint_keeper import load_run
from vecenv.agents.metrics import read_metrics
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.train import EXIT_INTERRUPTED
from vecenv.agents.train_arguments import read_arguments
from vecenv.errors import UnknownSetting
from vecenv.factory import resolved_spec
from vecenv.registration import find_game

from .child_command import last_line, run_command
from .report import as_file_name, commit

#: Columns of ``metrics.csv`` that a result keeps where the algorithm writes them.
KEPT_COLUMNS = ("env_steps", "seconds", "mean_return", "generation", "population_mean")
#: A result keeps so many points of a training from its beginning, and at most as many others; ``--csv`` has them all.
#: Targets such as "within 100 generations" are read from the beginning, where no row may be missing.
MOST_POINTS = 400
#: What ``--max-seconds`` is set to where nothing is left of the time: the run ends at once, with its files.
NO_TIME = 1e-3

State = Literal["finished", "unfinished", "lost", "new"]


@dataclass(frozen=True)
class LearningRun:
    """One training: algorithm, environment and seed.

    Attributes:
        algorithm: name of the algorithm.
        env_id: id of the environment.
        seed: of everything random.
        words: settings as ``vecenv train ALGORITHM`` takes them.
        config: the same, resolved, as plain values.
        folder: its files.
    """

    algorithm: str
    env_id: str
    seed: int
    words: tuple[str, ...]
    config: Mapping[str, Any]
    folder: Path

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.algorithm} on {self.env_id}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the training printed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def request(self) -> Path:
        """What was asked for, and at which commit."""
        return self.folder / "request.json"


@dataclass(frozen=True)
class Outcome:
    """What a training came to.

    Attributes:
        run: the training.
        summary: its ``summary.json``.
        points: columns of its curve: those of `KEPT_COLUMNS` that it has, from the first finished episode on.
        commit: at which it was begun.
        resumed: how many times it went on from a checkpoint.
    """

    run: LearningRun
    summary: Mapping[str, Any]
    points: Mapping[str, Sequence[float]]
    commit: str | None
    resumed: int


class RunFailed(Exception):
    """A training could not end by its own rules; the message says which and why."""

    def __init__(self, run: LearningRun, reason: str) -> None:
        """Of the training `run`, for `reason`."""
        super().__init__(f"{run.title}: {reason}")
        self.run = run

    def as_row(self) -> dict[str, Any]:
        """Plain values for the result; ``solved`` is False."""
        run = self.run
        row = {"algorithm": run.algorithm, "env": run.env_id, "seed": run.seed, "solve_at": run.config["solve_at"]}
        return {**row, "solved": False, "message": str(self)}


def make_run(algorithm: str, env_id: str, seed: int, words: Sequence[str], folder: Path) -> LearningRun:
    """Look at everything about a training that can be looked at before it starts.

    Args:
        algorithm: name of the algorithm.
        env_id: id of the environment.
        seed: of everything random.
        words: further settings, as ``vecenv train ALGORITHM`` takes them.
        folder: of all trainings; this one gets a folder in it.

    Raises:
        UnknownSetting: an algorithm, environment or setting that does not exist or does not fit.
    """
    if find_game(env_id) is None:
        resolved_spec(env_id)
    every = ("--env", env_id, "--seed", str(seed), *words)
    config = read_arguments(algorithm, every)[0].run_config()
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    name = as_file_name(env_id)
    return LearningRun(algorithm, env_id, seed, every, plain, folder / f"{name}-{algorithm}-seed{seed}")


def check_folder(run: LearningRun, *, fresh: bool) -> None:
    """Look at what is in its folder.

    Args:
        run: the training.
        fresh: whether files of a training may be replaced.

    Raises:
        UnknownSetting: it holds a training with other settings, or something else.
    """
    if not run.folder.exists():
        return
    if _read_json(run.request) is None:
        raise UnknownSetting(
            f"{run.folder} holds something else than a training of this benchmark; name another --run-dir"
        )
    if not fresh and _request(run).get("config") != run.config:
        raise UnknownSetting(
            f"{run.folder} holds a training with other settings; name another --run-dir, or add --fresh to replace it"
        )


def forget(run: LearningRun) -> None:
    """Remove the files of a training; `check_folder` comes before."""
    if run.folder.exists():
        shutil.rmtree(run.folder)
    run.log.unlink(missing_ok=True)


def state_of(run: LearningRun) -> State:
    """What became of it.

    Returns:
        ``"finished"``: it ended by its own rules. ``"unfinished"``: it goes on from its checkpoint. ``"lost"``: it was
        begun and left no checkpoint that can be read. ``"new"``: it was never begun.
    """
    summary = _read_json(run.folder / "summary.json")
    if summary is not None and summary.get("stopped_by") != "interrupted":
        return "finished"
    if not run.folder.exists():
        return "new"
    return "lost" if _checkpoint_of(run) is None else "unfinished"


def train(run: LearningRun) -> None:
    """Train it to its end, from its checkpoint where there is one; nothing happens where it has ended.

    Raises:
        KeyboardInterrupt: Ctrl-C; the training has left a checkpoint, unless it had not begun yet.
        RunFailed: it ended with an error.
    """
    if state_of(run) == "finished":
        return
    before = _words_to_go_on(run)
    if before is None:
        forget(run)
        run.folder.mkdir(parents=True)
        _write_request(run, resumed=0)
        words = [run.algorithm, *run.words, "--run-dir", str(run.folder)]
    else:
        _write_request(run, resumed=_request(run).get("resumed", 0) + 1)
        words = before
    code = run_command(["train", *words], run.log)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if state_of(run) != "finished":  # a loss that is no longer finite is an end, too
        raise RunFailed(run, f"exit status {code}: {last_line(run.log)} (all of it in {run.log})")


def outcome_of(run: LearningRun) -> Outcome:
    """What a finished training came to."""
    summary = _read_json(run.folder / "summary.json")
    assert summary is not None, "only finished trainings are asked"
    request = _request(run)
    return Outcome(run, summary, read_points(run.folder / "metrics.csv"), request.get("commit"), request["resumed"])


def read_points(metrics_csv: Path) -> dict[str, list[float]]:
    """Columns of a curve, without the rows before the first finished episode."""
    columns = read_metrics(metrics_csv) if metrics_csv.exists() else {}
    kept = [index for index, value in enumerate(columns.get("mean_return", [])) if math.isfinite(value)]
    always = KEPT_COLUMNS[:3]  # empty ones where no episode has ended
    return {n: [columns[n][index] for index in kept] for n in KEPT_COLUMNS if n in columns or n in always}


def thinned(points: Mapping[str, Sequence[float]], most: int = MOST_POINTS) -> dict[str, list[float | None]]:
    """The first `most` points, and at most `most` of the others; None for what is no number.

    The others are chosen evenly, the last point among them.
    """
    count = len(next(iter(points.values()), ()))
    chosen, others = list(range(min(count, most))), max(0, count - most)
    kept = min(others, most)
    chosen += [most - 1 + math.ceil((place + 1) * others / kept) for place in range(kept)]
    return {
        name: [values[index] if math.isfinite(values[index]) else None for index in chosen]
        for name, values in points.items()
    }


def _words_to_go_on(run: LearningRun) -> list[str] | None:
    """Words for ``vecenv train`` to go on with it, None where it must begin anew."""
    checkpoint = _checkpoint_of(run)
    if checkpoint is None:
        return None
    words = [run.algorithm, "--resume", str(run.folder)]
    limit = run.config["max_seconds"]
    if limit is not None:  # it counts from the resume on
        words += ["--max-seconds", str(max(NO_TIME, limit - float(checkpoint["seconds"])))]
    return words


def _checkpoint_of(run: LearningRun) -> dict[str, Any] | None:
    """What it goes on from; None where there is none, or none that can be read."""
    if not (run.folder / "checkpoint.pt").exists():
        return None
    try:
        return load_run(run.folder)[1]
    except CheckpointError:
        return None


def _request(run: LearningRun) -> dict[str, Any]:
    return _read_json(run.request) or {}


def _write_request(run: LearningRun, resumed: int) -> None:
    begun_at = _request(run).get("commit") if resumed else commit()
    content = {"config": run.config, "commit": begun_at, "resumed": resumed}
    RunDirectory(run.folder).write_json(run.request, content)


def _read_json(path: Path) -> dict[str, Any] | None:
    """A table in a file; None where there is no such file or it holds something else."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
