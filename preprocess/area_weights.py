"""Weights of an area resize, in whole numbers for the sum and in floats for its exact halves."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# OpenCV leaves out a piece of a source pixel that is narrower than this.
_SMALLEST_PIECE = 1e-3

# Rules for sums that are exactly a half. Where both sides shrink by whole factors OpenCV adds whole numbers: 2 x 2 it
# rounds up, other factors it multiplies by the float32 of 1 / (number of pixels). Else its float32 sums decide.
FLOAT_ORDER, HALF_UP, HALF_EVEN = 0, 1, 2

# Largest side in pixels, and largest whole-number weight of an output pixel, whose sums fit 31 bits.
_LARGEST_SIDE = 4096
_LARGEST_TOTAL = (2**31 - 1) // 255 // 2

# The kernels sum this many source pixels without a loop.
_FEWEST_TAPS = 3


class AreaWeights(NamedTuple):
    """Which source pixels an output pixel covers along each axis, and how much of each.

    Along an axis every output pixel covers `K` neighbouring source pixels, the same number for all (some weigh 0).
    The weight of a source pixel in the output pixel (y, x) is ``row_units[y] * column_units[x] / total``. `K` is 3 or
    more.

    Attributes:
        row_starts: [h] int64, first source row of each output row.
        row_units: [h, K] int32, covered part of each source row, in parts of ``total``'s vertical factor.
        row_floats: [h, K] float32, the same as fractions, rounded as OpenCV rounds them.
        column_starts: [w] int64, first source column of each output column.
        column_units: [w, K] int32.
        column_floats: [w, K] float32.
        total: sum of all whole-number weights of one output pixel.
        rounding: what OpenCV does with sums that are exactly a half: `FLOAT_ORDER`, `HALF_UP` or `HALF_EVEN`.
    """

    row_starts: npt.NDArray[np.int64]
    row_units: npt.NDArray[np.int32]
    row_floats: npt.NDArray[np.float32]
    column_starts: npt.NDArray[np.int64]
    column_units: npt.NDArray[np.int32]
    column_floats: npt.NDArray[np.float32]
    total: int
    rounding: int


def check_area_resize(source: tuple[int, int], target: tuple[int, int]) -> None:
    """Refuse a resize that the kernels do not compute.

    Args:
        source: height and width of the source, in pixels.
        target: height and width of the result, in pixels.

    Raises:
        ValueError: the result is larger than the source along an axis, or a side is out of range.
    """
    for axis, size, wanted in zip(("height", "width"), source, target, strict=True):
        if not 1 <= wanted <= _LARGEST_SIDE or not _FEWEST_TAPS <= size <= _LARGEST_SIDE:
            raise ValueError(
                f"{axis} of an area resize must be from 1 (source: 3) to {_LARGEST_SIDE}, got {size} -> {wanted}"
            )
        if wanted > size:
            raise ValueError(f"an area resize only shrinks: {axis} {size} cannot become {wanted}")
    total = math.prod(size // math.gcd(size, wanted) for size, wanted in zip(source, target, strict=True))
    if total > _LARGEST_TOTAL:
        raise ValueError(f"resizing {source} to {target} needs weights too fine for 32 bits; choose a rounder size")


@functools.lru_cache(maxsize=32)
def area_weights(source: tuple[int, int], target: tuple[int, int]) -> AreaWeights:
    """Compute the weights for one pair of sizes; the arrays are shared and read-only.

    Args:
        source: height and width of the source, in pixels.
        target: height and width of the result, in pixels.

    Returns:
        The weights, the same objects for the same sizes.

    Raises:
        ValueError: see `check_area_resize`.
    """
    check_area_resize(source, target)
    row_starts, row_units, row_floats, row_total = _axis_weights(source[0], target[0])
    column_starts, column_units, column_floats, column_total = _axis_weights(source[1], target[1])
    total = row_total * column_total
    rounding = FLOAT_ORDER
    if _is_whole_factor(source[0], target[0]) and _is_whole_factor(source[1], target[1]):
        rounding = HALF_UP if source[0] == 2 * target[0] and source[1] == 2 * target[1] else HALF_EVEN
    return AreaWeights(row_starts, row_units, row_floats, column_starts, column_units, column_floats, total, rounding)


def _is_whole_factor(size: int, wanted: int) -> bool:
    """Whether OpenCV sees a whole factor: it inverts the inverse, which misses some, such as 49 and 186."""
    return size % wanted == 0 and 1.0 / (wanted / size) == size // wanted


def _axis_weights(
    size: int, wanted: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32], int]:
    """Weights along one axis: first source index, whole-number weights, float weights, sum of the whole numbers."""
    divisor = math.gcd(size, wanted)
    pixel, cell = wanted // divisor, size // divisor  # a source pixel spans `pixel` units, an output pixel `cell`
    taps = min(size, max(_FEWEST_TAPS, -(-(cell - 1) // pixel) + 1))
    starts = np.empty(wanted, np.int64)
    units = np.zeros((wanted, taps), np.int32)
    floats = np.zeros((wanted, taps), np.float32)
    for index in range(wanted):
        begin, end = index * cell, (index + 1) * cell
        # Near the far edge the window moves back, so that all windows lie inside; its leading pixels weigh 0.
        start = min(begin // pixel, size - taps)
        starts[index] = start
        for tap in range(taps):
            left, right = (start + tap) * pixel, (start + tap + 1) * pixel
            units[index, tap] = max(0, min(right, end) - max(left, begin))
        for source_index, weight in _opencv_weights(index, size, size / wanted):
            floats[index, source_index - start] += np.float32(weight)
    for array in (starts, units, floats):
        array.flags.writeable = False
    return starts, units, floats, cell


def _opencv_weights(index: int, size: int, scale: float) -> list[tuple[int, float]]:
    """Source indices and weights of one output pixel, computed in doubles in the order OpenCV computes them."""
    begin = index * scale
    end = begin + scale
    cell = min(scale, size - begin)
    last = min(math.floor(end), size - 1)
    first = min(math.ceil(begin), last)
    weights = []
    if first - begin > _SMALLEST_PIECE:
        weights.append((first - 1, (first - begin) / cell))
    weights += [(whole, 1.0 / cell) for whole in range(first, last)]
    if end - last > _SMALLEST_PIECE:
        weights.append((last, min(end - last, 1.0, cell) / cell))
    return weights
