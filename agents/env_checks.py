"""Vector envs that agents cannot learn or play in, refused before anything is played."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vecenv import VecEnv
from vecenv.errors import UnknownSetting

_NO_STATISTICS = "agents learn of ended episodes from infos: make envs with statistics=True"


def require_autoreset(envs: VecEnv) -> AutoresetMode:
    """How ``envs`` resets by itself.

    Raises:
        UnknownSetting: it does not.
    """
    mode = AutoresetMode(envs.metadata["autoreset_mode"])
    if mode is AutoresetMode.DISABLED:
        raise UnknownSetting("agents need autoreset_mode NextStep or SameStep, got Disabled")
    return mode


def has_statistics(envs: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ``envs`` is one of ours, or wrappers around it, that tells of ended episodes by itself."""
    return isinstance(envs.unwrapped, VecEnv) and envs.unwrapped.settings.statistics


def require_statistics(envs: VectorEnv[Any, Any, Any]) -> None:
    """Refuse a vector env whose infos do not tell of episodes: their ends would be waited for without end.

    Those of wrappers around it are only known once an episode ends; see :func:`require_told`.

    Raises:
        UnknownSetting: it was made without statistics.
    """
    if isinstance(envs, VecEnv) and not has_statistics(envs):
        raise UnknownSetting(_NO_STATISTICS)


def require_told(ended: NDArray[np.bool_], infos: dict[str, Any]) -> None:
    """Refuse infos that do not tell of episodes that ended, of a vector env that :func:`has_statistics` denies.

    Args:
        ended: [N] bool, environments whose episode ended.
        infos: of the same step.

    Raises:
        UnknownSetting: nothing is said of them.
    """
    if "_episode" not in infos and ended.any():
        raise UnknownSetting(_NO_STATISTICS)


def require_number(envs: VecEnv, num_envs: int) -> None:
    """Refuse another number of environments than the hyper-parameters say.

    Raises:
        UnknownSetting: with both numbers.
    """
    if envs.num_envs != num_envs:
        raise UnknownSetting(f"num_envs is {num_envs}, but envs has {envs.num_envs} environments")
