"""vecenv: vectorized environments for reinforcement learning, in worker processes, compiled kernels or engines.

The names below are loaded when they are first used, so that ``import vecenv`` is quick and brings no optional package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vecenv.registration import register_envs

__version__ = "0.1.0"

register_envs()

if TYPE_CHECKING:
    from vecenv.atari import AtariEnv
    from vecenv.autoreset import AutoresetMode, true_next_obs
    from vecenv.base import VecEnv
    from vecenv.compiled_env import CompiledEnv, register_compiled_env
    from vecenv.compiled_vec_env import CompiledVecEnv
    from vecenv.errors import EnvError, MissingExtra, UnknownSetting, VecEnvError, WorkerDied
    from vecenv.factory import make_vec
    from vecenv.preprocess.config import AtariConfig
    from vecenv.statistics import EpisodeStatistics
    from vecenv.subproc_backend import SubprocVecEnv
    from vecenv.sync_backend import SyncVecEnv

_HOMES = {
    "AtariConfig": "vecenv.preprocess.config",
    "AtariEnv": "vecenv.atari",
    "AutoresetMode": "vecenv.autoreset",
    "CompiledEnv": "vecenv.compiled_env",
    "CompiledVecEnv": "vecenv.compiled_vec_env",
    "EnvError": "vecenv.errors",
    "EpisodeStatistics": "vecenv.statistics",
    "MissingExtra": "vecenv.errors",
    "SubprocVecEnv": "vecenv.subproc_backend",
    "SyncVecEnv": "vecenv.sync_backend",
    "UnknownSetting": "vecenv.errors",
    "VecEnv": "vecenv.base",
    "VecEnvError": "vecenv.errors",
    "WorkerDied": "vecenv.errors",
    "make_vec": "vecenv.factory",
    "register_compiled_env": "vecenv.compiled_env",
    "true_next_obs": "vecenv.autoreset",
}

__all__ = [
    "AtariConfig",
    "AtariEnv",
    "AutoresetMode",
    "CompiledEnv",
    "CompiledVecEnv",
    "EnvError",
    "EpisodeStatistics",
    "MissingExtra",
    "SubprocVecEnv",
    "SyncVecEnv",
    "UnknownSetting",
    "VecEnv",
    "VecEnvError",
    "WorkerDied",
    "make_vec",
    "register_compiled_env",
    "true_next_obs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vecenv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
