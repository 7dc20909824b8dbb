"""Actor-critic networks: a trunk, a policy head that gives the parameters of a distribution, a value head.

Every network maps a batch of raw observations to ``(outputs [B, ...], values [B])``. Heads stay in float32 whatever the
trunk computes in: two logits that differ by less than bfloat16 can tell apart would otherwise swap places.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from .actions import EnvActions
from .config import PPOConfig
from .distributions import DISTRIBUTIONS, Distribution
from .normalisation import Moments, ObservationNormaliser, as_they_are


def initialise_orthogonal(layer: nn.Module, gain: float = math.sqrt(2.0)) -> nn.Module:
    """Give a linear or convolution layer orthogonal weights and zero bias, in place; return the layer."""
    nn.init.orthogonal_(layer.weight, gain)  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def flat_size(observation_shape: Sequence[int]) -> int:
    """How many numbers an observation has, for networks that take them as one vector.

    Raises:
        ValueError: observations without an axis.
    """
    if not observation_shape:
        raise ValueError("observations are single numbers without an axis; networks need at least shape (1,)")
    return math.prod(observation_shape)


class MLPTrunk(nn.Module):
    """Two tanh layers over a flat vector: float [B, *shape] -> float [B, hidden_size]."""

    def __init__(self, observation_shape: Sequence[int], hidden_size: int) -> None:
        """Build the layers for observations of ``observation_shape``."""
        super().__init__()
        self.num_features = hidden_size
        self.layers = nn.Sequential(
            nn.Flatten(),
            initialise_orthogonal(nn.Linear(flat_size(observation_shape), hidden_size)),
            nn.Tanh(),
            initialise_orthogonal(nn.Linear(hidden_size, hidden_size)),
            nn.Tanh(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Features [B, hidden_size] in the weights' dtype."""
        features: Tensor = self.layers(observations.to(next(self.parameters()).dtype))
        return features


class CNNTrunk(nn.Module):
    """Convolutions over images [B, C, H, W] uint8, then one hidden layer.

    Pixels minus the mean image stay whole numbers of at most 8 bits and a sign, and the scale is a power of two, so
    bfloat16 input is exact: only weights and activations are rounded.
    """

    SCALE = 1.0 / 128.0
    mean_image: Tensor

    def __init__(
        self, observation_shape: Sequence[int], convolutions: Sequence[tuple[int, int, int]], num_features: int
    ) -> None:
        """Build the layers.

        Args:
            observation_shape: (C, H, W).
            convolutions: (channels, kernel, stride) of each layer.
            num_features: width of the hidden layer.

        Raises:
            ValueError: when the images are too small for the convolutions.
        """
        super().__init__()
        channels, height, width = observation_shape
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in convolutions:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if height < 1 or width < 1:
                raise ValueError(f"images of shape {tuple(observation_shape)} are too small for this network")
            layers += [initialise_orthogonal(nn.Conv2d(channels, out_channels, kernel, stride)), nn.ReLU()]
            channels = out_channels
        layers += [nn.Flatten(), initialise_orthogonal(nn.Linear(channels * height * width, num_features)), nn.ReLU()]
        self.num_features = num_features
        self.layers = nn.Sequential(*layers)
        self.register_buffer("mean_image", torch.zeros(tuple(observation_shape)))

    def forward(self, observations: Tensor) -> Tensor:
        """Features [B, num_features] in the weights' dtype."""
        dtype = next(self.parameters()).dtype
        if torch.is_autocast_enabled(observations.device.type):
            dtype = torch.get_autocast_dtype(observations.device.type)
        # One pass over the pixels: (observations - mean) * SCALE.
        images = torch.add(self.mean_image.to(dtype) * -self.SCALE, observations, alpha=self.SCALE)
        features: Tensor = self.layers(images)
        return features

    def set_mean_image(self, observations: Tensor, merge: Callable[[Moments], Moments] = as_they_are) -> None:
        """Subtract the mean of ``observations`` [B, C, H, W] uint8, rounded to whole numbers, from now on.

        Args:
            observations: of this process.
            merge: adds the moments of other processes' observations to those of these.
        """
        mean = observations.float().mean(dim=0) if len(observations) else torch.zeros_like(self.mean_image)
        _, mean, _ = merge((len(observations), mean, torch.zeros_like(mean)))  # the variance is not wanted
        self.mean_image.copy_(mean.round_())


Trunk = MLPTrunk | CNNTrunk


class GaussianHead(nn.Module):
    """Means and log standard deviations [B, 2 A] from features; the deviations do not depend on the state."""

    def __init__(self, num_features: int, size: int) -> None:
        """Means start close to 0, standard deviations at 1."""
        super().__init__()
        self.mean = initialise_orthogonal(nn.Linear(num_features, size), gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, features: Tensor) -> Tensor:
        """Parameters [B, 2 A] of the policy's distribution, from features [B, F]."""
        means: Tensor = self.mean(features)
        return torch.cat([means, self.log_std.expand_as(means)], dim=-1)


class ActorCritic(nn.Module):
    """Trunks with a policy head and a value head: observations -> (outputs [B, ...], values [B]), both float32.

    Outputs are logits [B, A], or means and log standard deviations [B, 2 A]; ``distribution`` knows what they mean.
    """

    def __init__(
        self,
        trunk: Trunk,
        num_actions: int,
        value_trunk: Trunk | None = None,
        *,
        distribution: str = "categorical",
        normaliser: ObservationNormaliser | None = None,
    ) -> None:
        """Put the heads on ``trunk``; the policy starts close to uniform.

        Args:
            trunk: features for the policy, and for the value too unless it has a trunk of its own.
            num_actions: A.
            distribution: ``categorical`` or ``gaussian``.
            normaliser: applied to observations before the trunks.
            value_trunk: features for the value. Small networks learn faster when the large errors of early values do
                not pull at the policy's features; images are too costly to look at twice.
        """
        super().__init__()
        self.trunk = trunk
        self.value_trunk = value_trunk
        self.normaliser = normaliser
        self.distribution: Distribution = DISTRIBUTIONS[distribution]
        self.policy_head: nn.Module
        if distribution == "gaussian":
            self.policy_head = GaussianHead(trunk.num_features, num_actions)
        else:
            self.policy_head = initialise_orthogonal(nn.Linear(trunk.num_features, num_actions), gain=0.01)
        self.value_head = initialise_orthogonal(nn.Linear((value_trunk or trunk).num_features, 1), gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, ...] and values [B] of a batch of raw observations."""
        if self.normaliser is not None:
            observations = self.normaliser(observations)
        features = self.trunk(observations)
        value_features = features if self.value_trunk is None else self.value_trunk(observations)
        with torch.autocast(features.device.type, enabled=False):
            return self.policy_head(features.float()), self.value_head(value_features.float()).squeeze(-1)

    def cast_trunks(self, dtype: torch.dtype) -> ActorCritic:
        """Let the trunks compute in ``dtype``; the heads stay float32. Returns self."""
        self.trunk.to(dtype)
        if self.value_trunk is not None:
            self.value_trunk.to(dtype)
        return self


CONVOLUTIONS: dict[str, tuple[tuple[tuple[int, int, int], ...], int]] = {
    "small-cnn": (((16, 8, 4), (32, 4, 2)), 256),
    "nature-cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}
"""Name -> ((channels, kernel, stride) of each convolution, width of the hidden layer)."""


def build_actor_critic(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: PPOConfig, seed: int
) -> ActorCritic:
    """The network of ``config`` for one environment's spaces, with orthogonal weights drawn from ``seed``.

    Raises:
        NotImplementedError: for spaces that have no network or action head, by name.
        ValueError: when the network does not fit the observations.
    """
    actions = EnvActions(action_space)
    if not isinstance(observation_space, gymnasium.spaces.Box):
        raise NotImplementedError(
            f"agents read Box observations only; there is no network for {type(observation_space).__name__}"
        )
    with torch_seeded(seed):
        if config.network != "mlp":
            return ActorCritic(
                _build_cnn(observation_space, config.network), actions.size, distribution=actions.distribution
            )
        shape = observation_space.shape
        return ActorCritic(
            MLPTrunk(shape, config.hidden_size),
            actions.size,
            MLPTrunk(shape, config.hidden_size),
            distribution=actions.distribution,
            normaliser=ObservationNormaliser(shape) if config.normalise_observations else None,
        )


@contextlib.contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initial weights are drawn from, and put it back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def sees_images(config: Any) -> bool:
    """Whether hyper-parameters ask for a network that sees images, which alone have a mean image."""
    return bool(config.network != "mlp")


def convolutions_for(space: gymnasium.spaces.Box, name: str) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """The entry of `CONVOLUTIONS` for a network that is to read observations of a space.

    Raises:
        ValueError: when they are no images.
    """
    if space.dtype != np.uint8 or len(space.shape) != 3:
        raise ValueError(f"{name} needs uint8 images [C, H, W], got {space}; use network mlp")
    return CONVOLUTIONS[name]


def _build_cnn(space: gymnasium.spaces.Box, name: str) -> CNNTrunk:
    return CNNTrunk(space.shape, *convolutions_for(space, name))
