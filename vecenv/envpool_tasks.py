"""Which EnvPool task an env id means, and how settings are told to it.

Atari ids are read as everywhere in this package: the id names the game and its sticky actions, the preset everything
else. Any other id must be one that EnvPool knows by the same name. Gymnasium's ids of classic control
(``CartPole-v1``, ``Acrobot-v1``, ``MountainCar-v0``, ``MountainCarContinuous-v0``, ``Pendulum-v1``) and of MuJoCo
(``HalfCheetah-v5`` and the like, ``-v4`` and ``-v5``) are such: spaces, equations, time limits and rewards are
Gymnasium's, start states are drawn by EnvPool's own generator, and rewards are rounded to float32. Other ids are what
EnvPool makes of them, spaces included.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from vecenv.engines import EngineRequest
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.native_request import check_config, config_of, id_of
from vecenv.preprocess.config import AtariConfig
from vecenv.registration import find_game

_NO_LIMIT = 2**31 - 1
# Arguments of EnvPool that `make_vec` has names of its own for, or that the adapter sets.
_OWN_NAMES = (
    "base_path",
    "batch_size",
    "env_seed",
    "from_pixels",
    "gym_reset_return_info",
    "max_num_players",
    "num_envs",
    "num_threads",
    "seed",
    "thread_affinity_offset",
)
# Whose pictures can be had without a graphics context, for the lack of which EnvPool ends the process.
_RENDERED = ("envpool.atari", "envpool.classic_control")
_POSSIBLE: dict[str, tuple[Any, ...]] = {
    "conventions": ("envpool",),
    "max_pool": (True,),
    "life_loss_info": (False,),
    "gray": ("emulator",),
    "padding": ("repeat",),
    "sticky_actions": ("emulator",),
    "max_episode_frames": (None,),
    "max_screen_height": (210,),
    "true_final_frame": (False,),
}


@dataclass(frozen=True)
class Task:
    """What EnvPool is asked to build.

    Attributes:
        name: EnvPool's id.
        arguments: for ``envpool.make``.
        observation_space: of one env.
        action_space: of one env.
        config: settings of an Atari game, None for other envs.
        render_mode: None or ``"rgb_array"``.
    """

    name: str
    arguments: Mapping[str, Any]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    config: AtariConfig | None
    render_mode: str | None


def envpool_id(rom: str) -> str:
    """EnvPool's id of a game; it differs from ale-py's in ``TicTacToe3d``.

    Args:
        rom: name of the ROM.
    """
    return "".join(word.capitalize() for word in rom.split("_")) + "-v5"


def task_of(request: EngineRequest) -> Task:
    """The task behind a request.

    Raises:
        MissingExtra: EnvPool is not installed.
        UnknownSetting: EnvPool does not have the env, or the env does not have a setting.
        NotImplementedError: a setting that EnvPool cannot do; the message names it.
    """
    env_id = id_of(request, "envpool")
    env_kwargs = dict(request.env_kwargs)
    render_mode = env_kwargs.pop("render_mode", None)
    if render_mode not in (None, "rgb_array"):
        raise NotImplementedError(f"backend='envpool' renders as 'rgb_array' only, got render_mode={render_mode!r}")
    game = find_game(env_id)
    config = None
    if game is not None:
        config = config_of(request, "envpool", env_id, env_kwargs)
        check_config("envpool", config, possible_settings(config))
        if config.noop_max < 1:
            raise NotImplementedError("backend='envpool' cannot do noop_max=0, only 1 and more")
    elif request.preprocess not in (None, "none"):
        raise UnknownSetting(f"preprocess={request.preprocess!r}: only Atari ids are preprocessed, {env_id!r} is none")
    if importlib.util.find_spec("envpool") is None:
        raise MissingExtra("envpool", "envpool")
    if game is None or config is None:
        return _other_task(env_id, env_kwargs, render_mode)
    name = envpool_id(game.rom)
    arguments = _atari_arguments(config)
    _, action_space = _spaces(_spec(name, arguments))
    observation_space = gym.spaces.Box(0, 255, config.observation_shape, np.uint8)
    return Task(name, arguments, observation_space, action_space, config, render_mode)


def possible_settings(config: AtariConfig) -> dict[str, tuple[Any, ...]]:
    """The values of each setting that EnvPool has, given the other settings."""
    # Gray frames stacked one upon another have the same shape under both names.
    orders = ("frames", "first") if config.grayscale else ("first",)
    return {**_POSSIBLE, "channel_order": orders, "next_life": (config.episodic_life,)}


def _atari_arguments(config: AtariConfig) -> dict[str, Any]:
    return {
        "max_episode_steps": config.max_episode_steps or _NO_LIMIT,
        "stack_num": config.stack_size,
        "frame_skip": config.frame_skip,
        "noop_max": config.noop_max,
        "episodic_life": config.episodic_life,
        "use_fire_reset": config.fire_reset,
        "img_height": config.screen_size[0],
        "img_width": config.screen_size[1],
        "full_action_space": config.full_action_space,
        "repeat_action_probability": config.repeat_action_probability or 0.0,
        "gray_scale": config.grayscale,
        "mode": -1 if config.mode is None else config.mode,
        "difficulty": -1 if config.difficulty is None else config.difficulty,
    }


def _other_task(env_id: str, env_kwargs: dict[str, Any], render_mode: str | None) -> Task:
    from envpool.registration import registry

    if env_id not in registry.specs:
        raise UnknownSetting(f"EnvPool has no env {env_id!r}; envpool.list_all_envs() lists what it has")
    family = registry.specs[env_id][0]
    if family == "envpool.atari":
        raise UnknownSetting(
            f"env id {env_id!r} is EnvPool's own; Atari games go by Gymnasium's ids, such as 'PongNoFrameskip-v4' or "
            "'ALE/Pong-v5'"
        )
    if render_mode is not None and family not in _RENDERED:
        raise NotImplementedError(f"backend='envpool' renders Atari and classic control only, not {env_id!r}")
    known = [name for name in _spec(env_id, {})._config_keys if name not in _OWN_NAMES]
    for name in env_kwargs:
        if name not in known:
            raise UnknownSetting(f"EnvPool's {env_id!r} has no argument {name!r}; there are: {', '.join(known)}")
    observation_space, action_space = _spaces(_spec(env_id, env_kwargs))
    return Task(env_id, env_kwargs, observation_space, action_space, None, render_mode)


def _spec(name: str, arguments: Mapping[str, Any]) -> Any:
    import envpool

    try:
        return envpool.make_spec(name, **arguments)
    except TypeError as error:
        raise TypeError(f"EnvPool refuses the arguments {dict(arguments)} of {name!r}: {error}") from error


def _spaces(spec: Any) -> tuple[Any, Any]:
    """Observation and action space of one env, actions in the dtypes of Gymnasium's own envs."""
    if dict(zip(spec._config_keys, spec._config_values, strict=True)).get("max_num_players", 1) != 1:
        raise NotImplementedError("backend='envpool' serves envs for one player only")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EnvPool rounds bounds to float32
        observations, actions = spec.gymnasium_observation_space, spec.gymnasium_action_space
    if isinstance(observations, gym.spaces.Box) and observations.dtype == np.float32:
        observations = _unbounded(observations)
    if isinstance(actions, gym.spaces.Box) and actions.dtype == np.float64:
        actions = gym.spaces.Box(actions.low.astype(np.float32), actions.high.astype(np.float32), dtype=np.float32)
    return observations, actions


def _unbounded(space: gym.spaces.Box) -> gym.spaces.Box:
    """The space with real bounds where EnvPool names the smallest and largest positive floats for having none."""
    limits = np.finfo(np.float32)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(np.float32)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(np.float32)
    return gym.spaces.Box(low, high, dtype=np.float32)
