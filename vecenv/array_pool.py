"""Arrays that belong to whoever gets them, out of memory that is used again once nobody refers to it.

Fresh memory of some hundred kilobytes costs more than a compiled step of thousands of envs: the system hands it over
page by page. So a pool keeps a few sets of arrays and gives out views of one whose memory nobody but the pool refers
to any more: no view, slice, tensor or memoryview made of what was given out before.

Arrays begin where a cache line begins: vector instructions of 64 bytes would otherwise touch two lines each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Sets that a pool keeps; who holds on to more results gets fresh memory.
KEPT = 4
_CACHE_LINE = 64


def aligned_empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Array:
    """An array like that of `numpy.empty`, but that it begins at a cache line.

    Its `base` is the memory, which every view of the array refers to as well.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def aligned_zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Array:
    """Zeros, as `aligned_empty` gives them."""
    array = aligned_empty(shape, dtype)
    array[...] = 0
    return array


class ArrayPool:
    """Gives out sets of arrays.

    Args:
        make: makes a set, of arrays as `aligned_empty` gives them.
    """

    def __init__(self, make: Callable[[], tuple[Array, ...]]) -> None:
        self._make = make
        self._kept: list[tuple[Array, ...]] = []
        # Without the interpreter lock, counts of references say nothing.
        self._reuses = getattr(sys, "_is_gil_enabled", lambda: True)()
        array = aligned_empty(1)
        self._references = sys.getrefcount(array.base)  # of memory that only a set refers to, as counted below

    def take(self) -> tuple[Array, ...]:
        """A set of arrays for the caller to keep; what they hold is arbitrary."""
        if not self._reuses:
            return self._make()
        for arrays in self._kept:
            for array in arrays:
                if sys.getrefcount(array.base) != self._references:
                    break
            else:
                # Views: whoever changes the shape or the flags of what they got does not change the pool's array.
                return tuple([array[...] for array in arrays])
        arrays = self._make()
        self._kept.append(arrays)
        if len(self._kept) > KEPT:
            self._kept.pop(0)
        return tuple([array[...] for array in arrays])
