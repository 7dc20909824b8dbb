"""What `make_vec` was asked for, read for engines that bring their own envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenv.arguments import check_positive_int
from vecenv.atari_game import emulator_seed
from vecenv.atari_settings import resolve_config
from vecenv.cores import usable_cores
from vecenv.engines import EngineRequest
from vecenv.preprocess.config import AtariConfig

#: Entries of ``backend_options`` that `num_threads_of` and `affinity_of` read.
THREAD_OPTIONS = ("num_threads", "thread_affinity_offset")


def id_of(request: EngineRequest, engine: str) -> str:
    """The env's id; what an engine without Python envs cannot use is refused.

    Raises:
        NotImplementedError: a function in place of an id, wrappers, or arguments of single envs.
    """
    if request.wrappers:
        raise NotImplementedError(f"backend={engine!r} takes no wrappers: its envs are no Python objects")
    if request.per_env_kwargs is not None:
        raise NotImplementedError(f"backend={engine!r} takes no per_env_kwargs: its envs are all built alike")
    env_id = request.env_id
    if isinstance(env_id, EnvSpec):
        return env_id.id
    if not isinstance(env_id, str):
        raise NotImplementedError(f"backend={engine!r} builds its own envs, by their ids; got {env_id!r}")
    return env_id.rpartition(":")[2]


def num_threads_of(request: EngineRequest, engine: str) -> int:
    """Threads of the engine: as asked for, else one per usable core; at most one per env.

    Raises:
        TypeError, ValueError: no positive int, or two answers.
    """
    threads = request.options.get("num_threads")
    if threads is None:
        threads = request.num_workers
    elif request.num_workers not in (None, threads):
        raise ValueError(
            f"backend={engine!r}: num_workers={request.num_workers} and backend_options num_threads={threads!r} "
            "contradict each other; give one of them"
        )
    if threads is None:
        return min(usable_cores(), request.num_envs)
    return check_positive_int("num_threads", threads)


def affinity_of(request: EngineRequest) -> int:
    """The core of the first thread, -1: threads are not bound to cores.

    Raises:
        TypeError, ValueError: no int of at least -1.
    """
    offset = request.options.get("thread_affinity_offset", -1)
    if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
        raise TypeError(f"thread_affinity_offset: expected an int, got {offset!r}")
    if offset < -1:
        raise ValueError(f"thread_affinity_offset: expected -1 or the number of a core, got {offset}")
    return int(offset)


def config_of(request: EngineRequest, engine: str, env_id: str, env_kwargs: dict[str, Any]) -> AtariConfig:
    """The settings of an Atari game; the engine's own preset is the default.

    Raises:
        UnknownSetting, TypeError, ValueError: see `resolve_config`.
        NotImplementedError: ``preprocess="none"``.
    """
    if isinstance(request.preprocess, str) and request.preprocess == "none":
        raise NotImplementedError(f"backend={engine!r} always preprocesses Atari games: preprocess='none' is not there")
    return resolve_config(env_id, engine if request.preprocess is None else request.preprocess, **env_kwargs)


def check_config(engine: str, config: AtariConfig, possible: Mapping[str, Sequence[Any]]) -> None:
    """Refuse settings that an engine does not do exactly.

    Args:
        engine: its name.
        config: the settings.
        possible: field -> the values that the engine has.

    Raises:
        NotImplementedError: the message names field and value.
    """
    for name, values in possible.items():
        value = getattr(config, name)
        if not any(value is known or (value == known and type(value) is type(known)) for known in values):
            known = " or ".join(repr(value) for value in values)
            raise NotImplementedError(
                f"backend={engine!r} cannot do {name}={value!r}, only {known}; use backend='subproc' or 'sync'"
            )


def engine_seeds(seeds: Sequence[int | None], unseeded: bool) -> list[int | None]:
    """Seeds in the range of engines.

    Args:
        seeds: one per env.
        unseeded: whether envs without one were never seeded; they get seeds from the operating system then, as an
            engine would start all of them alike.
    """
    fresh = np.random.SeedSequence().generate_state(len(seeds)) >> 1 if unseeded else [None] * len(seeds)
    return [
        (None if other is None else int(other)) if seed is None else emulator_seed(seed)
        for seed, other in zip(seeds, fresh, strict=True)
    ]
