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

from .algorithms import ALGORITHMS, find_algorithm, preset_for, run_config_from_dict
from .checkpoint import CheckpointError, load_checkpoint
from .command_line import flag_value, parse_arguments
from .config import RunConfig
from .display import ProgressDisplay
from .learner import Algorithm
from .run_directory import RunDirectory
from .training_run import TrainingRun

EXIT_OK = 0
EXIT_INTERRUPTED = 130
USAGE = f"usage: vecenv train {{{','.join(ALGORITHMS)}}} --env ID [--help]"


@dataclass(frozen=True)
class TrainArguments(RunConfig):
    """Arguments of ``vecenv train``: the settings of the run, and its folder."""

    algorithm: Annotated[str, tyro.conf.Suppress] = "ppo"
    """The word after ``train``."""
    preset: str | None = None
    """Name of a set of hyper-parameters; by default the one for the kind of environment that --env names."""
    run_dir: Path | None = None
    """Folder of the run; by default a new one, runs/<env>-<algorithm>-<time>. With --resume: the checkpoint's own."""
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
    name, words = words[0], words[1:]
    algorithm = find_algorithm(name)
    arguments, checkpoint = _parse(name, words)
    config = RunConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(RunConfig)})
    with _build(config, checkpoint) as run:
        directory = _directory(arguments)
        display = ProgressDisplay(config.settings.total_steps, config.solve_at)
        display.say(
            f"{algorithm.title} on {config.env}, {config.settings.num_envs} environments side by side; "
            f"files in {directory.path}"
        )
        if checkpoint is not None:
            display.say(
                f"resumed at {run.learner.env_steps:,} env steps: weights, optimizer, counters, schedules and random "
                "generators go on; the environments start new episodes"
            )
        summary = run.train(directory, display)
    display.say(_closing_line(summary, directory))
    return EXIT_INTERRUPTED if summary["stopped_by"] == "interrupted" else EXIT_OK


def _parse(name: str, words: Sequence[str]) -> tuple[TrainArguments, dict[str, Any] | None]:
    """Arguments, and the checkpoint to go on from.

    Defaults come from that checkpoint, or else from the preset, so that --help shows them.

    Raises:
        CheckpointError: the checkpoint cannot be read, or is another algorithm's.
    """
    algorithm, env_id = find_algorithm(name), flag_value(words, "--env")
    resume, preset = flag_value(words, "--resume"), flag_value(words, "--preset")
    checkpoint = None if resume is None else load_checkpoint(Path(resume))
    values: dict[str, Any] = {"env": tyro.MISSING, **algorithm.run_defaults, "algorithm": name}
    if checkpoint is None:
        values["settings"] = preset_for(algorithm, env_id, preset)
    else:
        run = run_config_from_dict(checkpoint["run"])
        if run.algorithm != name:
            raise CheckpointError(
                f"{resume} is a checkpoint of {run.algorithm}: vecenv train {run.algorithm} goes on from it"
            )
        if preset is not None:
            raise UnknownSetting("--preset and --resume do not go together: the checkpoint's settings hold")
        values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    defaults = _arguments_of(algorithm)(**values)
    description = (
        f"Train {algorithm.title} on one environment; the defaults shown suit the kind of environment that --env names."
    )
    return parse_arguments(type(defaults), words, f"vecenv train {name}", description, defaults), checkpoint


def _arguments_of(algorithm: Algorithm) -> type[TrainArguments]:
    """`TrainArguments` whose hyper-parameters are flags of their own."""
    settings = field(default_factory=algorithm.config)
    kind = Annotated[algorithm.config, tyro.conf.OmitArgPrefixes]
    return dataclasses.make_dataclass(
        "TrainArguments", [("settings", kind, settings)], bases=(TrainArguments,), frozen=True
    )


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
    return RunDirectory.create(arguments.env, arguments.algorithm)


def _closing_line(summary: dict[str, Any], directory: RunDirectory) -> str:
    mean_return = summary["mean_return"]
    reached = "no finished episode" if mean_return is None else f"mean return {mean_return:.1f}"
    verdict = "solved" if summary["solved"] else f"stopped ({summary['stopped_by']})"
    return (
        f"{verdict}: {reached} after {summary['env_steps']:,} env steps in {summary['seconds']:.1f} s "
        f"({summary['steps_per_second']:,.0f} steps/s); play it: vecenv eval {directory.checkpoint}"
    )
