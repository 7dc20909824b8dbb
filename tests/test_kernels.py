"""The kernels against their plain twins and OpenCV, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv.preprocess import reference
from vecenv.preprocess.area_weights import area_weights
from vecenv.preprocess.palette import NOT_MIXED, gray_pairs, load_palette, mixed_gray, opencv_gray

SCREENS = [(210, 160), (214, 160), (220, 160), (230, 160), (250, 160)]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    from vecenv.preprocess import kernels

    return kernels


def resize(kernels: ModuleType, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    out = np.full(size, 77, np.uint8)
    kernels.resize_area_rows(image, np.ones(len(image), np.uint8), area_weights(image.shape, size), out)
    return out


def random_image(seed: int, shape: tuple[int, ...], levels: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, levels).astype(np.uint8)[generator.integers(0, levels, shape)]


@pytest.mark.parametrize("levels", [2, 5, 256])
@pytest.mark.parametrize("shape", SCREENS, ids=str)
def test_resize_equals_opencv_on_screens(kernels: ModuleType, shape: tuple[int, int], levels: int) -> None:
    for seed in range(20):
        image = random_image(seed, shape, levels)
        expected = cv2.resize(image, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(resize(kernels, image, (84, 84)), expected)
        np.testing.assert_array_equal(reference.resize_area_floats(image, (84, 84)), expected)


def test_exact_halves_follow_opencv_and_not_one_rule(kernels: ModuleType) -> None:
    """Halves go up for some pixels and down for others: neither rule of rounding alone would be right."""
    weights = area_weights((210, 160), (84, 84))
    image = random_image(0, (210, 160), 2)
    rows = np.zeros((84, 210), np.int64)
    columns = np.zeros((84, 160), np.int64)
    for matrix, starts, units in (
        (rows, weights.row_starts, weights.row_units),
        (columns, weights.column_starts, weights.column_units),
    ):
        for index, start in enumerate(starts):
            matrix[index, start : start + units.shape[1]] = units[index]
    sums = rows @ image.astype(np.int64) @ columns.T
    assert weights.total == 200
    halves = sums % 200 == 100
    assert halves.sum() > 20
    result = resize(kernels, image, (84, 84)).astype(np.int64)
    went_up = result[halves] > sums[halves] // 200
    assert went_up.any()
    assert not went_up.all()
    np.testing.assert_array_equal(result, reference.resize_area_opencv(image, (84, 84)))
    np.testing.assert_array_equal(result[~halves], np.rint(sums / 200).astype(np.int64)[~halves])


@pytest.mark.parametrize("factor", [48, 98, 186, 196])
def test_halves_of_whole_factors(factor: int) -> None:
    """OpenCV takes 98, 186 and 196 for no whole factors, and adds in floats then."""
    image = np.repeat(np.arange(255, dtype=np.uint8)[:, None], factor, axis=1)
    image[:, ::2] += 1
    check_image(image, (255, 1))
    check_image(np.ascontiguousarray(image.T), (1, 255))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(3, 260),
    st.integers(3, 200),
    st.integers(1, 260),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 3, 256]),
)
def test_resize_equals_both_twins_at_any_size(
    height: int, width: int, height_out: int, width_out: int, seed: int, levels: int
) -> None:
    check_resize((height, width), (min(height, height_out), min(width, width_out)), seed, levels)


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 3, 256]),
)
def test_resize_by_whole_factors_equals_both_twins(
    size: tuple[int, int], factors: tuple[int, int], seed: int, levels: int
) -> None:
    """OpenCV adds whole numbers there: 2 x 2 rounds halves up, other factors to even numbers."""
    shape = (size[0] * factors[0], size[1] * factors[1])
    if min(shape) >= 3:
        check_resize(shape, size, seed, levels)


@pytest.mark.parametrize(
    "sizes",
    [((1080, 1920), (84, 84)), ((720, 1280), (360, 640)), ((1079, 1919), (541, 84)), ((2000, 3), (1, 1))],
    ids=str,
)
def test_resize_of_large_images_equals_both_twins(sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    for levels in (2, 256):
        check_resize(*sizes, 0, levels)


def check_resize(shape: tuple[int, int], size: tuple[int, int], seed: int, levels: int) -> None:
    check_image(random_image(seed, shape, levels), size)


def check_image(image: np.ndarray, size: tuple[int, int]) -> None:
    from vecenv.preprocess import kernels

    expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(reference.resize_area_floats(image, size), expected)
    np.testing.assert_array_equal(resize(kernels, image, size), expected)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (((84, 84), (85, 60)), "height 84 cannot become 85"),
        (((210, 160), (0, 84)), "height of an area resize must be from 1"),
        (((2, 9), (1, 4)), "height of an area resize must be from 1"),
        (((4093, 4091), (4001, 4003)), "too fine for 32 bits"),
    ],
)
def test_sizes_the_kernels_do_not_compute_are_refused(
    bad: tuple[tuple[int, int], tuple[int, int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        area_weights(*bad)


class Pipeline:
    """The fused kernel with its memory, beside its twin."""

    def __init__(self, shape: tuple[int, int], size: tuple[int, int], stack_size: int, palette: str) -> None:
        self.screens = np.zeros((2, *shape), np.uint8)
        self.memory = np.zeros((3, *shape), np.uint8), np.zeros(shape[0], np.uint8)
        self.frames = np.zeros((stack_size + 1, *size), np.uint8)
        self.constants = (gray_pairs(palette), NOT_MIXED, *area_weights(shape, size))
        self.newest = -1
        self.twin = reference.ScreenStack(stack_size, size, load_palette(palette).gray)

    def check(self, kernels: ModuleType) -> np.ndarray:
        refresh = self.newest < 0
        stack_size = len(self.frames) - 1
        self.newest = (self.newest + 1) % stack_size
        out = np.full((stack_size, *self.frames.shape[1:]), 77, np.uint8)
        kernels.observe_screens(self.screens, *self.memory, *self.constants, self.frames, self.newest, refresh, out)
        np.testing.assert_array_equal(out, self.twin.observe(self.screens))
        return out


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([((210, 160), (84, 84)), ((250, 160), (84, 84)), ((214, 160), (60, 50)), ((24, 16), (9, 7))]),
    st.integers(1, 5),
    st.sampled_from(["ntsc", "pal"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 128, 256]),
)
def test_fused_kernel_equals_its_twin(
    sizes: tuple[tuple[int, int], tuple[int, int]], stack_size: int, palette: str, seed: int, levels: int
) -> None:
    """Frames that change nowhere, in single pixels, in blocks of equal rows, in one screen only, everywhere; that
    become alike, and that change places."""
    from vecenv.preprocess import kernels

    generator = np.random.default_rng(seed)
    pipeline = Pipeline(*sizes, stack_size, palette)
    (height, width), _ = sizes
    values = generator.integers(0, 256, levels).astype(np.uint8)
    pipeline.screens[:] = values[generator.integers(0, levels, pipeline.screens.shape)]
    for _ in range(12):
        pipeline.check(kernels)
        kind = generator.integers(7)
        if kind == 1:
            pipeline.screens[
                generator.integers(0, 2, 5), generator.integers(0, height, 5), generator.integers(0, width, 5)
            ] = values[generator.integers(0, levels, 5)]
        elif kind == 2:
            top, count = generator.integers(0, height - 4), generator.integers(1, 5)
            pipeline.screens[:, top : top + count] = values[generator.integers(0, levels, width)]
        elif kind == 3:
            pipeline.screens[generator.integers(2)] = values[generator.integers(0, levels, (height, width))]
        elif kind == 4:
            pipeline.screens[:] = values[generator.integers(0, levels, pipeline.screens.shape)]
        elif kind == 5:
            rows = generator.integers(0, height, height // 2)
            pipeline.screens[1, rows] = pipeline.screens[0, rows]
        elif kind == 6:
            pipeline.screens[:] = pipeline.screens[::-1].copy()


def test_pooling_keeps_the_brighter_and_not_the_larger_value(kernels: ModuleType) -> None:
    """Palette values are not ordered by brightness, so pooling before the palette would differ."""
    pipeline = Pipeline((210, 160), (84, 84), 1, "ntsc")
    gray = load_palette("ntsc").gray
    low, high = 0x0E, 0xF0
    assert low < high
    assert gray[low] > gray[high]
    pipeline.screens[0], pipeline.screens[1] = low, high
    assert (pipeline.check(kernels) == gray[low]).all()


def test_importing_the_environment_compiles_nothing() -> None:
    code = "import sys, vecenv.atari, vecenv.registration; sys.exit(any(m in sys.modules for m in ('numba', 'ale_py')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_gray_of_colours_is_opencvs() -> None:
    from vecenv.preprocess import image_kernels

    values = np.arange(256, dtype=np.uint8)
    for blue in range(0, 256, 5):
        image = np.stack(np.broadcast_arrays(values[:, None], values[None, :], np.uint8(blue)), axis=2)
        image = np.ascontiguousarray(image)
        out = np.full((256, 256), 77, np.uint8)
        image_kernels.rgb_to_gray(image, out)
        expected = reference.rgb_to_gray_opencv(image)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(opencv_gray(image), expected)


@pytest.mark.parametrize("name", ["ntsc", "pal"])
def test_mixed_gray_is_opencvs_gray_of_the_pooled_colours(name: str) -> None:
    rgb = load_palette(name).rgb
    one, other = np.meshgrid(np.arange(256), np.arange(256))
    pooled = np.ascontiguousarray(np.maximum(rgb[one], rgb[other]))
    np.testing.assert_array_equal(mixed_gray(name)[one | other << 8], reference.rgb_to_gray_opencv(pooled))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_planes_and_pixels(height: int, width: int, channels: int, seed: int) -> None:
    from vecenv.preprocess import image_kernels

    image = random_image(seed, (height, width, channels), 256)
    planes = np.full((channels, height, width), 77, np.uint8)
    image_kernels.split_channels(image, planes)
    np.testing.assert_array_equal(planes, image.transpose(2, 0, 1))
    back = np.full_like(image, 77)
    image_kernels.merge_channels(planes, back)
    np.testing.assert_array_equal(back, image)
