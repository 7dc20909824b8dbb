"""An environment of one's own in worker processes.

    python examples/own_env.py

The class lives in this script, there is no `if __name__ == "__main__"`, and the envs differ in a constructor argument:
all of that is fine under every start method.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np

import vecenv


class HillEnv(gym.Env):
    """Walk on a line to the top of a hill; the reward is how high one stands."""

    def __init__(self, top: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.top = top

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.position, self.time = self.np_random.uniform(-1.0, 1.0), 0
        return self._observe(), {}

    def step(self, action):
        self.position += 0.1 * (int(action) - 1)
        self.time += 1
        distance = abs(self.position - self.top)
        return self._observe(), 1.0 - distance, distance < 0.05, self.time >= 50, {"distance": distance}

    def _observe(self):
        return np.array([self.position, self.top], np.float32)


parser = argparse.ArgumentParser(description="An environment of one's own in worker processes.")
parser.add_argument("--short", action="store_true", help="fewer steps")
arguments = parser.parse_args()

tops = [{"top": float(top)} for top in np.linspace(-2, 2, 8)]
with vecenv.make_vec(HillEnv, 8, "subproc", num_workers=2, per_env_kwargs=tops, statistics=True) as envs:
    observations, infos = envs.reset(seed=0)
    returns = []
    for _ in range(100 if arguments.short else 2_000):
        actions = 1 + np.sign((observations[:, 1] - observations[:, 0]).round(1)).astype(int)  # towards the top
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.2f}, tops {envs.get_attr('top')}")
