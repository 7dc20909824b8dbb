"""Numba kernels around the fused ones: layouts of stacks with colours, RGB to gray, planes and back.

None of them calls another kernel. Importing this module compiles (or loads from the cache).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from .compiling import kernel as _kernel

_BYTES_1D = types.Array(types.uint8, 1, "C")
_BYTES_2D = types.Array(types.uint8, 2, "C")
_BYTES_3D = types.Array(types.uint8, 3, "C")
_IMAGE = types.Array(types.uint8, 3, "C", readonly=True)


@_kernel(types.void(_BYTES_3D, types.int64, types.int64, types.int64, types.int64, _BYTES_1D))
def store_interleaved(frames: Any, channels: int, newest: int, frame_stride: int, pixel_stride: int, out: Any) -> None:
    """Put the newest frame into the ring and write the ring out with the channels of a pixel side by side.

    Args:
        frames: [S + 1, C * h, w] uint8, planes of C channels: a ring of S frames, then the newest frame.
        channels: C.
        newest: index in the ring that the newest frame takes.
        frame_stride: distance in `out` between two frames.
        pixel_stride: distance in `out` between two pixels.
        out: [S * C * h * w] uint8; channels lie at distance 1.
    """
    stack_size = frames.shape[0] - 1
    pixels = frames.shape[1] * frames.shape[2] // channels
    planes = frames.reshape((stack_size + 1) * channels, pixels)
    planes[newest * channels : (newest + 1) * channels] = planes[stack_size * channels :]
    for index in range(stack_size):
        plane = (newest + 1 + index) % stack_size * channels
        for channel in range(channels):
            start = index * frame_stride + channel
            for pixel in range(pixels):
                out[start + pixel * pixel_stride] = planes[plane + channel, pixel]


@_kernel(types.void(_IMAGE, _BYTES_2D))
def rgb_to_gray(image: Any, out: Any) -> None:
    """Gray by OpenCV's weights, in its 15-bit numbers.

    Args:
        image: [H, W, 3] uint8.
        out: [H, W] uint8.
    """
    flat = image.reshape(-1)
    gray = out.reshape(-1)
    for pixel in range(gray.size):
        red, green, blue = flat[3 * pixel], flat[3 * pixel + 1], flat[3 * pixel + 2]
        weighted = np.uint32(9798) * red + np.uint32(19235) * green + np.uint32(3735) * blue
        gray[pixel] = np.uint8((weighted + np.uint32(16384)) >> np.uint32(15))


@_kernel(types.void(_IMAGE, _BYTES_3D))
def split_channels(image: Any, out: Any) -> None:
    """One plane per channel.

    Args:
        image: [H, W, C] uint8.
        out: [C, H, W] uint8.
    """
    for channel in range(out.shape[0]):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                out[channel, row, column] = image[row, column, channel]


@_kernel(types.void(_BYTES_3D, _BYTES_3D))
def merge_channels(planes: Any, out: Any) -> None:
    """The inverse of `split_channels`.

    Args:
        planes: [C, H, W] uint8.
        out: [H, W, C] uint8.
    """
    for channel in range(planes.shape[0]):
        for row in range(planes.shape[1]):
            for column in range(planes.shape[2]):
                out[row, column, channel] = planes[channel, row, column]
