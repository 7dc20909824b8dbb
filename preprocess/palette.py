"""Colours of the Atari 2600 screen: what every pixel value looks like, for NTSC and PAL games.

The emulator's screen holds one byte per pixel. Its colours are the 128 even values; the tables below are what its own
RGB and gray screens show for them. Odd values have no colour, yet a few games show them (`air_raid` many); what the
emulator does with them follows a rule, which `Palette` applies: as RGB an odd value is the gray of the even value
before it, as gray it is the blue part of the even value after it (0 for 255, which has none).
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

# Red, green and blue of the values 0, 2, ..., 254: eight values of one hue a line.
_NTSC = (
    "0000004a4a4a6f6f6f8e8e8eaaaaaac0c0c0d6d6d6ececec"
    "48480069690f86861da2a22abbbb35d2d240e8e84afcfc54"
    "7c2c00904811a26221b47a30c3903dd2a44adfb755ecc860"
    "901c00a33915b55328c66c3ad5824ae39759f0aa67fcbc74"
    "940000a71a1ab83232c84848d65c5ce46f6ff08080fc9090"
    "84006497197aa8308fb846a2c659b3d46cc3e07cd2ec8ce0"
    "50008468199a7d30ad9246c0a459d0b56ce0c57ceed48cfc"
    "140090331aa34e32b56848c67f5cd5956fe3a980f0bc90fc"
    "000094181aa72d32b84248c8545cd6656fe47580f08490fc"
    "001c88183b9d2d57b04272c2548ad265a0e175b5ef84c8fc"
    "0030641850802d6d984288b054a0c565b7d975cceb84e0fc"
    "00403018624e2d8169429e8254b89965d1ae75e7c284fcd4"
    "0044001a661a32843248a0485cba5c6fd26f80e88090fc90"
    "143c00355f18527e2d6e9c4287b7549ed065b4e775c8fc84"
    "3038005059166d762b88923ea0ab4fb7c25fccd86ee0ec7c"
    "482c00694d14866a26a28638bb9f47d2b656e8cc63fce070"
)
_PAL = (
    "0000002b2b2b525252767676979797b6b6b6d2d2d2ececec"
    "0000002b2b2b525252767676979797b6b6b6d2d2d2ececec"
    "80580096711aab8732be9c48cfaf5cdfc06feed180fce090"
    "445c005e791a7693328cac48a0c25cb3d76fc4ea80d4fc90"
    "70340089511aa06b32b68448c99a5cdcaf6fecc280fcd490"
    "0064141a803532985248b06e5cc5876fd99e80ebb490fcc8"
    "700014891a35a03252b6486ec95c87dc6f9eec80b4fc90c8"
    "005c5c1a7676328e8e48a4a45cb8b86fcbcb80dcdc90ecec"
    "70005c841a74963289a8489eb75cb0c66fc1d380d1e090e0"
    "003c70195a892f75a0448eb657a5c968badc79ceec88e0fc"
    "5800706e1a898332a09648b6a75cc9b76fdcc680ecd490fc"
    "002070193f892f5aa04474b6578bc968a1dc79b5ec88c8fc"
    "3400804a1a965f32ab7248be835ccf936fdfa280eeb090fc"
    "0000881a1a9d3232b04848c25c5cd26f6fe18080ef9090fc"
    "0000002b2b2b525252767676979797b6b6b6d2d2d2ececec"
    "0000002b2b2b525252767676979797b6b6b6d2d2d2ececec"
)

PALETTES = {"ntsc": _NTSC, "pal": _PAL}

# Weights of red, green and blue by which the emulator makes gray.
_GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)

# The same for OpenCV, in parts of 2**15.
_OPENCV_WEIGHTS = (9798, 19235, 3735)

# The pooled gray of two pixels is the larger of both grays.
NOT_MIXED = np.empty(0, np.uint8)
NOT_MIXED.flags.writeable = False


class Palette:
    """RGB and gray of all 256 pixel values; the arrays are read-only.

    Args:
        name: ``"ntsc"`` or ``"pal"``.

    Attributes:
        name: as given.
        rgb: [256, 3] uint8.
        gray: [256] uint8, the emulator's.
        opencv_gray: [256] uint8, what OpenCV makes of `rgb`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        colours = np.frombuffer(bytes.fromhex(PALETTES[name]), np.uint8).reshape(128, 3)
        gray = np.rint(colours @ np.array(_GRAY_WEIGHTS)).astype(np.uint8)
        self.rgb = np.empty((256, 3), np.uint8)
        self.rgb[0::2] = colours
        self.rgb[1::2] = gray[:, None]
        self.gray = np.empty(256, np.uint8)
        self.gray[0::2] = gray
        self.gray[1:-1:2] = colours[1:, 2]
        self.gray[255] = 0
        self.opencv_gray = opencv_gray(self.rgb)
        for table in (self.rgb, self.gray, self.opencv_gray):
            table.flags.writeable = False


def opencv_gray(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Gray as OpenCV computes it, in its 15-bit numbers.

    Args:
        rgb: [..., 3] uint8.

    Returns:
        [...] uint8, a new array.
    """
    weighted = rgb.astype(np.int64) @ np.array(_OPENCV_WEIGHTS)
    gray: npt.NDArray[np.uint8] = ((weighted + (1 << 14)) >> 15).astype(np.uint8)
    return gray


@functools.cache
def load_palette(name: str) -> Palette:
    """One palette, built once per process.

    Args:
        name: ``"ntsc"`` or ``"pal"``.

    Raises:
        KeyError: another name.
    """
    return Palette(name)


def matching_palettes(
    screen: npt.NDArray[np.uint8], rgb: npt.NDArray[np.uint8], gray: npt.NDArray[np.uint8]
) -> list[Palette]:
    """The palettes that explain one frame.

    Args:
        screen: [H, W] uint8 pixel values.
        rgb: [H, W, 3] uint8, the same frame in the emulator's colours.
        gray: [H, W] uint8, the same frame in the emulator's gray.

    Returns:
        Those that agree in every pixel: none, one, or both where the frame shows only colours they share.
    """
    palettes = [load_palette(name) for name in PALETTES]
    return [p for p in palettes if np.array_equal(p.rgb[screen], rgb) and np.array_equal(p.gray[screen], gray)]


@functools.cache
def gray_pairs(name: str | None) -> npt.NDArray[np.uint16]:
    """Gray of two neighbouring pixels at once, as the kernels look it up.

    Args:
        name: a palette, or None for pixels that are gray already.

    Returns:
        [65536] uint16, read-only: entry ``first | second << 8`` holds both grays in the same order.
    """
    return pair_table(np.arange(256, dtype=np.uint8) if name is None else load_palette(name).gray)


def pair_table(table: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """A table for two neighbouring pixels at once.

    Args:
        table: [256] uint8, what to show for each pixel value.

    Returns:
        [65536] uint16, read-only, a new array: entry ``first | second << 8`` holds both in the same order.
    """
    pairs = np.arange(65536, dtype=np.uint16)
    both = np.stack([table[pairs & 255], table[pairs >> 8]], axis=1).copy().view(np.uint16)[:, 0]
    both = np.ascontiguousarray(both)
    both.flags.writeable = False
    return both


@functools.cache
def mixed_gray(name: str) -> npt.NDArray[np.uint8]:
    """Gray of two pixels whose colours were pooled before: OpenCV's gray of the channels' maxima.

    Args:
        name: a palette.

    Returns:
        [65536] uint8, read-only: entry ``one | other << 8``.
    """
    rgb = load_palette(name).rgb
    values = np.arange(65536)
    table = opencv_gray(np.maximum(rgb[values & 255], rgb[values >> 8]))
    table.flags.writeable = False
    return table
