"""Stable-Baselines3 on this package's vector envs: the classes and functions of SB3's own names, to be swapped in."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from vecenv.addressable_env import AddressableEnv, addressable_fns, processes_for
from vecenv.arguments import checked_env_fns
from vecenv.atari import preload_modules
from vecenv.backend_choice import best_in_one_process
from vecenv.base import VecEnv as VectorEnv
from vecenv.cores import usable_cores
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.factory import resolved_spec
from vecenv.registration import find_game
from vecenv.sb3_adapter import VecEnvAdapter
from vecenv.sb3_atari import WRAPPER_DEFAULTS, MonitoredAtari, find_pipeline
from vecenv.sb3_monitor import MonitoredEnv
from vecenv.sync_backend import SyncVecEnv as SyncVectorEnv
from vecenv.worker_settings import pickled_functions

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

__all__ = ["SubprocVecEnv", "SyncVecEnv", "VecEnvAdapter", "make_atari_env", "make_vec_env", "wrap"]

EnvFn = Callable[[], gym.Env[Any, Any]]


class SubprocVecEnv(VecEnvAdapter):
    """Swaps in for `stable_baselines3.common.vec_env.SubprocVecEnv`.

    Observations come in the dtype of their space, rewards in float64; an attribute is set where it lives, through
    wrappers; an env's exception is raised here under its own class; a dead worker is named within a second.

    Args:
        env_fns: constructors of the envs; lambdas, closures and classes of `__main__` are fine.
        start_method: ``"forkserver"`` (None), ``"spawn"`` or ``"fork"``.
        num_workers: processes. None: one per env, at most 4 per usable core; envs that then share one are stepped one
            after the other.
        worker_options: other settings of `vecenv.SubprocVecEnv`, such as ``on_worker_failure``.

    Raises:
        EnvError: a constructor raised.
        WorkerDied: a worker ended while building.
        ValueError: a start method that does not exist, or no env.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        start_method: str | None = None,
        *,
        num_workers: int | None = None,
        worker_options: Mapping[str, Any] | None = None,
    ) -> None:
        multiprocessing.get_context(start_method)  # refuses what does not exist
        from vecenv.subproc_backend import SubprocVecEnv as SubprocVectorEnv  # not there on Windows

        env_fns = checked_env_fns(env_fns)
        if num_workers is None:
            num_workers = processes_for(len(env_fns))
        options = {"preload": _worth_preloading(env_fns), **(worker_options or {})}
        envs = SubprocVectorEnv(
            addressable_fns(env_fns),
            shared_memory=None,
            context=start_method,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_workers=num_workers,
            **options,
        )
        try:
            super().__init__(envs, addressable=True)
        except BaseException:
            envs.close()
            raise

    @property
    def processes(self) -> list[Any]:
        """Handles of the worker processes."""
        return self.vector_env.processes  # type: ignore[attr-defined,no-any-return]


class SyncVecEnv(VecEnvAdapter):
    """All envs in the caller's process; swaps in for `stable_baselines3.common.vec_env.DummyVecEnv`.

    Args:
        env_fns: constructors of the envs.

    Attributes:
        envs: the environments.

    Raises:
        EnvError: a constructor raised.
        ValueError: two constructors returned the same env.
    """

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        envs = SyncVectorEnv(addressable_fns(checked_env_fns(env_fns)), autoreset_mode=AutoresetMode.SAME_STEP)
        self.envs = [env.env for env in envs.envs if isinstance(env, AddressableEnv)]
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            envs.close()
            raise ValueError("env_fns: two constructors returned the same env; each must build one of its own")
        super().__init__(envs, addressable=True)


def wrap(envs: VectorEnv) -> VecEnvAdapter:
    """A vector env of any back end, as SB3 takes it.

    Args:
        envs: made with ``autoreset_mode="SameStep"``. Closed by the result's `close`.

    Returns:
        SB3's interface over it. Ended episodes are reported in ``info["episode"]`` as by SB3's Monitor: unclipped
        rewards over whole games, lengths in agent steps.

    Raises:
        TypeError, ValueError: `envs` is no such vector env.

    Examples:
        >>> import vecenv
        >>> from stable_baselines3.common.vec_env import VecNormalize
        >>> made = vecenv.make_vec("CartPole-v1", 8, "sync", autoreset_mode="SameStep")
        >>> envs = VecNormalize(wrap(made))
        >>> envs.reset().shape
        (8, 4)
        >>> envs.close()
    """
    return VecEnvAdapter(envs, adds_episodes=True)


def make_vec_env(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., gym.Env[Any, Any]] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[Any] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Build monitored envs; arguments and results as those of SB3's function of the same name.

    Args:
        env_id: id of a registered env, or a function that builds one.
        n_envs: number of environments.
        seed: env i's first reset and its action space get ``seed + i``.
        start_index: added to i in file names and seeds of action spaces.
        monitor_dir: folder for one CSV file per env; None: no files.
        wrapper_class: applied to every env, outside of the monitor.
        env_kwargs: for the env's constructor.
        vec_env_cls: None: `SyncVecEnv` where ``vecenv.make_vec(backend="auto")`` takes no workers either (one env, one
            core, fewer than 32 envs per core of Gymnasium's classic control and toy text without wrappers), else
            `SubprocVecEnv` with a process per usable core. Other classes are handed to SB3's function.
        vec_env_kwargs: for its constructor; where `vec_env_cls` is None, any of them asks for `SubprocVecEnv`.
        monitor_kwargs: for the monitor.
        wrapper_kwargs: for `wrapper_class`.

    Raises:
        UnknownSetting: the id does not exist.
        EnvError: building an env failed.
    """
    if not _is_ours(vec_env_cls):
        from stable_baselines3.common import env_util

        return env_util.make_vec_env(
            env_id,
            n_envs,
            seed,
            start_index,
            monitor_dir,
            wrapper_class,
            env_kwargs,
            vec_env_cls,
            vec_env_kwargs,
            monitor_kwargs,
            wrapper_kwargs,
        )
    if isinstance(env_id, str):
        if find_game(env_id) is not None and importlib.util.find_spec("ale_py") is not None:
            importlib.import_module("ale_py")  # registers the ids of its own environments
        made = MonitoredEnv(resolved_spec(env_id), env_kwargs or {})
    else:
        made = MonitoredEnv(env_id, env_kwargs or {})
    made = dataclasses.replace(
        made,
        monitor_kwargs=monitor_kwargs or {},
        wrapper_class=wrapper_class,
        wrapper_kwargs=wrapper_kwargs or {},
    )
    return _seeded(made, n_envs, seed, start_index, monitor_dir, vec_env_cls, vec_env_kwargs)


def make_atari_env(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[Any] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """Build Atari envs with the preprocessing of SB3's `AtariWrapper`, bit for bit; stack frames with `VecFrameStack`.

    Ids of one frame per step (``"PongNoFrameskip-v4"``) run on this package's pipeline; whatever that cannot do is
    built with SB3's own wrapper around ale_py's env.

    Args:
        env_id: see `make_vec_env`.
        n_envs: see `make_vec_env`.
        seed: see `make_vec_env`.
        start_index: see `make_vec_env`.
        monitor_dir: see `make_vec_env`.
        wrapper_kwargs: arguments of SB3's `AtariWrapper`.
        env_kwargs: see `make_vec_env`.
        vec_env_cls: see `make_vec_env`.
        vec_env_kwargs: see `make_vec_env`.
        monitor_kwargs: see `make_vec_env`.

    Raises:
        UnknownSetting: the id, or an argument of the wrapper, does not exist.
        MissingExtra: ale_py is not installed.
    """
    wrapper_kwargs, env_kwargs, monitor_kwargs = wrapper_kwargs or {}, env_kwargs or {}, monitor_kwargs or {}
    for name in wrapper_kwargs:
        if name not in WRAPPER_DEFAULTS:
            raise UnknownSetting(f"wrapper_kwargs[{name!r}] does not exist; there are: {', '.join(WRAPPER_DEFAULTS)}")
    ours = _is_ours(vec_env_cls)
    game = find_pipeline(env_id, env_kwargs, wrapper_kwargs, monitor_kwargs) if ours else None
    if game is not None:
        if importlib.util.find_spec("ale_py") is None:
            raise MissingExtra("ale-py", "atari")
        return _seeded(game, n_envs, seed, start_index, monitor_dir, vec_env_cls, vec_env_kwargs)
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    return make_vec_env(
        env_id,
        n_envs,
        seed,
        start_index,
        monitor_dir,
        AtariWrapper,
        env_kwargs,
        vec_env_cls,
        vec_env_kwargs,
        monitor_kwargs,
        wrapper_kwargs,
    )


def _seeded(
    made: Any,
    n_envs: int,
    seed: int | None,
    start_index: int,
    monitor_dir: str | None,
    vec_env_cls: type[Any] | None,
    vec_env_kwargs: dict[str, Any] | None,
) -> VecEnv:
    """One constructor per env out of one for all, and the vector env of them, with its first seeds set."""
    env_fns = [
        dataclasses.replace(
            made,
            action_seed=None if seed is None else seed + index,
            monitor_path=None if monitor_dir is None else os.path.join(monitor_dir, str(index)),
        )
        for index in range(start_index, start_index + n_envs)
    ]
    if monitor_dir is not None:
        os.makedirs(monitor_dir, exist_ok=True)
    settings = dict(vec_env_kwargs or {})
    if vec_env_cls is None:
        wrapped = getattr(made, "wrapper_class", None) is not None
        if not settings and best_in_one_process(made.env_id, n_envs, wrapped=wrapped):
            vec_env_cls = SyncVecEnv
        else:
            vec_env_cls = SubprocVecEnv
            settings.setdefault("num_workers", min(n_envs, usable_cores()))
    envs: VecEnv = vec_env_cls(env_fns, **settings)
    envs.seed(seed)
    return envs


def _is_ours(vec_env_cls: Any) -> bool:
    """Whether a class, or a `functools.partial` of it, is one of this module; None stands for those."""
    made = getattr(vec_env_cls, "func", vec_env_cls)
    return made is None or (isinstance(made, type) and issubclass(made, VecEnvAdapter))


def _worth_preloading(env_fns: Sequence[EnvFn]) -> tuple[str, ...]:
    """Modules that every worker would import by itself; imported once before they are forked, they are shared."""
    if isinstance(env_fns[0], MonitoredAtari):
        return preload_modules
    if any(b"stable_baselines3" in pickled for pickled in pickled_functions(env_fns)):
        return ("stable_baselines3.common.monitor",)
    return ()
