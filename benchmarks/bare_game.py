"""ale-py's environment of one game as the peers' wrappers expect it."""

from __future__ import annotations

from typing import Any

import gymnasium


def bare_game(rom: str, repeat_action_probability: float = 0.0, **settings: Any) -> gymnasium.Env[Any, Any]:
    """A game without wrappers; the emulator prints no banner, OpenCV keeps to one thread.

    More threads of OpenCV's get into each other's way with several processes; pixels do not depend on them.

    Args:
        rom: name of the ROM.
        repeat_action_probability: of sticky actions.
        settings: more keywords of ``ale_py.AtariEnv``.
    """
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env: gymnasium.Env[Any, Any] = ale_py.AtariEnv(
        game=rom, frameskip=1, repeat_action_probability=repeat_action_probability, **settings
    )
    return env
