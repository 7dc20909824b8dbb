"""The command ``vecenv train``: ``vecenv train ppo --env CartPole-v1``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from vecenv.errors import UnknownSetting, VecEnvError
from vecenv.writable import check_writable

from .algorithms import ALGORITHMS, find_algorithm
from .config import RunConfig
from .display import ProgressDisplay, quiet_console
from .distributed import RankLost, World, connect
from .run_directory import RunDirectory
from .train_arguments import TrainArguments, read_arguments
from .training_run import Resume, TrainingRun, device_of_run, place_of_run

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
USAGE = f"usage: vecenv train {{{','.join(ALGORITHMS)}}} --env ID [--help]"
HELP = f"""{USAGE}

Train an agent on one environment. The algorithm comes first:

  ppo   proximal policy optimization: discrete or continuous actions, fast on the clock
  dqn   deep Q-network and its extensions: discrete actions, learns from a replay
  es    evolution strategies: discrete or continuous actions, a population in place of gradients

Settings suit the kind of environment; this lists them all, with their values for it:
  vecenv train ppo --env CartPole-v1 --help

examples:
  vecenv train ppo --env CartPole-v1 --solve-at 475        stop when 100 episodes have this mean return
  vecenv train dqn --env PongNoFrameskip-v4 --max-seconds 600 --run-dir runs/pong
  vecenv train dqn --resume runs/pong --max-seconds 600    go on where it stopped
  vecenv eval runs/pong --video pong.gif                   play with what was learnt"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code.

    0: the run ended by its own rules. 1: the loss was no longer finite, the disk is full, or another rank is gone.
    130: Ctrl-C or SIGTERM.

    Raises:
        UnknownSetting: one line about an algorithm, environment or setting that does not exist or does not fit.
        VecEnvError: when an environment or a worker fails while training.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(HELP if words else USAGE)
        return EXIT_OK if words else 2
    name, words = words[0], words[1:]
    find_algorithm(name)
    arguments, checkpoint = read_arguments(name, words)
    config = arguments.run_config()
    place = place_of_run(config)
    folder = _folder(arguments)
    resume = None
    resumed = None if arguments.resume is None else _folder_of(arguments.resume)
    if folder is not None and place.rank == 0:
        check_writable(folder / "config.json", "--run-dir")
        RunDirectory.check_is_free(folder, resumed, f"go on with --resume {folder}")
    if checkpoint is not None and resumed is not None:
        resume = Resume(checkpoint, resumed, arguments.fresh_envs)
    try:
        with connect(place, device_of_run(config, place)) as world, _build(config, resume, world) as run:
            if not world.is_first:
                return _train_along(run)
            directory = RunDirectory.create(config.env, name) if folder is None else RunDirectory(folder)
            return _train(run, directory, ProgressDisplay(config.settings.total_steps, config.solve_at))
    except RankLost as error:
        return _fail(str(error))


def _train_along(run: TrainingRun) -> int:
    """Train on a rank that is not the first: it writes nothing and says nothing; returns the exit code."""
    try:
        summary = run.train(None, ProgressDisplay(run.config.settings.total_steps, None, quiet_console()))
    except FloatingPointError:
        return EXIT_FAILED  # rank 0 says it
    return _exit_code(summary)


def _train(run: TrainingRun, directory: RunDirectory, display: ProgressDisplay) -> int:
    """Train and say what became of it; returns the exit code."""
    config, size = run.config, run.world.size
    ranks = "" if size == 1 else f" on each of {size} ranks, minibatches of {config.settings.minibatch_size} for all"
    display.say(
        f"{run.algorithm.title} on {config.env}, {config.settings.num_envs} environments side by side{ranks}; "
        f"files in {directory.path}"
    )
    if run.is_resumed:
        anew = "; ".join(run.starts_anew) or "the environments go on in the middle of their episodes"
        display.say(
            f"resumed at {run.learner.env_steps:,} env steps: weights, optimizer, counters, schedules and random "
            f"generators go on; {anew}"
        )
    steps_before = run.learner.env_steps
    try:
        summary = run.train(directory, display)
    except FloatingPointError as error:
        return _fail(f"{error}; {directory.checkpoint} is from before that, if there is one")
    except VecEnvError:
        raise  # may be an OSError too, where an environment raised one
    except OSError as error:
        return _fail(f"{directory.path} could not be written ({error}); the files from before stay")
    display.say(_closing_line(summary, directory, run.is_resumed))
    if run.is_resumed and summary["env_steps"] == steps_before and summary["stopped_by"] != "interrupted":
        display.say(_limit_line(summary["stopped_by"], config))
    return _exit_code(summary)


def _exit_code(summary: dict[str, Any]) -> int:
    return EXIT_INTERRUPTED if summary["stopped_by"] == "interrupted" else EXIT_OK


def _fail(sentence: str) -> int:
    print(f"vecenv train: {' '.join(sentence.split())}", file=sys.stderr)
    return EXIT_FAILED


def _build(config: RunConfig, resume: Resume | None, world: World) -> TrainingRun:
    """Build the run; whatever does not fit is one line."""
    try:
        return TrainingRun(config, resume, world=world)
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


def _closing_line(summary: dict[str, Any], directory: RunDirectory, is_resumed: bool) -> str:
    mean_return = summary["mean_return"]
    reached = "no finished episode" if mean_return is None else f"mean return {mean_return:.1f}"
    verdict = "solved" if summary["solved"] else f"stopped ({summary['stopped_by']})"
    line = (
        f"{verdict}: {reached} after {summary['env_steps']:,} env steps in {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s{' since it was resumed' if is_resumed else ''})"
    )
    if not summary["env_steps"]:
        return f"{line}; nothing was learnt, {directory.checkpoint} holds what it began with"
    return f"{line}; play it: vecenv eval {directory.checkpoint}"


def _limit_line(stopped_by: str, config: RunConfig) -> str:
    """Which limit a resumed run was at before its first update, and how to lift it."""
    name = {"solved": "solve_at"}.get(stopped_by, stopped_by)
    value = getattr(config.settings if name == "total_steps" else config, name)
    flag, said = f"--{name.replace('_', '-')}", value if isinstance(value, int) else f"{value:g}"
    held = f"{flag} {said} was over before the first update"
    if name != "max_seconds":  # which counts from the resume on
        held = f"the checkpoint had reached {flag} {said} already"
    none = "" if name == "total_steps" else f", or {flag} None"
    return f"nothing was learnt: {held}; to go on, --resume it with a higher {flag}{none}"
