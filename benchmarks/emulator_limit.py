"""The emulator limit: agent steps per second if a step were nothing but the emulator's own `act` calls."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .parallel_players import ParallelPlayers

FRAME_SKIP = 4
_STEPS_PER_CALL = 128


class EmulatorLimit(ParallelPlayers):
    """One process per usable core that does nothing but `act`; no screen is read and no reward is kept.

    Args:
        rom: name of the game as ale-py knows it, such as ``"pong"``.
        processes: number of processes.
        seed: seed of the emulators and of the actions.
        emulators: emulators per process, which play in turns, an agent step each. The limit is with one.
    """

    def __init__(self, rom: str, processes: int, seed: int = 0, emulators: int = 1) -> None:
        name = "emulator limit" if emulators == 1 else f"the same, {emulators} emulators in turns"
        make_players = [
            functools.partial(_EmulatorPlayer, rom, seed + index * emulators, emulators) for index in range(processes)
        ]
        super().__init__(name, make_players)


class _EmulatorPlayer:
    """Plays random agent steps, each held for the frame skip, as an agent behind the wrappers would."""

    def __init__(self, rom: str, seed: int, emulators: int) -> None:
        self._emulators = [_load(rom, seed + index) for index in range(emulators)]
        actions = self._emulators[0].getMinimalActionSet()
        self._actions = [actions[choice] for choice in np.random.default_rng(seed).integers(len(actions), size=4096)]
        self._next = 0

    def __call__(self) -> int:
        """Play some agent steps.

        Returns:
            The number of agent steps.
        """
        for step in range(self._next, self._next + _STEPS_PER_CALL):
            emulator, action = self._emulators[step % len(self._emulators)], self._actions[step]
            act = emulator.act
            for _ in range(FRAME_SKIP):
                act(action)
            if emulator.game_over():
                emulator.reset_game()
        self._next = (self._next + _STEPS_PER_CALL) % len(self._actions)
        return _STEPS_PER_CALL


def _load(rom: str, seed: int) -> Any:
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    emulator = ALEInterface()
    emulator.setInt("random_seed", seed)
    emulator.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(rom)
    if path is None:
        raise ValueError(f"ale-py has no game {rom!r}")
    emulator.loadROM(path)
    return emulator
