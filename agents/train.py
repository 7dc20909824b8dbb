"""The command ``vecenv train``: ``vecenv train ppo --env CartPole-v1``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from vecenv.errors import UnknownSetting, VecEnvError

from .algorithms import ALGORITHMS, find_algorithm
from .config import RunConfig
from .display import ProgressDisplay
from .run_directory import RunDirectory
from .train_arguments import TrainArguments, read_arguments
from .training_run import Resume, TrainingRun

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
USAGE = f"usage: vecenv train {{{','.join(ALGORITHMS)}}} --env ID [--help]"


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code.

    0: the run ended by its own rules. 1: the loss was no longer finite, or the disk is full. 130: Ctrl-C.

    Raises:
        UnknownSetting: one line about an algorithm, environment or setting that does not exist or does not fit.
        VecEnvError: when an environment or a worker fails while training.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return EXIT_OK if words else 2
    name, words = words[0], words[1:]
    find_algorithm(name)
    arguments, checkpoint = read_arguments(name, words)
    config = arguments.run_config()
    folder = _folder(arguments)
    resume = None
    resumed = None if arguments.resume is None else _folder_of(arguments.resume)
    if folder is not None:
        RunDirectory.check_is_free(folder, resumed, f"go on with --resume {folder}")
    if checkpoint is not None and resumed is not None:
        resume = Resume(checkpoint, resumed, arguments.fresh_envs)
    with _build(config, resume) as run:
        directory = RunDirectory.create(config.env, name) if folder is None else RunDirectory(folder)
        display = ProgressDisplay(config.settings.total_steps, config.solve_at)
        return _train(run, directory, display)


def _train(run: TrainingRun, directory: RunDirectory, display: ProgressDisplay) -> int:
    """Train and say what became of it; returns the exit code."""
    config = run.config
    display.say(
        f"{run.algorithm.title} on {config.env}, {config.settings.num_envs} environments side by side; "
        f"files in {directory.path}"
    )
    if run.is_resumed:
        anew = "; ".join(run.starts_anew) or "the environments go on in the middle of their episodes"
        display.say(
            f"resumed at {run.learner.env_steps:,} env steps: weights, optimizer, counters, schedules and random "
            f"generators go on; {anew}"
        )
    try:
        summary = run.train(directory, display)
    except FloatingPointError as error:
        return _fail(f"{error}; {directory.checkpoint} is from before that, if there is one")
    except VecEnvError:
        raise  # may be an OSError too, where an environment raised one
    except OSError as error:
        return _fail(f"{directory.path} could not be written ({error}); the files from before stay")
    display.say(_closing_line(summary, directory))
    return EXIT_INTERRUPTED if summary["stopped_by"] == "interrupted" else EXIT_OK


def _fail(sentence: str) -> int:
    print(f"vecenv train: {' '.join(sentence.split())}", file=sys.stderr)
    return EXIT_FAILED


def _build(config: RunConfig, resume: Resume | None) -> TrainingRun:
    """Build the run; whatever does not fit is one line."""
    try:
        return TrainingRun(config, resume)
    except VecEnvError:
        raise  # an environment that failed is no wrong setting, also where its error is a ValueError at once
    except (ValueError, NotImplementedError, gymnasium.error.Error) as error:
        raise UnknownSetting(str(error)) from error


def _folder(arguments: TrainArguments) -> Path | None:
    """Where the run's files go; None: into a new folder."""
    if arguments.run_dir is not None or arguments.resume is None:
        return arguments.run_dir
    return _folder_of(arguments.resume)


def _folder_of(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.is_dir() else checkpoint.parent


def _closing_line(summary: dict[str, Any], directory: RunDirectory) -> str:
    mean_return = summary["mean_return"]
    reached = "no finished episode" if mean_return is None else f"mean return {mean_return:.1f}"
    verdict = "solved" if summary["solved"] else f"stopped ({summary['stopped_by']})"
    return (
        f"{verdict}: {reached} after {summary['env_steps']:,} env steps in {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s); play it: vecenv eval {directory.checkpoint}"
    )
