"""The peers that the throughput benchmark compares with, each used bare, with the thread settings best for it."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from vecenv.envpool_tasks import envpool_id
from vecenv.errors import UnknownSetting
from vecenv.interrupts import leave_interrupts_to_the_user

from .bare_game import bare_game
from .contestants import Contender, Settings, VectorContestant
from .emulator_limit import FRAME_SKIP

Actions = Sequence[np.ndarray]


class EnvFactory:
    """Builds one environment with Gymnasium's own wrappers, as its vector environments run it.

    An object and not a lambda, so that every start method can send it.

    Args:
        settings: what is measured.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Build it."""
        _leave_interrupts_to_the_parent()
        if self._settings.rom is None:
            return gymnasium.make(self._settings.env_id, disable_env_checker=True)
        env = bare_game(self._settings.rom)
        env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=FRAME_SKIP, screen_size=84)
        env = gymnasium.wrappers.ClipReward(env, -1.0, 1.0)
        return gymnasium.wrappers.FrameStackObservation(env, 4)


class StableBaselinesFactory:
    """Builds one environment with SB3's Atari pipeline.

    Args:
        rom: name of the ROM.
    """

    def __init__(self, rom: str) -> None:
        self._rom = rom

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Build it."""
        from stable_baselines3.common.atari_wrappers import AtariWrapper

        _leave_interrupts_to_the_parent()
        return AtariWrapper(bare_game(self._rom), terminal_on_life_loss=False)


def _leave_interrupts_to_the_parent() -> None:
    """In a peer's worker: Ctrl-C reaches every process of the terminal, and a worker it ended could not be closed."""
    if multiprocessing.parent_process() is not None:
        leave_interrupts_to_the_user()


def _gymnasium_async(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    envs = gymnasium.vector.AsyncVectorEnv([EnvFactory(settings)] * settings.num_envs)
    return VectorContestant(name, envs, actions, settings)


def _gymnasium_sync(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    envs = gymnasium.vector.SyncVectorEnv([EnvFactory(settings)] * settings.num_envs)
    return VectorContestant(name, envs, actions, settings)


def _gymnasium_vector(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    if gymnasium.spec(settings.env_id).vector_entry_point is None:
        raise UnknownSetting(f"Gymnasium has no vector environment of its own for {settings.env_id!r}")
    envs = gymnasium.make_vec(settings.env_id, settings.num_envs, "vector_entry_point")
    return VectorContestant(name, envs, actions, settings)


def _ale(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv(settings.rom or "", settings.num_envs, num_threads=settings.num_workers)
    return VectorContestant(name, envs, actions, settings)


def _envpool(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    import envpool

    options: dict[str, Any] = {}
    task = settings.env_id
    if settings.rom is not None:
        options = {"reward_clip": True, "repeat_action_probability": 0.0}
        task = envpool_id(settings.rom)
    if task not in envpool.list_all_envs():
        raise UnknownSetting(f"EnvPool has no {task!r}")
    in_parts = settings.batch_size is not None
    if in_parts:
        options["batch_size"] = settings.batch_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the bounds of its float32 spaces
        envs = envpool.make(
            task,
            env_type="gymnasium",
            num_envs=settings.num_envs,
            num_threads=settings.num_workers,
            seed=settings.seed,
            **options,
        )
        dtype = envs.action_space.dtype  # its own: nothing is converted at every step
        envs.observation_space  # noqa: B018  computed when it is first asked for, which recv does
    own = [batch.astype(dtype) for batch in actions]
    reset = envs.async_reset if in_parts else envs.reset
    return VectorContestant(name, envs, own, settings, reset=reset)


def _stable_baselines(settings: Settings, name: str, actions: Actions) -> VectorContestant:
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    if settings.rom is None:
        envs: Any = SubprocVecEnv([EnvFactory(settings)] * settings.num_envs)
    else:
        envs = VecFrameStack(SubprocVecEnv([StableBaselinesFactory(settings.rom)] * settings.num_envs), 4)
    return VectorContestant(name, envs, actions, settings, reset=envs.reset)


#: Peers by the word for ``--peers``.
PEERS = {
    "gymnasium-async": Contender("Gymnasium AsyncVectorEnv", _gymnasium_async, process_per_env=True),
    "gymnasium-sync": Contender("Gymnasium SyncVectorEnv", _gymnasium_sync),
    "gymnasium-vector": Contender("Gymnasium's own vector env", _gymnasium_vector),
    "ale": Contender("ale-py AtariVectorEnv", _ale, "ale_py", "ale-py", "atari", atari_only=True, uses_workers=True),
    "envpool": Contender("EnvPool", _envpool, "envpool", "envpool", "envpool", uses_workers=True, uses_batch_size=True),
    "sb3": Contender(
        "SB3 SubprocVecEnv",
        _stable_baselines,
        "stable_baselines3",
        "stable-baselines3",
        "sb3",
        process_per_env=True,
    ),
}
