"""Atari games as Gymnasium environments, preprocessed by one fused kernel that writes where it is told to."""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.atari_emulator import load_emulator, rom_facts
from vecenv.atari_settings import resolve_config
from vecenv.errors import UnknownSetting
from vecenv.noop_starts import NoopStarts
from vecenv.preprocess.area_weights import area_weights
from vecenv.preprocess.config import SCREEN_WIDTH, AtariConfig
from vecenv.preprocess.palette import gray_pairs, load_palette
from vecenv.registration import AtariGame, find_game

__all__ = [
    "AtariEnv",
    "AtariGame",
    "find_game",
    "make_atari_env",
    "make_registered_env",
    "preload_modules",
    "resolve_config",
    "warm_up",
]

# What a fork server imports before it forks workers that play Atari.
preload_modules: tuple[str, ...] = ("ale_py", "vecenv.preprocess.kernels", "vecenv.atari")

_FIRE = 1
_ACTION_LIST = """
    NOOP FIRE UP RIGHT LEFT DOWN UPRIGHT UPLEFT DOWNRIGHT DOWNLEFT UPFIRE RIGHTFIRE LEFTFIRE DOWNFIRE
    UPRIGHTFIRE UPLEFTFIRE DOWNRIGHTFIRE DOWNLEFTFIRE
"""
_ACTION_NAMES = tuple(_ACTION_LIST.split())
_KEYS = {"UP": "w", "DOWN": "s", "LEFT": "a", "RIGHT": "d", "FIRE": " "}


class AtariEnv(gymnasium.Env[npt.NDArray[np.uint8], np.int64]):
    """One Atari game behind the preprocessing of an `AtariConfig`.

    Besides ``reset`` and ``step`` there are `reset_into` and `step_into`, which write the observation into an array of
    the caller. The last frames are kept by the environment itself, so that array may be another one at every call.

    Args:
        rom: name of the ROM, such as ``"ms_pacman"``.
        config: the settings; ``repeat_action_probability=None`` counts as 0.
        render_mode: None or ``"rgb_array"``.

    Attributes:
        observation_space: Box [stack_size, height, width] uint8, oldest frame first.
        action_space: Discrete; see `get_action_meanings`.
        config: the settings.
        unclipped_reward: the game's own reward in the latest step.
        game_over: whether the latest step ended the whole game (or ran into the frame limit), even where an episode
            is only one life.

    Raises:
        MissingExtra: ale_py is not installed.
        TypeError: `config` is not an `AtariConfig`.
        ValueError: no such ROM or render mode, or a screen that the settings cannot be applied to.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, rom: str, config: AtariConfig | None = None, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        if config is not None and not isinstance(config, AtariConfig):
            raise TypeError(f"config must be an AtariConfig, got {config!r}")
        self.rom = rom
        self.config = AtariConfig() if config is None else config
        self.render_mode = render_mode
        facts = rom_facts(rom)
        # One rendered picture per agent step; the console shows 60 frames a second.
        self.metadata = {**type(self).metadata, "render_fps": max(1, round(60 / self.config.frame_skip))}
        self._actions = tuple(range(len(_ACTION_NAMES))) if self.config.full_action_space else facts.minimal_actions
        self._presses_fire = self.config.fire_reset and _FIRE in self._actions
        self._shape = (self.config.stack_size, *self.config.screen_size)
        self.observation_space = gymnasium.spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.unclipped_reward = 0.0
        self.game_over = False

        self._palette = facts.palette
        self._screens = np.zeros((2, facts.height, SCREEN_WIDTH), np.uint8)  # the last frame, the one before
        self._captures = [self._screens[index] for index in range(2 if self.config.max_pool else 1)]
        memory = np.zeros((3, facts.height, SCREEN_WIDTH), np.uint8)
        weights = area_weights((facts.height, SCREEN_WIDTH), self.config.screen_size)
        self._frames = np.zeros((self.config.stack_size + 1, *self.config.screen_size), np.uint8)
        self._kernel_arguments = (self._screens, memory, gray_pairs(facts.palette), *weights, self._frames)
        self._newest = 0
        self._emulator: Any = None
        self._noop_starts = NoopStarts(self.config.noop_max)
        self._lives = 0
        self._episode_frames = -1  # until the first reset

    @property
    def ale(self) -> Any:
        """The ``ale_py.ALEInterface``, loaded at first use."""
        if self._emulator is None:
            self._load(int(self.np_random.integers(2**31)))
        return self._emulator

    def _load(self, seed: int) -> None:
        """Load the game with the emulator and the no-op starts seeded by `seed`; bind what `step_into` calls."""
        from vecenv.preprocess.kernels import observe_screens

        emulator = load_emulator(self.rom, self.config.repeat_action_probability or 0.0, seed)
        self._noop_starts.seed(seed)
        self._emulator = emulator
        self._observe_screens = observe_screens
        self._act = emulator.act
        # A game with colours of its own is read in gray; its table is the identity.
        self._read_screen = emulator.getScreenGrayscale if self._palette is None else emulator.getScreen
        self._is_game_over = emulator.game_over

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Start a new game; see `reset_into`.

        Returns:
            The observation, a new array, and the infos.
        """
        observation = np.empty(self._shape, np.uint8)
        return observation, self.reset_into(observation, seed=seed, options=options)

    def reset_into(
        self, out: npt.NDArray[np.uint8], *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start a new game and write the first observation into `out`.

        Args:
            out: C-contiguous, shape and dtype of the observation space; wholly overwritten.
            seed: seeds emulator and no-op starts as ``AtariVectorEnv`` does; None goes on with the present generators.
            options: none exist.

        Returns:
            ``lives``, ``episode_frame_number`` and ``frame_number``, ints.

        Raises:
            ValueError: options were given.
        """
        if options:
            raise ValueError(f"Atari games have no reset options, got {sorted(map(str, options))}")
        super().reset(seed=seed)
        if seed is not None:
            self._load(_emulator_seed(seed))
        emulator = self.ale
        emulator.reset_game()
        if self._presses_fire:
            self._act(_FIRE)
        for _ in range(self._noop_starts.draw() - self._presses_fire):
            self._act(0)
            if self._is_game_over():
                emulator.reset_game()
        self._lives = emulator.lives()
        self._episode_frames = 0
        self.unclipped_reward = 0.0
        self.game_over = False

        self._screens[1] = 0
        self._read_screen(self._screens[0])
        self._frames[:] = 0
        self._newest = 0
        self._observe_screens(*self._kernel_arguments, 0, True, out)
        return self._infos()

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Play one agent step; see `step_into`.

        Returns:
            The observation, a new array, reward, terminated, truncated and infos.
        """
        observation = np.empty(self._shape, np.uint8)
        return observation, *self.step_into(action, observation)

    def step_into(self, action: Any, out: npt.NDArray[np.uint8]) -> tuple[float, bool, bool, dict[str, Any]]:
        """Play one agent step and write the observation into `out`.

        Args:
            action: index into the action space.
            out: C-contiguous, shape and dtype of the observation space; wholly overwritten.

        Returns:
            reward, terminated, truncated and the infos ``lives``, ``episode_frame_number``, ``frame_number``.

        Raises:
            gymnasium.error.ResetNeeded: the environment was never reset.
            TypeError: the action is not a whole number.
            ValueError: the action is out of range.
        """
        index = operator.index(action)
        if not 0 <= index < len(self._actions):
            raise ValueError(f"action must be from 0 to {len(self._actions) - 1}, got {index}")
        if self._episode_frames < 0:
            raise gymnasium.error.ResetNeeded("call reset before step")
        total, terminated = self._play_frames(self._actions[index])
        truncated = not terminated and self._episode_frames >= self.config.max_episode_frames
        self.unclipped_reward = float(total)
        self._newest = (self._newest + 1) % self.config.stack_size
        self._observe_screens(*self._kernel_arguments, self._newest, False, out)
        reward = float((total > 0) - (total < 0)) if self.config.clip_reward else float(total)
        return reward, terminated, truncated, self._infos()

    def _play_frames(self, action: int) -> tuple[int, bool]:
        """Play the frames of one agent step and read the screens of the last two.

        The frame at which the episode ends is not read, nor are those that it leaves out: the last observation shows
        older ones, as ``AtariVectorEnv``'s does.

        Args:
            action: the emulator's code.

        Returns:
            The sum of rewards, and whether the episode ended (a frame limit aside).
        """
        config = self.config
        captures = self._captures
        frames_left = config.max_episode_frames - self._episode_frames
        total = 0
        ended = False
        for remaining in range(config.frame_skip - 1, -1, -1):
            total += self._act(action)
            frames_left -= 1
            self.game_over = self._is_game_over(with_truncation=False)
            ended = self.game_over or (config.episodic_life and self._emulator.lives() < self._lives)
            if ended or frames_left <= 0:
                if remaining == 0 and config.max_pool:
                    self._keep_pooled_frame()
                break
            if remaining < len(captures):
                self._read_screen(captures[remaining])
        self._episode_frames = config.max_episode_frames - frames_left
        self.game_over = self.game_over or frames_left <= 0
        return total, ended

    def _keep_pooled_frame(self) -> None:
        """Make the last frame of this step look like the pooled frames of the step before.

        ``AtariVectorEnv`` pools in place: where the frame that would be pooled next is not read, its place still holds
        the result of the step before.
        """
        _, memory, *_ = self._kernel_arguments
        gray = np.arange(256, dtype=np.uint8) if self._palette is None else load_palette(self._palette).gray
        last, one_before = memory[0], memory[1]  # of the step before: the kernel has not run in this one
        self._screens[0] = np.where(gray[last] >= gray[one_before], last, one_before)

    def _infos(self) -> dict[str, Any]:
        """What every reset and step reports, as plain ints."""
        emulator = self._emulator
        self._lives = emulator.lives()
        return {
            "lives": self._lives,
            "episode_frame_number": emulator.getEpisodeFrameNumber(),
            "frame_number": emulator.getFrameNumber(),
        }

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The game's present screen at full resolution.

        Returns:
            [H, 160, 3] uint8, a new array, or None without ``render_mode="rgb_array"``.
        """
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode; build the environment with render_mode='rgb_array'")
            return None
        screen: npt.NDArray[np.uint8] = self.ale.getScreenRGB()
        return screen

    def get_action_meanings(self) -> list[str]:
        """Name of every action, in the order of the action space."""
        return [_ACTION_NAMES[action] for action in self._actions]

    def get_keys_to_action(self) -> dict[tuple[str, ...], int]:
        """Keys of a keyboard (w, a, s, d, space; e: no action) that stand for each action."""
        keys: dict[tuple[str, ...], int] = {}
        for index, name in enumerate(self.get_action_meanings()):
            keys[tuple(key for part, key in _KEYS.items() if part in name) or ("e",)] = index
        return keys

    def clone_state(self, include_rng: bool = False) -> Any:
        """Copy the emulator's state; the frames of the observation are not part of it.

        Args:
            include_rng: also copy the emulator's generator, which sticky actions draw from.

        Returns:
            An ``ale_py.ALEState``.
        """
        return self.ale.cloneState(include_rng=include_rng)

    def restore_state(self, state: Any) -> None:
        """Put the emulator into a state of `clone_state`; the observation goes on from the frames seen before."""
        self.ale.restoreState(state)

    def close(self) -> None:
        """Let go of the emulator; a later reset loads the game again."""
        self._emulator = None
        self._episode_frames = -1


def _emulator_seed(seed: int) -> int:
    """The emulator's seed: the same number up to 2**31 - 1, larger ones folded into that range."""
    if seed < 2**31:
        return int(seed)
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1


def make_atari_env(env_id: str, config: AtariConfig, render_mode: str | None = None) -> AtariEnv:
    """Build one environment; a function of its own, so that it can be sent to workers.

    Args:
        env_id: an id that `find_game` knows.
        config: the settings, as `resolve_config` returns them.
        render_mode: None or ``"rgb_array"``.

    Raises:
        UnknownSetting: the id is not the id of an Atari game.
        MissingExtra: ale_py is not installed.
    """
    game = find_game(env_id)
    if game is None:
        raise UnknownSetting(f"{env_id!r} is not the id of an Atari game")
    return AtariEnv(game.rom, config, render_mode)


def make_registered_env(
    env_id: str, preprocess: str | AtariConfig | None = None, render_mode: str | None = None, **settings: Any
) -> AtariEnv:
    """Entry point of the ids ``vecenv/<Game>-v5`` in Gymnasium's registry.

    Args:
        env_id: the id.
        preprocess: see `resolve_config`.
        render_mode: None or ``"rgb_array"``.
        **settings: fields of `AtariConfig`.
    """
    return make_atari_env(env_id, resolve_config(env_id, preprocess, **settings), render_mode)


def warm_up() -> None:
    """Compile the kernels, or load them from Numba's cache, in this process; a second call does nothing."""
    import vecenv.preprocess.kernels  # noqa: F401
