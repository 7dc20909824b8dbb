"""From the emulator's screens to stacked observations, by the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.preprocess.area_weights import area_weights
from vecenv.preprocess.config import SCREEN_WIDTH, AtariConfig
from vecenv.preprocess.palette import NOT_MIXED, gray_pairs, load_palette, mixed_gray, pair_table


class FrameMaker:
    """The last two screens of a game, the stack made of them and earlier ones, and the kernels' memory.

    Args:
        height: lines of the game's screen, in pixels.
        palette: name of the game's palette, or None for screens that are read in gray.
        config: the settings.

    Attributes:
        screens: [2, H, 160] uint8, to be filled with the last frame and the one before it.
        first_screens: the same for the first frame of an episode, so that a start leaves `screens` alone.

    Raises:
        ValueError: the settings cannot be applied to such a screen.
    """

    def __init__(self, height: int, palette: str | None, config: AtariConfig) -> None:
        self.screens = np.zeros((2, height, SCREEN_WIDTH), np.uint8)
        self.first_screens = np.zeros_like(self.screens)
        rows = config.screen_height(height)
        self._weights = area_weights((rows, SCREEN_WIDTH), config.screen_size)
        self._tables = _channel_tables(palette, config)
        channels = len(self._tables)
        opencv = config.grayscale and config.gray == "opencv" and palette is not None
        self._mixed = mixed_gray(palette) if opencv and palette is not None else NOT_MIXED
        self._memory = np.zeros((channels, 3, rows, SCREEN_WIDTH), np.uint8)
        self._alike = np.zeros((channels, rows), np.uint8)
        lines, columns = config.screen_size
        self._stack_size = config.stack_size
        self._frames = np.zeros((config.stack_size + 1, channels * lines, columns), np.uint8)
        self._newest = 0
        self._refresh = True
        self._repeats = config.padding == "repeat"
        self._shape = config.observation_shape
        # Distances between frames and pixels of an observation where its channels lie side by side.
        self._strides: tuple[int, int] | None = None
        if config.channel_order == "last":
            self._strides = (channels, config.stack_size * channels)
        elif channels > 1 and config.channel_order == "frames":
            self._strides = (channels * lines * columns, channels)
        is_plain = palette is None or not opencv
        pairs = gray_pairs(palette) if is_plain and config.grayscale else pair_table(self._tables[0])
        self._pairs = [pairs] + [pair_table(table) for table in self._tables[1:]]
        # One call does everything for gray frames in order.
        self._fused = channels == 1 and self._strides is None
        self._constants = (
            self._memory[0],
            self._alike[0],
            self._pairs[0],
            self._mixed,
            *self._weights,
            self._frames,
        )

    def prepare(self) -> None:
        """Load the kernels."""
        from vecenv.preprocess import kernels

        self._observe = kernels.observe_screens
        self._shrink = kernels.shrink_screens
        self._resize = kernels.resize_area_rows
        self._store_planes = kernels.store_stack
        if self._strides is not None:
            from vecenv.preprocess import image_kernels

            self._store_pixels = image_kernels.store_interleaved

    def first(self, out: npt.NDArray[np.uint8]) -> None:
        """Begin a new stack with `first_screens` and write it to `out`."""
        self._frames[:] = 0
        self._newest = 0
        self._refresh = True
        self._add(self.first_screens, out)
        if self._repeats:
            self._frames[: self._stack_size] = self._frames[self._stack_size]
            self.again(out)

    def following(self, out: npt.NDArray[np.uint8], *, start: bool = False) -> None:
        """Add the frame made of `screens`, or of `first_screens` with `start`, and write the stack to `out`."""
        self._newest = (self._newest + 1) % self._stack_size
        if self._fused and not start:
            self._observe(self.screens, *self._constants, self._newest, self._refresh, out)
            self._refresh = False
        else:
            self._add(self.first_screens if start else self.screens, out)

    def following_pooled(self, out: npt.NDArray[np.uint8]) -> None:
        """Add the pooled frame of the step before, pooled once more with the one before the last of this step.

        ``AtariVectorEnv`` and ``AtariPreprocessing`` pool in place: where a game ends at the last frame of an agent
        step, which they then do not read, its place still holds the result of the step before.
        """
        self._newest = (self._newest + 1) % self._stack_size
        _, _, rows, _ = self._memory.shape
        changed = np.ones(rows, np.uint8)
        for channel, table in enumerate(self._tables):
            plane = self._memory[channel, 2]
            np.maximum(plane, table[self.screens[1, :rows]], out=plane)
            self._resize(plane, changed, self._weights, self._newest_frame(channel))
        self._refresh = True  # the memory is no longer what its screens explain
        self.again(out)

    def again(self, out: npt.NDArray[np.uint8]) -> None:
        """Write the stack to `out` as it is.

        Raises:
            TypeError: `out` is no C-contiguous uint8 array of the stack's shape.
        """
        if out.shape != self._shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise TypeError(
                f"the observation must be written to a C-contiguous uint8 array of shape {self._shape}, "
                f"got {out.dtype} {out.shape}"
            )
        if self._strides is None:
            self._store_planes(self._frames, self._newest, out.reshape(self._stack_size, *self._frames.shape[1:]))
        else:
            self._store_pixels(self._frames, len(self._tables), self._newest, *self._strides, out.reshape(-1))

    def _add(self, screens: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        for channel, pairs in enumerate(self._pairs):
            memory, alike = self._memory[channel], self._alike[channel]
            frame = self._newest_frame(channel)
            self._shrink(screens, memory, alike, pairs, self._mixed, self._weights, frame, self._refresh)
        self._refresh = False
        self.again(out)

    def _newest_frame(self, channel: int) -> npt.NDArray[np.uint8]:
        lines = self._frames.shape[1] // len(self._tables)
        return self._frames[self._stack_size, channel * lines : (channel + 1) * lines]

    def get_state(self) -> dict[str, Any]:
        """Everything that a later observation depends on."""
        return {
            "screens": self.screens.copy(),
            "memory": self._memory.copy(),
            "alike": self._alike.copy(),
            "frames": self._frames.copy(),
            "newest": self._newest,
            "refresh": self._refresh,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self.screens[:] = state["screens"]
        self._memory[:] = state["memory"]
        self._alike[:] = state["alike"]
        self._frames[:] = state["frames"]
        self._newest = state["newest"]
        self._refresh = state["refresh"]


def _channel_tables(palette: str | None, config: AtariConfig) -> list[npt.NDArray[np.uint8]]:
    """What a pixel value looks like in every channel of a frame."""
    if palette is None:
        if not config.grayscale or config.gray == "opencv":
            raise ValueError(
                "this game has colours of its own, which no table explains: only grayscale=True with "
                "gray='emulator' is available"
            )
        return [np.arange(256, dtype=np.uint8)]
    colours = load_palette(palette)
    if not config.grayscale:
        return [np.ascontiguousarray(colours.rgb[:, channel]) for channel in range(3)]
    return [colours.opencv_gray if config.gray == "opencv" else colours.gray]
