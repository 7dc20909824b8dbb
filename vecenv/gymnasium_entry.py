"""What Gymnasium's registry calls for ``gymnasium.make_vec("vecenv:vecenv/Pong-v5")``."""

from __future__ import annotations

from typing import Any

from vecenv.base import VecEnv
from vecenv.factory import make_vec


def make_registered_vec(env_id: str, num_envs: int = 1, **settings: Any) -> VecEnv:
    """Vector entry point of the ids ``vecenv/<Game>-v5``.

    Args:
        env_id: the id; it stands in the registered spec.
        num_envs: number of environments.
        settings: keywords of `vecenv.make_vec` (``backend``, ``num_workers``, ``seed``, ``preprocess``, ...) and of the
            game. Gymnasium takes them as keywords of its own `make_vec`; its ``vector_kwargs`` are for its own vector
            envs.

    Raises:
        UnknownSetting: a setting that does not exist.
        MissingExtra: ale_py is not installed.
    """
    return make_vec(env_id, num_envs, **settings)
