"""The table of algorithms, and the settings of a run rebuilt from plain values."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from vecenv.errors import UnknownSetting

from .config import RunConfig
from .learner import Algorithm

Settings = TypeVar("Settings")

ALGORITHMS: dict[str, str] = {
    "dqn": "vecenv.agents.dqn",
    "ppo": "vecenv.agents.ppo",
    "es": "vecenv.agents.es",
}
"""Name -> module whose ``ALGORITHM`` is the entry; imported when the algorithm is asked for."""


def find_algorithm(name: str) -> Algorithm:
    """The entry of an algorithm.

    Raises:
        UnknownSetting: there is no such algorithm; the message lists what there is.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise UnknownSetting(f"there is no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    algorithm: Algorithm = importlib.import_module(ALGORITHMS[name]).ALGORITHM
    return algorithm


def default_preset(env_id: str, presets: Mapping[str, Any]) -> str:
    """Name of the preset that suits the kind of environment behind ``env_id``, without building it."""
    import gymnasium

    from vecenv.atari import find_game

    if "atari" in presets and find_game(env_id) is not None:
        return "atari"
    spec = gymnasium.registry.get(env_id)
    if "mujoco" in presets and spec is not None and "mujoco" in str(spec.entry_point):
        return "mujoco"
    return "classic-control"


def preset_for(algorithm: Algorithm, env_id: str | None, name: str | None = None) -> Any:
    """Hyper-parameters by the name of a preset, or those that suit the environment.

    Raises:
        UnknownSetting: there is no such preset.
    """
    if name is None:
        name = "classic-control" if env_id is None else default_preset(env_id, algorithm.presets)
    if name not in algorithm.presets:
        known = ", ".join(algorithm.presets)
        raise UnknownSetting(f"{algorithm.title} has no preset {name!r}; there are {known}")
    return algorithm.presets[name]


def suited_values(name: str, env_id: str | None, preset: str | None = None) -> dict[str, Any]:
    """Fields of `RunConfig` as they suit an algorithm and the kind of environment, before anybody sets one.

    Raises:
        UnknownSetting: there is no such algorithm or preset.
    """
    algorithm = find_algorithm(name)
    return {**algorithm.run_defaults, "algorithm": name, "settings": preset_for(algorithm, env_id, preset)}


def suited_config(env: str, algorithm: str = "ppo", *, preset: str | None = None, **changes: Any) -> RunConfig:
    """Settings of a run as ``vecenv train`` takes them; see :meth:`~vecenv.agents.agent.Agent.for_env`.

    Raises:
        UnknownSetting: a name that does not exist, or a value that does not fit.
    """
    values, kind = suited_values(algorithm, env, preset), find_algorithm(algorithm).config
    of_run = {field.name for field in dataclasses.fields(RunConfig)}
    of_algorithm = {field.name for field in dataclasses.fields(kind)}
    known = (of_run | of_algorithm) - {"env", "algorithm", "settings"}
    unknown = sorted(changes.keys() - known)
    if unknown:
        raise UnknownSetting(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    own = {name: changes.pop(name) for name in of_algorithm & changes.keys()}
    settings = from_dict(kind, {**dataclasses.asdict(values["settings"]), **own})
    return from_dict(RunConfig, {"env": env, **values, **changes, "settings": settings})


def run_config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Rebuild a `RunConfig` from the plain dictionary of a checkpoint or a ``config.json``.

    Raises:
        UnknownSetting: when a key is not a setting of this version, or a value does not fit.
    """
    values = dict(values)
    settings = values.get("settings", {})
    if not isinstance(settings, Mapping):
        raise UnknownSetting(f"settings must be a table of hyper-parameters, got {settings!r}")
    values["settings"] = settings_from_dict(find_algorithm(values.get("algorithm", "ppo")), settings)
    return from_dict(RunConfig, values)


def settings_from_dict(algorithm: Algorithm, values: Mapping[str, Any]) -> Any:
    """Hyper-parameters from the plain values of an earlier run, or of a file.

    Values that count for nothing beside the others are left out: settings made by hand are refused with them, but
    earlier runs, which ignored them, can still be loaded. Values that had other names before get theirs of now, see
    `Algorithm.former_values`.

    Raises:
        UnknownSetting: as of :func:`from_dict`.
    """
    values = {name: _value_now(algorithm, name, value) for name, value in values.items()}
    idle = {
        name
        for name, (decider, choices) in algorithm.used_only_with.items()
        if values.get(decider, getattr(algorithm.config, decider)) not in choices
    }
    return from_dict(algorithm.config, {name: value for name, value in values.items() if name not in idle})


def _value_now(algorithm: Algorithm, name: str, value: Any) -> Any:
    """A value of a hyper-parameter as it is called now; earlier versions called some otherwise."""
    former = algorithm.former_values.get(name)
    return value if former is None or not isinstance(value, str) else former.get(value, value)


def from_dict(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """A frozen dataclass from plain values.

    Raises:
        UnknownSetting: for an unknown key, a missing one that has no default, or a value that does not fit.
    """
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise UnknownSetting(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UnknownSetting(f"settings of {kind.__name__}: {error}") from error
