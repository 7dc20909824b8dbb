"""Settings of the Atari pipeline, checked when they are made."""

from __future__ import annotations

import dataclasses
import numbers
from dataclasses import dataclass

from .area_weights import check_area_resize

# Width of every Atari screen and height of most, in pixels. Taller screens are checked when the game is loaded.
SCREEN_WIDTH = 160
SCREEN_HEIGHT = 210

# Legal words of the settings that are words.
_CHOICES = {
    "conventions": ("ale", "gymnasium", "sb3", "envpool"),
    "gray": ("emulator", "opencv"),
    "channel_order": ("frames", "first", "last"),
    "padding": ("zero", "repeat"),
    "sticky_actions": ("emulator", "wrapper"),
}


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """How an Atari game is played and turned into observations; the defaults are those of ALE's `AtariVectorEnv`.

    A *frame* is one step of the emulator, an *agent step* is one call of ``step``: `frame_skip` frames.

    Attributes:
        frame_skip: frames per agent step, all with the same action.
        max_pool: take the brighter of the last two frames for every pixel, else only the last frame.
        noop_max: bounds the random number of frames without an action that begin a game; 0: none. The number is drawn
            as `conventions` say: ``"ale"`` 0 to ``noop_max - 1``, less 1 for FIRE; ``"envpool"`` 1 to `noop_max`,
            less 1 for FIRE; ``"gymnasium"`` and ``"sb3"`` 1 to `noop_max`.
        fire_reset: a reset presses FIRE, in games whose action set has it: ``"ale"`` one frame before the frames
            without an action, ``"envpool"`` and ``"gymnasium"`` one frame after them, ``"sb3"`` two agent steps (FIRE,
            then the action after it) after them.
        episodic_life: the episode ends (terminated) when a life is lost.
        next_life: with `episodic_life`, a reset before the game is over goes on with it; else every reset starts a new
            game. ``reset(options={"new_game": True})``, and a reset with a seed, always starts a new one.
        life_loss_info: a lost life is reported as terminated though the game goes on: ``step`` may simply be called
            again, and a ``reset`` right after it returns the same observation and plays nothing.
        clip_reward: rewards become -1, 0 or 1.
        screen_size: height and width of a frame of the observation, in pixels.
        grayscale: observations are gray, else RGB.
        gray: ``"emulator"``: the emulator's own gray, pooled; ``"opencv"``: OpenCV's gray of the pooled colours.
        channel_order: shape of an observation of S frames with C channels: ``"frames"`` [S, h, w] or [S, h, w, 3],
            ``"first"`` [S * C, h, w], ``"last"`` [h, w, S * C].
        stack_size: frames of an observation.
        padding: before the first frame the stack is black (``"zero"``) or shows the first frame (``"repeat"``).
        repeat_action_probability: chance, at every frame, that the emulator repeats its previous action; None: what
            the environment id stands for.
        sticky_actions: who draws for `repeat_action_probability`: the emulator, or a wrapper around it with the
            environment's generator, as SB3's ``StickyActionEnv``.
        full_action_space: all 18 actions in place of those that the game uses.
        mode: the game's mode; None: its default.
        difficulty: the game's difficulty; None: its default.
        max_episode_frames: the episode is truncated after so many frames; None: never.
        count_start_frames: those frames are counted from the start of the game, else from the end of the reset.
        max_episode_steps: the episode is truncated after so many agent steps since the start of the game; None: never.
        max_screen_height: only so many lines of taller screens are seen; None: all.
        conventions: whose rules decide what the other settings leave open: how a seed becomes the emulator's seed and
            the random numbers of a start, the order of a start, and what an observation shows when a game ends
            within an agent step.
        true_final_frame: an episode's last observation shows the frames played last, whatever `conventions` say: all
            of them leave out frames, or show older ones, where a game ends within an agent step.

    Examples:
        >>> AtariConfig(grayscale=False, stack_size=2).observation_shape
        (2, 84, 84, 3)
        >>> AtariConfig(screen_size=(84, 84), channel_order="last").observation_shape
        (84, 84, 4)
        >>> AtariConfig(next_life=True)
        Traceback (most recent call last):
        ...
        ValueError: next_life=True needs episodic_life=True: without it no episode ends at a lost life
    """

    frame_skip: int = 4
    max_pool: bool = True
    noop_max: int = 30
    fire_reset: bool = True
    episodic_life: bool = False
    next_life: bool = False
    life_loss_info: bool = False
    clip_reward: bool = True
    screen_size: tuple[int, int] = (84, 84)
    grayscale: bool = True
    gray: str = "emulator"
    channel_order: str = "frames"
    stack_size: int = 4
    padding: str = "zero"
    repeat_action_probability: float | None = None
    sticky_actions: str = "emulator"
    full_action_space: bool = False
    mode: int | None = None
    difficulty: int | None = None
    max_episode_frames: int | None = 108_000
    count_start_frames: bool = False
    max_episode_steps: int | None = None
    max_screen_height: int | None = None
    conventions: str = "ale"
    true_final_frame: bool = False

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            TypeError: a value of the wrong type; the message names the field.
            ValueError: a value out of range, or two that contradict each other; the message names the fields.
        """
        for field in dataclasses.fields(self):
            if isinstance(field.default, bool):
                self._check_bool(field.name)
        for name, words in _CHOICES.items():
            self._check_choice(name, words)
        self._check_int("frame_skip", 1, 1000)
        self._check_int("noop_max", 0, 100_000)
        self._check_int("stack_size", 1, 1000)
        for name, lowest in (("max_episode_frames", 1), ("max_episode_steps", 1), ("mode", 0), ("difficulty", 0)):
            if getattr(self, name) is not None:
                self._check_int(name, lowest, 2**31 - 1)
        if self.max_screen_height is not None:
            self._check_int("max_screen_height", 3, 999)
        self._check_probability()
        self._check_screen_size()
        if self.next_life and not self.episodic_life:
            raise ValueError("next_life=True needs episodic_life=True: without it no episode ends at a lost life")
        if self.life_loss_info and self.episodic_life:
            raise ValueError("life_loss_info=True and episodic_life=True contradict each other; choose one")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation, see `channel_order`."""
        channels = 1 if self.grayscale else 3
        if self.channel_order == "last":
            return (*self.screen_size, self.stack_size * channels)
        if self.channel_order == "first" or self.grayscale:
            return (self.stack_size * channels, *self.screen_size)
        return (self.stack_size, *self.screen_size, channels)

    def screen_height(self, lines: int) -> int:
        """Lines of a screen of `lines` lines that are seen."""
        return lines if self.max_screen_height is None else min(lines, self.max_screen_height)

    def _check_bool(self, name: str) -> None:
        value = getattr(self, name)
        if type(value) is not bool:
            raise TypeError(f"{name} must be True or False, got {value!r}")

    def _check_choice(self, name: str, words: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a word, got {value!r}")
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")

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
            check_area_resize((self.screen_height(SCREEN_HEIGHT), SCREEN_WIDTH), self.screen_size)
        except ValueError as error:
            raise ValueError(f"screen_size {self.screen_size}: {error}") from None


PRESETS: dict[str, AtariConfig] = {
    "ale": AtariConfig(),
    "gymnasium": AtariConfig(
        conventions="gymnasium", fire_reset=False, clip_reward=False, padding="repeat", count_start_frames=True
    ),
    "sb3": AtariConfig(
        conventions="sb3",
        episodic_life=True,
        next_life=True,
        gray="opencv",
        channel_order="last",
        sticky_actions="wrapper",
        count_start_frames=True,
    ),
    "envpool": AtariConfig(
        conventions="envpool",
        clip_reward=False,
        padding="repeat",
        max_episode_frames=None,
        max_episode_steps=27_000,
        max_screen_height=210,
    ),
    # Fewer frames to play and to look at: no random start, every fourth frame as it is, two frames stacked.
    "fast": AtariConfig(noop_max=0, max_pool=False, stack_size=2),
}


def find_preset(name: str) -> AtariConfig:
    """The settings behind a preset's name.

    Args:
        name: a key of `PRESETS`: ``"ale"`` (ale-py's ``AtariVectorEnv``), ``"gymnasium"`` (``AtariPreprocessing`` and
            ``FrameStackObservation(4)``), ``"sb3"`` (``AtariWrapper`` and ``VecFrameStack(4)``), ``"envpool"`` or
            ``"fast"`` (no random start, no max-pooling, two frames).

    Raises:
        ValueError: there is no such preset; the message lists those that exist.
    """
    if name in PRESETS:
        return PRESETS[name]
    raise ValueError(f"there is no preset {name!r}; available: {', '.join(repr(known) for known in PRESETS)}")
