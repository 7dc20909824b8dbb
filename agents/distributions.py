"""What the outputs of a policy head mean, for the gradient step: log-probabilities and entropy.

Drawing from the same distributions is the business of :mod:`~vecenv.agents.inference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Distribution(NamedTuple):
    """A kind of policy."""

    explore: str
    """Action head that draws from it."""
    exploit: str
    """Action head that takes the best action."""
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """(outputs [B, ...], actions [B, ...]) -> (log-probability of each action [B], entropy [B])."""


def evaluate_categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over ``logits`` [B, A]; ``actions`` [B] int64."""
    log_policy = torch.log_softmax(logits, dim=-1)
    log_probs = log_policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return log_probs, -(log_policy.exp() * log_policy).sum(dim=-1)


def evaluate_gaussian(outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Independent normal distributions; ``outputs`` [B, 2 A] are means and log standard deviations."""
    means, log_stds = outputs.chunk(2, dim=-1)
    return gaussian_log_probs((actions - means) * (-log_stds).exp(), log_stds), (
        (log_stds + 0.5 * (1.0 + math.log(2.0 * math.pi))).sum(dim=-1)
    )


def gaussian_log_probs(deviations: Tensor, log_stds: Tensor) -> Tensor:
    """Log-density [B] of actions ``deviations`` [B, A] standard deviations away from their means."""
    return -(0.5 * deviations.square() + log_stds + 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)


DISTRIBUTIONS = {
    "categorical": Distribution("categorical", "greedy", evaluate_categorical),
    "gaussian": Distribution("gaussian", "gaussian_mean", evaluate_gaussian),
}
