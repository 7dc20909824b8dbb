"""The Atari pipelines of the peers, one environment each, driven in the same way as ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.atari import AtariEnv
from vecenv.envpool_tasks import envpool_id
from vecenv.preprocess.config import AtariConfig

from .bare_game import bare_game


@dataclass
class Step:
    """What one agent step gave.

    Attributes:
        observation: the observation; after an automatic reset within the step, that of the reset.
        reward: the reward.
        terminated: whether the episode ended.
        truncated: whether it was cut off.
        lives: lives left, or None where the peer does not tell.
        final_observation: the last observation of the episode, where the step also reset.
    """

    observation: npt.NDArray[np.uint8]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    lives: int | None = None
    final_observation: npt.NDArray[np.uint8] | None = None


class Driver(Protocol):
    """One environment with automatic resets."""

    def reset(self) -> Step:
        """Begin, with the seed it was built with."""

    def step(self, action: int) -> Step:
        """Play one agent step; at the step after an episode's end (or within it) the next one begins."""

    def close(self) -> None:
        """Let go of the environment."""


class EnvDriver:
    """A Gymnasium environment; the step after an episode's end resets it.

    Args:
        env: the environment.
        seed: seed of the first reset.
        same_step: reset within the step that ends an episode, as SB3's vector environments do.
        reports_lives: go on after a lost life, which is only reported.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], seed: int, *, same_step: bool = False, reports_lives: bool = False
    ) -> None:
        self.env = env
        self._reports_lives = reports_lives
        self._seed = seed
        self._same_step = same_step
        self._ended = False

    def reset(self) -> Step:
        """See `Driver`."""
        observation, infos = self.env.reset(seed=self._seed)
        return Step(observation, lives=infos.get("lives"))

    def step(self, action: int) -> Step:
        """See `Driver`."""
        if self._ended:
            self._ended = False
            observation, infos = self.env.reset()
            return Step(observation, lives=infos.get("lives"))
        observation, reward, terminated, truncated, infos = self.env.step(action)
        step = Step(observation, float(reward), bool(terminated), bool(truncated), infos.get("lives"))
        self._ended = terminated or truncated
        if self._same_step:
            step.truncated = step.truncated and not step.terminated  # as SB3's vector environments tell it
        if self._reports_lives:
            self._ended = self.env.unwrapped.game_over  # type: ignore[attr-defined]
        if self._ended and self._same_step:
            self._ended = False
            step.final_observation = observation
            step.observation, infos = self.env.reset()
            step.lives = infos.get("lives")
        return step

    def close(self) -> None:
        """See `Driver`."""
        self.env.close()


class VectorDriver:
    """A vector environment of one, with automatic resets of its own.

    Args:
        envs: the vector environment.
        reset: begins the first episode.
        dtype: dtype of its actions.
    """

    def __init__(self, envs: Any, reset: Callable[[], Any], dtype: Any) -> None:
        self._envs = envs
        self._reset = reset
        self._dtype = dtype

    def reset(self) -> Step:
        """See `Driver`."""
        observations, infos = self._reset()
        return Step(observations[0], lives=int(infos["lives"][0]))

    def step(self, action: int) -> Step:
        """See `Driver`."""
        observations, rewards, terminations, truncations, infos = self._envs.step(np.array([action], self._dtype))
        lives = int(infos["lives"][0])
        return Step(observations[0], float(rewards[0]), bool(terminations[0]), bool(truncations[0]), lives)

    def close(self) -> None:
        """See `Driver`."""
        self._envs.close()


class StableBaselinesDriver:
    """SB3's vector environment of one, which resets within the step.

    Args:
        envs: the ``VecEnv``.
        seed: seed of the first reset.
    """

    def __init__(self, envs: Any, seed: int) -> None:
        self._envs = envs
        self._seed = seed

    def reset(self) -> Step:
        """See `Driver`."""
        self._envs.seed(self._seed)
        return Step(self._envs.reset()[0])

    def step(self, action: int) -> Step:
        """See `Driver`."""
        observations, rewards, dones, infos = self._envs.step(np.array([action]))
        truncated = bool(infos[0]["TimeLimit.truncated"])
        step = Step(observations[0], float(rewards[0]), bool(dones[0]) and not truncated, truncated)
        if dones[0]:
            step.final_observation = infos[0]["terminal_observation"]
        else:
            step.lives = infos[0]["lives"]
        return step

    def close(self) -> None:
        """See `Driver`."""
        self._envs.close()


def _game(rom: str, config: AtariConfig, repeat_action_probability: float) -> gymnasium.Env[Any, Any]:
    return bare_game(
        rom,
        repeat_action_probability,
        full_action_space=config.full_action_space,
        mode=config.mode,
        difficulty=config.difficulty,
        max_num_frames_per_episode=config.max_episode_frames,
    )


def make_ale_envs(rom: str, config: AtariConfig, num_envs: int) -> Any:
    """ale-py's own vector environment with the settings of a config, one thread."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        rom,
        num_envs,
        num_threads=1,
        max_num_frames_per_episode=config.max_episode_frames or 2**31 - 1,
        repeat_action_probability=config.repeat_action_probability or 0.0,
        full_action_space=config.full_action_space,
        img_height=config.screen_size[0],
        img_width=config.screen_size[1],
        grayscale=config.grayscale,
        stack_num=config.stack_size,
        frameskip=config.frame_skip,
        maxpool=config.max_pool,
        noop_max=config.noop_max,
        episodic_life=config.episodic_life,
        life_loss_info=config.life_loss_info,
        reward_clipping=config.clip_reward,
        use_fire_reset=config.fire_reset,
    )


def _ale(rom: str, config: AtariConfig, seed: int) -> Driver:
    envs = make_ale_envs(rom, config, 1)
    return VectorDriver(envs, lambda: envs.reset(seed=seed), np.int64)


def _gymnasium(rom: str, config: AtariConfig, seed: int) -> Driver:
    env = _game(rom, config, config.repeat_action_probability or 0.0)
    env = gymnasium.wrappers.AtariPreprocessing(
        env,
        noop_max=config.noop_max,
        frame_skip=config.frame_skip,
        screen_size=(config.screen_size[1], config.screen_size[0]),
        terminal_on_life_loss=config.episodic_life,
        grayscale_obs=config.grayscale,
    )
    padding = "reset" if config.padding == "repeat" else "zero"
    return EnvDriver(gymnasium.wrappers.FrameStackObservation(env, config.stack_size, padding_type=padding), seed)


def _sb3(rom: str, config: AtariConfig, seed: int) -> Driver:
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    probability = config.repeat_action_probability or 0.0
    in_wrapper = config.sticky_actions == "wrapper"
    env = AtariWrapper(
        _game(rom, config, 0.0 if in_wrapper else probability),
        noop_max=config.noop_max,
        frame_skip=config.frame_skip,
        screen_size=config.screen_size[0],
        terminal_on_life_loss=config.episodic_life,
        clip_reward=config.clip_reward,
        action_repeat_probability=probability if in_wrapper else 0.0,
    )
    return StableBaselinesDriver(VecFrameStack(DummyVecEnv([lambda: env]), config.stack_size), seed)


def _envpool(rom: str, config: AtariConfig, seed: int) -> Driver:
    import envpool

    envs = envpool.make(
        envpool_id(rom),
        env_type="gymnasium",
        num_envs=1,
        num_threads=1,
        seed=seed,
        max_episode_steps=config.max_episode_steps,
        stack_num=config.stack_size,
        frame_skip=config.frame_skip,
        noop_max=config.noop_max,
        episodic_life=config.episodic_life,
        reward_clip=config.clip_reward,
        use_fire_reset=config.fire_reset,
        img_height=config.screen_size[0],
        img_width=config.screen_size[1],
        full_action_space=config.full_action_space,
        repeat_action_probability=config.repeat_action_probability or 0.0,
        gray_scale=config.grayscale,
        mode=-1 if config.mode is None else config.mode,
        difficulty=-1 if config.difficulty is None else config.difficulty,
    )
    return VectorDriver(envs, envs.reset, np.int32)


PEERS: dict[str, Callable[[str, AtariConfig, int], Driver]] = {
    "ale": _ale,
    "gymnasium": _gymnasium,
    "sb3": _sb3,
    "envpool": _envpool,
}

# What each peer is called in tables, and the package that it needs.
PEER_NAMES = {
    "ale": ("ale-py AtariVectorEnv", "ale_py"),
    "gymnasium": ("Gymnasium AtariPreprocessing + FrameStackObservation", "cv2"),
    "sb3": ("SB3 AtariWrapper + VecFrameStack", "stable_baselines3"),
    "envpool": ("EnvPool", "envpool"),
}


def ours(name: str, rom: str, config: AtariConfig, seed: int) -> EnvDriver:
    """Our environment, with the automatic resets of the peer `name`."""
    env = AtariEnv(rom, config)
    return EnvDriver(env, seed, same_step=name == "sb3", reports_lives=config.life_loss_info)
