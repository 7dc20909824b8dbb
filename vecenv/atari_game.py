"""A running Atari game: its emulator and random numbers, and how an agent step is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding

from vecenv.atari_emulator import RomFacts, load_emulator
from vecenv.noop_starts import NoopStarts
from vecenv.preprocess.config import AtariConfig
from vecenv.sticky_actions import StickyActions

FIRE = 1
_NEVER = 2**62


class Game:
    """The emulator with one game, played by the rules of an `AtariConfig`.

    Args:
        rom: name of the ROM.
        config: the settings.
        facts: what is fixed about the game.
        actions: the emulator's codes of the actions that an agent may choose.
        screens: [2, H, 160] uint8, filled with the last frame of a step and the one before it.

    Attributes:
        emulator: the ``ale_py.ALEInterface``; None until `load`.
        generator: what `sticky_actions` of a wrapper and the starts of some conventions draw from.
        lives: lives after the latest step or start.
        game_over: whether the latest step ended the whole game, or ran into the frame limit.
        pooled_before: whether that step's observation shows the pooled frame of the step before.
        steps: agent steps since the game began.
        start_rewards: sum of the rewards that the latest start collected since the game began; no step reports them.
        episode_frame: the emulator's number of the latest frame of the game.
        presses_fire: whether a start presses FIRE.
    """

    def __init__(
        self,
        rom: str,
        config: AtariConfig,
        facts: RomFacts,
        actions: tuple[int, ...],
        screens: npt.NDArray[np.uint8],
    ) -> None:
        self.rom = rom
        self.config = config
        self.actions = actions
        self.screens = screens
        self.emulator: Any = None
        self.generator: np.random.Generator = None  # type: ignore[assignment]
        self.noop_starts = NoopStarts(config.noop_max)
        self.presses_fire = config.fire_reset and FIRE in actions
        self.lives = 0
        self.game_over = False
        self.pooled_before = False
        self.steps = 0
        self.start_rewards = 0
        self.episode_frame = 0
        self._in_gray = facts.palette is None
        self._sticky_action = 0
        probability = config.repeat_action_probability or 0.0
        in_emulator = probability > 0 and config.sticky_actions == "emulator"
        self._held = StickyActions(probability) if in_emulator else None
        self._limit_frame = _NEVER
        self._captures = [screens[index] for index in range(2 if config.max_pool else 1)]
        # SB3 and EnvPool read the frame at which a game ends; ALE and Gymnasium leave the loop before.
        self._reads_ends = config.conventions in ("sb3", "envpool")
        self._stops_at_life = config.episodic_life and not self._reads_ends
        self._ends_after_step = config.life_loss_info or (config.episodic_life and self._reads_ends)
        self._play = self._play_to_true_end if config.true_final_frame else self._play_frames
        self._frame_skip = config.frame_skip
        self._most_steps = _NEVER if config.max_episode_steps is None else config.max_episode_steps

    # -- seeds -------------------------------------------------------------------------------------------------------

    def seed(self, seed: int) -> tuple[int, int] | None:
        """Load the game with every random number seeded as the conventions say.

        Args:
            seed: at least 0.

        Returns:
            The seeds of generator and emulator, where the conventions tell them.
        """
        if self.config.conventions in ("gymnasium", "sb3"):
            first, second = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
            self.generator, _ = seeding.np_random(first)
            self.load(int(np.uint32(second).astype(np.int32)))
            return first, second
        self.load(emulator_seed(seed))
        return None

    def load(self, seed: int) -> None:
        """Load the game with the emulator and the no-op starts seeded by `seed`; bind what steps call."""
        config = self.config
        in_wrapper = config.sticky_actions == "wrapper"
        probability = config.repeat_action_probability or 0.0
        emulator = load_emulator(self.rom, 0.0 if in_wrapper else probability, seed, config.mode, config.difficulty)
        self.noop_starts.seed(seed % 2**32)
        if self._held is not None:
            self._held.load(seed % 2**32)
        self.emulator = emulator
        self.act: Callable[[int], int] = emulator.act
        if in_wrapper and probability > 0:
            self.act = self._act_sticky
        # A game with colours of its own is read in gray; its table is the identity.
        self.read_screen = emulator.getScreenGrayscale if self._in_gray else emulator.getScreen
        self._is_game_over = emulator.game_over  # the emulator itself has no limit of frames
        self._read_lives = emulator.lives
        self.read_frame_number: Callable[[], int] = emulator.getFrameNumber

    def _act_sticky(self, action: int) -> int:
        if self.generator.random() >= (self.config.repeat_action_probability or 0.0):
            self._sticky_action = action
        reward: int = self.emulator.act(self._sticky_action)
        return reward

    # -- games -------------------------------------------------------------------------------------------------------

    def new_game(self) -> None:
        """Begin a new game, without any frames of a start."""
        self.emulator.reset_game()
        self._sticky_action = 0
        if self._held is not None:
            self._held.begin(self.emulator.getFrameNumber())
        self.steps = 0
        self.start_rewards = 0
        self.episode_frame = self.emulator.getEpisodeFrameNumber()
        self.game_over = False
        limited = self.config.count_start_frames and self.config.max_episode_frames
        self._limit_frame = self.config.max_episode_frames or 0 if limited else _NEVER

    def finish_start(self, new_game: bool) -> None:
        """Note lives, and from where frames are counted."""
        self._read_counters()
        self.game_over = False
        if new_game and not self.config.count_start_frames and self.config.max_episode_frames is not None:
            self._limit_frame = self.episode_frame + self.config.max_episode_frames

    def _read_counters(self) -> None:
        self.lives = self.emulator.lives()
        self.episode_frame = self.emulator.getEpisodeFrameNumber()

    def act_ends(self, action: int) -> bool:
        """Play one frame of a start.

        Returns:
            Whether it ended the game or reached the limit of a game whose start is counted.
        """
        self.start_rewards += self.act(action)
        if self._held is not None:
            self._held.note(action, 1)
        self.episode_frame = self.emulator.getEpisodeFrameNumber()
        return bool(self._is_game_over()) or self.episode_frame >= self._limit_frame

    # -- steps -------------------------------------------------------------------------------------------------------

    def play_step(self, action: int) -> tuple[int, bool, bool]:
        """Play the frames of one agent step and read the screens of the last two.

        Args:
            action: the emulator's code.

        Returns:
            The sum of rewards, terminated and truncated.
        """
        self.steps += 1
        frames_before = self._limit_frame - self.episode_frame
        total, ended, over, frames_left = self._play(action, frames_before)
        self.episode_frame = self._limit_frame - frames_left
        if self._held is not None:
            self._held.note(action, frames_before - frames_left)
        lives = self._read_lives()
        if self._ends_after_step:
            # A game of SB3's or EnvPool's may go on for some frames without lives; it ends by itself.
            ended = ended or (lives < self.lives and (lives > 0 or self.config.life_loss_info))
        self.lives = lives
        if frames_left > 0 and self.steps < self._most_steps:
            self.game_over = over
            return total, ended, False
        self.game_over = True
        if self.config.conventions == "ale":
            return total, ended, not ended
        if self.config.conventions == "envpool":
            return total, over, not over
        return total, ended, True

    def _play_frames(self, action: int, frames_left: int) -> tuple[int, bool, bool, int]:
        """As the peers play: what is not read leaves older frames to be seen."""
        act, is_game_over, read, captures = self.act, self._is_game_over, self.read_screen, self._captures
        stops_at_life, num_captures = self._stops_at_life, len(captures)
        self.pooled_before = False
        total = 0
        over = ended = False
        remaining = self._frame_skip
        while remaining:
            remaining -= 1
            total += act(action)
            frames_left -= 1
            over = ended = is_game_over()
            if stops_at_life:
                lives = self._read_lives()
                ended = ended or lives < self.lives
                self.lives = lives
            if ended or frames_left <= 0:
                break
            if remaining < num_captures:
                read(captures[remaining])
        else:
            return total, ended, over, frames_left
        if self._reads_ends:
            self._read_end(remaining)
        else:
            self.pooled_before = remaining == 0 and self.config.max_pool
        return total, ended, over, frames_left

    def _read_end(self, remaining: int) -> None:
        """Read the frame at which a game ended, if it is one of the last two of a step."""
        if remaining < len(self._captures):
            self.read_screen(self._captures[remaining])
            if remaining == 1 and self.config.conventions == "envpool":
                self.screens[0] = self.screens[1]  # pools complete steps only

    def _play_to_true_end(self, action: int, frames_left: int) -> tuple[int, bool, bool, int]:
        """Read every frame, so that the last two played are there wherever the step ends."""
        self.pooled_before = False
        total = 0
        over = ended = False
        remaining = 0
        for remaining in range(self.config.frame_skip - 1, -1, -1):
            total += self.act(action)
            frames_left -= 1
            over = ended = self._is_game_over()
            if self._stops_at_life:
                ended = ended or self.emulator.lives() < self.lives
            if self.config.max_pool:
                self.read_screen(self.screens[remaining % 2])
            if ended or frames_left <= 0:
                break
        if not self.config.max_pool:
            self.read_screen(self.screens[0])
        elif remaining == self.config.frame_skip - 1:
            self.screens[1 - remaining % 2] = 0  # of the step before
        return total, ended, over, frames_left

    def restore_emulator(self, state: Any) -> None:
        """Put the emulator alone into a state of its own."""
        self.emulator.restoreState(state)
        self._read_counters()
        if self._held is not None:
            self._held.lose()

    def get_state(self) -> dict[str, Any]:
        """Everything that later steps depend on, besides `screens` and `generator`."""
        return {
            "emulator": self.emulator.cloneState(include_rng=True),
            "noop_starts": self.noop_starts.get_state(),
            "counters": (
                self.lives,
                self.game_over,
                self.pooled_before,
                self.steps,
                self._sticky_action,
                self._limit_frame,
            ),
            "held": None if self._held is None else (self._held.seed, self._held_action()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self.emulator.reset_game()
        if self._held is not None:
            seed, action = state["held"]
            self._hold(action)
        self.emulator.restoreState(state["emulator"])
        if self._held is not None:
            self._held.load(seed)
            self._held.begin(self.emulator.getFrameNumber(), action)
        self.noop_starts.set_state(state["noop_starts"])
        (
            self.lives,
            self.game_over,
            self.pooled_before,
            self.steps,
            self._sticky_action,
            self._limit_frame,
        ) = state["counters"]
        self.episode_frame = self.emulator.getEpisodeFrameNumber()

    def _held_action(self) -> int:
        assert self._held is not None  # only called where it is there
        return self._held.held_action(self.emulator.getFrameNumber())

    def _hold(self, action: int) -> None:
        """Make the emulator hold an action for its sticky actions, by asking until a draw lets it through."""
        held = self._held
        assert held is not None  # only called where it is there
        held.begin(self.emulator.getFrameNumber())
        while self._held_action() != action:
            held.note(action, 1)
            self.act(action)


def emulator_seed(seed: int) -> int:
    """The emulator's seed: the same number up to 2**31 - 1, larger ones folded into that range."""
    if seed < 2**31:
        return int(seed)
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1
