"""Back ends that bring their own engine: where they live, and what `make_vec` hands to them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec

from vecenv.errors import UnknownSetting

if TYPE_CHECKING:
    from vecenv.base import VecEnv
    from vecenv.preprocess.config import AtariConfig

#: Back end -> module with ``make_envs(request) -> VecEnv``, ``OPTIONS: tuple[str, ...]``, what ``backend_options`` may
#: name, and ``CAPABILITIES``, see `vecenv.capabilities`. Imported when the back end is asked for.
ENGINES = {
    "compiled": "vecenv.compiled_backend",
    "envpool": "vecenv.envpool_backend",
    "ale": "vecenv.ale_backend",
    "ray": "vecenv.ray_backend",
}


@dataclass(frozen=True)
class EngineRequest:
    """What `make_vec` was asked for, as an engine sees it.

    Attributes:
        env_id: as the user gave it.
        num_envs: checked, at least 1.
        settings: keywords of `VectorSettings.checked`.
        num_workers: processes or threads of the engine; None lets it choose.
        preprocess: as the user gave it.
        wrappers: functions from env to env; engines without Python envs refuse any.
        options: the engine's own, names already checked.
        env_kwargs: for the env's constructor; on Atari ids, physics such as ``repeat_action_probability``.
        per_env_kwargs: None, or one mapping per env.
    """

    env_id: str | EnvSpec | Callable[[], Any]
    num_envs: int
    settings: Mapping[str, Any]
    num_workers: int | None = None
    preprocess: str | AtariConfig | None = None
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    per_env_kwargs: Sequence[Mapping[str, Any]] | None = None


def check_options(backend: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an entry of ``backend_options`` that a back end does not have.

    Raises:
        UnknownSetting: the message lists what it has.
    """
    for name in options:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UnknownSetting(f"backend_options[{name!r}] does not exist for {backend!r}; there are: {listed}")


def make_engine_envs(backend: str, request: EngineRequest) -> VecEnv:
    """Build a vector env on an engine.

    Raises:
        UnknownSetting: an option that the engine does not have; the message lists what it has.
        MissingExtra: the engine is not installed.
    """
    module = importlib.import_module(ENGINES[backend])
    check_options(backend, request.options, module.OPTIONS)
    envs: VecEnv = module.make_envs(request)
    return envs
