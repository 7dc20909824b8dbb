"""The loss of DQN, row by row: Huber for expected returns, cross-entropy for distributions of returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .q_networks import QNetwork


class QMinibatch(NamedTuple):
    """Transitions for one gradient step, on the learner's device."""

    observations: Tensor
    """[B, ...] in the env's dtype."""
    actions: Tensor
    """[B] int64."""
    returns: Tensor
    """[B] float32, discounted rewards up to the next observation."""
    discounts: Tensor
    """[B] float32, what the value of the next observation counts."""
    next_observations: Tensor
    """[B, ...] in the env's dtype."""
    weights: Tensor
    """[B] float32, importance weights."""
    rows: Tensor
    """[B] int64, number of each row in the whole minibatch."""


def row_losses(
    network: QNetwork, target_network: QNetwork, batch: QMinibatch, *, double: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, errors and values of the actions taken, [B] float32 each; only the losses carry gradients.

    Args:
        network: the one that learns.
        target_network: values what comes next.
        batch: transitions.
        double: whether ``network`` picks the next action that ``target_network`` values.
    """
    with torch.no_grad():
        next_outputs = target_network.outputs(batch.next_observations)
        picker = network.outputs(batch.next_observations) if double else next_outputs
        picked = (network if double else target_network).action_values(picker).argmax(dim=-1)
        next_chosen = _of_actions(next_outputs, picked)
    chosen = _of_actions(network.outputs(batch.observations), batch.actions)
    if chosen.shape[-1] > 1:
        return _categorical_losses(chosen, next_chosen, batch, network.atoms)
    values = chosen.squeeze(-1)
    targets = batch.returns + batch.discounts * next_chosen.squeeze(-1)
    losses = functional.smooth_l1_loss(values, targets, reduction="none")
    values = values.detach()
    return losses, (values - targets).abs(), values


def _categorical_losses(
    logits: Tensor, next_logits: Tensor, batch: QMinibatch, atoms: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropies; the errors are divergences, which lack the part that no learning can remove."""
    target = project_distribution(next_logits.softmax(dim=-1), batch.returns, batch.discounts, atoms)
    entropy = torch.special.entr(target).sum(dim=-1)
    log_probabilities = logits.log_softmax(dim=-1)
    losses = -(target * log_probabilities).sum(dim=-1)
    values = log_probabilities.detach().exp() @ atoms
    return losses, (losses.detach() - entropy).clamp_min(0.0), values


def project_distribution(probabilities: Tensor, returns: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of ``returns + discounts * X`` on the atoms again (Bellemare et al., 2017, algorithm 1).

    Args:
        probabilities: [B, Z], of X over the atoms.
        returns: [B].
        discounts: [B].
        atoms: [Z], equally spaced.

    Returns:
        [B, Z]: each moved atom's probability is shared by its two neighbours; what lies outside goes to the ends.
    """
    spacing = atoms[1] - atoms[0]
    moved = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms  # (B, Z)
    positions = (moved.clamp(atoms[0], atoms[-1]) - atoms[0]) / spacing
    # A neighbour at distance d gets 1 - d of it, and nothing beyond distance 1.
    distances = (positions.unsqueeze(1) - torch.arange(len(atoms), device=atoms.device).view(1, -1, 1)).abs()
    shares = (1.0 - distances).clamp_min(0.0)  # (B, Z to, Z from)
    return torch.bmm(shares, probabilities.unsqueeze(-1)).squeeze(-1)


def _of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """The row of each action: [B, A, Z] and [B] -> [B, Z]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[-1])
    return outputs.gather(1, index).squeeze(1)
