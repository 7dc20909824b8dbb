"""The colour tables against the emulator itself."""

from __future__ import annotations

import numpy as np
import pytest

from vecenv.atari_emulator import choose_palette, load_emulator, rom_facts
from vecenv.preprocess.palette import gray_pairs, load_palette, matching_palettes
from vecenv.registration import ROMS

PAL_ROMS = {
    "adventure", "air_raid", "keystone_kapers", "king_kong", "klax", "laser_gates", "mr_do", "pacman", "sir_lancelot",
    "space_war",
}  # fmt: skip
QUICK_ROMS = ("air_raid", "king_kong", "klax", "pong", "carnival", "journey_escape", "video_cube", "seaquest")


def compare_with_emulator(rom: str, frames: int) -> set[int]:
    """Play at random, with memory overwritten now and then to bring up rare colours; return the values seen."""
    emulator = load_emulator(rom, 0.0, 1)
    emulator.reset_game()
    palette = load_palette("pal" if rom in PAL_ROMS else "ntsc")
    generator = np.random.default_rng(0)
    seen: set[int] = set()
    for frame in range(frames):
        if frame % 4 == 3:
            for cell in generator.integers(0, 128, 8):
                emulator.setRAM(int(cell), int(generator.integers(256)))
        if emulator.game_over():
            emulator.reset_game()
        emulator.act(int(generator.integers(18)))
        screen = emulator.getScreen()
        np.testing.assert_array_equal(palette.rgb[screen], emulator.getScreenRGB())
        np.testing.assert_array_equal(palette.gray[screen], emulator.getScreenGrayscale())
        seen.update(np.unique(screen).tolist())
    return seen


def test_tables_hold_for_every_value_that_games_show() -> None:
    seen = {rom: compare_with_emulator(rom, 240) for rom in QUICK_ROMS}
    pal = set.union(*(values for rom, values in seen.items() if rom in PAL_ROMS))
    ntsc = set.union(*(values for rom, values in seen.items() if rom not in PAL_ROMS))
    assert len(pal & set(range(0, 256, 2))) > 80
    assert len(ntsc & set(range(0, 256, 2))) > 80
    assert len({value for value in seen["air_raid"] if value % 2}) > 10


@pytest.mark.slow
@pytest.mark.parametrize("rom", ROMS)
def test_tables_hold_in_every_game(rom: str) -> None:
    assert compare_with_emulator(rom, 60)
    assert rom_facts(rom).palette == ("pal" if rom in PAL_ROMS else "ntsc")


@pytest.mark.parametrize("rom", QUICK_ROMS)
def test_the_palette_is_found_by_comparing_a_frame(rom: str) -> None:
    assert choose_palette(load_emulator(rom, 0.0, 1)) == ("pal" if rom in PAL_ROMS else "ntsc")


def test_a_frame_may_match_none_one_or_both() -> None:
    screen = np.zeros((4, 4), np.uint8)
    black = np.zeros((4, 4, 3), np.uint8)
    assert [p.name for p in matching_palettes(screen, black, screen)] == ["ntsc", "pal"]
    assert matching_palettes(screen, black, screen + 1) == []
    screen[:] = 0x36
    for name in ("ntsc", "pal"):
        palette = load_palette(name)
        assert [p.name for p in matching_palettes(screen, palette.rgb[screen], palette.gray[screen])] == [name]


def test_pairs_hold_both_pixels_in_order() -> None:
    gray = load_palette("pal").gray
    pixels = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    np.testing.assert_array_equal(gray_pairs("pal")[pixels.view(np.uint16)].view(np.uint8), gray[pixels])
    np.testing.assert_array_equal(gray_pairs(None)[pixels.view(np.uint16)].view(np.uint8), pixels)


def test_tables_cannot_be_changed() -> None:
    for table in (load_palette("ntsc").rgb, load_palette("ntsc").gray, gray_pairs("ntsc")):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1
