"""Stable-Baselines3's PPO on vecenv: one import changes, the learning curve does not.

python examples/sb3_ppo.py
python examples/sb3_ppo.py --env PongNoFrameskip-v4
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecFrameStack

from vecenv.registration import find_game
from vecenv.sb3 import make_atari_env, make_vec_env  # in place of: from stable_baselines3.common.env_util import ...

parser = argparse.ArgumentParser(description="Stable-Baselines3's PPO on vecenv.")
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--short", action="store_true", help="a few updates only")
arguments = parser.parse_args()

if find_game(arguments.env) is not None:
    envs = VecFrameStack(make_atari_env(arguments.env, n_envs=8, seed=0), n_stack=4)
    policy = "CnnPolicy"
else:
    envs = make_vec_env(arguments.env, n_envs=8, seed=0)
    policy = "MlpPolicy"
    torch.set_num_threads(1)  # small networks are no faster on several

model = PPO(policy, envs, n_steps=32 if arguments.short else 128, batch_size=256, seed=0, device="cpu", verbose=1)
model.learn(1_024 if arguments.short else arguments.steps)
returns = [episode["r"] for episode in model.ep_info_buffer]
print(f"mean return of the last {len(returns)} episodes: {sum(returns) / max(1, len(returns)):.1f}")
envs.close()
