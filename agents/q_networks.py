"""Networks that estimate the value of every action; dueling, noisy and categorical are independent of each other.

A trunk turns observations into features, a last layer turns those into what each action is worth: one number, or in a
categorical network (Bellemare et al., 2017) a distribution over fixed returns.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor, nn
from torch.nn import functional

from .dqn_config import DQNConfig
from .networks import CNNTrunk, convolutions_for, flat_size, torch_seeded

INITIAL_NOISE = 0.5
"""sigma_0 of Fortunato et al. (2018): scale of the noise at the start, before division by the root of the inputs."""


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise on its weights (Fortunato et al., 2018).

    The noise stays the same until :meth:`draw_noise`.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        """Build the layer, with weights and noise scales as in the paper."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound, scale = 1.0 / math.sqrt(in_features), INITIAL_NOISE / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_scale = nn.Parameter(torch.full((out_features, in_features), scale))
        self.bias_scale = nn.Parameter(torch.full((out_features,), scale))
        self.register_buffer("noise_in", torch.zeros(in_features))
        self.register_buffer("noise_out", torch.zeros(out_features))

    def forward(self, features: Tensor) -> Tensor:
        """[B, in_features] -> [B, out_features]."""
        weight = self.weight + self.weight_scale * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(features, weight, self.bias + self.bias_scale * self.noise_out)

    def draw_noise(self, generator: torch.Generator) -> None:
        """Draw new noise, in place."""
        for noise in (self.noise_in, self.noise_out):
            # Drawn in float32 on the generator's device, so that every precision gets the same noise.
            drawn = torch.randn(noise.shape, generator=generator, device=generator.device)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def remove_noise(self) -> None:
        """Act without noise from now on."""
        self.noise_in.zero_()
        self.noise_out.zero_()


class ReLUTrunk(nn.Module):
    """Two layers of rectified units over a flat vector: float [B, *shape] -> float [B, num_features]."""

    def __init__(self, num_inputs: int, hidden_size: int, num_features: int) -> None:
        """Build the layers."""
        super().__init__()
        self.num_features = num_features
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_inputs, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, num_features),
            nn.ReLU(),
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Features [B, num_features] in the weights' dtype."""
        features: Tensor = self.layers(observations.to(next(self.parameters()).dtype))
        return features


class ValueHeads(NamedTuple):
    """Names of the action heads that suit values of actions."""

    explore: str = "epsilon_greedy"
    """Head that explores."""
    exploit: str = "greedy"
    """Head that takes the best action."""


class QNetwork(nn.Module):
    """Observations -> what every action is worth.

    Attributes:
        num_actions: A.
        distribution: names of the heads that act with it.
        atoms: [Z] float32, the returns that a categorical network spreads its probability over; Z = 1 otherwise.
    """

    atoms: Tensor

    def __init__(self, trunk: CNNTrunk | ReLUTrunk, num_actions: int, config: DQNConfig) -> None:
        """Put the last layers on `trunk`.

        Args:
            trunk: gives features. For a dueling network the first half of them is the hidden layer of the state's
                value and the second half that of the advantages: two layers side by side in one matrix.
            num_actions: A.
            config: the switches.
        """
        super().__init__()
        self.trunk = trunk
        self.num_actions = num_actions
        self.distribution = ValueHeads()
        self._num_atoms = config.num_atoms if config.categorical else 1
        layer: Any = NoisyLinear if config.noisy else nn.Linear
        if config.noisy:
            hidden: Any = trunk.layers[-2]
            trunk.layers[-2] = NoisyLinear(hidden.in_features, hidden.out_features)
        outputs = num_actions * self._num_atoms
        self.dueling = config.dueling
        features = trunk.num_features // 2 if config.dueling else trunk.num_features
        self.advantage_layer = layer(features, outputs)
        self.value_layer = layer(features, self._num_atoms) if config.dueling else None
        atoms = torch.linspace(config.value_min, config.value_max, self._num_atoms)
        self.register_buffer("atoms", atoms)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the actions [B, A] and of the state, the largest of them [B]; float32."""
        values = self.action_values(self.outputs(observations))
        return values, values.amax(dim=-1)

    def outputs(self, observations: Tensor) -> Tensor:
        """What the last layer gives for raw observations: [B, A, Z] float32, logits over the atoms where Z > 1."""
        features = self.trunk(observations)
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            if self.value_layer is None:
                outputs: Tensor = self.advantage_layer(features)
                return outputs.view(-1, self.num_actions, self._num_atoms)
            half = features.shape[-1] // 2
            values = self.value_layer(features[:, :half]).unsqueeze(1)  # (B, 1, Z)
            advantages = self.advantage_layer(features[:, half:]).view(-1, self.num_actions, self._num_atoms)
            combined: Tensor = values + advantages - advantages.mean(dim=1, keepdim=True)
            return combined

    def action_values(self, outputs: Tensor) -> Tensor:
        """Expected returns [B, A] from :meth:`outputs`."""
        if self._num_atoms == 1:
            return outputs.squeeze(-1)
        return outputs.softmax(dim=-1) @ self.atoms

    def draw_noise(self, generator: torch.Generator) -> None:
        """Draw new noise for every noisy layer, in place; nothing happens where there are none."""
        for layer in self.noisy_layers():
            layer.draw_noise(generator)

    def noisy_layers(self) -> list[NoisyLinear]:
        """The noisy layers, in a fixed order."""
        return [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]

    def cast_trunks(self, dtype: torch.dtype) -> QNetwork:
        """Let the trunk compute in ``dtype``; the last layers stay float32. Returns self."""
        self.trunk.to(dtype)
        return self


def build_q_network(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: DQNConfig, seed: int
) -> QNetwork:
    """The network of ``config`` for one environment's spaces, with weights drawn from ``seed``.

    Raises:
        NotImplementedError: for spaces that DQN cannot act in or read.
        ValueError: when the network does not fit the observations.
    """
    if not isinstance(action_space, gymnasium.spaces.Discrete):
        raise NotImplementedError(
            f"DQN acts in Discrete action spaces only, got {action_space}; PPO also acts in floating-point Box spaces"
        )
    if not isinstance(observation_space, gymnasium.spaces.Box):
        raise NotImplementedError(f"DQN reads Box observations only, got {type(observation_space).__name__}")
    with torch_seeded(seed):
        return QNetwork(_build_trunk(observation_space, config), int(action_space.n), config)


def _build_trunk(space: gymnasium.spaces.Box, config: DQNConfig) -> CNNTrunk | ReLUTrunk:
    streams = 2 if config.dueling else 1
    if config.network == "mlp":
        return ReLUTrunk(flat_size(space.shape), config.hidden_size, streams * config.hidden_size)
    convolutions, num_features = convolutions_for(space, config.network)
    return CNNTrunk(space.shape, convolutions, streams * num_features)
