"""Gradients of one minibatch, computed by several threads on a share of its rows each.

Torch's own threads meet after every single operation. Where other processes want the same cores, each meeting waits for
whichever thread is not running, about a hundred times per gradient step. Here threads meet once per gradient step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from vecenv.cores import usable_cores

LossFunction = Callable[[Any, Any], tuple[Tensor, Tensor]]
"""(network, rows) -> (loss to minimise, figures to report [F]); both are means over the rows."""

MOST_TRAINING_THREADS = 8
"""With more threads each has so few rows that the sum of their gradients costs more than they save."""


def num_training_threads(asked: int, device: torch.device) -> int:
    """How many threads share the rows of a gradient step: as many as asked for, 0 chooses; 1 on a GPU."""
    if device.type != "cpu":
        return 1
    return asked or min(usable_cores(), MOST_TRAINING_THREADS)


class ParallelGradients:
    """Replicas of a network that share its weights and have gradients of their own, one per thread.

    Weights must change in place only, as optimizers and ``load_state_dict`` do.
    """

    def __init__(self, network: nn.Module, num_threads: int) -> None:
        """Use ``num_threads`` threads, the calling one included; 1 needs no replica."""
        self.network = network
        self._replicas = [_replica_of(network) for _ in range(num_threads - 1)]
        self._pool = ThreadPoolExecutor(num_threads - 1, "gradients") if self._replicas else None

    def compute(self, loss_function: LossFunction, minibatch: tuple[Tensor, ...]) -> Tensor:
        """Set the network's gradients for the mean loss over ``minibatch``; returns the mean figures [F].

        The minibatch is a named tuple of tensors [B, ...]; the loss function gets the same kind with a part of the
        rows. The sum over threads is always in the same order, so results repeat for a fixed number of threads.
        """
        networks = [self.network, *self._replicas]
        num_rows, kind = len(minibatch[0]), type(minibatch)
        parts = [
            kind(*fields)
            for fields in zip(*(field.tensor_split(len(networks)) for field in minibatch), strict=True)
            if len(fields[0])  # fewer rows than threads leave some without work
        ]
        shares = [len(part[0]) / num_rows for part in parts]
        work = list(zip(networks, parts, shares, strict=False))
        others = [] if self._pool is None else [self._pool.submit(_backward, loss_function, *w) for w in work[1:]]
        figures = _backward(loss_function, *work[0])
        for number, other in enumerate(others, start=1):
            figures = figures + other.result()
            for mine, theirs in zip(self.network.parameters(), networks[number].parameters(), strict=True):
                mine.grad.add_(theirs.grad)  # type: ignore[union-attr, arg-type]
        return figures

    def close(self) -> None:
        """End the threads; may be called again."""
        if self._pool is not None:
            self._pool.shutdown()


def _backward(loss_function: LossFunction, network: nn.Module, part: tuple[Tensor, ...], share: float) -> Tensor:
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)  # counts for the calling thread alone
    for parameter in network.parameters():
        parameter.grad = None
    loss, figures = loss_function(network, part)
    (loss * share).backward()  # type: ignore[no-untyped-call]
    return figures.detach() * share


def _replica_of(network: nn.Module) -> nn.Module:
    replica = copy.deepcopy(network)
    for mine, original in zip(
        [*replica.parameters(), *replica.buffers()], [*network.parameters(), *network.buffers()], strict=True
    ):
        mine.data = original.data
    return replica
