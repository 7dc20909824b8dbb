"""The rule behind ``backend="auto"`` and ``backend="auto-fast"``.

``"auto"`` chooses between `sync` and `subproc`, which give the same bits for the same seed:

1. `sync` for a single env, on a single usable core, and where there are no worker processes (Windows);
2. `subproc` where workers are asked for: by ``num_workers``, or by a backend option that only `subproc` has;
3. `sync` for unwrapped envs of Gymnasium's classic control and toy text, below 32 envs per usable core: a step of
   theirs costs about ten microseconds, and waking workers costs more than they save;
4. `subproc` for everything else.

An engine under the preset of its own name (`ale`, `envpool`) gives the same bits too; it is used when it is named, as
it has not all that `subproc` has and is not faster. ``vecenv tune ENV`` measures instead of following a rule.

``"auto-fast"`` may also change bits: `compiled` where it has the env and everything that was asked for, else as
``"auto"``.

`vecenv.sb3.make_vec_env` chooses between its `SyncVecEnv` and its `SubprocVecEnv` by the rule of ``"auto"``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vecenv.cores import usable_cores
from vecenv.engines import ENGINES
from vecenv.errors import UnknownSetting

if TYPE_CHECKING:
    from vecenv.base import VecEnv
    from vecenv.engines import EngineRequest

#: Envs of Gymnasium whose step costs about ten microseconds.
_CHEAP_MODULES = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
#: Fewer of those per usable core step faster in one process (measured on 2 cores, where both take as long at 64).
_CHEAP_ENVS_PER_CORE = 32


def choose_backend(request: EngineRequest, worker_options: frozenset[str]) -> str:
    """The back end of ``backend="auto"``.

    Args:
        request: what `make_vec` was asked for.
        worker_options: names of options that only `subproc` has.
    """
    asked = request.num_workers is not None or not worker_options.isdisjoint(request.options)
    if asked and sys.platform != "win32":
        return "subproc"
    alone = best_in_one_process(request.env_id, request.num_envs, wrapped=bool(request.wrappers))
    return "sync" if alone else "subproc"


def best_in_one_process(env_id: Any, num_envs: int, *, wrapped: bool) -> bool:
    """Whether envs are stepped in the caller's process where nobody has asked for workers.

    Args:
        env_id: id or spec of a registered env, or a function that builds one.
        num_envs: number of environments.
        wrapped: whether each is in wrappers whose cost is unknown.
    """
    if sys.platform == "win32":
        return True
    cores = usable_cores()
    if num_envs == 1 or cores == 1:
        return True
    return not wrapped and num_envs < _CHEAP_ENVS_PER_CORE * cores and _is_cheap(env_id)


def make_compiled_envs(request: EngineRequest) -> VecEnv | None:
    """The vector env of ``backend="auto-fast"``; None where the compiled back end cannot do what was asked for."""
    if request.num_workers is not None:
        return None
    module: Any = importlib.import_module(ENGINES["compiled"])
    env_id = request.env_id.id if isinstance(request.env_id, EnvSpec) else request.env_id
    if not isinstance(env_id, str) or not module.supports(env_id) or not set(request.options) <= set(module.OPTIONS):
        return None
    try:
        envs: VecEnv = module.make_envs(request)
    except (NotImplementedError, UnknownSetting):  # where nothing has the setting, the other back ends say so
        return None
    return envs


def _is_cheap(env_id: Any) -> bool:
    """Whether the id, or spec, is of an env whose step is known to cost next to nothing."""
    spec = gym.registry.get(env_id.rpartition(":")[2]) if isinstance(env_id, str) else env_id
    entry_point = spec.entry_point if isinstance(spec, EnvSpec) else None
    return isinstance(entry_point, str) and entry_point.startswith(_CHEAP_MODULES)
