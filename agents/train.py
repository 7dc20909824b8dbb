"""The command ``vecenv train``: ``vecenv train ppo --env CartPole-v1``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import tyro

from vecenv.errors import UnknownSetting, VecEnvError

from .arguments import flag_value, parse_arguments
from .checkpoint import CheckpointError, load_checkpoint
from .config import PPOConfig, RunConfig, preset_for, run_config_from_dict
from .display import ProgressDisplay
from .run_directory import RunDirectory
from .training_run import TrainingRun

ALGORITHMS = ("ppo",)
EXIT_OK = 0
EXIT_INTERRUPTED = 130
USAGE = f"usage: vecenv train {{{','.join(ALGORITHMS)}}} --env ID [--help]"


@dataclass(frozen=True)
class TrainArguments(RunConfig):
    """Arguments of ``vecenv train ppo``: the settings of the run, and its folder."""

    ppo: Annotated[PPOConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=PPOConfig)
    """Hyper-parameters; the defaults shown are those for the kind of environment that --env names."""
    run_dir: Path | None = None
    """Folder of the run; by default a new one, runs/<env>-ppo-<time>. With --resume: the checkpoint's own."""
    resume: Path | None = None
    """Checkpoint, or run folder, to go on from; its settings hold unless flags change them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code: 0 when the run ended by its own rules, 130 after Ctrl-C.

    Raises:
        UnknownSetting: one line about an algorithm, environment or setting that does not exist or does not fit.
        VecEnvError: when an environment or a worker fails while training.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return EXIT_OK if words else 2
    if words[0] not in ALGORITHMS:
        raise UnknownSetting(f"there is no algorithm {words[0]!r} yet; there is {', '.join(ALGORITHMS)}")
    arguments, checkpoint = _parse(words[1:])
    config = RunConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(RunConfig)})
    with _build(config, checkpoint) as run:
        directory = _directory(arguments)
        display = ProgressDisplay(config.ppo.total_steps, config.solve_at)
        display.say(f"PPO on {config.env}, {config.ppo.num_envs} environments side by side; files in {directory.path}")
        if checkpoint is not None:
            display.say(
                f"resumed at {run.learner.env_steps:,} env steps: weights, optimizer, counters, schedules and random "
                "generators go on; the environments start new episodes"
            )
        summary = run.train(directory, display)
    display.say(_closing_line(summary, directory))
    return EXIT_INTERRUPTED if summary["stopped_by"] == "interrupted" else EXIT_OK


def load_checkpoint_or_refuse(path: Path) -> dict[str, Any]:
    """Content of a checkpoint of one of our algorithms.

    Raises:
        UnknownSetting: when there is none at ``path`` or it cannot be read.
    """
    try:
        return load_checkpoint(path)
    except CheckpointError as error:
        raise UnknownSetting(str(error)) from error


def _parse(words: Sequence[str]) -> tuple[TrainArguments, dict[str, Any] | None]:
    """Arguments, and the checkpoint to go on from.

    Defaults come from that checkpoint, or else from the preset of the environment's kind, so that --help shows them.
    """
    resume, env_id = flag_value(words, "--resume"), flag_value(words, "--env")
    checkpoint = None if resume is None else load_checkpoint_or_refuse(Path(resume))
    if checkpoint is not None:
        run = run_config_from_dict(checkpoint["run"])
        defaults = TrainArguments(**{field.name: getattr(run, field.name) for field in dataclasses.fields(run)})
    else:
        ppo = PPOConfig() if env_id is None else preset_for(env_id)
        defaults = TrainArguments(env=tyro.MISSING, ppo=ppo)
    description = "Train PPO on one environment; the defaults shown suit the kind of environment that --env names."
    return parse_arguments(TrainArguments, words, "vecenv train ppo", description, defaults), checkpoint


def _build(config: RunConfig, checkpoint: dict[str, Any] | None) -> TrainingRun:
    """Build the run; whatever does not fit is one line."""
    try:
        return TrainingRun(config, checkpoint)
    except VecEnvError:
        raise  # an environment that failed is no wrong setting, also where its error is a ValueError at once
    except (ValueError, NotImplementedError, gymnasium.error.Error) as error:
        raise UnknownSetting(str(error)) from error


def _directory(arguments: TrainArguments) -> RunDirectory:
    if arguments.run_dir is not None:
        return RunDirectory(arguments.run_dir)
    if arguments.resume is not None:
        return RunDirectory(arguments.resume if arguments.resume.is_dir() else arguments.resume.parent)
    return RunDirectory.create(arguments.env, "ppo")


def _closing_line(summary: dict[str, Any], directory: RunDirectory) -> str:
    mean_return = summary["mean_return"]
    reached = "no finished episode" if mean_return is None else f"mean return {mean_return:.1f}"
    verdict = "solved" if summary["solved"] else f"stopped ({summary['stopped_by']})"
    return (
        f"{verdict}: {reached} after {summary['env_steps']:,} env steps in {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s); play it: vecenv eval {directory.checkpoint}"
    )
