"""The `ale` back end: ale_py's `AtariVectorEnv`, an Atari engine in C++ with threads of its own.

It plays what the preset ``"ale"`` describes, bit for bit as the `sync` and `subproc` back ends do under that preset.
Rewards are clipped here, so that statistics count them unclipped.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from vecenv.engines import EngineRequest
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.native_batch import EngineBatch
from vecenv.native_engine import NativeVecEnv
from vecenv.native_request import (
    THREAD_OPTIONS,
    affinity_of,
    check_config,
    config_of,
    engine_seeds,
    id_of,
    num_threads_of,
)
from vecenv.preprocess.config import AtariConfig
from vecenv.registration import find_game
from vecenv.settings import VectorSettings

OPTIONS = THREAD_OPTIONS

CAPABILITIES = {
    "NextStep": "native",
    "SameStep": "native",
    "Disabled": "emulated",
    "partial reset": "native",
    "per-env seeds": "native",
    "batch_size": "refused",
    "statistics": "emulated",
    "copy=False": "emulated",
    "out=": "emulated",
    "get_state": "refused",
    "call": "refused",
    "set_attr": "refused",
    "render": "refused",
    "per_env_kwargs": "refused",
    "wrappers": "refused",
    "worker restart": "refused",
    "custom spaces": "refused",
}

Array = npt.NDArray[Any]
_NO_LIMIT = 2**31 - 1
_INFOS = ("lives", "frame_number", "episode_frame_number")
_POSSIBLE: dict[str, tuple[Any, ...]] = {
    "conventions": ("ale",),
    "next_life": (False,),
    # The engine plays on after a lost life where the autoreset modes promise a reset.
    "life_loss_info": (False,),
    "gray": ("emulator",),
    "padding": ("zero",),
    "sticky_actions": ("emulator",),
    "mode": (None,),
    "difficulty": (None,),
    "max_episode_steps": (None,),
    "max_screen_height": (None,),
    "true_final_frame": (False,),
}


def make_envs(request: EngineRequest) -> AleVecEnv:
    """Build Atari games in ale_py's engine.

    Raises:
        MissingExtra: ale_py is not installed.
        UnknownSetting: the id is no Atari game's, or a setting does not exist.
        NotImplementedError: a setting that the engine does not have; the message names it.
    """
    env_id = id_of(request, "ale")
    game = find_game(env_id)
    if game is None:
        raise UnknownSetting(f"backend='ale' plays Atari games, {env_id!r} is none")
    env_kwargs = dict(request.env_kwargs)
    if env_kwargs.pop("render_mode", None) is not None:
        raise NotImplementedError("backend='ale' has no render_mode: the engine hands out observations only")
    config = config_of(request, "ale", env_id, env_kwargs)
    check_config("ale", config, possible_settings(config))
    settings = VectorSettings.checked(**request.settings)
    if settings.checked_batch_size(request.num_envs) < request.num_envs:
        raise NotImplementedError(
            "backend='ale' has no batch_size below num_envs: the engine then steps the envs received last and no "
            "others; use backend='envpool' or 'subproc'"
        )
    if importlib.util.find_spec("ale_py") is None:
        raise MissingExtra("ale-py", "atari")
    threads = num_threads_of(request, "ale")
    return AleVecEnv(game.rom, request.num_envs, config, settings, threads, affinity_of(request))


def possible_settings(config: AtariConfig) -> dict[str, tuple[Any, ...]]:
    """The values of each setting that the engine has, given the other settings."""
    possible = dict(_POSSIBLE)
    if config.max_episode_frames is not None:
        possible["count_start_frames"] = (False,)
    # Gray frames stacked one upon another have the same shape under both names.
    possible["channel_order"] = ("frames", "first") if config.grayscale else ("frames",)
    return possible


class AleVecEnv(NativeVecEnv):
    """Atari games in ale_py's engine.

    Args:
        rom: name of the ROM.
        num_envs: number of games.
        config: settings that the engine has.
        settings: of the vector env.
        num_threads: of the engine.
        thread_affinity_offset: core of the first thread, -1: not bound.
    """

    engine = "ale"

    def __init__(
        self,
        rom: str,
        num_envs: int,
        config: AtariConfig,
        settings: VectorSettings,
        num_threads: int,
        thread_affinity_offset: int = -1,
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self.config = config
        self._clips_rewards = config.clip_reward
        same_step = settings.autoreset_mode is AutoresetMode.SAME_STEP
        # The engine writes its mode into the dict of its class, which without this is that of all vector envs.
        engine: Any = type("AtariVectorEnv", (AtariVectorEnv,), {"metadata": {}})(
            rom,
            num_envs,
            num_threads=num_threads,
            thread_affinity_offset=thread_affinity_offset,
            max_num_frames_per_episode=config.max_episode_frames or _NO_LIMIT,
            repeat_action_probability=config.repeat_action_probability or 0.0,
            full_action_space=config.full_action_space,
            # Without autoreset no env is ever stepped after its end, so the engine's own mode does not matter.
            autoreset_mode=AutoresetMode.SAME_STEP if same_step else AutoresetMode.NEXT_STEP,
            img_height=config.screen_size[0],
            img_width=config.screen_size[1],
            grayscale=config.grayscale,
            stack_num=config.stack_size,
            frameskip=config.frame_skip,
            maxpool=config.max_pool,
            noop_max=config.noop_max,
            episodic_life=config.episodic_life,
            reward_clipping=False,
            use_fire_reset=config.fire_reset,
        )
        self._engine = engine
        self._send, self._recv = engine.ale.send, engine.ale.recv
        self._paddle_strengths = np.ones(num_envs, np.float32)
        observation_space = gym.spaces.Box(0, 255, config.observation_shape, np.uint8)
        self._prepare(settings, num_envs, observation_space, engine.single_action_space)

    def _kept_in_fork(self) -> list[Any]:
        # Its end waits for its threads by numbers that threads of the fork's own may have meanwhile.
        return [self._engine]

    def _engine_reset(self, seeds: list[int | None], rows: list[int] | None) -> tuple[Any, dict[str, Any]]:
        known = engine_seeds(seeds, unseeded=not self._started)
        chosen = range(self.num_envs) if rows is None else rows
        self._note_engine_seeds(known, chosen)
        # The engine takes one seed per env that it resets, -1 where its generator goes on.
        engine_seed = np.array([-1 if known[row] is None else known[row] for row in chosen], np.int64)
        options = None
        if rows is not None:
            mask = np.zeros(self.num_envs, np.bool_)
            mask[rows] = True
            options = {"reset_mask": mask}
        observations, infos = self._engine.reset(seed=engine_seed, options=options)
        return observations, _own_infos(infos)

    def _engine_send(self, actions: Any) -> None:
        self._calls.send(self._send, actions, self._paddle_strengths)

    def _receive_raw(self) -> Any:
        return self._calls.receive(self._recv)[0]

    def _read_batch(self, raw: Any) -> EngineBatch:
        observations, rewards, terminations, truncations, infos = raw
        final = infos.get("final_obs")
        return EngineBatch(observations, rewards, terminations, truncations, _own_infos(infos), final)

    def _plain_parts(self, raw: Any) -> tuple[Any, Array, Any] | None:
        observations, rewards, terminations, truncations, infos = raw
        if np.count_nonzero(terminations) or np.count_nonzero(truncations) or "final_obs" in infos:
            return None
        return observations, rewards, infos

    def _info_places(self) -> dict[str, Any]:
        return {key: key for key in _INFOS}

    def close_extras(self, **kwargs: Any) -> None:
        """Let the engine go; arrays that it gave stay valid.

        Args:
            kwargs: accepted and ignored, as Gymnasium does.
        """
        self._engine = self._send = self._recv = None


def _own_infos(infos: dict[str, Any]) -> dict[str, Array]:
    return {key: infos[key] for key in _INFOS}
