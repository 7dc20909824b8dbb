"""The vector environments that the throughput benchmark compares: ours and the peers', under matching settings.

Every Atari contestant delivers the same work: 84x84 gray, the maximum over the last two of 4 skipped frames, a stack of
4, up to 30 no-ops at a reset, clipped rewards, no sticky actions, autoreset in the NEXT_STEP mode (the peer SB3 knows
only SAME_STEP). Peers get the thread settings that are best for them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from vecenv import make_vec
from vecenv.atari import find_game

from .emulator_limit import FRAME_SKIP
from .timing import measure_rate

ACTION_BATCHES = 256


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        env_id: id of the environment.
        num_envs: environments in a batch.
        num_workers: worker processes of ours, threads of the native peers; at most one per usable core is sensible.
        seed: seed of the environments and of the actions.
    """

    env_id: str
    num_envs: int
    num_workers: int
    seed: int = 0

    @property
    def rom(self) -> str | None:
        """The Atari game's name as ale-py knows it, None for other environments."""
        game = find_game(self.env_id)
        return None if game is None else game.rom


class VectorContestant:
    """A vector environment stepped with random actions drawn ahead.

    Args:
        name: name in the table.
        envs: the environment; `close` closes it.
        settings: what is measured.
        step: replaces ``envs.step`` where a peer's differs.
        reset: replaces ``envs.reset(seed=...)`` likewise.

    Attributes:
        observation_shape: shape of a batch of observations.
    """

    def __init__(
        self,
        name: str,
        envs: Any,
        settings: Settings,
        *,
        step: Callable[[Any], object] | None = None,
        reset: Callable[[], Any] | None = None,
    ) -> None:
        self.name = name
        self._envs = envs
        self._step = step or envs.step
        self._num_envs = settings.num_envs
        self._turn = 0
        self._actions = draw_actions(settings)
        first = envs.reset(seed=settings.seed) if reset is None else reset()
        observations = first[0] if isinstance(first, tuple) else first
        self.observation_shape: tuple[int, ...] = observations.shape

    def measure(self, seconds: float) -> float:
        """Step for `seconds` seconds.

        Returns:
            Agent steps per second, all environments together.
        """
        return measure_rate(self._step_batch, seconds)

    def _step_batch(self) -> int:
        self._step(self._actions[self._turn])
        self._turn = (self._turn + 1) % len(self._actions)
        return self._num_envs

    def close(self) -> None:
        """Close the environment."""
        self._envs.close()


def draw_actions(settings: Settings) -> list[np.ndarray]:
    """Draw `ACTION_BATCHES` batches of valid actions, the same for every contestant.

    Returns:
        Batches of the batched action space's shape and dtype.
    """
    space = _single_env(settings).action_space
    batched = gymnasium.vector.utils.batch_space(space, settings.num_envs)
    batched.seed(settings.seed)
    return [batched.sample() for _ in range(ACTION_BATCHES)]


def _single_env(settings: Settings) -> gymnasium.Env[Any, Any]:
    """One environment with Gymnasium's own wrappers, as its vector environments run it."""
    if settings.rom is None:
        return gymnasium.make(settings.env_id, disable_env_checker=True)
    return _gymnasium_atari(settings.rom)


def _gymnasium_atari(rom: str) -> gymnasium.Env[Any, Any]:
    """Gymnasium's Atari pipeline, one OpenCV thread (more only get into each other's way with several processes)."""
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env: gymnasium.Env[Any, Any] = ale_py.AtariEnv(game=rom, frameskip=1, repeat_action_probability=0.0)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=FRAME_SKIP, screen_size=84)
    env = gymnasium.wrappers.ClipReward(env, -1.0, 1.0)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


class _EnvFactory:
    """Builds one environment in a worker; an object and not a lambda, so that every start method can send it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self) -> gymnasium.Env[Any, Any]:
        _leave_interrupts_to_the_parent()
        return _single_env(self._settings)


def _leave_interrupts_to_the_parent() -> None:
    """In a peer's worker: Ctrl-C reaches every process of the terminal, and a worker it ended could not be closed."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ours(settings: Settings, backend: str, name: str) -> VectorContestant:
    kwargs: dict[str, Any] = {} if settings.rom is None else {"repeat_action_probability": 0.0}
    if backend == "subproc":
        kwargs["num_workers"] = settings.num_workers
    return VectorContestant(name, make_vec(settings.env_id, settings.num_envs, backend, **kwargs), settings)


def _gymnasium(
    settings: Settings, kind: type[gymnasium.vector.VectorEnv[Any, Any, Any]], name: str
) -> VectorContestant:
    return VectorContestant(name, kind([_EnvFactory(settings)] * settings.num_envs), settings)  # type: ignore[call-arg]


def _ale(settings: Settings) -> VectorContestant:
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv(settings.rom or "", settings.num_envs, num_threads=settings.num_workers)
    return VectorContestant("ale-py AtariVectorEnv", envs, settings)


def _envpool(settings: Settings) -> VectorContestant:
    import envpool

    if settings.rom is None:
        options: dict[str, Any] = {}
        task = settings.env_id
    else:
        options = {"reward_clip": True, "repeat_action_probability": 0.0}
        task = "".join(word.capitalize() for word in settings.rom.split("_")) + "-v5"
    envs = envpool.make(
        task,
        env_type="gymnasium",
        num_envs=settings.num_envs,
        num_threads=settings.num_workers,
        seed=settings.seed,
        **options,
    )
    contestant = VectorContestant("EnvPool", envs, settings, step=envs.step, reset=envs.reset)
    contestant._actions = [actions.astype(np.int32) for actions in contestant._actions]  # its own dtype: no copy
    return contestant


class _StableBaselinesFactory:
    """Builds one environment with SB3's Atari pipeline."""

    def __init__(self, rom: str) -> None:
        self._rom = rom

    def __call__(self) -> gymnasium.Env[Any, Any]:
        import ale_py
        import cv2
        from stable_baselines3.common.atari_wrappers import AtariWrapper

        _leave_interrupts_to_the_parent()
        cv2.setNumThreads(1)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        env = ale_py.AtariEnv(game=self._rom, frameskip=1, repeat_action_probability=0.0)
        return AtariWrapper(env, terminal_on_life_loss=False)


def _stable_baselines(settings: Settings) -> VectorContestant:
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    if settings.rom is None:
        envs: Any = SubprocVecEnv([_EnvFactory(settings)] * settings.num_envs)
    else:
        envs = VecFrameStack(SubprocVecEnv([_StableBaselinesFactory(settings.rom)] * settings.num_envs), 4)
    return VectorContestant("SB3 SubprocVecEnv", envs, settings, reset=envs.reset)


@dataclass(frozen=True)
class Peer:
    """A contestant that can be asked for by name.

    Attributes:
        build: builds it.
        module: import name of the package it needs, "" for none beyond the core.
        distribution: that package's name as pip knows it.
        extra: the extra that installs it.
        atari_only: whether it has nothing but Atari games.
    """

    build: Callable[[Settings], VectorContestant]
    module: str = ""
    distribution: str = ""
    extra: str = ""
    atari_only: bool = False


PEERS = {
    "subproc": Peer(lambda settings: _ours(settings, "subproc", "vecenv subproc")),
    "sync": Peer(lambda settings: _ours(settings, "sync", "vecenv sync")),
    "gymnasium-async": Peer(
        lambda settings: _gymnasium(settings, gymnasium.vector.AsyncVectorEnv, "Gymnasium AsyncVectorEnv")
    ),
    "gymnasium-sync": Peer(
        lambda settings: _gymnasium(settings, gymnasium.vector.SyncVectorEnv, "Gymnasium SyncVectorEnv")
    ),
    "ale": Peer(_ale, "ale_py", "ale-py", "atari", atari_only=True),
    "envpool": Peer(_envpool, "envpool", "envpool", "envpool"),
    "sb3": Peer(_stable_baselines, "stable_baselines3", "stable-baselines3", "sb3"),
}
