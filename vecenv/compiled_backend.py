"""The `compiled` back end for `make_vec`: classic control and envs that users register, as Numba kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vecenv.arguments import check_positive_int
from vecenv.capabilities import EMULATED, FEATURES, NATIVE, REFUSED
from vecenv.compiled_env import CompiledEnv, compiled_env, find_compiled_env
from vecenv.errors import UnknownSetting
from vecenv.factory import import_module_of, vector_spec

if TYPE_CHECKING:
    from vecenv.compiled_vec_env import CompiledVecEnv
    from vecenv.engines import EngineRequest

#: What ``backend_options`` may name.
OPTIONS = ("frame_skip",)
#: See `capabilities`.
CAPABILITIES = {
    **dict.fromkeys(FEATURES, NATIVE),
    **dict.fromkeys(("batch_size", "render", "per_env_kwargs", "wrappers", "worker restart", "custom spaces"), REFUSED),
    **dict.fromkeys(("call", "set_attr"), EMULATED),  # of an env's parameters and its state; only the state is set
}


def supports(env_id: str) -> bool:
    """Whether there is a compiled env of this id, and Gymnasium's registry has no other one of that name."""
    name = env_id.rpartition(":")[2]
    env = find_compiled_env(name)
    spec = gym.registry.get(name)
    return env is not None and (spec is None or env.entry_point in (None, spec.entry_point))


def make_envs(request: EngineRequest) -> CompiledVecEnv:
    """Build a `CompiledVecEnv`.

    Raises:
        UnknownSetting: an id that has no compiled env, or a keyword that the env does not have.
        NotImplementedError: what only envs written in Python can do.
        TypeError, ValueError: a value that does not fit.
    """
    _refuse_what_python_envs_do(request)
    env_id, keywords = request.env_id, dict(request.env_kwargs)
    if isinstance(env_id, EnvSpec):
        keywords = {"max_episode_steps": env_id.max_episode_steps or -1, **env_id.kwargs, **keywords}
        env_id = env_id.id
    if not isinstance(env_id, str):
        raise NotImplementedError(
            "backend='compiled': a function that builds a Python env cannot be compiled; use an id, or "
            "register_compiled_env"
        )
    env_id = import_module_of(env_id)
    env = compiled_env(env_id)
    if not supports(env_id):
        raise UnknownSetting(
            f"{env_id!r} is registered in Gymnasium as {gym.registry[env_id].entry_point!r}, which is not the env that "
            "was compiled; use backend='sync'"
        )
    from vecenv.compiled_vec_env import CompiledVecEnv

    env = _with_keywords(env_id, env, keywords)
    frame_skip = request.options.get("frame_skip", 1)
    envs = CompiledVecEnv(env, request.num_envs, frame_skip=frame_skip, **request.settings)
    envs.spec = vector_spec(request.env_id, request.num_envs, dict(request.env_kwargs))
    return envs


def _refuse_what_python_envs_do(request: EngineRequest) -> None:
    if request.num_workers is not None:
        raise NotImplementedError(f"num_workers={request.num_workers}: the compiled back end has no workers")
    if request.preprocess not in (None, "none"):
        raise UnknownSetting(f"preprocess={request.preprocess!r}: only Atari ids are preprocessed")
    if request.wrappers:
        raise NotImplementedError("wrappers: compiled envs have no Python env to wrap; use backend='sync'")
    if request.per_env_kwargs is not None:
        raise NotImplementedError("per_env_kwargs: compiled envs share one set of parameters; use backend='sync'")
    if request.env_kwargs.get("render_mode") is not None:
        raise NotImplementedError("render_mode: the compiled back end draws no frames; use backend='sync' to watch")


def _with_keywords(env_id: str, env: CompiledEnv, keywords: dict[str, Any]) -> CompiledEnv:
    """The env with what the user set; `max_episode_steps` as in `gymnasium.make`, -1 for no limit."""
    parameters = env.parameters
    limit = env.max_episode_steps
    for name, value in keywords.items():
        if name == "max_episode_steps":
            limit = limit if value is None else None if value == -1 else check_positive_int(name, value)
        elif name in env.keywords:
            field = env.keywords[name]
            parameters = parameters._replace(**{field: _like(name, getattr(parameters, field), value)})
        elif name not in ("render_mode", "disable_env_checker"):  # there is nothing to draw and no checker
            known = ", ".join(("max_episode_steps", *env.keywords))
            raise UnknownSetting(f"{env_id!r} has no keyword {name!r} on the compiled back end; there are: {known}")
    return replace(env, parameters=parameters, max_episode_steps=limit)


def _like(name: str, default: Any, value: Any) -> Any:
    """A value as the type that the kernels were compiled for."""
    try:
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected a {type(default).__name__}, got {value!r}") from error
