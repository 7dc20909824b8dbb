"""Atari preprocessing as scripts write it, in plain NumPy: what the kernels and OpenCV are measured against."""

from __future__ import annotations

from collections import deque
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vecenv.preprocess.reference import resize_area_floats

from .emulator_limit import FRAME_SKIP

NOOP_MAX = 30
STACK_SIZE = 4
SIZE = (84, 84)
#: Of red, green and blue in gray (ITU-R BT.601).
GRAY_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)


class PlainAtari(gymnasium.Wrapper[NDArray[np.uint8], int, NDArray[np.uint8], int]):
    """The wrappers of Mnih et al. (2015), without loss of life: random start, FIRE, skip, maximum, gray, 84x84, stack.

    Source: V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015), Methods.

    Args:
        env: a game whose observations are RGB screens [210, 160, 3] uint8, one per step.
    """

    def __init__(self, env: gymnasium.Env[NDArray[np.uint8], int]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK_SIZE, *SIZE), np.uint8)
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=STACK_SIZE)
        meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start a game: up to 30 frames without an action, then FIRE where the game has it."""
        screen, info = self.env.reset(seed=seed, options=options)
        start = [0] * int(self.env.unwrapped.np_random.integers(1, NOOP_MAX + 1))
        for action in [*start, *([] if self._fire is None else [self._fire])]:
            screen, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                screen, info = self.env.reset()
        self._frames.extend([_gray_frame(screen)] * STACK_SIZE)
        return np.stack(self._frames), info

    def step(self, action: int) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """Play four frames; the observation shows the brighter of the last two, the reward is -1, 0 or 1."""
        screens: deque[NDArray[np.uint8]] = deque(maxlen=2)
        total = 0.0
        for _ in range(FRAME_SKIP):
            screen, reward, terminated, truncated, info = self.env.step(action)
            screens.append(screen)
            total += float(reward)
            if terminated or truncated:
                break
        self._frames.append(_gray_frame(np.stack(screens).max(axis=0)))
        return np.stack(self._frames), float(np.sign(total)), terminated, truncated, info


def _gray_frame(screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[210, 160, 3] uint8 -> [84, 84] uint8."""
    return resize_area_floats((screen @ GRAY_WEIGHTS).astype(np.uint8), SIZE)


class PlainAtariFactory:
    """Builds one game with `PlainAtari` around it; an object, so that every process can be sent one.

    Args:
        env_id: id of an Atari game whose observations are single RGB screens, such as ``"PongNoFrameskip-v4"``.
    """

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id

    def __call__(self) -> gymnasium.Env[NDArray[np.uint8], int]:
        """Build it."""
        import ale_py

        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        return PlainAtari(gymnasium.make(self._env_id, disable_env_checker=True))
