"""Envs for RLlib: its EnvRunners step one of our vector envs through Gymnasium's vector entry point.

    from ray.tune.registry import register_env
    from vecenv.ray_rllib import make_env

    register_env("vecenv", make_env)
    config = (
        PPOConfig()
        .environment("vecenv", env_config={"env_id": "CartPole-v1", "backend": "subproc"})
        .env_runners(num_envs_per_env_runner=16, gym_env_vectorize_mode="vector_entry_point")
    )

The ids that this package registers need no registration: ``.environment("vecenv:vecenv/Pong-v5", env_config={...})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from vecenv.autoreset import autoreset_mode_of
from vecenv.base import VecEnv
from vecenv.factory import make_vec


def make_env(context: Mapping[str, Any]) -> VecEnv | gym.Env[Any, Any]:
    """Build what RLlib asks for.

    Args:
        context: RLlib's ``env_config``: ``env_id`` and keywords of `make_vec`. RLlib adds ``num_envs`` where it wants a
            vector env; without it, it wants one env, to look at its spaces.

    Raises:
        ValueError: ``env_id`` is missing, or an autoreset mode that RLlib does not expect.
        UnknownSetting: a setting that does not exist.
    """
    settings = dict(context)
    if "env_id" not in settings:
        raise ValueError("env_config: expected 'env_id', the id of the environment, beside the keywords of make_vec")
    env_id = settings.pop("env_id")
    mode = autoreset_mode_of(settings.get("autoreset_mode", AutoresetMode.NEXT_STEP))
    if mode is not AutoresetMode.NEXT_STEP:
        raise ValueError(f"autoreset_mode={mode.value!r}: RLlib expects vector envs in the mode 'NextStep'")
    if "num_envs" in settings:
        return make_vec(env_id, **settings)
    # A single env is one of a vector env's: the same pipeline, whatever the back end.
    settings.update(backend="sync", num_workers=None, batch_size=None, backend_options=None)
    envs: Any = make_vec(env_id, 1, **settings)
    env: gym.Env[Any, Any] = envs.envs[0]
    return env
