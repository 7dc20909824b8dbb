"""The rollout: observations stay in the vector env's own memory, everything else is stored here as [T, N]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .gae import compute_gae
from .normalisation import Moments, as_they_are


class Minibatch(NamedTuple):
    """Rows for one gradient step, on the learner's device."""

    observations: Tensor
    """[B, ...] in the env's dtype."""
    actions: Tensor
    """[B] int64, or [B, A] float32 as drawn, before they were clipped for the env."""
    log_probs: Tensor
    """[B] float32, under the policy that acted."""
    advantages: Tensor
    """[B] float32, normalised over the whole rollout."""
    returns: Tensor
    """[B] float32, value targets."""


class RolloutBuffer:
    """T rows of N environments, and the observation after the last row.

    Observations are **views** of ``envs.observation_slots`` [S, N, ...], which the environments fill in place: storing
    a rollout copies none of their bytes. The slots are a ring of at least T + 1. With exactly as many, each rollout
    starts one slot before the last one did; row t lies in slot ``(start + t) % S``. With 2 T + 1 slots a rollout stays
    whole while the next one is collected.

    Attributes (all owned by the buffer and overwritten by the next rollout):
        actions: [T, N] int64, or [T, N, A] float32.
        log_probs, values, next_values, rewards: [T, N] float32; ``next_values`` belong to the true next observations.
        terminations, truncations: [T, N] bool.
        valid: [T, N] bool, False on filler rows.
    """

    def __init__(
        self,
        observation_slots: NDArray[Any],
        num_steps: int,
        action_shape: tuple[int, ...] = (),
        action_dtype: type[Any] = np.int64,
    ) -> None:
        """Use ``observation_slots`` [S, N, ...] as storage; it stays the vector env's property.

        Raises:
            ValueError: there are fewer than T + 1 slots.
        """
        num_slots, num_envs = observation_slots.shape[:2]
        if num_slots < num_steps + 1:
            raise ValueError(f"a rollout needs {num_steps + 1} observation slots, got {num_slots}")
        self.num_steps, self.num_slots, self.num_envs = num_steps, int(num_slots), int(num_envs)
        self.observations = torch.from_numpy(observation_slots)
        self.start = 0
        shape = (self.num_steps, num_envs)
        self.actions: NDArray[Any] = np.zeros((*shape, *action_shape), action_dtype)
        self.log_probs, self.values, self.next_values, self.rewards = (np.zeros(shape, np.float32) for _ in range(4))
        self.terminations, self.truncations, self.valid = (np.zeros(shape, np.bool_) for _ in range(3))
        self.advantages, self.returns = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def slot(self, t: int) -> int:
        """Slot that holds the observations of row ``t`` (``t = T``: those after the last row)."""
        return (self.start + t) % self.num_slots

    def compute_advantages(self, gamma: float, gae_lambda: float) -> None:
        """Fill ``advantages`` and ``returns`` from what was collected."""
        self.advantages, self.returns = compute_gae(
            self.rewards,
            self.values,
            self.next_values,
            self.terminations,
            self.truncations,
            self.valid,
            gamma,
            gae_lambda,
        )

    def trained_rows(self) -> NDArray[np.int64]:
        """Numbers ``t * N + n`` of all rows whose action was executed, in order."""
        return np.flatnonzero(self.valid)

    def observation_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the observations of ``rows`` [B] int64 lie in ``observations.flatten(0, 1)``: [B] int64."""
        t, env = np.divmod(rows, self.num_envs)
        places: NDArray[np.int64] = (self.start + t) % self.num_slots * self.num_envs + env
        return places


class TrainingBatch:
    """One rollout made ready for gradient steps: advantages normalised over all its trained rows."""

    def __init__(
        self, rollout: RolloutBuffer, device: torch.device, merge: Callable[[Moments], Moments] = as_they_are
    ) -> None:
        """Read ``rollout``, whose advantages are computed; it must not be refilled while this batch is in use.

        Args:
            rollout: of this process.
            device: where minibatches lie.
            merge: adds the moments of other processes' advantages to those of these.
        """
        rows = rollout.trained_rows()
        advantages = rollout.advantages.reshape(-1)[rows]
        _, mean, variance = merge((len(rows), advantages.mean(), advantages.var()))
        advantages = (advantages - mean) / (np.sqrt(variance) + 1e-8)
        self.num_rows = len(rows)
        self._device = device
        self._observations = rollout.observations.flatten(0, 1)
        self._where = torch.from_numpy(rollout.observation_rows(rows))
        self._fields = [
            torch.from_numpy(array).to(device)
            for array in (
                rollout.actions.reshape(-1, *rollout.actions.shape[2:])[rows],
                rollout.log_probs.reshape(-1)[rows],
                advantages,
                rollout.returns.reshape(-1)[rows],
            )
        ]

    def select(self, order: Tensor) -> Minibatch:
        """The rows ``order`` [B] int64 (0 <= row < num_rows, on the CPU) as a minibatch."""
        observations = self._observations.index_select(0, self._where[order]).to(self._device)
        order = order.to(self._device)
        return Minibatch(observations, *(field[order] for field in self._fields))
