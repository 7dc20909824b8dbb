"""The words after ``vecenv train NAME``: flags over a config file or a checkpoint over a preset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from vecenv.errors import UnknownSetting

from .algorithms import find_algorithm, from_dict, settings_from_dict, suited_values
from .checkpoint import CheckpointError
from .checkpoint_keeper import load_run
from .command_line import flag_value, parse_arguments
from .config import RunConfig
from .learner import Algorithm


@dataclass(frozen=True)
class TrainArguments(RunConfig):
    """Arguments of ``vecenv train``: the settings of the run, and its folder."""

    algorithm: Annotated[str, tyro.conf.Suppress] = "ppo"
    """The word after ``train``."""
    preset: str | None = None
    """Name of a set of hyper-parameters; by default the one for the kind of environment that --env names."""
    config: Path | None = None
    """JSON file with settings as config.json of a run has them, or a run's folder; flags change them."""
    run_dir: Path | None = None
    """Folder of the run; by default a new one, runs/<env>-<algorithm>-<time>. With --resume: the checkpoint's own."""
    resume: Path | None = None
    """Checkpoint or run folder to go on from. Its environments are unpickled: trust it, or give --fresh-envs."""
    fresh_envs: bool = False
    """With --resume: begin new episodes, and leave the saved states of the environments alone."""

    def run_config(self) -> RunConfig:
        """The settings of the run alone."""
        return RunConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(RunConfig)})


def read_arguments(name: str, words: Sequence[str]) -> tuple[TrainArguments, dict[str, Any] | None]:
    """Arguments of ``vecenv train name``, and the checkpoint to go on from.

    Whatever comes before the flags becomes their default, so that --help shows it.

    Raises:
        CheckpointError: the checkpoint cannot be read, or is another algorithm's.
        UnknownSetting: a setting or file that does not exist or does not fit.
    """
    algorithm = find_algorithm(name)
    resume, preset, config = (flag_value(words, flag) for flag in ("--resume", "--preset", "--config"))
    if resume is not None and (preset is not None or config is not None):
        raise UnknownSetting("--resume does not go together with --preset or --config: the checkpoint's settings hold")
    checkpoint = None
    if resume is None:
        defaults = _arguments_of(algorithm, _defaults(name, words, config, preset))
    else:
        run, checkpoint = load_run(Path(resume))
        if run.algorithm != name:
            raise CheckpointError(f"{resume} is of {run.algorithm}; go on from it with vecenv train {run.algorithm}")
        values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
        values["settings"] = _settings(algorithm, dataclasses.asdict(run.settings), words)
        defaults = _arguments_of(algorithm, values)
    description = (
        f"Train {algorithm.title} on one environment; the defaults shown suit the kind of environment that --env names."
    )
    arguments = parse_arguments(type(defaults), words, f"vecenv train {name}", description, defaults)
    if arguments.fresh_envs and resume is None:
        raise UnknownSetting("--fresh-envs goes together with --resume only")
    return arguments, checkpoint


def read_config_file(path: Path) -> dict[str, Any]:
    """Content of a config file, or of ``config.json`` in a run's folder.

    Raises:
        UnknownSetting: there is no such file, or it holds something else.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise UnknownSetting(f"there is no config file at {file}") from error
    except (OSError, ValueError) as error:  # what is not JSON, or not even text
        raise UnknownSetting(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("settings", {}), dict):
        raise UnknownSetting(f"{file} must hold a table of settings, with hyper-parameters in a table named settings")
    return content


def _defaults(name: str, words: Sequence[str], config: str | None, preset: str | None) -> dict[str, Any]:
    """Values of `RunConfig` before any flag: the algorithm's own, a preset's, then the config file's."""
    algorithm = find_algorithm(name)
    values = {} if config is None else read_config_file(Path(config))
    if values.pop("algorithm", name) != name:
        raise UnknownSetting(f"{config} is for another algorithm than {name}")
    env_id = flag_value(words, "--env") or values.get("env")
    suited = suited_values(name, env_id, preset)
    own = values.pop("settings", {})
    settings = _settings(algorithm, {**dataclasses.asdict(suited["settings"]), **own}, words)
    # Unknown names are refused here, where they can be told from flags; the env may still come as a flag.
    from_dict(RunConfig, {"env": "", **values})
    return {"env": tyro.MISSING, **suited, **values, "settings": settings}


def _settings(algorithm: Algorithm, values: dict[str, Any], words: Sequence[str]) -> Any:
    """Hyper-parameters before any flag, without those that flags make idle, such as workers of an engine of none."""
    for decider in {decider for decider, _ in algorithm.used_only_with.values()}:
        given = flag_value(words, f"--{decider.replace('_', '-')}")
        if given is not None:
            values[decider] = given
    return settings_from_dict(algorithm, values)


def _arguments_of(algorithm: Algorithm, values: dict[str, Any]) -> TrainArguments:
    """`TrainArguments` whose hyper-parameters are flags of their own."""
    settings = field(default_factory=algorithm.config)
    kind: Any = Annotated[algorithm.config, tyro.conf.OmitArgPrefixes]
    arguments: TrainArguments = dataclasses.make_dataclass(
        "TrainArguments", [("settings", kind, settings)], bases=(TrainArguments,), frozen=True
    )(**values)
    return arguments
