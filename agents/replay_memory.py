"""Where the replay lies: one anonymous block of memory that actor processes can share, every frame in it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vecenv.buffers import Layout, available_memory
from vecenv.errors import UnknownSetting

from .shared_arrays import SharedArrays

ArrayOf = NDArray[Any]


@dataclass(frozen=True)
class ReplaySpec:
    """What the rows of a replay are made of.

    Attributes:
        num_streams: E, one per environment.
        num_slots: L, rows of each stream; the oldest are overwritten.
        stack_size: S, frames of an observation.
        observation_shape: (S * channels, ...) where S > 1, else anything.
        dtype: of observations, as a string.
    """

    num_streams: int
    num_slots: int
    stack_size: int
    observation_shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, space: gymnasium.Space[Any], num_streams: int, capacity: int, stack_size: int) -> ReplaySpec:
        """Rows for at least `capacity` steps in all streams together.

        Args:
            space: single observation space.
            num_streams: number of environments.
            capacity: rows in all; every episode takes S of them besides one for each of its steps.
            stack_size: S; 1 stores observations as they are.

        Raises:
            NotImplementedError: observations that are no arrays.
            UnknownSetting: a stack size that does not fit them.
        """
        if not isinstance(space, gymnasium.spaces.Box):
            raise NotImplementedError(f"the replay stores Box observations only, got {type(space).__name__}")
        shape = tuple(int(side) for side in space.shape)
        if stack_size > 1 and (not shape or shape[0] % stack_size):
            raise UnknownSetting(f"stack_size={stack_size} does not divide the first axis of observations {shape}")
        return cls(num_streams, -(-capacity // num_streams), stack_size, shape, np.dtype(space.dtype).str)

    @property
    def frame_nbytes(self) -> int:
        """F, bytes of a frame."""
        return int(np.prod(self.observation_shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize // self.stack_size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the whole replay takes."""
        return self.layout().size

    def layout(self) -> Layout:
        """Where everything lies in the block."""
        rows = (self.num_streams, self.num_slots)
        layout = Layout()
        layout.add("frames", (*rows, self.frame_nbytes), np.uint8)
        layout.add("kinds", rows, np.uint8)
        layout.add("actions", rows, np.int32)
        layout.add("rewards", rows, np.float32)
        return layout

    def as_stacks(self, observations: ArrayOf) -> NDArray[np.uint8]:
        """Observations `[N, *observation_shape]` as bytes `[N, S, F]`; a view where they lie in one piece."""
        whole = np.ascontiguousarray(observations, self.dtype)
        return whole.reshape(len(whole), -1).view(np.uint8).reshape(len(whole), self.stack_size, self.frame_nbytes)


class ReplayMemory(SharedArrays):
    """The arrays of a replay.

    Attributes:
        frames: [E, L, F] uint8.
        kinds: [E, L] uint8, see `replay_kernels`.
        actions: [E, L] int32, counted from 0.
        rewards: [E, L] float32.
        descriptor: of the block, for other processes.
    """

    def __init__(self, spec: ReplaySpec, descriptor: int | None = None) -> None:
        """Map a block.

        Args:
            spec: the rows.
            descriptor: file to map; None makes a new one. Owned from now on.

        Raises:
            UnknownSetting: the machine has not enough memory for a new one.
        """
        self.spec = spec
        layout = spec.layout()
        if descriptor is None:
            available = available_memory()
            if available is not None and layout.size > available:
                raise UnknownSetting(
                    f"the replay needs {layout.size / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available; lower "
                    "replay_capacity"
                )
        super().__init__(layout, descriptor)
        self.frames: NDArray[np.uint8] = self._block["frames"]
        self.kinds: NDArray[np.uint8] = self._block["kinds"]
        self.actions: NDArray[np.int32] = self._block["actions"]
        self.rewards: NDArray[np.float32] = self._block["rewards"]

    @property
    def arrays(self) -> dict[str, ArrayOf]:
        """The arrays by name."""
        return {"frames": self.frames, "kinds": self.kinds, "actions": self.actions, "rewards": self.rewards}
