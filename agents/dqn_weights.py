"""The network's weights in shared memory: one process writes them, others take them over between two steps."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenv.buffers import Layout
from vecenv.short_wait import STORES_IN_ORDER

from .precision import ChosenPrecision
from .shared_arrays import SharedArrays


class WeightsOrigin(NamedTuple):
    """Which weights were taken over."""

    version: int
    """How often weights had been written."""
    updates: int
    """Gradient steps in them."""
    precision: ChosenPrecision
    """Number format to act in."""


class SharedWeights(SharedArrays):
    """All parameters and buffers of a network, twice, and a few numbers about them.

    The writer fills the copy that nobody reads and then raises the version; a reader whose copy was overwritten while
    it read sees another version afterwards and reads again. So nobody waits for anybody. That holds where stores are
    seen by other cores in the order in which they were made.

    Elsewhere each copy has a file lock, and what the version says is only a hint which copy is the newer one. Readers
    share the lock of the copy that they read; a writer that does not get it at once leaves the old weights, so a
    reader that was stopped holds up nobody. The locks belong to processes (`fcntl`), and end with them.
    """

    def __init__(
        self, network: nn.Module, descriptor: int | None = None, *, locked: bool = not STORES_IN_ORDER
    ) -> None:
        """Map the memory.

        Args:
            network: gives the number of weights; all of them are float32.
            descriptor: file to map; None makes a new one. Owned from now on.
            locked: use locks; the same in all processes.
        """
        size = sum(tensor.numel() for tensor in network.state_dict().values())
        layout = Layout()
        layout.add("version", (1,), np.int64)
        layout.add("env_steps", (1,), np.int64)
        layout.add("origins", (2, 3), np.int64)  # of each copy: version, updates, whether bfloat16
        layout.add("weights", (2, size), np.float32)
        super().__init__(layout, descriptor)
        self._locked = locked
        self._version: NDArray[np.int64] = self._block["version"]
        self._env_steps: NDArray[np.int64] = self._block["env_steps"]
        self._origins: NDArray[np.int64] = self._block["origins"]
        self._weights = torch.from_numpy(self._block["weights"])

    @property
    def version(self) -> int:
        """How often weights were written; without a lock it may come late on some processors."""
        return int(self._version[0])

    @property
    def env_steps(self) -> int:
        """Env steps of all players together, as the learner counts them; may come late on some processors."""
        return int(self._env_steps[0])

    @env_steps.setter
    def env_steps(self, value: int) -> None:
        self._env_steps[0] = value

    def write(self, network: nn.Module, updates: int, precision: ChosenPrecision) -> bool:
        """Make the weights of ``network`` the current ones. One process writes.

        Args:
            network: as the one that the memory was made for.
            updates: gradient steps that it has had.
            precision: number format to act in.

        Returns:
            Whether it was done; only with locks it may be not, as long as somebody reads the weights of before.
        """
        version = self.version + 1
        copy = version % 2
        with self._lock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_mine:
            if not is_mine:
                return False
            start = 0
            for tensor in network.state_dict().values():
                self._weights[copy, start : start + tensor.numel()].view(tensor.shape).copy_(tensor)
                start += tensor.numel()
            self._origins[copy] = version, updates, precision == "bfloat16"
            self._version[0] = version
        return True

    def read(self, network: nn.Module) -> WeightsOrigin:
        """Give ``network`` the current weights.

        Returns:
            Which they are.
        """
        state: dict[str, Any] = network.state_dict()
        while True:
            seen = self.version
            copy = seen % 2
            with self._lock(copy, fcntl.LOCK_SH):
                version, updates, is_bfloat16 = self._origins[copy].tolist()
                start = 0
                for tensor in state.values():
                    tensor.copy_(self._weights[copy, start : start + tensor.numel()].view(tensor.shape))
                    start += tensor.numel()
            if self._locked or self.version == seen:
                return WeightsOrigin(version, updates, "bfloat16" if is_bfloat16 else "float32")

    @contextlib.contextmanager
    def _lock(self, copy: int, kind: int) -> Iterator[bool]:
        """Hold the lock of a copy, where there are locks; False: it could not be had at once, as `kind` asks for."""
        if not self._locked:
            yield True
            return
        try:
            fcntl.lockf(self.descriptor, kind, 1, copy)
        except (BlockingIOError, PermissionError):  # which of the two is the system's choice
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, copy)
