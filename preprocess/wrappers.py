"""Stand-alone Gymnasium wrappers for any environment with images, or with lives; each does one thing.

In the usual order, the first nearest to the game: `NoopReset`, `FrameSkip`, `EpisodicLife`, `FireReset`,
`GrayscaleResize`, `ClipReward`, `FrameStack`. They go together with Gymnasium's own, and into
``make_vec(..., wrappers=[...])``. Atari ids need none of them: their preprocessing is built in.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import RecordConstructorArgs

from .images import ImageResizer

__all__ = ["ClipReward", "EpisodicLife", "FireReset", "FrameSkip", "FrameStack", "GrayscaleResize", "NoopReset"]

Env = gymnasium.Env[Any, Any]
Result = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Repeat every action for some frames and add the rewards up.

    With max-pooling an observation is the maximum of the last two frames played in this very step, of one if it ended
    after one: nothing of an earlier step is ever shown.

    Args:
        env: an environment that does not skip frames itself.
        skip: frames per step, at least 1.
        max_pool: take the maximum of the last two frames; the observations must be arrays.

    Raises:
        TypeError: `skip` is no int.
        ValueError: `skip` is below 1, frames are skipped already, or `max_pool` with observations that are no arrays.

    Examples:
        >>> env = FrameSkip(gymnasium.make("CartPole-v1"), 4, max_pool=False)
        >>> _ = env.reset(seed=0)
        >>> env.step(0)[1]
        4.0
    """

    def __init__(self, env: Env, skip: int = 4, *, max_pool: bool = True) -> None:
        RecordConstructorArgs.__init__(self, skip=skip, max_pool=max_pool)
        super().__init__(env)
        self.skip = _at_least_one("skip", skip)
        self.max_pool = max_pool and skip > 1
        if self.max_pool and not isinstance(env.observation_space, gymnasium.spaces.Box):
            raise ValueError(f"max_pool=True needs observations that are arrays, got {env.observation_space}")
        for layer, frames in _skipped_frames(env):
            if frames != 1:
                raise ValueError(
                    f"{layer} already plays {frames} frames per step, so skip={skip} would multiply them; "
                    "build it with a frame skip of 1"
                )

    def step(self, action: Any) -> Result:
        """Play up to `skip` frames; the infos are those of the last one."""
        total = 0.0
        before = None
        for remaining in range(self.skip - 1, -1, -1):
            observation, reward, terminated, truncated, infos = self.env.step(action)
            total += float(reward)
            if terminated or truncated or remaining == 0:
                break
            # An environment may give out the same array every time. Any step may turn out to be the last but one.
            before = observation.copy() if self.max_pool else None
        if before is not None:
            observation = np.maximum(before, observation)
        return observation, total, terminated, truncated, infos


class GrayscaleResize(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Make images gray and resize them by area, with the bits of OpenCV's ``cvtColor`` and ``INTER_AREA``.

    Args:
        env: an environment with uint8 images [H, W], [H, W, 1] or [H, W, 3] (RGB).
        size: height and width of the observations, in pixels; None: as they are.
        grayscale: observations are gray, else they keep their channels.
        keep_channel: gray observations are [h, w, 1], else [h, w].

    Raises:
        ImportError: the images are enlarged, and OpenCV is not installed.
        ValueError: observations that are no uint8 images, or a size below 1.

    Examples:
        >>> class Picture(gymnasium.Env):
        ...     observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...
        ...     def reset(self, *, seed=None, options=None):
        ...         return np.full((210, 160, 3), 7, np.uint8), {}
        >>> observation, infos = GrayscaleResize(Picture(), (84, 84)).reset()
        >>> observation.shape, int(observation[0, 0])
        ((84, 84), 7)
    """

    def __init__(
        self,
        env: Env,
        size: tuple[int, int] | None = (84, 84),
        *,
        grayscale: bool = True,
        keep_channel: bool = False,
    ) -> None:
        RecordConstructorArgs.__init__(self, size=size, grayscale=grayscale, keep_channel=keep_channel)
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8:
            raise ValueError(f"observations must be uint8 images, got {space}")
        self._resize = ImageResizer(space.shape, size, grayscale)
        shape = self._resize.shape
        self._shape = (*shape, 1) if keep_channel and len(shape) == 2 else shape
        self.observation_space = gymnasium.spaces.Box(0, 255, self._shape, np.uint8)

    def observation(self, observation: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Resize one image; a new array."""
        return self._resize(observation).reshape(self._shape)


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Observations of the last frames, oldest first: [stack_size, ...]; each is a new array that nothing writes to.

    Args:
        env: an environment whose observations are arrays.
        stack_size: number of frames, at least 1.
        padding: before an episode's first frame the stack is ``"zero"`` or shows that frame, ``"repeat"``.

    Raises:
        TypeError: `stack_size` is no int.
        ValueError: an argument out of range, or observations that are no arrays.

    Examples:
        >>> env = FrameStack(gymnasium.make("CartPole-v1"), 3, padding="zero")
        >>> observation, infos = env.reset(seed=0)
        >>> observation.shape, observation[:2].any().item()
        ((3, 4), False)
    """

    def __init__(self, env: Env, stack_size: int = 4, *, padding: str = "repeat") -> None:
        RecordConstructorArgs.__init__(self, stack_size=stack_size, padding=padding)
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise ValueError(f"observations must be arrays, got {space}")
        if padding not in ("zero", "repeat"):
            raise ValueError(f"padding must be 'zero' or 'repeat', got {padding!r}")
        self.stack_size = _at_least_one("stack_size", stack_size)
        self.padding = padding
        low, high = (np.repeat(bound[None], self.stack_size, axis=0) for bound in (space.low, space.high))
        if padding == "zero":
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        self._stack = np.zeros((self.stack_size, *space.shape), space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the stack holds nothing of the one before."""
        observation, infos = self.env.reset(seed=seed, options=options)
        self._stack[:] = observation if self.padding == "repeat" else 0
        self._stack[-1] = observation
        return self._stack.copy(), infos

    def step(self, action: Any) -> Result:
        """Play one step and add its observation."""
        observation, reward, terminated, truncated, infos = self.env.step(action)
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = observation
        return self._stack.copy(), reward, terminated, truncated, infos


class ClipReward(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Rewards become -1, 0 or 1; the infos keep the reward as it was, as ``unclipped_reward``.

    Args:
        env: any environment.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> Result:
        """Play one step."""
        observation, reward, terminated, truncated, infos = self.env.step(action)
        raw = float(reward)
        return observation, float(np.sign(raw)), terminated, truncated, {**infos, "unclipped_reward": raw}


class NoopReset(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Begin every episode with 1 to `noop_max` steps without an action, drawn from the environment's generator.

    Args:
        env: an environment whose action 0 does nothing, as far as it tells what its actions mean.
        noop_max: most steps, at least 1.

    Raises:
        TypeError: `noop_max` is no int.
        ValueError: `noop_max` is below 1, or action 0 means something.
    """

    def __init__(self, env: Env, noop_max: int = 30) -> None:
        RecordConstructorArgs.__init__(self, noop_max=noop_max)
        super().__init__(env)
        self.noop_max = _at_least_one("noop_max", noop_max)
        meanings = _action_meanings(env)
        if meanings is not None and meanings[0] != "NOOP":
            raise ValueError(f"action 0 must be NOOP, but it is {meanings[0]!r}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; where it ends within those steps, the next one is begun (without the seed again)."""
        observation, infos = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.env.unwrapped.np_random.integers(1, self.noop_max + 1))):
            observation, _, terminated, truncated, step_infos = self.env.step(0)
            infos = {**infos, **step_infos}
            if terminated or truncated:
                observation, infos = self.env.reset(options=options)
        return observation, infos


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Press FIRE once at the beginning of every episode, for games that wait for it.

    Args:
        env: an environment with ``get_action_meanings``.
        required: refuse a game whose actions do not have FIRE, else leave it alone.

    Raises:
        ValueError: the environment does not tell what its actions mean, or FIRE is required and missing.
    """

    def __init__(self, env: Env, *, required: bool = True) -> None:
        RecordConstructorArgs.__init__(self, required=required)
        super().__init__(env)
        meanings = _action_meanings(env)
        if meanings is None:
            raise ValueError("FireReset needs an environment with get_action_meanings")
        if required and "FIRE" not in meanings:
            raise ValueError(
                f"there is no FIRE among the actions {', '.join(meanings)}; required=False leaves such games alone"
            )
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and press FIRE; where that ends it, the next one is begun without FIRE."""
        observation, infos = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            observation, _, terminated, truncated, step_infos = self.env.step(self._fire)
            infos = {**infos, **step_infos}
            if terminated or truncated:
                observation, infos = self.env.reset(options=options)
        return observation, infos


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """End the episode when a life is lost; the next reset goes on with the game, by one step without an action.

    A reset with a seed, or with ``options={"new_game": True}``, always begins a new game. Lives are read from the
    infos, else from ``env.unwrapped.ale``.

    Args:
        env: an environment with lives, whose action 0 does nothing.

    Attributes:
        game_over: whether the whole game has ended, or was never begun.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.game_over = True
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next life, or a new game."""
        options = dict(options or {})
        new_game = bool(options.pop("new_game", False)) or seed is not None
        if not self.game_over and not new_game:
            observation, _, terminated, truncated, infos = self.env.step(0)
            self.game_over = terminated or truncated  # that one step may end the game
        if self.game_over or new_game:
            observation, infos = self.env.reset(seed=seed, options=options or None)
            self.game_over = False
        self._lives = self._read_lives(infos)
        return observation, infos

    def step(self, action: Any) -> Result:
        """Play one step."""
        observation, reward, terminated, truncated, infos = self.env.step(action)
        self.game_over = terminated or truncated
        lives = self._read_lives(infos)
        # Some games go on for a moment without lives; they end by themselves.
        lost = 0 < lives < self._lives
        self._lives = lives
        return observation, reward, terminated or lost, truncated, infos

    def _read_lives(self, infos: dict[str, Any]) -> int:
        if "lives" in infos:
            return int(infos["lives"])
        ale = getattr(self.env.unwrapped, "ale", None)
        if ale is None:
            raise ValueError("EpisodicLife needs lives: neither the infos nor env.unwrapped.ale tell any")
        return int(ale.lives())


def _at_least_one(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def _action_meanings(env: Env) -> list[str] | None:
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    return None if meanings is None else list(meanings())


def _skipped_frames(env: Env) -> list[tuple[str, Any]]:
    """Frames per step of every layer that tells: ours, Gymnasium's, SB3's and the emulator's environments."""
    found: list[tuple[str, Any]] = []
    layer: Any = env
    while True:
        name = type(layer).__name__
        for attribute in ("skip", "_skip", "frame_skip", "frameskip", "_frameskip"):
            value = vars(layer).get(attribute)
            if isinstance(value, (int, np.integer, tuple)):
                found.append((name, value))
        config = vars(layer).get("config")
        if config is not None and isinstance(getattr(config, "frame_skip", None), int):
            found.append((name, config.frame_skip))
        if not isinstance(layer, gymnasium.Wrapper):
            return found
        layer = layer.env
