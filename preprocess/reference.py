"""Plain NumPy and OpenCV twins of the kernels: slow, short, and what the tests compare the kernels with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .area_weights import FLOAT_ORDER, HALF_UP, area_weights


def resize_area_opencv(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize by area with OpenCV itself.

    Args:
        image: [H, W] or [H, W, C] uint8.
        size: height and width of the result, in pixels.

    Returns:
        [h, w] or [h, w, C] uint8, a new array.

    Raises:
        ImportError: OpenCV is not installed.
    """
    import cv2

    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA), np.uint8)


def resize_area_floats(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize by area in float32, in the order in which OpenCV adds: along the rows first, then down.

    Args:
        image: [H, W] uint8.
        size: height and width of the result, in pixels; see `vecenv.preprocess.area_weights.check_area_resize`.

    Returns:
        [h, w] uint8, a new array.
    """
    weights = area_weights((image.shape[0], image.shape[1]), size)
    if weights.rounding != FLOAT_ORDER:
        return _shrink_by_whole_factors(image, size, half_up=weights.rounding == HALF_UP)
    values = image.astype(np.float32)
    along = np.zeros((image.shape[0], size[1]), np.float32)
    for tap in range(weights.column_floats.shape[1]):
        along += values[:, weights.column_starts + tap] * weights.column_floats[:, tap]
    down = np.zeros(size, np.float32)
    for tap in range(weights.row_floats.shape[1]):
        down += along[weights.row_starts + tap] * weights.row_floats[:, tap, None]
    rounded: npt.NDArray[np.uint8] = np.rint(down).astype(np.uint8)
    return rounded


def _shrink_by_whole_factors(
    image: npt.NDArray[np.uint8], size: tuple[int, int], *, half_up: bool
) -> npt.NDArray[np.uint8]:
    blocks = image.reshape(size[0], image.shape[0] // size[0], size[1], image.shape[1] // size[1])
    sums = blocks.sum((1, 3), dtype=np.int64)
    if half_up:
        halves: npt.NDArray[np.uint8] = ((sums + 2) // 4).astype(np.uint8)
        return halves
    rounded: npt.NDArray[np.uint8] = np.rint(sums.astype(np.float32) * np.float32(sums.size / image.size)).astype(
        np.uint8
    )
    return rounded


def rgb_to_gray_opencv(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Gray of an RGB image with OpenCV itself.

    Args:
        image: [H, W, 3] uint8.

    Returns:
        [H, W] uint8, a new array.

    Raises:
        ImportError: OpenCV is not installed.
    """
    import cv2

    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def pool_gray(screens: npt.NDArray[np.uint8], gray: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Gray maximum of palette screens.

    Args:
        screens: [F, H, W] uint8 pixel values.
        gray: [256] uint8, gray of each pixel value.

    Returns:
        [H, W] uint8, a new array.
    """
    pooled: npt.NDArray[np.uint8] = gray[screens].max(axis=0)
    return pooled


class ScreenStack:
    """Twin of `vecenv.preprocess.kernels.observe_screens`: same frames in, same stack out.

    Args:
        stack_size: number of frames of an observation.
        size: height and width of a frame, in pixels.
        gray: [256] uint8, gray of each pixel value.
    """

    def __init__(self, stack_size: int, size: tuple[int, int], gray: npt.NDArray[np.uint8]) -> None:
        self.frames = np.zeros((stack_size, *size), np.uint8)
        self.gray = gray

    def observe(self, screens: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Add the frame made of `screens` [2, H, W] and return the stack [S, h, w] uint8, a new array."""
        frame = resize_area_floats(pool_gray(screens, self.gray), (self.frames.shape[1], self.frames.shape[2]))
        self.frames = np.concatenate([self.frames[1:], frame[None]])
        return self.frames.copy()
