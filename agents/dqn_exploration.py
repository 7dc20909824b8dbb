"""Epsilon-greedy exploration: a head for :class:`~vecenv.agents.inference.BatchedPolicy`."""

from __future__ import annotations

import torch
from torch import Tensor

from .dqn_config import DQNConfig


class EpsilonGreedy:
    """Takes the best action, or with probability epsilon any action; every environment has a coin of its own.

    Attributes:
        epsilon: chance of a random action, for the next call.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        """Explore with probability ``epsilon``."""
        self.epsilon = epsilon

    def __call__(self, values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions [B] and their log-probabilities [B] from values of the actions [B, A]."""
        best = values.argmax(dim=-1)
        num_envs, num_actions = values.shape
        coins = torch.rand(num_envs, generator=generator, device=values.device)
        others = torch.randint(num_actions, (num_envs,), generator=generator, device=values.device)
        actions = torch.where(coins < self.epsilon, others, best)
        chances = self.epsilon / num_actions + (1.0 - self.epsilon) * (actions == best)
        return actions, chances.log()


def epsilon_at(config: DQNConfig, env_steps: int) -> float:
    """Chance of a random action after so many env steps; 0 where noise explores."""
    if config.noisy:
        return 0.0
    progress = min(1.0, env_steps / config.epsilon_steps)
    return config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start)
