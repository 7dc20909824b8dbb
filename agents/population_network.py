"""Policies without a value head: one network, and the same network with other weights for every row of the batch.

What a member does is the same bits in every row and for every number of rows (a test compares them). The kernels of
linear layers add up in a fixed order. Rounding of torch's matrix products depends on the place of their operands in
memory, so every member's weights and inputs start at a multiple of 64 bytes, whatever their shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from . import population_kernels
from .actions import EnvActions
from .es_config import ESConfig
from .networks import CNNTrunk, MLPTrunk, convolutions_for, initialise_orthogonal, torch_seeded
from .normalisation import LIMIT

_ALIGNMENT = 16
"""float32 numbers in 64 bytes."""


class ObservationScaling(nn.Module):
    """Observations [B, ...] of any dtype, minus ``shift``, times ``factor``, float32; both fit one observation."""

    shift: Tensor
    factor: Tensor

    def __init__(self, shift: Tensor, factor: Tensor, limit: float | None = None) -> None:
        """Scale by these; results are cut off at plus and minus ``limit``."""
        super().__init__()
        self.limit = limit
        self.register_buffer("shift", shift)
        self.register_buffer("factor", factor)

    def set(self, shift: NDArray[np.float32], factor: NDArray[np.float32] | None) -> None:
        """Scale by these from now on, [D] float32 each; without a factor, by the one there is."""
        self.shift.copy_(torch.tensor(shift).view(self.shift.shape))  # copied: it may be read-only
        if factor is not None:
            self.factor.copy_(torch.tensor(factor).view(self.factor.shape))

    def forward(self, observations: Tensor) -> Tensor:
        """The scaled ``observations`` [B, ...]: float32, of the same shape."""
        return self.scale_into(torch.empty_like(observations, dtype=torch.float32), observations)

    def scale_into(self, room: Tensor, observations: Tensor) -> Tensor:
        """Write the scaled ``observations`` into ``room``, float32 and of the same shape, and give it back."""
        # Two roundings, never a fused one: the result must not depend on which loop computes a component.
        scaled = room.copy_(observations).sub_(self.shift).mul_(self.factor)
        return scaled if self.limit is None else scaled.clamp_(-self.limit, self.limit)


class PolicyNetwork(nn.Module):
    """Observations [B, ...] -> (outputs [B, A] float32, zeros [B] in the place of values)."""

    def __init__(self, scaling: ObservationScaling, layers: nn.Sequential, num_outputs: int) -> None:
        """Put ``layers`` behind ``scaling``; only the layers have parameters."""
        super().__init__()
        self.scaling = scaling
        self.layers = layers
        self.num_outputs = num_outputs

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, A] for ``observations`` [B, ...], and zeros [B]; both float32."""
        outputs: Tensor = self.layers(self.scaling(observations))
        return outputs, outputs.new_zeros(len(outputs))


def build_policy_network(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: ESConfig, seed: int
) -> PolicyNetwork:
    """The network of ``config`` for one environment's spaces, with weights drawn from ``seed``.

    Raises:
        NotImplementedError: for spaces that have no network or action head, by name.
        ValueError: when the network does not fit the observations.
    """
    num_outputs = EnvActions(action_space).size
    if not isinstance(observation_space, gymnasium.spaces.Box):
        raise NotImplementedError(f"ES reads Box observations only; there is no network for {observation_space}")
    shape = observation_space.shape
    with torch_seeded(seed % 2**63):
        trunk: MLPTrunk | CNNTrunk
        if config.network == "mlp":
            trunk = MLPTrunk(shape, config.hidden_size)
        else:
            convolutions, _ = convolutions_for(observation_space, config.network)
            trunk = CNNTrunk(shape, convolutions, config.hidden_size)
        head = initialise_orthogonal(nn.Linear(config.hidden_size, num_outputs), gain=0.01)
    if config.normalise_observations and observation_space.dtype == np.uint8:
        raise ValueError(f"normalise_observations is for vectors; {observation_space} holds bytes, which are scaled")
    if config.normalise_observations:
        scaling = ObservationScaling(torch.zeros(shape), torch.ones(shape), LIMIT)
    else:
        factor = CNNTrunk.SCALE if observation_space.dtype == np.uint8 else 1.0
        has_mean_image = config.network != "mlp" and config.subtract_mean_image
        scaling = ObservationScaling(torch.zeros(shape if has_mean_image else ()), torch.tensor(factor))
    return PolicyNetwork(scaling, nn.Sequential(*trunk.layers, head), num_outputs).requires_grad_(False)


class SquashedMean:
    """Action head for Box spaces: the same action for the same outputs, inside the bounds.

    Where a component is bounded on both sides, tanh of the output is stretched from [-1, 1] to the bounds; where it is
    not, the output itself is the action.
    """

    def __init__(self, space: gymnasium.spaces.Box, device: torch.device | str = "cpu") -> None:
        """Act in ``space``."""
        low, high = (torch.from_numpy(bound).reshape(-1).to(torch.float64) for bound in (space.low, space.high))
        bounded = torch.isfinite(low) & torch.isfinite(high)
        self._bounded = None if bool(bounded.all()) else bounded.to(device)
        # In float64 no difference overflows.
        self._center = torch.where(bounded, (low + high) / 2, 0.0).to(device, torch.float32)
        self._half = torch.where(bounded, (high - low) / 2, 1.0).to(device, torch.float32)

    def __call__(self, outputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions [B, A] for ``outputs`` [B, A], and their log-probabilities [B], which are 0."""
        means = torch.tanh(outputs)
        if self._bounded is not None:
            means = torch.where(self._bounded, means, outputs)
        return means.mul_(self._half).add_(self._center), outputs.new_zeros(len(outputs))


def action_head(action_space: gymnasium.Space[Any], device: torch.device | str = "cpu") -> str | SquashedMean:
    """Head for BatchedPolicy: greedy in Discrete spaces, :class:`SquashedMean` in Box spaces."""
    return SquashedMean(action_space, device) if isinstance(action_space, gymnasium.spaces.Box) else "greedy"


class StackedNetwork(nn.Module):
    """One :class:`PolicyNetwork` per row: row n of a batch [N, ...] is seen by member n's weights.

    Each layer is one batched matrix product for all members. Weights are set by :meth:`load`; buffers are reused, so
    outputs are valid until the next forward pass.
    """

    def __init__(self, network: PolicyNetwork, num_members: int) -> None:
        """Room for ``num_members`` members shaped like ``network``, whose scaling they share; their weights are 0.

        Raises:
            TypeError: for a layer without a stacked form.
        """
        super().__init__()
        self.scaling = network.scaling
        self.num_outputs = network.num_outputs
        self.num_members = num_members
        self.device = next(network.parameters()).device
        steps: list[StackedLinear | StackedConvolution | Callable[[Tensor], Tensor]] = []
        for layer in network.layers:
            if isinstance(layer, nn.Tanh) and steps and isinstance(steps[-1], StackedLinear):
                steps[-1].squashes = True
            else:
                steps.append(_stacked(layer, num_members, self.device))
        self._steps = steps
        self._first: StackedLinear | None = None
        if isinstance(network.layers[0], nn.Flatten) and isinstance(steps[1], StackedLinear):
            # Vectors are scaled where the first product reads them, without a copy in between.
            self._first, self._room, self._steps = steps[1], steps[1].room, steps[1:]
        # Views of the buffers, which are only ever written in place.
        self._scale_arguments: tuple[NDArray[np.float32], NDArray[np.float32], float] | None = None
        if self.device.type == "cpu" and self.scaling.limit is not None:
            shift, factor = (tensor.reshape(-1).numpy() for tensor in (self.scaling.shift, self.scaling.factor))
            self._scale_arguments = shift, factor, self.scaling.limit

    def load(self, member: int, parameters: Tensor) -> None:
        """Set one member's weights from a flat vector [P], in the order of ``network.parameters()``."""
        for step in self._steps:
            if isinstance(step, (StackedLinear, StackedConvolution)):
                parameters = step.load(member, parameters)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [N, A] of the members for one observation [N, ...] each, and zeros [N]; both float32.

        The zeros are the caller's; outputs are valid until the next call.
        """
        if self._first is None:
            x = self.scaling(observations)
        else:
            self._scale_into_first(self._first, observations)
            x = self._first.inputs
        for step in self._steps:
            x = step(x)
        return x[:, 0, : self.num_outputs], x.new_zeros(self.num_members)

    def _scale_into_first(self, first: StackedLinear, observations: Tensor) -> None:
        """Write the scaled observations where the first product reads them."""
        scale = _SCALE_KERNELS.get(observations.dtype)
        if self._scale_arguments is not None and scale is not None and observations.is_contiguous():
            scale(observations.flatten(1).numpy(), *self._scale_arguments, first.inputs.numpy())
            return
        if self._room.shape != observations.shape:
            self._room = self._room.view(observations.shape)
        self.scaling.scale_into(self._room, observations)


_SCALE_KERNELS: dict[torch.dtype, Callable[..., None]] = {
    torch.float32: population_kernels.scale_float32,
    torch.float64: population_kernels.scale_float64,
}
"""What :meth:`ObservationScaling.scale_into` does in one call, where there is a limit."""


class StackedLinear:
    """N linear layers: [N, in] -> [N, 1, out], both filled up with zeros to whole lines of 64 bytes.

    Attributes:
        inputs: [N, 1, in] float32, filled up; what it is called with where `room` has been written.
        room: [N, in], the view of `inputs` without what fills it up.
        squashes: whether the hyperbolic tangent of its outputs is what it gives.
    """

    def __init__(self, layer: nn.Linear, num_members: int, device: torch.device) -> None:
        """Room for N members shaped like ``layer``."""
        self.squashes = False
        self._shape = (layer.out_features, layer.in_features)
        num_in, num_out = _aligned(layer.in_features), _aligned(layer.out_features)
        self._weights = torch.zeros(num_members, num_in, num_out, device=device)
        self._biases = torch.zeros(num_members, 1, num_out, device=device)
        self.inputs = torch.zeros(num_members, 1, num_in, device=device)
        self._outputs = torch.zeros(num_members, 1, num_out, device=device)
        self.room = self.inputs[:, 0, : layer.in_features]
        self._arrays: tuple[NDArray[np.float32], ...] = ()
        if device.type == "cpu":
            self._arrays = tuple(tensor.numpy() for tensor in (self._biases, self._weights, self._outputs))

    def load(self, member: int, parameters: Tensor) -> Tensor:
        """Take the member's weights from the front of a flat vector; returns the rest."""
        num_out, num_in = self._shape
        size = num_out * num_in
        self._weights[member, :num_in, :num_out] = parameters[:size].view(num_out, num_in).t()
        self._biases[member, 0, :num_out] = parameters[size : size + num_out]
        return parameters[size + num_out :]

    def __call__(self, x: Tensor) -> Tensor:
        """One product for all members.

        Args:
            x: [N, in]; or, filled up already, `inputs` or what another layer of this kind gave.
        """
        if x.dim() == 2:
            self.room.copy_(x)
            x = self.inputs
        if not self._arrays:
            outputs = torch.baddbmm(self._biases, x, self._weights, out=self._outputs)
            return outputs.tanh_() if self.squashes else outputs
        biases, weights, room = self._arrays
        population_kernels.apply_layers(biases, x.numpy(), weights, self._shape[1], self.squashes, room)
        return self._outputs


class StackedConvolution:
    """N convolutions without padding: [N, C, H, W] -> [N, out, H', W'], as a product with the patches of the images."""

    def __init__(self, layer: nn.Conv2d, num_members: int, device: torch.device) -> None:
        """Room for N members shaped like ``layer``.

        Raises:
            TypeError: the layer has padding, dilation or groups.
        """
        if layer.padding != (0, 0) or layer.dilation != (1, 1) or layer.groups != 1:
            raise TypeError(f"{layer} has no stacked form: padding, dilation and groups are not supported")
        self._out_channels = layer.out_channels
        self._kernel: tuple[int, ...] = tuple(layer.kernel_size)
        self._stride: tuple[int, ...] = tuple(layer.stride)
        self._patch_size = layer.in_channels * math.prod(self._kernel)
        self._device = device
        shape = (num_members, _aligned(layer.out_channels), _aligned(self._patch_size))
        self._weights = torch.zeros(shape, device=device)
        self._biases = torch.zeros(num_members, shape[1], 1, device=device)
        self._patches = torch.zeros(0, device=device)

    def load(self, member: int, parameters: Tensor) -> Tensor:
        """Take the member's weights from the front of a flat vector; returns the rest."""
        size = self._out_channels * self._patch_size
        weights = parameters[:size].view(self._out_channels, self._patch_size)
        self._weights[member, : self._out_channels, : self._patch_size] = weights
        self._biases[member, : self._out_channels, 0] = parameters[size : size + self._out_channels]
        return parameters[size + self._out_channels :]

    def __call__(self, x: Tensor) -> Tensor:
        """One product for all members."""
        (kernel_height, kernel_width), (step_height, step_width) = self._kernel, self._stride
        windows = x.unfold(2, kernel_height, step_height).unfold(3, kernel_width, step_width)  # [N, C, H', W', kh, kw]
        height, width = windows.shape[2:4]
        columns = _aligned(height * width)
        if self._patches.shape[2:] != (columns,):
            self._patches = torch.zeros(len(x), self._weights.shape[2], columns, device=self._device)
        room = self._patches[:, : self._patch_size, : height * width]
        images = (len(x), x.shape[1], kernel_height, kernel_width, height, width)
        room.view(images).copy_(windows.permute(0, 1, 4, 5, 2, 3))
        outputs = torch.baddbmm(self._biases, self._weights, self._patches)
        return outputs[:, : self._out_channels, : height * width].view(len(x), self._out_channels, height, width)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _stacked(
    layer: nn.Module, num_members: int, device: torch.device
) -> StackedLinear | StackedConvolution | Callable[[Tensor], Tensor]:
    if isinstance(layer, nn.Linear):
        return StackedLinear(layer, num_members, device)
    if isinstance(layer, nn.Conv2d):
        return StackedConvolution(layer, num_members, device)
    if isinstance(layer, nn.Tanh):
        return torch.tanh_
    if isinstance(layer, nn.ReLU):
        return torch.relu_
    if isinstance(layer, nn.Flatten):
        return lambda x: x.flatten(1)
    raise TypeError(f"{layer} has no stacked form")
