"""Vector envs that agents cannot learn or play in, refused before anything is played."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from vecenv import VecEnv
from vecenv.errors import UnknownSetting


def require_autoreset(envs: VecEnv) -> AutoresetMode:
    """How ``envs`` resets by itself.

    Raises:
        UnknownSetting: it does not.
    """
    mode = AutoresetMode(envs.metadata["autoreset_mode"])
    if mode is AutoresetMode.DISABLED:
        raise UnknownSetting("agents need autoreset_mode NextStep or SameStep, got Disabled")
    return mode


def require_statistics(envs: VecEnv) -> None:
    """Refuse a vector env whose infos do not tell of episodes: their ends would be waited for without end.

    Raises:
        UnknownSetting: it was made without statistics.
    """
    if not envs.settings.statistics:
        raise UnknownSetting("agents learn of ended episodes from infos: make envs with statistics=True")


def require_number(envs: VecEnv, num_envs: int) -> None:
    """Refuse another number of environments than the hyper-parameters say.

    Raises:
        UnknownSetting: with both numbers.
    """
    if envs.num_envs != num_envs:
        raise UnknownSetting(f"num_envs is {num_envs}, but envs has {envs.num_envs} environments")
