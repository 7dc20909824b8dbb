"""Environments of uneven cost: act for those that are ready, while the others still step.

    python examples/async_send_recv.py

`recv` returns the first `batch_size` envs that have finished; `infos["env_id"]` says which. A slow env holds up only
itself.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np

import vecenv


class UnevenEnv(gym.Env):
    """Steps of the first env of eight last twenty times as long."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, milliseconds: float = 1.0) -> None:
        self.milliseconds = milliseconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action):
        time.sleep(self.milliseconds / 1000)
        observation = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return observation, float(action), bool(self.np_random.random() < 0.05), False, {}


def policy(observations):
    return (observations.sum(axis=1) > 0).astype(np.int64)


def play_together(envs, steps):
    observations, _ = envs.reset(seed=0)
    for _ in range(steps // envs.num_envs):
        observations, *_ = envs.step(policy(observations))


def play_as_they_come(envs, steps):
    counts = np.zeros(envs.num_envs, int)
    observations, _ = envs.reset(seed=0)
    envs.send(policy(observations), np.arange(envs.num_envs))
    while counts.sum() < steps:
        observations, *_, infos = envs.recv()
        counts[infos["env_id"]] += 1
        envs.send(policy(observations))  # to the envs that were just received
    return counts


parser = argparse.ArgumentParser(description="Environments of uneven cost.")
parser.add_argument("--short", action="store_true", help="fewer steps")
arguments = parser.parse_args()
steps = 400 if arguments.short else 8_000

costs = [{"milliseconds": 20.0}, *[{"milliseconds": 1.0}] * 7]
with vecenv.make_vec(UnevenEnv, 8, "subproc", num_workers=8, batch_size=4, per_env_kwargs=costs) as envs:
    start = time.perf_counter()
    play_together(envs, steps)
    together = steps / (time.perf_counter() - start)
    start = time.perf_counter()
    counts = play_as_they_come(envs, steps)
    as_they_come = counts.sum() / (time.perf_counter() - start)
    print(f"all together: {together:,.0f} steps/s; as they come: {as_they_come:,.0f} steps/s")
    print(f"steps of each env: {counts.tolist()}")
