"""The emulator limit: agent steps per second if a step were nothing but the emulator's own `act` calls."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .timing import measure_rate

FRAME_SKIP = 4


class EmulatorLimit:
    """One process per usable core that does nothing but `act`; no screen is read and no reward is kept.

    Args:
        rom: name of the game as ale-py knows it, such as ``"pong"``.
        processes: number of processes.
        seed: seed of the emulators and of the actions.

    Attributes:
        name: name in the table.
    """

    name = "emulator limit"

    def __init__(self, rom: str, processes: int, seed: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for index in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rom, seed + index), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def measure(self, seconds: float) -> float:
        """Let all processes act at the same time for `seconds` seconds.

        Returns:
            Agent steps per second of all processes together, at 4 emulator frames a step.
        """
        for pipe in self._pipes:
            pipe.send(seconds)
        frames_per_second: list[float] = [pipe.recv() for pipe in self._pipes]
        return sum(frames_per_second) / FRAME_SKIP

    def close(self) -> None:
        """End the processes, in the middle of their work if need be: they hold nothing that could be lost."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rom: str, seed: int) -> None:
    """Run in a process of its own: act for as long as each message says, answer with frames per second."""
    from ale_py import ALEInterface, LoggerMode, roms

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent ends us
    ALEInterface.setLoggerMode(LoggerMode.Error)
    emulator = ALEInterface()
    emulator.setInt("random_seed", seed)
    emulator.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(rom)
    if path is None:
        raise ValueError(f"ale-py has no game {rom!r}")
    emulator.loadROM(path)
    actions = emulator.getMinimalActionSet()
    play = _Player(
        emulator, [actions[choice] for choice in np.random.default_rng(seed).integers(len(actions), size=4096)]
    )
    pipe.send("ready")
    while True:
        try:
            seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(measure_rate(play, seconds))


class _Player:
    """Plays random agent steps, each held for the frame skip, as an agent behind the wrappers would."""

    def __init__(self, emulator: Any, actions: list[Any]) -> None:
        self._emulator = emulator
        self._actions = actions
        self._next = 0

    def __call__(self) -> int:
        """Play 128 agent steps.

        Returns:
            The number of emulator frames.
        """
        act, game_over = self._emulator.act, self._emulator.game_over
        for action in self._actions[self._next : self._next + 128]:
            for _ in range(FRAME_SKIP):
                act(action)
            if game_over():
                self._emulator.reset_game()
        self._next = (self._next + 128) % len(self._actions)
        return 128 * FRAME_SKIP
