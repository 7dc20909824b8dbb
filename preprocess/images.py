"""Gray and resized images of any size: by the kernels where the image shrinks, else by OpenCV if it is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import numpy.typing as npt

from .area_weights import area_weights, check_area_resize


class ImageResizer:
    """Turns images of one shape into gray or colour images of another.

    The results are those of ``cv2.cvtColor(..., cv2.COLOR_RGB2GRAY)`` and ``cv2.resize(..., cv2.INTER_AREA)``, in this
    order, to the bit.

    Args:
        shape: of the images: (H, W), (H, W, 1) or (H, W, 3) for RGB.
        size: height and width of the results, in pixels; None: as the images.
        grayscale: results are gray, else they keep their channels.

    Attributes:
        shape: of the results: (h, w) or (h, w, 3).

    Raises:
        ImportError: the image is enlarged (or has less than 3 lines or columns), and OpenCV is not installed.
        ValueError: not the shape of an image, or a size below 1.
    """

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int] | None = (84, 84), grayscale: bool = True) -> None:
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or min(shape) < 1:
            raise ValueError(f"images must have shape (H, W), (H, W, 1) or (H, W, 3) and a pixel, got {shape}")
        source = (shape[0], shape[1])
        size = source if size is None else size
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size must be (height, width) in pixels, 1 or more, got {size}")
        self._source_shape = shape
        self._size = (int(size[0]), int(size[1]))
        channels = shape[2] if len(shape) == 3 else 1
        self._to_gray = grayscale and channels == 3
        self._channels = 1 if grayscale else channels
        self.shape: tuple[int, ...] = self._size if self._channels == 1 else (*self._size, self._channels)
        self._keeps_size = self._size == source
        self._weights = None
        if not self._keeps_size:
            try:
                check_area_resize(source, self._size)
                self._weights = area_weights(source, self._size)
            except ValueError as error:
                if importlib.util.find_spec("cv2") is None:
                    raise ImportError(
                        f"{error}; OpenCV would do it, but opencv-python-headless is not installed; "
                        "run: pip install 'vecenv[opencv]'"
                    ) from None
        self._gray = np.empty(source, np.uint8)
        self._planes = np.empty((self._channels, *source), np.uint8)
        self._small_planes = np.empty((self._channels, *self._size), np.uint8)
        self._every_row = np.ones(source[0], np.uint8)

    def __call__(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Resize one image.

        Args:
            image: uint8, of the shape that was announced.

        Returns:
            A new array of `shape`.

        Raises:
            TypeError: another shape or dtype.
        """
        if not isinstance(image, np.ndarray) or image.shape != self._source_shape or image.dtype != np.uint8:
            got = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else repr(type(image))
            raise TypeError(f"expected a uint8 image of shape {self._source_shape}, got {got}")
        from . import image_kernels, kernels

        image = np.ascontiguousarray(image)
        if self._to_gray:
            image_kernels.rgb_to_gray(image, self._gray)
            image = self._gray
        elif self._channels == 1:
            image = image.reshape(image.shape[:2])
        if self._keeps_size:
            return image.copy()
        if self._weights is None:
            from .reference import resize_area_opencv

            return resize_area_opencv(image, self._size)
        out = np.empty(self.shape, np.uint8)
        if self._channels == 1:
            if not image.flags.writeable:
                image = image.copy()  # the kernel's signature asks for an array that may be written
            kernels.resize_area_rows(image, self._every_row, self._weights, out)
            return out
        image_kernels.split_channels(image, self._planes)
        for plane, small in zip(self._planes, self._small_planes, strict=True):
            kernels.resize_area_rows(plane, self._every_row, self._weights, small)
        image_kernels.merge_channels(self._small_planes, out)
        return out
