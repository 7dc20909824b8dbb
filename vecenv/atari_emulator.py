"""Building emulators: quiet, with the game loaded, and with what is fixed about each game looked up once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from vecenv.errors import MissingExtra
from vecenv.preprocess.config import SCREEN_WIDTH
from vecenv.preprocess.palette import matching_palettes

# A first frame may be black, which both palettes explain; so many more frames are looked at before giving up.
_FRAMES_TO_TELL_PALETTES = 240

# PAL games have 250 visible lines; used only where no frame tells the palettes apart.
_PAL_HEIGHT = 250


@dataclass(frozen=True)
class RomFacts:
    """What does not change about a game.

    Attributes:
        height: lines of its screen, in pixels.
        minimal_actions: codes of the emulator's actions that the game uses, in the order of its action space.
        palette: name of the palette in `vecenv.preprocess.palette`, or None where neither explains the game's colours.
        modes: numbers of its modes.
        difficulties: numbers of its difficulties.
    """

    height: int
    minimal_actions: tuple[int, ...]
    palette: str | None
    modes: tuple[int, ...] = ()
    difficulties: tuple[int, ...] = ()


def new_emulator() -> Any:
    """Build an ``ale_py.ALEInterface`` that does not write to stderr.

    Raises:
        MissingExtra: ale_py is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtra("ale-py", "atari") from error
    # The constructor prints a banner unless the (global) logger is told before.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py.ALEInterface()


def rom_path(rom: str) -> str:
    """Path of a ROM that comes with ale_py.

    Raises:
        ValueError: there is no such ROM.
    """
    from ale_py import roms

    if rom not in roms.get_all_rom_ids():
        raise ValueError(f"ale_py has no ROM {rom!r}; names are written like 'ms_pacman'")
    return str(roms.get_rom_path(rom))


def load_emulator(
    rom: str, repeat_action_probability: float, seed: int, mode: int | None = None, difficulty: int | None = None
) -> Any:
    """Build an emulator and load a game into it (80 ms: ale_py runs the game for a while to detect its format).

    Args:
        rom: name of the ROM.
        repeat_action_probability: see `AtariConfig`.
        seed: from -2**31 to 2**31 - 1, seeds the emulator's generator.
        mode: the game's mode; None: its default.
        difficulty: the game's difficulty; None: its default.

    Returns:
        An ``ale_py.ALEInterface``; call ``reset_game`` before the first frame.

    Raises:
        MissingExtra: ale_py is not installed.
        ValueError: there is no such ROM.
    """
    emulator = new_emulator()
    emulator.setFloat("repeat_action_probability", repeat_action_probability)
    emulator.setInt("random_seed", seed)
    emulator.loadROM(rom_path(rom))
    if mode is not None:
        emulator.setMode(mode)
    if difficulty is not None:
        emulator.setDifficulty(difficulty)
    return emulator


@functools.cache
def rom_facts(rom: str) -> RomFacts:
    """Look up what is fixed about a game by loading it once per process.

    Args:
        rom: name of the ROM.

    Raises:
        MissingExtra: ale_py is not installed.
        ValueError: there is no such ROM, or its screen has an unknown width.
    """
    emulator = load_emulator(rom, 0.0, 1)
    height, width = emulator.getScreenDims()
    if width != SCREEN_WIDTH:
        raise ValueError(f"the screen of {rom!r} is {width} pixels wide, expected {SCREEN_WIDTH}")
    actions = tuple(int(action.value) for action in emulator.getMinimalActionSet())
    return RomFacts(
        int(height),
        actions,
        choose_palette(emulator),
        tuple(map(int, emulator.getAvailableModes())),
        tuple(map(int, emulator.getAvailableDifficulties())),
    )


def choose_palette(emulator: Any) -> str | None:
    """Find the palette of a loaded game by comparing a frame with the emulator's own colours.

    Args:
        emulator: an ``ale_py.ALEInterface`` with a game loaded; it is reset and played for a few frames.

    Returns:
        The palette's name, or None where no palette explains the frame.
    """
    emulator.reset_game()
    for _ in range(_FRAMES_TO_TELL_PALETTES):
        matching = matching_palettes(emulator.getScreen(), emulator.getScreenRGB(), emulator.getScreenGrayscale())
        if len(matching) == 1:
            return matching[0].name
        if not matching:
            return None
        emulator.act(0)
    return "pal" if emulator.getScreenDims()[0] == _PAL_HEIGHT else "ntsc"
