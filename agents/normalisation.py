"""Running statistics, and observations and rewards brought to unit scale with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LIMIT = 10.0
"""Normalised values are clipped to this many standard deviations."""
EPSILON = 1e-8
"""Added to variances."""


Moments = tuple[float, Any, Any]
"""Count, mean and population variance of a sample."""


def merge_moments(
    count: float, mean: Any, variance: Any, other_count: float, other_mean: Any, other_variance: Any
) -> Moments:
    """Count, mean and population variance of two samples taken together (Chan, Golub and LeVeque, 1979)."""
    total = count + other_count
    if total == 0:
        return count, mean, variance
    delta = other_mean - mean
    share = other_count / total
    merged = (1 - share) * variance + share * other_variance + share * (1 - share) * delta**2
    return total, mean + share * delta, merged


def as_they_are(moments: Moments) -> Moments:
    """The moments themselves: nobody else has samples to merge with them."""
    return moments


class ObservationNormaliser(nn.Module):
    """Brings every number of an observation to mean 0 and variance 1; part of the network, so it is saved with it.

    Statistics are float64 and change only in :meth:`update`, in place: what acted on a rollout and what learns from it
    see the same numbers. Before the first update observations pass unchanged (but clipped).
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, observation_shape: Sequence[int]) -> None:
        """Statistics of observations of one shape."""
        super().__init__()
        shape = tuple(observation_shape)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, observations: Tensor) -> Tensor:
        """Normalised observations, float32 of the same shape [B, ...]."""
        return ((observations.to(torch.float32) - self.shift) * self.scale).clamp(-LIMIT, LIMIT)

    def update(self, observations: Tensor, merge: Callable[[Moments], Moments] = as_they_are) -> None:
        """Take ``observations`` [B, ...] into the statistics.

        Args:
            observations: of this process.
            merge: adds the moments of others' observations to those of these.
        """
        batch = observations.to(self.mean.device, torch.float64)
        moments: Moments = (0, torch.zeros_like(self.mean), torch.zeros_like(self.mean))
        if len(batch):
            moments = len(batch), batch.mean(dim=0), batch.var(dim=0, correction=0)
        new_count, *new = merge(moments)
        if new_count == 0:
            return
        count, mean, variance = merge_moments(float(self.count), self.mean, self.variance, new_count, *new)
        self.count.fill_(count)
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        self.shift.copy_(mean)
        self.scale.copy_((variance + EPSILON).rsqrt())


class RewardNormaliser:
    """Divides rewards by the running standard deviation of the discounted return of each environment.

    Rewards keep their sign and are never shifted: a shift would change which episodes are worth prolonging.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        """Nothing is known yet."""
        self._gamma = gamma
        self._returns = np.zeros(num_envs)
        self._count, self._mean, self._variance = 0.0, 0.0, 1.0

    @property
    def scale(self) -> float:
        """What rewards are multiplied by."""
        return float(1.0 / np.sqrt(self._variance + EPSILON))

    def normalise(
        self,
        rewards: NDArray[np.float32],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        merge: Callable[[Moments], Moments] = as_they_are,
    ) -> None:
        """Take a rollout into the statistics, then scale its rewards in place.

        Args:
            rewards: [T, N] float32, the environment's own; changed.
            ended: [T, N] bool, an episode ended with this step.
            valid: [T, N] bool, False on filler rows, which do not count.
            merge: adds the moments of other processes' returns to those of these environments.
        """
        returns = np.empty(rewards.shape)
        for t, reward in enumerate(rewards):
            self._returns = np.where(valid[t], self._gamma * self._returns + reward, self._returns)
            returns[t] = self._returns
            self._returns[ended[t]] = 0.0
        counted = returns[valid]
        moments = merge((len(counted), float(counted.mean()), float(counted.var())) if len(counted) else (0, 0.0, 0.0))
        self._count, self._mean, self._variance = merge_moments(self._count, self._mean, self._variance, *moments)
        np.clip(rewards * self.scale, -LIMIT, LIMIT, out=rewards)

    def state_dict(self) -> dict[str, Any]:
        """Plain values to go on from."""
        return {
            "returns": self._returns.tolist(),
            "count": self._count,
            "mean": self._mean,
            "variance": self._variance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; running returns are those of the same environments, or start anew."""
        if len(state["returns"]) == len(self._returns):
            self._returns = np.array(state["returns"], np.float64)
        self._count, self._mean, self._variance = (float(state[name]) for name in ("count", "mean", "variance"))
