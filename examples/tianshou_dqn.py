"""Tianshou's DQN on vecenv: one import changes, the results do not.

python examples/tianshou_dqn.py
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

# In place of: from tianshou.env import DummyVectorEnv, SubprocVectorEnv
from vecenv.tianshou import DummyVectorEnv, SubprocVectorEnv

parser = argparse.ArgumentParser(description="Tianshou's DQN on vecenv.")
parser.add_argument("--short", action="store_true", help="a few updates only")
arguments = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # small networks are no faster on several
training_envs = SubprocVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(8)])
test_envs = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
training_envs.seed(0)
test_envs.seed(1)

policy = DiscreteQLearningPolicy(
    model=Net(state_shape=4, action_shape=2, hidden_sizes=[64, 64]),
    action_space=training_envs.action_space[0],
    eps_training=0.1,
)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), n_step_return_horizon=3, target_update_freq=320)
training_collector = Collector(algorithm, training_envs, VectorReplayBuffer(20_000, 8), exploration_noise=True)
test_collector = Collector(algorithm, test_envs)
result = algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=training_collector,
        test_collector=test_collector,
        max_epochs=1 if arguments.short else 10,
        epoch_num_steps=320 if arguments.short else 5_000,
        collection_step_num_env_steps=80,
        test_step_num_episodes=4 if arguments.short else 20,
        batch_size=64,
        update_step_num_gradient_steps_per_sample=0.1,
        stop_fn=lambda mean_return: mean_return >= 475,
        show_progress=False,
        verbose=False,
    )
)
print(f"best mean return {result.best_score:.1f} after {result.train_step} steps")
training_envs.close()
test_envs.close()
