"""Tianshou on this package's vector envs: classes of Tianshou's own names, to be swapped in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from vecenv.addressable_env import addressable_fns, processes_for
from vecenv.arguments import checked_env_fns
from vecenv.base import VecEnv
from vecenv.sync_backend import SyncVecEnv
from vecenv.tianshou_adapter import VectorEnvAdapter, checked_waiting

__all__ = ["DummyVectorEnv", "SubprocVectorEnv", "VectorEnvAdapter", "wrap"]

EnvFn = Callable[[], gym.Env[Any, Any]]


class SubprocVectorEnv(VectorEnvAdapter):
    """Swaps in for `tianshou.env.SubprocVectorEnv` and `tianshou.env.ShmemVectorEnv`.

    Args:
        env_fns: constructors of the envs; lambdas, closures and classes of `__main__` are fine.
        wait_num: see `VectorEnvAdapter`.
        timeout: see `VectorEnvAdapter`.
        share_memory: accepted for Tianshou's sake; observations lie in shared memory wherever their space allows it.
        context: start method: ``"forkserver"`` (None), ``"spawn"`` or ``"fork"``.
        num_workers: processes. None: one per env, at most 4 per usable core; envs that then share one are stepped one
            after the other.
        worker_options: other settings of `vecenv.SubprocVecEnv`, such as ``on_worker_failure``.

    Raises:
        EnvError: a constructor raised.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | BaseContext | None = None,
        *,
        num_workers: int | None = None,
        worker_options: dict[str, Any] | None = None,
    ) -> None:
        from vecenv.subproc_backend import SubprocVecEnv  # not there on Windows

        functions = addressable_fns(checked_env_fns(env_fns))
        checked_waiting(wait_num, timeout, len(functions))
        if num_workers is None:
            num_workers = processes_for(len(functions))
        envs = SubprocVecEnv(
            functions,
            shared_memory=None,
            context=context,
            autoreset_mode=AutoresetMode.DISABLED,
            num_workers=num_workers,
            **(worker_options or {}),
        )
        super().__init__(envs, wait_num, timeout, addressable=True)


class DummyVectorEnv(VectorEnvAdapter):
    """All envs in the caller's process; swaps in for `tianshou.env.DummyVectorEnv`.

    Args:
        env_fns: constructors of the envs.
        wait_num: see `VectorEnvAdapter`.
        timeout: see `VectorEnvAdapter`.

    Raises:
        EnvError: a constructor raised.
    """

    def __init__(self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None) -> None:
        functions = addressable_fns(checked_env_fns(env_fns))
        checked_waiting(wait_num, timeout, len(functions))
        envs = SyncVecEnv(functions, autoreset_mode=AutoresetMode.DISABLED)
        super().__init__(envs, wait_num, timeout, addressable=True)


def wrap(envs: VecEnv, wait_num: int | None = None, timeout: float | None = None) -> VectorEnvAdapter:
    """A vector env of any back end, as Tianshou takes it.

    Args:
        envs: made with ``autoreset_mode="Disabled"``. Closed by the result's `close`.
        wait_num: see `VectorEnvAdapter`.
        timeout: see `VectorEnvAdapter`.

    Returns:
        Tianshou's interface over it.

    Raises:
        TypeError, ValueError: `envs` is no such vector env, or `wait_num` or `timeout` is out of range.
        NotImplementedError: `wait_num` or `timeout` with a back end that takes no steps of some envs.

    Examples:
        >>> import vecenv
        >>> envs = wrap(vecenv.make_vec("CartPole-v1", 3, "sync", autoreset_mode="Disabled"))
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1], id=[0, 2])
        >>> [info["env_id"] for info in infos]
        [0, 2]
        >>> envs.close()
    """
    return VectorEnvAdapter(envs, wait_num, timeout)
