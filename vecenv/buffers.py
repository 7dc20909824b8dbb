"""Memory that holds one batch: private to the process, or one anonymous block shared with the workers."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.signals import uses_linux_means

Array = npt.NDArray[Any]
_ALIGNMENT = 64  # a cache line: rows of two workers in neighbouring arrays never share one by accident of layout


@dataclass(frozen=True)
class ArraySpec:
    """Where an array lies in a block: name, shape, dtype, offset in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


@dataclass
class Layout:
    """Names and places of all arrays of a block; grows while the block is planned."""

    arrays: dict[str, ArraySpec] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Plan one array; its memory starts zeroed.

        Raises:
            ValueError: the name is taken.
        """
        if name in self.arrays:
            raise ValueError(f"array {name!r} is planned twice")
        dtype = np.dtype(dtype)
        self.arrays[name] = ArraySpec(name, shape, dtype, self.size)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.size += aligned(nbytes)


def aligned(nbytes: int) -> int:
    """A number of bytes, rounded up to whole cache lines."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def create_block_file() -> int:
    """An anonymous file for shared memory: nothing of it survives its holders, however they end.

    Returns:
        A file descriptor, size 0. Linux: memfd. Elsewhere: a temporary file that is already unlinked.
    """
    if uses_linux_means():
        return os.memfd_create("vecenv", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="vecenv-")
    os.unlink(path)
    return descriptor


def reserve_block(descriptor: int, size: int) -> None:
    """Give the file its size, with the memory really set aside.

    Raises:
        MemoryError: the machine cannot hold it. Without this a worker would die of SIGBUS later.
    """
    size = max(size, mmap.PAGESIZE)
    available = available_memory()
    if available is not None and size > available:
        raise MemoryError(
            f"the vector env needs {size / 2**20:.0f} MiB of shared memory, {available / 2**20:.0f} MiB are available; "
            "use fewer envs, fewer slots or smaller observations"
        )
    try:
        os.ftruncate(descriptor, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise MemoryError(f"cannot set aside {size / 2**20:.0f} MiB of shared memory: {error}") from error


def available_memory() -> int | None:
    """Bytes that can still be used, by the machine and by the control group; None: the system does not tell."""
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            bounds.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(bounds, default=None)


class Block:
    """Arrays by name over one piece of memory.

    Args:
        layout: the plan.
        descriptor: file to map (shared); None: private memory.
    """

    def __init__(self, layout: Layout, descriptor: int | None = None) -> None:
        self.layout = layout
        size = max(layout.size, mmap.PAGESIZE)
        self._memory: Any = bytearray(size) if descriptor is None else mmap.mmap(descriptor, size)

    def __getitem__(self, name: str) -> Array:
        """The array of that name; a view that keeps the memory alive."""
        spec = self.layout.arrays[name]
        return np.ndarray(spec.shape, spec.dtype, self._memory, spec.offset)
