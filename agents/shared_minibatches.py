"""Minibatches that several ranks share: each computes on its own rows, and all take the same step.

Minibatch m holds the rows that it would hold in one process with the environments of all ranks. A rank's gradient is
the mean over its own part, so parts are added up by their share of the rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .distributed import World


class SharedRows:
    """The trained rows of all ranks, numbered as one process with all environments would number them."""

    def __init__(self, valid: NDArray[np.bool_], world: World) -> None:
        """Exchange ``valid`` [T, N], False on filler rows, with the other ranks; an exchange of all ranks."""
        num_envs = valid.shape[1]
        of_all = np.concatenate(world.gather(valid), axis=1)  # (T, ranks * N)
        is_mine = np.zeros_like(of_all)
        is_mine[:, world.rows(num_envs)] = True
        is_mine = is_mine[of_all]
        self.num_rows = len(is_mine)
        self._own = torch.from_numpy(np.where(is_mine, np.cumsum(is_mine) - 1, -1))

    def own(self, rows: Tensor) -> Tensor:
        """This rank's among ``rows`` [B] int64 of all ranks, as numbers in its own `TrainingBatch`, in order."""
        mine = self._own[rows]
        return mine[mine >= 0]


class GradientSum:
    """Adds up the gradients of all ranks, and the figures that travel with them, as one buffer."""

    def __init__(self, network: nn.Module, world: World) -> None:
        """For the gradients of ``network``."""
        self._network = network
        self._world = world

    def all_reduce(self, figures: Tensor | None, share: float, num_figures: int) -> Tensor:
        """Replace the network's gradients by those of the whole minibatch; returns its mean figures [F].

        Args:
            figures: [F] float32, means over this rank's part; None where it has no row, and so no gradients either.
            share: this rank's part of the rows.
            num_figures: F.
        """
        parameters = list(self._network.parameters())
        if figures is None:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            figures = torch.zeros(num_figures, device=parameters[0].device)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        buffer = torch.cat([*(gradient.reshape(-1) for gradient in gradients), figures]).mul_(share)
        self._world.all_reduce(buffer)
        *summed, figures = torch.split(buffer, [*(gradient.numel() for gradient in gradients), num_figures])
        for gradient, total in zip(gradients, summed, strict=True):
            gradient.copy_(total.view_as(gradient))
        return figures.clone()  # not a view that keeps the whole buffer
