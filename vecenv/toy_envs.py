"""Toy environments whose every value can be foretold; importable in workers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt


class CountEnv(gym.Env[npt.NDArray[np.float32], np.int64]):
    """Every observation says where it came from: `[uid, episode, step] float32`; the reward is the step.

    Args:
        uid: first component of the observations.
        length: steps of an episode.
        truncates: whether episodes end by truncation instead of termination.
        reuses: whether the same observation array and info dict are returned by every call.
        fails_at: step at which `step` raises ValueError; None: never.
        dies_at: step at which the process kills itself with SIGKILL; None: never.
        seconds: time that a step sleeps.
    """

    def __init__(
        self,
        uid: int = 0,
        length: int = 5,
        truncates: bool = False,
        reuses: bool = False,
        fails_at: int | None = None,
        dies_at: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.uid, self.length, self.truncates, self.reuses = uid, length, truncates, reuses
        self.fails_at, self.dies_at, self.seconds = fails_at, dies_at, seconds
        self.episode, self.time = -1, 0
        self._buffer, self._info = np.zeros(3, np.float32), {}  # type: ignore[var-annotated]

    def _observation(self) -> npt.NDArray[np.float32]:
        values = (self.uid, self.episode, self.time)
        if self.reuses:
            self._buffer[:] = values
            return self._buffer
        return np.array(values, np.float32)

    def _infos(self, **items: Any) -> dict[str, Any]:
        if self.reuses:
            self._info.update(items)
            return self._info
        return items

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; the info holds `time` and the options as text."""
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return self._observation(), self._infos(time=0, options=str(options))

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Count one step; the info holds `time`."""
        if self.seconds:
            time.sleep(self.seconds)
        self.time += 1
        if self.time == self.fails_at:
            raise ValueError(f"boom from env {self.uid}")
        if self.time == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        end = self.time >= self.length
        ended = (end and not self.truncates, end and self.truncates)
        return self._observation(), float(self.time), *ended, self._infos(time=self.time)


class DrawEnv(gym.Env[npt.NDArray[np.float64], np.int64]):
    """Observations are `[2] float64` numbers drawn from the env's own generator: they tell how it was seeded.

    Args:
        length: steps of an episode.
    """

    def __init__(self, length: int = 3) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.time = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.random(2), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self.time += 1
        return self.np_random.random(2), 0.0, self.time >= self.length, False, {}


class NestedEnv(CountEnv):
    """`CountEnv` with a nest of Dict and Tuple as observation, whose keys come in another order than the space's.

    Args:
        uid: see `CountEnv`.
        length: see `CountEnv`.
        reuses: whether all calls return the same arrays, dict and tuple.
    """

    def __init__(self, uid: int = 0, length: int = 5, reuses: bool = False) -> None:
        super().__init__(uid, length, reuses=reuses)
        space: Any = gym.spaces.Dict(
            {
                "count": gym.spaces.Box(-1e6, 1e6, (3,), np.float32),
                "picture": gym.spaces.Box(0, 255, (2, 2), np.uint8),
                "pair": gym.spaces.Tuple((gym.spaces.Discrete(1000), gym.spaces.MultiBinary(2))),
            }
        )
        self.observation_space = space
        self._picture, self._bits = np.zeros((2, 2), np.uint8), np.zeros(2, np.int8)
        self._nest: dict[str, Any] = {}

    def _observation(self) -> Any:
        picture, bits = (self._picture, self._bits) if self.reuses else (self._picture.copy(), self._bits.copy())
        picture[...] = 10 * self.episode + self.time
        bits[...] = (self.time % 2, self.episode % 2)
        nest = self._nest if self.reuses else {}
        nest["pair"] = (np.int64(self.time), bits)
        nest["picture"] = picture
        nest["count"] = super()._observation()
        return nest


class EchoEnv(CountEnv):
    """`CountEnv` that remembers the last action, has a method, a property and a picture, for what reaches an env.

    Args:
        uid: see `CountEnv`.
        action_space: None: Discrete(2).
        render_mode: None or ``"rgb_array"``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self, uid: int = 0, action_space: gym.Space[Any] | None = None, render_mode: str | None = None
    ) -> None:
        super().__init__(uid, length=1000)
        self.render_mode = render_mode
        self.last_action: Any = None
        if action_space is not None:
            self.action_space = action_space

    @property
    def twice_uid(self) -> int:
        """Twice the uid."""
        return 2 * self.uid

    def add(self, number: int, more: int = 0) -> int:
        """The uid and two numbers added up."""
        return self.uid + number + more

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Count one step and remember the action."""
        self.last_action = action
        return super().step(action)

    def render(self) -> Any:
        """A `[2, 2, 3] uint8` picture full of the uid."""
        return np.full((2, 2, 3), self.uid, np.uint8)


class InfoEnv(CountEnv):
    """`CountEnv` whose infos are of every kind; `odd` is there in odd steps only."""

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Count one step."""
        observation, reward, terminated, truncated, info = super().step(action)
        info["half"] = self.time / 2
        info["even"] = self.time % 2 == 0
        info["text"] = f"step {self.time}"
        info["array"] = np.arange(2, dtype=np.int16) + self.time
        info["small"] = np.float32(self.time)
        info["deep"] = {"inner": self.time, "text": "x"}
        if self.time % 2:
            info["odd"] = self.time + self.uid
        return observation, reward, terminated, truncated, info


class OneRewardEnv(CountEnv):
    """`CountEnv` whose rewards are arrays of shape (1,)."""

    def step(self, action: Any) -> Any:
        """Count one step."""
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


class LayerWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with an attribute of its own, `layer`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.layer = "outer"
