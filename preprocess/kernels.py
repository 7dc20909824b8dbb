"""Numba kernels of the Atari pipeline: palette, max-pool, area resize and frame stack in one call.

All kernels that call each other live in this file, because Numba's cache on disk notices a change in the file of the
function it stores but not in other files. Importing this module compiles (or loads from the cache) those that Python
calls, which contain the inner ones; import it only where a kernel is about to run. No kernel touches Python objects, so
all of them release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from .area_weights import AreaWeights
from .compiling import cached as _inner
from .compiling import kernel as _kernel

_BYTES_1D = types.Array(types.uint8, 1, "C")
_BYTES_2D = types.Array(types.uint8, 2, "C")
_BYTES_3D = types.Array(types.uint8, 3, "C")
_PAIRS = types.Array(types.uint16, 1, "C", readonly=True)
_MIXED = types.Array(types.uint8, 1, "C", readonly=True)
_STARTS = types.Array(types.int64, 1, "C", readonly=True)
_UNITS = types.Array(types.int32, 2, "C", readonly=True)
_FLOATS = types.Array(types.float32, 2, "C", readonly=True)
_FIELDS = (_STARTS, _UNITS, _FLOATS, _STARTS, _UNITS, _FLOATS, types.int64, types.int64)
_WEIGHTS = types.NamedTuple(_FIELDS, AreaWeights)  # type: ignore[no-untyped-call]


@_inner
def pool_gray_word(last: Any, one_before: Any, gray_pairs: Any) -> Any:
    """Gray maximum of eight neighbouring pixels.

    Args:
        last: eight palette values of one screen.
        one_before: the same pixels of the other screen.
        gray_pairs: [65536] uint16, gray of two neighbouring pixels at once.
    """
    result = np.uint64(0)
    for shift in range(0, 64, 16):
        result |= np.uint64(gray_pairs[(last >> np.uint64(shift)) & np.uint64(0xFFFF)]) << np.uint64(shift)
    if last == one_before:
        return result
    pooled = np.uint64(0)
    for shift in range(0, 64, 16):
        pair = np.uint64(gray_pairs[(one_before >> np.uint64(shift)) & np.uint64(0xFFFF)])
        known = result >> np.uint64(shift)
        pooled |= max(pair & np.uint64(0xFF), known & np.uint64(0xFF)) << np.uint64(shift)
        pooled |= max(pair & np.uint64(0xFF00), known & np.uint64(0xFF00)) << np.uint64(shift)
    return pooled


@_inner
def mix_row(words: Any, known: Any, row: int, mixed: Any) -> None:
    """Replace the gray of pixels that differ between both screens by the gray of their pooled colours.

    `words`, `known` and `row` are those of `pool_row`; `mixed` [65536] uint8 holds the gray of two palette values
    shown one over the other, at ``last | one_before << 8``.
    """
    for word in range(words.shape[2]):
        last, one_before = words[0, row, word], words[1, row, word]
        if last != one_before:
            result = np.uint64(0)
            for shift in range(0, 64, 8):
                pair = (last >> np.uint64(shift)) & np.uint64(0xFF)
                pair |= ((one_before >> np.uint64(shift)) & np.uint64(0xFF)) << np.uint64(8)
                result |= np.uint64(mixed[pair]) << np.uint64(shift)
            known[2, row, word] = result


@_inner
def pool_row(words: Any, known: Any, row: int, before: int, gray_pairs: Any, refresh: bool) -> None:
    """Bring the gray of one row of the memory of `pool_changed_rows` up to date; the rows above it are so already.

    `words` [2, H or more, W / 8] and `known` [3, H, W / 8] uint64 are screens and memory, eight pixels a number; plane
    `before` of the memory holds what the second screen was. `refresh` computes every pixel, else those where a screen
    changed.
    """
    # Slices such as words[0, row] would cost more than the work below.
    above = max(row - 1, 0)
    unlike_above = np.uint64(row == 0)
    for word in range(words.shape[2]):
        unlike_above |= words[0, row, word] ^ words[0, above, word]
        unlike_above |= words[1, row, word] ^ words[1, above, word]
    if unlike_above == 0:
        # Games draw most things two or more rows high.
        for word in range(words.shape[2]):
            known[2, row, word] = known[2, above, word]
    else:
        for word in range(words.shape[2]):
            last, one_before = words[0, row, word], words[1, row, word]
            if refresh or last != known[0, row, word] or one_before != known[before, row, word]:
                known[2, row, word] = pool_gray_word(last, one_before, gray_pairs)


@_inner
def pool_changed_rows(
    screens: Any, memory: Any, alike: Any, gray_pairs: Any, mixed: Any, refresh: bool, changed: Any
) -> bool:
    """Turn palette screens into gray and keep the brighter one per pixel, where something changed since the last call.

    Args:
        screens: [2, H or more, W] uint8 palette values of this call; W a multiple of 8.
        memory: [3, H, W] uint8, the screens of the previous call and their gray maximum; brought up to date.
        alike: [H] uint8, 1 for rows that were the same on both of those screens: the second plane of `memory`, which
            is seldom needed and costs a fetch from far away, is not kept up to date there; brought up to date.
        gray_pairs: see `pool_gray_word`.
        mixed: see `mix_row`, or empty: the gray of two pixels is the larger of their grays.
        refresh: forget what `memory` holds and compute every pixel.
        changed: [H] uint8, set to 1 for rows where a screen changed, else 0.

    Returns:
        Whether any row changed.
    """
    words = screens.view(np.uint64)
    known = memory.view(np.uint64)
    found = False
    for row in range(memory.shape[1]):
        difference, apart = np.uint64(refresh), np.uint64(0)
        for word in range(words.shape[2]):
            difference |= words[0, row, word] ^ known[0, row, word]
            apart |= words[0, row, word] ^ words[1, row, word]
        before = 0 if alike[row] else 1
        if before == 0:
            difference |= apart
        else:
            for word in range(words.shape[2]):
                difference |= words[1, row, word] ^ known[1, row, word]
        changed[row] = difference != 0
        if difference != 0:
            found = True
            pool_row(words, known, row, before, gray_pairs, refresh)
            if mixed.size > 0:
                mix_row(words, known, row, mixed)
            for word in range(words.shape[2]):
                known[0, row, word] = words[0, row, word]
            if apart != 0:
                for word in range(words.shape[2]):
                    known[1, row, word] = words[1, row, word]
            alike[row] = apart == 0
    return found


@_inner
def resize_pixel_in_floats(image: Any, y: int, x: int, weights: Any) -> Any:
    """One output pixel as OpenCV sums it: float32, along the row first, then down; exact halves to the even number."""
    result = np.float32(0)
    for row_tap in range(weights.row_floats.shape[1]):
        along = np.float32(0)
        for tap in range(weights.column_floats.shape[1]):
            value = np.float32(image[weights.row_starts[y] + row_tap, weights.column_starts[x] + tap])
            along += value * weights.column_floats[x, tap]
        result += along * weights.row_floats[y, row_tap]
    return np.uint8(np.rint(result))


@_inner
def round_sums(sums: Any, total: int, out: Any) -> Any:
    """Divide weighted sums by their weight and round.

    Args:
        sums: [n] int32.
        total: weight of an output pixel.
        out: [n] uint8, receives the quotients.

    Returns:
        Whether a quotient lies so near a half that OpenCV's float32 sum may round to the other side.
    """
    inverse = np.float32(1.0 / total)
    weight = np.int32(total)
    near_half = np.int32(total - total // 500)
    doubtful = np.int32(0)
    for index in range(out.size):
        quotient = np.int32(np.float32(sums[index]) * inverse + np.float32(0.5))
        out[index] = np.uint8(quotient)
        rest = np.int32(np.int32(2) * np.int32(sums[index] - np.int32(quotient * weight)))
        doubtful |= np.int32((rest >= near_half) | (rest <= -near_half))
    return doubtful != 0


@_inner
def add_weighted_rows(image: Any, start: int, units: Any, shift: int, down: Any) -> None:
    """Add the weighted sum of neighbouring rows to one lane of `down`.

    Args:
        image: [H, W] uint8.
        start: first of the rows.
        units: [K] int32 weights, K >= 3.
        shift: lowest bit of the lane.
        down: [W] uint64 packed sums.
    """
    unit_0, unit_1, unit_2 = np.uint32(units[0]), np.uint32(units[1]), np.uint32(units[2])
    line_0, line_1, line_2 = image[start], image[start + 1], image[start + 2]
    # Three rows at once is what nearly every game needs, and twice as fast as a loop over the rows.
    for column in range(down.size):
        upper = np.uint32(unit_0 * np.uint32(line_0[column]) + unit_1 * np.uint32(line_1[column]))
        down[column] += np.uint64(np.uint32(upper + unit_2 * np.uint32(line_2[column]))) << shift
    for tap in range(3, units.size):
        unit = np.uint64(units[tap]) << shift
        line = image[start + tap]
        if unit != 0:
            for column in range(down.size):
                down[column] += unit * np.uint64(line[column])


@_inner
def round_half(sums: Any, image: Any, y: int, x: int, weights: Any) -> Any:
    """An output pixel whose sum is a half, or so near one that OpenCV's float32 sum decides."""
    exact = np.int64(sums[x])
    if weights.rounding == 1:
        return np.uint8((exact + weights.total // 2) // weights.total)
    if weights.rounding == 2:
        return np.uint8(np.rint(np.float32(exact) * np.float32(1.0 / weights.total)))
    return resize_pixel_in_floats(image, y, x, weights)


@_kernel(types.void(_BYTES_2D, _BYTES_1D, _WEIGHTS, _BYTES_2D))
def resize_area_rows(image: Any, changed: Any, weights: Any, out: Any) -> None:
    """Shrink an image by area, recomputing the output rows that a changed source row reaches.

    The sum of whole numbers is exact. It differs from OpenCV's float32 sum only where the result is a half (for large
    weights: nearly a half); those pixels are summed again in floats, or rounded as OpenCV rounds whole factors. The
    sums of four output rows (two where sums exceed 16 bits) travel in the lanes of one 64-bit number, so that one
    multiplication serves all of them.

    `image` is [H, W] uint8, `changed` [H] uint8 with 1 for source rows that changed since `out` [h, w] uint8 was
    computed; `weights` are of `vecenv.preprocess.area_weights`.
    """
    row_starts, row_units, total = weights.row_starts, weights.row_units, weights.total
    column_starts, column_units = weights.column_starts, weights.column_units
    height_out, width_out = out.shape
    lanes = 4 if total * 255 < 65536 else 2
    lane_bits = np.uint64(64 // lanes)
    lane_mask = np.uint32(0xFFFF) if lanes == 4 else np.uint32(0xFFFFFFFF)
    down = np.empty(image.shape[1], np.uint64)
    packed = np.empty(width_out, np.uint64)
    sums = np.empty(lanes * width_out, np.int32)
    pixels = out.reshape(-1)
    weight, near_half = np.int32(total), np.int32(total - total // 500)
    for first in range(0, height_out, lanes):
        end = min(height_out, first + lanes)
        touched = np.uint8(0)
        for row in range(row_starts[first], row_starts[end - 1] + row_units.shape[1]):
            touched |= changed[row]
        if touched == 0:
            continue
        down[:] = 0
        for y in range(first, end):
            add_weighted_rows(image, row_starts[y], row_units[y], np.uint64(y - first) * lane_bits, down)
        for x in range(width_out):
            start = np.uint64(column_starts[x])
            along = np.uint64(column_units[x, 0]) * down[start]
            along += np.uint64(column_units[x, 1]) * down[start + np.uint64(1)]
            along += np.uint64(column_units[x, 2]) * down[start + np.uint64(2)]
            for tap in range(3, column_units.shape[1]):
                along += np.uint64(column_units[x, tap]) * down[start + np.uint64(tap)]
            packed[x] = along
        for lane in range(end - first):
            line = sums[lane * width_out : (lane + 1) * width_out]
            for x in range(width_out):
                line[x] = np.int32(np.uint32(packed[x] >> (np.uint64(lane) * lane_bits)) & lane_mask)
        if round_sums(sums[: (end - first) * width_out], total, pixels[first * width_out : end * width_out]):
            for y in range(first, end):
                line = sums[(y - first) * width_out : (y - first + 1) * width_out]
                for x in range(width_out):
                    rest = np.int32(2) * np.int32(line[x] - np.int32(out[y, x]) * weight)
                    if not (-near_half < rest < near_half):
                        out[y, x] = round_half(line, image, y, x, weights)


@_kernel(types.void(_BYTES_3D, types.int64, _BYTES_3D))
def store_stack(frames: Any, newest: int, out: Any) -> None:
    """Put the newest frame into the ring and write the ring out in order.

    Args:
        frames: [S + 1, h, w] uint8, a ring of S frames, then the newest frame.
        newest: index in the ring that the newest frame takes.
        out: [S, h, w] uint8, the ring from the oldest frame to the newest.
    """
    stack_size = out.shape[0]
    size = out.shape[1] * out.shape[2]
    # Plain loops over one-dimensional slices: LLVM turns these into wide copies, array assignment it does not.
    source = frames.reshape(-1)
    target = out.reshape(-1)
    slot = source[newest * size : (newest + 1) * size]
    frame = source[stack_size * size : (stack_size + 1) * size]
    for pixel in range(size):
        slot[pixel] = frame[pixel]
    for index in range(stack_size):
        begin = (newest + 1 + index) % stack_size * size
        frame = source[begin : begin + size]
        slot = target[index * size : (index + 1) * size]
        for pixel in range(size):
            slot[pixel] = frame[pixel]


@_kernel(types.boolean(_BYTES_3D, _BYTES_3D, _BYTES_1D, _PAIRS, _MIXED, _WEIGHTS, _BYTES_2D, types.boolean))
def shrink_screens(
    screens: Any, memory: Any, alike: Any, gray_pairs: Any, mixed: Any, weights: Any, frame: Any, refresh: bool
) -> Any:
    """Palette screens to one small frame, where something changed since the last call.

    `screens` [2, H or more, W] uint8 holds the palette values of the last two frames; `memory` [3, H, W] and `alike`
    [H] uint8 are kept between calls, see `pool_changed_rows`; `gray_pairs` and `mixed`: see `pool_gray_word`; `weights`
    are of `vecenv.preprocess.area_weights`. `frame` [h, w] uint8, kept between calls, is brought up to date; `refresh`
    computes every row and forgets what `memory` holds.

    Returns:
        Whether a screen changed.
    """
    changed = np.empty(memory.shape[1], np.uint8)
    found = pool_changed_rows(screens, memory, alike, gray_pairs, mixed, refresh, changed)
    if found:
        resize_area_rows(memory[2], changed, weights, frame)
    return found


@_kernel(
    types.void(
        _BYTES_3D, _BYTES_3D, _BYTES_1D, _PAIRS, _MIXED, *_FIELDS, _BYTES_3D, types.int64, types.boolean, _BYTES_3D
    )
)
def observe_screens(
    screens: Any,
    memory: Any,
    alike: Any,
    gray_pairs: Any,
    mixed: Any,
    row_starts: Any,
    row_units: Any,
    row_floats: Any,
    column_starts: Any,
    column_units: Any,
    column_floats: Any,
    total: int,
    rounding: int,
    frames: Any,
    newest: int,
    refresh: bool,
    out: Any,
) -> None:
    """Palette screens to a stacked observation: `shrink_screens` and `store_stack` in one call.

    The arguments are theirs, the fields of the weights one by one, because a tuple costs a microsecond to hand over.
    `frames` [S + 1, h, w] uint8, kept between calls, is a ring of the last S frames, then the newest frame, which goes
    to index `newest` of the ring; `out` [S, h, w] uint8 is wholly overwritten with the observation, oldest frame first.
    """
    weights = AreaWeights(
        row_starts, row_units, row_floats, column_starts, column_units, column_floats, total, rounding
    )
    shrink_screens(screens, memory, alike, gray_pairs, mixed, weights, frames[out.shape[0]], refresh)
    store_stack(frames, newest, out)
