"""An environment's engine alone, stepped with random actions: the rate that no agent in it can exceed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gymnasium
import numpy as np

from .contestants import Settings, VectorContestant, draw_actions
from .parallel_players import ParallelPlayers, Player
from .peers import PEERS

STEPS_AT_ONCE = 100


def bare_gymnasium(env_id: str, num_workers: int) -> ParallelPlayers:
    """Processes with one Gymnasium environment each."""
    return ParallelPlayers("bare Gymnasium", [partial(_make_player, env_id, seed) for seed in range(num_workers)])


def bare_envpool(env_id: str, num_envs: int, num_threads: int) -> VectorContestant:
    """EnvPool, used without anything around it."""
    settings = Settings(env_id, num_envs, num_threads)
    return PEERS["envpool"].build(settings, "bare EnvPool", draw_actions(settings))


def _make_player(env_id: str, seed: int) -> Player:
    env = gymnasium.make(env_id, disable_env_checker=True)
    env.action_space.seed(seed)
    env.reset(seed=seed)
    return partial(_play, env, [env.action_space.sample() for _ in range(STEPS_AT_ONCE)])


def _play(env: gymnasium.Env[object, np.ndarray], actions: Sequence[np.ndarray]) -> int:
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions)
