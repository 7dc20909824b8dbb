"""PPO in one file. The line that makes the vector env is the only one that knows who steps the environments.

    python examples/ppo_single_file.py --vector vecenv
    python examples/ppo_single_file.py --vector gymnasium

Both print the same returns: the observations, rewards and flags are the same bits. Only the speed differs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import vecenv


@dataclass
class Settings:
    env_id: str = "CartPole-v1"
    vector: str = "vecenv"
    num_envs: int = 8
    total_steps: int = 100_000
    rollout_steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    seed: int = 1


def make_envs(settings: Settings) -> gym.vector.VectorEnv:
    if settings.vector == "gymnasium":
        return gym.make_vec(settings.env_id, settings.num_envs, vectorization_mode="async")
    return vecenv.make_vec(settings.env_id, settings.num_envs)  # <- the line that changes


class Agent(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.actor = mlp(inputs, int(envs.single_action_space.n), 0.01)
        self.critic = mlp(inputs, 1, 1.0)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)

    def policy(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations))


def mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in ((layers[0], 2**0.5), (layers[2], 2**0.5), (layers[4], last_gain)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Rollout:
    """What was seen in `rollout_steps` steps of all envs, [T, N], and the returns of the episodes that ended."""

    def __init__(self, settings: Settings, envs: gym.vector.VectorEnv) -> None:
        shape = (settings.rollout_steps, settings.num_envs)
        self.observations = torch.zeros((*shape, *envs.single_observation_space.shape))
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs = torch.zeros(shape)
        self.rewards = torch.zeros(shape)
        self.terminated = torch.zeros(shape, dtype=torch.bool)
        self.ended = torch.zeros(shape, dtype=torch.bool)
        # In the step after an end the env is only reset: nothing was decided there, nothing can be learnt from it.
        self.valid = torch.zeros(shape, dtype=torch.bool)
        self.values = torch.zeros((shape[0] + 1, shape[1]))
        self.returns: list[float] = []


def collect(envs, agent: Agent, rollout: Rollout, observations, ended):
    """Play one rollout; gives the observations and ends that the next one begins with."""
    for t in range(len(rollout.actions)):
        batch = torch.as_tensor(observations, dtype=torch.float32)
        with torch.no_grad():
            policy = agent.policy(batch)
            actions = policy.sample()
            rollout.values[t] = agent.value(batch)
        rollout.observations[t], rollout.actions[t] = batch, actions
        rollout.log_probs[t] = policy.log_prob(actions)
        rollout.valid[t] = torch.as_tensor(~ended)
        observations, rewards, terminated, truncated, infos = envs.step(actions.numpy())
        ended = terminated | truncated
        rollout.rewards[t] = torch.as_tensor(rewards)
        rollout.terminated[t], rollout.ended[t] = torch.as_tensor(terminated), torch.as_tensor(ended)
        if "episode" in infos:
            rollout.returns += infos["episode"]["r"][infos["_episode"]].tolist()
    with torch.no_grad():
        rollout.values[-1] = agent.value(torch.as_tensor(observations, dtype=torch.float32))
    return observations, ended


def advantages_of(settings: Settings, rollout: Rollout) -> torch.Tensor:
    """GAE: an episode that was cut off goes on in the value of its last observation, one that ended does not."""
    advantages = torch.zeros_like(rollout.rewards)
    following = torch.zeros(settings.num_envs)
    for t in reversed(range(settings.rollout_steps)):
        next_values = rollout.values[t + 1] * ~rollout.terminated[t]
        delta = rollout.rewards[t] + settings.gamma * next_values - rollout.values[t]
        following = delta + settings.gamma * settings.gae_lambda * following * ~rollout.ended[t]
        advantages[t] = following
    return advantages


def update(settings: Settings, agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    advantages = advantages_of(settings, rollout)
    targets = (advantages + rollout.values[:-1])[rollout.valid]
    advantages = advantages[rollout.valid]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    observations, actions = rollout.observations[rollout.valid], rollout.actions[rollout.valid]
    log_probs = rollout.log_probs[rollout.valid]
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(actions)).chunk(settings.minibatches):
            policy = agent.policy(observations[rows])
            ratio = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
            value_loss = 0.5 * (agent.value(observations[rows]) - targets[rows]).pow(2).mean()
            entropy = policy.entropy().mean()
            optimizer.zero_grad()
            (policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(settings: Settings) -> None:
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)  # small networks are no faster on several
    envs = gym.wrappers.vector.RecordEpisodeStatistics(make_envs(settings))
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)
    observations, _ = envs.reset(seed=settings.seed)
    ended = np.zeros(settings.num_envs, bool)
    steps, start, recent = 0, time.perf_counter(), []
    while steps < settings.total_steps:
        rollout = Rollout(settings, envs)
        observations, ended = collect(envs, agent, rollout, observations, ended)
        update(settings, agent, optimizer, rollout)
        steps += rollout.actions.numel()
        recent = (recent + rollout.returns)[-100:]
        speed = steps / (time.perf_counter() - start)
        print(f"step {steps:7d}  mean return {np.mean(recent or [0.0]):6.1f}  ({speed:,.0f} steps/s)", flush=True)
    envs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PPO in one file.")
    parser.add_argument("--vector", choices=("vecenv", "gymnasium"), default="vecenv", help="who steps the envs")
    parser.add_argument("--env", default=Settings.env_id, help="id of an env with a Discrete action space")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--short", action="store_true", help="a few updates only")
    arguments = parser.parse_args()
    chosen = Settings(arguments.env, arguments.vector, seed=arguments.seed)
    if arguments.short:
        chosen.total_steps, chosen.rollout_steps = 4_096, 64
    train(chosen)
