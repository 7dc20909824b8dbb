"""Settings of the Atari pipeline, checked when they are made, and the named sets of them."""

from __future__ import annotations

import dataclasses
import numbers
from dataclasses import dataclass

from .area_weights import check_area_resize

# Width of every Atari screen and height of most, in pixels. Taller screens are checked when the game is loaded.
SCREEN_WIDTH = 160
SCREEN_HEIGHT = 210


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """How an Atari game is played and turned into observations; the defaults are those of ALE's `AtariVectorEnv`.

    A *frame* is one step of the emulator, an *agent step* is one call of ``step``: `frame_skip` frames.

    Attributes:
        frame_skip: frames per agent step, all with the same action.
        max_pool: take the brighter of the last two frames for every pixel, else only the last frame.
        noop_max: a reset plays 0 to ``noop_max - 1`` frames without an action; 0 and 1: none.
        fire_reset: a reset presses FIRE for one frame, in games whose action set has it.
        episodic_life: the episode ends (terminated) when a life is lost; the next reset starts a new game.
        life_loss_info: end episodes at a lost life without a new game. Not available yet.
        clip_reward: rewards become -1, 0 or 1.
        screen_size: height and width of a frame of the observation, in pixels.
        grayscale: observations are gray. RGB is not available yet.
        stack_size: frames of an observation; before the first frame the stack is black.
        repeat_action_probability: chance, at every frame, that the emulator repeats its previous action; None: what
            the environment id stands for.
        full_action_space: all 18 actions in place of those that the game uses.
        max_episode_frames: the episode is truncated after so many frames, counted from the end of the reset.
    """

    frame_skip: int = 4
    max_pool: bool = True
    noop_max: int = 30
    fire_reset: bool = True
    episodic_life: bool = False
    life_loss_info: bool = False
    clip_reward: bool = True
    screen_size: tuple[int, int] = (84, 84)
    grayscale: bool = True
    stack_size: int = 4
    repeat_action_probability: float | None = None
    full_action_space: bool = False
    max_episode_frames: int = 108_000

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            TypeError: a value of the wrong type; the message names the field.
            ValueError: a value out of range or not available yet; the message names the field.
        """
        for field in dataclasses.fields(self):
            if isinstance(field.default, bool):
                self._check_bool(field.name)
        self._check_int("frame_skip", 1, 1000)
        self._check_int("noop_max", 0, 100_000)
        self._check_int("stack_size", 1, 1000)
        self._check_int("max_episode_frames", 1, 2**31 - 1)
        self._check_probability()
        self._check_screen_size()
        if self.life_loss_info:
            raise ValueError(
                "life_loss_info=True is not available yet; episodic_life=True ends episodes at a lost life"
            )
        if not self.grayscale:
            raise ValueError("grayscale=False is not available yet; observations are gray")

    def _check_bool(self, name: str) -> None:
        value = getattr(self, name)
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, got {value!r}")

    def _check_int(self, name: str, lowest: int, highest: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be an int, got {value!r}")
        if not lowest <= int(value) <= highest:
            raise ValueError(f"{name} must be from {lowest} to {highest}, got {value}")
        # NumPy integers would leak into settings that are stored as JSON.
        object.__setattr__(self, name, int(value))

    def _check_probability(self) -> None:
        value = self.repeat_action_probability
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"repeat_action_probability must be a number, got {value!r}")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"repeat_action_probability must be from 0 to 1, got {value}")
        object.__setattr__(self, "repeat_action_probability", float(value))

    def _check_screen_size(self) -> None:
        size = self.screen_size
        whole = isinstance(size, (tuple, list)) and len(size) == 2
        if not whole or any(isinstance(side, bool) or not isinstance(side, numbers.Integral) for side in size):
            raise TypeError(f"screen_size must be (height, width) in whole pixels, got {size!r}")
        object.__setattr__(self, "screen_size", (int(size[0]), int(size[1])))
        try:
            check_area_resize((SCREEN_HEIGHT, SCREEN_WIDTH), self.screen_size)
        except ValueError as error:
            raise ValueError(f"screen_size {self.screen_size}: {error}") from None


PRESETS: dict[str, AtariConfig] = {"ale": AtariConfig()}

# Names that will exist; asking for one of them says so.
PLANNED_PRESETS = ("gymnasium", "sb3", "envpool", "fast")


def find_preset(name: str) -> AtariConfig:
    """The settings behind a preset's name.

    Args:
        name: a key of `PRESETS`.

    Raises:
        ValueError: there is no such preset; the message lists those that exist.
    """
    if name in PRESETS:
        return PRESETS[name]
    listed = ", ".join(repr(known) for known in PRESETS)
    if name in PLANNED_PRESETS:
        raise ValueError(f"preset {name!r} is not available yet; available: {listed}")
    raise ValueError(f"there is no preset {name!r}; available: {listed}")
