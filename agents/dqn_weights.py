"""The network's weights in shared memory: one process writes them, others take them over between two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenv.buffers import Layout

from .precision import ChosenPrecision
from .shared_arrays import SharedArrays

_VERSION, _UPDATES, _ENV_STEPS, _BFLOAT16 = range(4)


class SharedWeights(SharedArrays):
    """All parameters and buffers of a network, twice, and a few numbers about them.

    The writer fills the copy that nobody reads and then raises the version; a reader whose copy was overwritten while
    it read sees another version afterwards and reads again. So nobody waits for anybody.

    Attributes:
        descriptor: of the memory, for other processes.
    """

    def __init__(self, network: nn.Module, descriptor: int | None = None) -> None:
        """Map the memory.

        Args:
            network: gives the number of weights; all of them are float32.
            descriptor: file to map; None makes a new one. Owned from now on.
        """
        size = sum(tensor.numel() for tensor in network.state_dict().values())
        layout = Layout()
        layout.add("numbers", (4,), np.int64)
        layout.add("weights", (2, size), np.float32)
        super().__init__(layout, descriptor)
        self._numbers: NDArray[np.int64] = self._block["numbers"]
        self._weights = torch.from_numpy(self._block["weights"])

    @property
    def version(self) -> int:
        """How often weights were written."""
        return int(self._numbers[_VERSION])

    @property
    def env_steps(self) -> int:
        """Env steps of all players together, as the learner counts them."""
        return int(self._numbers[_ENV_STEPS])

    @env_steps.setter
    def env_steps(self, value: int) -> None:
        self._numbers[_ENV_STEPS] = value

    @property
    def precision(self) -> ChosenPrecision:
        """Number format to act in."""
        return "bfloat16" if self._numbers[_BFLOAT16] else "float32"

    def write(self, network: nn.Module, updates: int, precision: ChosenPrecision) -> None:
        """Make the weights of ``network``, which has had so many gradient steps, the current ones."""
        copy = self._weights[(self.version + 1) % 2]
        start = 0
        for tensor in network.state_dict().values():
            copy[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)
            start += tensor.numel()
        self._numbers[_UPDATES] = updates
        self._numbers[_BFLOAT16] = precision == "bfloat16"
        self._numbers[_VERSION] += 1

    def read(self, network: nn.Module) -> tuple[int, int]:
        """Give ``network`` the current weights; returns their version and the gradient steps in them."""
        state: dict[str, Any] = network.state_dict()
        while True:
            version, updates = self.version, int(self._numbers[_UPDATES])
            copy = self._weights[version % 2]
            start = 0
            for tensor in state.values():
                tensor.copy_(copy[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
            if self.version == version:
                return version, updates
