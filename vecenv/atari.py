"""Atari games as Gymnasium environments, preprocessed by one fused kernel that writes where it is told to."""

from __future__ import annotations

import operator
import pickle
import zlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.atari_emulator import RomFacts, rom_facts
from vecenv.atari_frames import FrameMaker
from vecenv.atari_game import Game
from vecenv.atari_settings import resolve_config
from vecenv.atari_starts import begin_episode
from vecenv.errors import UnknownSetting
from vecenv.preprocess.config import AtariConfig
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
preload_modules: tuple[str, ...] = (
    "ale_py",
    "vecenv.preprocess.kernels",
    "vecenv.preprocess.image_kernels",
    "vecenv.atari",
)

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
        observation_space: Box of uint8, oldest frame first; see `AtariConfig.channel_order` for its shape.
        action_space: Discrete; see `get_action_meanings`.
        config: the settings.
        unclipped_reward: the game's own reward in the latest step.
        game_over: whether the latest step ended the whole game (or ran into the frame limit), even where an episode
            is only one life.
        drops_games: whether an episode is one life and the next begins a new game, so that no game is ever played on.

    Raises:
        MissingExtra: ale_py is not installed.
        TypeError: `config` is not an `AtariConfig`.
        ValueError: no such ROM or render mode, or a screen that the settings cannot be applied to.

    Examples:
        >>> env = AtariEnv("pong", AtariConfig(stack_size=2))
        >>> observation, infos = env.reset(seed=0)
        >>> observation.shape, env.get_action_meanings()[:2]
        ((2, 84, 84), ['NOOP', 'FIRE'])
        >>> observation, reward, terminated, truncated, infos = env.step(1)
        >>> sorted(infos)
        ['episode_frame_number', 'frame_number', 'lives']
        >>> env.close()
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
        _check_game_settings(rom, facts, self.config)
        # One rendered picture per agent step; the console shows 60 frames a second.
        self.metadata = {**type(self).metadata, "render_fps": max(1, round(60 / self.config.frame_skip))}
        self._actions = tuple(range(len(_ACTION_NAMES))) if self.config.full_action_space else facts.minimal_actions
        self._shape = self.config.observation_shape
        self.observation_space = gymnasium.spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.unclipped_reward = 0.0
        self.game_over = False
        self.drops_games = self.config.episodic_life and not self.config.next_life

        self._frames = FrameMaker(facts.height, facts.palette, self.config)
        self._game = Game(rom, self.config, facts, self._actions, self._frames.screens)
        self._clips_reward, self._reports_lives = self.config.clip_reward, self.config.life_loss_info
        self._started = False
        self._reported_life = False  # the latest step reported a lost life, and the game goes on

    @property
    def ale(self) -> Any:
        """The ``ale_py.ALEInterface``, loaded at first use."""
        if self._game.emulator is None:
            self._load(None)
        return self._game.emulator

    def _load(self, seed: int | None) -> dict[str, Any]:
        """Load the game and the kernels; returns the infos that tell the seeds, where the conventions have them."""
        self._frames.prepare()
        if seed is None:
            self._game.load(int(self.np_random.integers(2**31)))
            return {}
        seeds = self._game.seed(seed)
        if seeds is None:
            return {}
        self._np_random = self._game.generator
        return {"seeds": seeds}

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
            seed: seeds the emulator and the random starts as the conventions of the settings do; None goes on with
                the present generators.
            options: ``{"new_game": True}`` begins a new game where a lost life would be followed by the next one.

        Returns:
            ``lives``, ``episode_frame_number`` and ``frame_number``, ints; ``seeds``, of generator and emulator, where
            a seed was given and the conventions are Gymnasium's or SB3's.

        Raises:
            ValueError: an unknown option.
        """
        if options and (set(options) != {"new_game"} or type(options["new_game"]) is not bool):
            raise ValueError(f"Atari games have the reset option new_game=True or False, got {options!r}")
        new_game = seed is not None or bool(options and options["new_game"])
        super().reset(seed=seed)
        game = self._game
        if self._reported_life and not new_game:
            self._reported_life = False
            self._frames.again(out)
            return self._infos()
        extra = self._load(seed) if seed is not None or game.emulator is None else {}
        game.generator = self.np_random
        goes_on = self._started and self.config.next_life and not game.game_over and not new_game
        stack_goes_on = goes_on and self.config.conventions == "envpool"
        begun = begin_episode(game, self._frames.first_screens, seed, goes_on)
        # A start of Gymnasium's or SB3's that ends the game seeds the generator again.
        self._np_random = game.generator
        self._started = True
        self._reported_life = False
        self.unclipped_reward = 0.0
        self.game_over = False
        if stack_goes_on and not begun:
            self._frames.following(out, start=True)
        else:
            self._frames.first(out)
        return {**self._infos(), **extra}

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
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset before step")
        game = self._game
        total, terminated, truncated = game.play_step(self._actions[index])
        if game.pooled_before:
            self._frames.following_pooled(out)
        else:
            self._frames.following(out)
        self.game_over = game.game_over
        self._reported_life = self._reports_lives and terminated and not game.game_over
        self.unclipped_reward = reward = float(total)
        if self._clips_reward:
            reward = float((total > 0) - (total < 0))
        return reward, terminated, truncated, self._infos()

    def _infos(self) -> dict[str, Any]:
        """What every reset and step reports, as plain ints."""
        game = self._game
        return {
            "lives": game.lives,
            "episode_frame_number": game.episode_frame,
            "frame_number": game.read_frame_number(),
        }

    def get_state(self) -> bytes:
        """Everything that later calls depend on: emulator with its generator, frames, stack, counters, generators.

        Returns:
            Bytes for `set_state` of an environment with the same game and settings.

        Raises:
            gymnasium.error.ResetNeeded: the environment was never reset.
        """
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset before get_state")
        state = {
            "made_for": (self.rom, self.config),
            "game": self._game.get_state(),
            "frames": self._frames.get_state(),
            "generator": self.np_random,
            "generator_seed": self._np_random_seed,
            "latest": (self.unclipped_reward, self.game_over, self._reported_life),
        }
        return zlib.compress(pickle.dumps(state), 1)

    def set_state(self, state: bytes) -> None:
        """Go on from a state of `get_state`, bit for bit as the environment that it came from.

        Args:
            state: from an environment with the same game and settings; trusted, as it is a pickle.

        Raises:
            ValueError: the state comes from another game or other settings.
        """
        values = pickle.loads(zlib.decompress(state))
        if values["made_for"] != (self.rom, self.config):
            raise ValueError(f"the state belongs to {values['made_for']}, not to {(self.rom, self.config)}")
        if self._game.emulator is None:
            self._load(None)
        self._game.set_state(values["game"])
        self._frames.set_state(values["frames"])
        self._np_random = self._game.generator = values["generator"]
        # With None, Gymnasium would put another generator there when asked for the seed; -1 stands for an unknown one.
        self._np_random_seed = values.get("generator_seed", -1)
        self.unclipped_reward, self.game_over, self._reported_life = values["latest"]
        self._started = True

    def __getstate__(self) -> dict[str, Any]:
        return {
            "arguments": (self.rom, self.config, self.render_mode),
            "state": self.get_state() if self._started else None,
            "generator": self._np_random,
            "generator_seed": self._np_random_seed,
            "spec": self.spec,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["arguments"])  # type: ignore[misc]
        self.spec = state["spec"]
        self._np_random, self._np_random_seed = state["generator"], state.get("generator_seed")
        if state["state"] is not None:
            self.set_state(state["state"])

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
        if self._game.emulator is None:
            self._load(None)
        self._game.restore_emulator(state)

    def close(self) -> None:
        """Let go of the emulator; a later reset loads the game again."""
        self._game.emulator = None
        self._started = False
        self._reported_life = False


def _check_game_settings(rom: str, facts: RomFacts, config: AtariConfig) -> None:
    """Refuse a mode or difficulty that the game does not have."""
    for name, known in (("mode", facts.modes), ("difficulty", facts.difficulties)):
        value = getattr(config, name)
        if value is not None and value not in known:
            raise ValueError(f"{name} of {rom!r} must be one of {', '.join(map(str, known))}, got {value}")


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
    import vecenv.preprocess.image_kernels
    import vecenv.preprocess.kernels  # noqa: F401
