"""`make_vec`: one call from an env id to a running vector env."""

from __future__ import annotations

import copy as copying
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from vecenv.arguments import check_positive_int
from vecenv.backend_choice import choose_backend, make_compiled_envs
from vecenv.base import VecEnv
from vecenv.engines import ENGINES, EngineRequest, check_options, make_engine_envs
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.sync_backend import SyncVecEnv

if TYPE_CHECKING:
    from vecenv.preprocess.config import AtariConfig

EnvFn = Callable[[], gym.Env[Any, Any]]

BACKENDS = ("auto", "auto-fast", "sync", "subproc", *ENGINES)
_BACKEND_OPTIONS: dict[str, tuple[str, ...]] = {
    "sync": ("observation_mode", "shared_memory"),
    "subproc": (
        "balance",
        "context",
        "info_spec",
        "observation_mode",
        "on_worker_failure",
        "shared_memory",
        "step_timeout",
    ),
}
_WORKER_OPTIONS = frozenset(_BACKEND_OPTIONS["subproc"]) - frozenset(_BACKEND_OPTIONS["sync"])


def make_vec(
    env_id: str | EnvSpec | EnvFn,
    num_envs: int = 1,
    backend: str = "auto",
    *,
    num_workers: int | None = None,
    batch_size: int | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    preprocess: str | AtariConfig | None = None,
    copy: bool = True,
    slots: int = 2,
    statistics: bool = False,
    seed: int | Sequence[int | None] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    backend_options: Mapping[str, Any] | None = None,
    per_env_kwargs: Sequence[Mapping[str, Any]] | None = None,
    **env_kwargs: Any,
) -> VecEnv:
    """Build a vector env.

    Args:
        env_id: id of a registered env, its spec, or a function that builds one env. Atari ids run through this
            package's own pipeline unless ``preprocess="none"``.
        num_envs: number of environments.
        backend: ``"sync"`` (the caller's process), ``"subproc"`` (worker processes), an engine by its name, or
            ``"auto"``: sync or subproc by the rule that `vecenv.backend_choice` states; these give the same results for
            the same seeds. ``"auto-fast"``: the compiled back end where it can, else as ``"auto"``.
        num_workers: processes of the subproc back end, threads of ale and envpool, actors of ray. None: usable cores
            (ray: free cores of the cluster), at most one per env.
        batch_size: how many environments `recv` returns; None: all.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``, or Gymnasium's enum.
        preprocess: Atari only: preset name, `AtariConfig`, ``"none"``, or None for the preset ``"ale"`` (envpool:
            ``"envpool"``).
        copy: whether returned observations belong to the caller; see `VectorSettings`.
        slots: length of the observation ring; with ``copy=False`` observations last for `slots - 1` further calls.
        statistics: whether ended episodes are reported in ``infos["episode"]``.
        seed: for the first reset that gets none; where envs fail in it, the next try gets it again.
        wrappers: applied to every env, innermost first.
        backend_options: ``observation_mode`` and ``shared_memory``, see `VectorSettings`; subproc also ``balance``,
            ``context`` (start method), ``info_spec``, ``on_worker_failure`` and ``step_timeout``, see `WorkerSettings`.
            Of compiled: ``frame_skip``; of ale and envpool: ``num_threads`` and ``thread_affinity_offset``; of ray: see
            `RaySettings`.
        per_env_kwargs: one mapping per env, for its constructor alone, on top of `env_kwargs`. Not for Atari ids, whose
            settings go through `preprocess`. Envs whose bounds then differ need ``observation_mode``.
        env_kwargs: for the env's constructor; on Atari ids, physics such as ``repeat_action_probability``.

    Returns:
        A `gymnasium.vector.VectorEnv`.

    Raises:
        UnknownSetting: an id, back end, preset or option that does not exist; the message lists what does.
        TypeError, ValueError: a setting of the wrong type or outside what it may be.
        NotImplementedError: what this back end, or this system, cannot do.
        MissingExtra: an optional package is needed.
        EnvError, WorkerDied: building an env failed.

    Examples:
        An id that Gymnasium knows, in this process:

        >>> envs = make_vec("CartPole-v1", 4, "sync", seed=0)
        >>> observations, infos = envs.reset()
        >>> observations.shape
        (4, 4)
        >>> observations, rewards, terminations, truncations, infos = envs.step([0, 1, 0, 1])
        >>> rewards.tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> envs.close()

        A class of one's own, in two worker processes, built differently:

        >>> from vecenv.testing import CountEnv
        >>> lengths = [{"length": 3}, {"length": 5}, {"length": 3}, {"length": 5}]
        >>> with make_vec(CountEnv, 4, "subproc", num_workers=2, per_env_kwargs=lengths) as envs:
        ...     envs.get_attr("length")
        (3, 5, 3, 5)
    """
    num_envs = check_positive_int("num_envs", num_envs)
    if num_workers is not None:
        check_positive_int("num_workers", num_workers)
    _check_backend(backend, num_workers)
    vector_settings: dict[str, Any] = {
        "autoreset_mode": autoreset_mode,
        "copy": copy,
        "slots": slots,
        "statistics": statistics,
        "seed": seed,
        "batch_size": batch_size,
    }
    request = EngineRequest(
        env_id,
        num_envs,
        vector_settings,
        num_workers,
        preprocess,
        tuple(wrappers),
        backend_options or {},
        env_kwargs,
        per_env_kwargs,
    )
    if backend in ENGINES:
        envs = make_engine_envs(backend, request)
        if envs.spec is None:
            envs.spec = vector_spec(env_id, num_envs, env_kwargs)
        return envs
    if backend == "auto-fast":
        compiled = make_compiled_envs(request)
        if compiled is not None:
            return compiled
    if backend in ("auto", "auto-fast"):
        backend = choose_backend(request, _WORKER_OPTIONS)
    return _make_python_envs(backend, request)


def _make_python_envs(backend: str, request: EngineRequest) -> VecEnv:
    """A vector env of the `sync` or `subproc` back end."""
    check_options(backend, request.options, _BACKEND_OPTIONS[backend])
    env_kwargs = dict(request.env_kwargs)
    env_fns, config, preload = env_functions(
        request.env_id, request.preprocess, request.wrappers, env_kwargs, request.per_env_kwargs, request.num_envs
    )
    settings: dict[str, Any] = {**request.settings, "shared_memory": None, **request.options}
    envs: VecEnv
    if backend == "sync":
        envs = SyncVecEnv(env_fns, **settings)
    else:
        from vecenv.subproc_backend import SubprocVecEnv  # not there on Windows

        envs = SubprocVecEnv(env_fns, num_workers=request.num_workers, preload=preload, **settings)
    envs.spec = vector_spec(request.env_id, request.num_envs, env_kwargs)
    envs.config = config
    return envs


def _check_backend(backend: str, num_workers: int | None) -> None:
    if backend not in BACKENDS:
        raise UnknownSetting(f"backend={backend!r} does not exist; available are {', '.join(BACKENDS)}")
    if sys.platform == "win32" and (backend == "subproc" or (num_workers is not None and backend not in ENGINES)):
        raise NotImplementedError("backend='subproc' is not available on Windows; use backend='sync'")
    if backend == "sync" and num_workers is not None:
        raise ValueError(f"num_workers={num_workers}: the sync back end has no workers; use backend='subproc'")


def env_functions(
    env_id: Any,
    preprocess: Any,
    wrappers: tuple[Callable[[Any], Any], ...],
    env_kwargs: dict[str, Any],
    per_env_kwargs: Sequence[Mapping[str, Any]] | None,
    num_envs: int,
) -> tuple[list[EnvFn], AtariConfig | None, tuple[str, ...]]:
    """The constructors of all envs; the same one where nothing tells them apart.

    Returns:
        One constructor per env, the Atari settings they share (None for other envs), and modules worth importing before
        workers start.

    Raises:
        TypeError, ValueError: `env_id`, `wrappers` or `per_env_kwargs` is not what `make_vec` takes.
        UnknownSetting: no such id, preset or Atari setting.
        NotImplementedError: `per_env_kwargs` of an Atari id.
        MissingExtra: ale-py is needed.
    """
    if per_env_kwargs is None:
        function, config, preload = _env_function(env_id, preprocess, wrappers, env_kwargs)
        return [function] * num_envs, config, preload
    if not isinstance(per_env_kwargs, Sequence) or not all(isinstance(own, Mapping) for own in per_env_kwargs):
        raise TypeError(f"per_env_kwargs: expected a sequence of {num_envs} mappings, got {per_env_kwargs!r}")
    if len(per_env_kwargs) != num_envs:
        raise ValueError(
            f"per_env_kwargs: expected one mapping per env, num_envs={num_envs}, got {len(per_env_kwargs)}"
        )
    made = [_env_function(env_id, preprocess, wrappers, {**env_kwargs, **own}) for own in per_env_kwargs]
    if any(config is not None for _, config, _ in made):
        raise NotImplementedError("per_env_kwargs: Atari ids take one configuration for all envs; use preprocess")
    return [function for function, _, _ in made], None, ()


def _env_function(
    env_id: Any, preprocess: Any, wrappers: tuple[Callable[[Any], Any], ...], env_kwargs: dict[str, Any]
) -> tuple[EnvFn, AtariConfig | None, tuple[str, ...]]:
    """The constructor of one env, the Atari config it resolves to, and what is worth preloading for it."""
    if isinstance(env_id, str):
        from vecenv import atari

        if preprocess != "none" and atari.find_game(env_id) is not None:
            render_mode = env_kwargs.pop("render_mode", None)
            config = atari.resolve_config(env_id, preprocess, **env_kwargs)
            if importlib.util.find_spec("ale_py") is None:
                raise MissingExtra("ale-py", "atari")
            function = functools.partial(atari.make_atari_env, env_id, config, render_mode=render_mode)
            return _wrapped(function, wrappers), config, atari.preload_modules
        elif atari.find_game(env_id) is not None and importlib.util.find_spec("ale_py") is not None:
            importlib.import_module("ale_py")  # registers the ids of its own environments
    if preprocess is not None and preprocess != "none":
        raise UnknownSetting(f"preprocess={preprocess!r}: only Atari ids are preprocessed, {env_id!r} is none")
    if callable(env_id) and not isinstance(env_id, EnvSpec):
        return _wrapped(functools.partial(env_id, **env_kwargs), wrappers), None, ()
    if not isinstance(env_id, (str, EnvSpec)):
        raise TypeError(f"env_id: expected an id, an EnvSpec or a function that builds an env, got {env_id!r}")
    return _wrapped(functools.partial(_make_registered, resolved_spec(env_id), env_kwargs), wrappers), None, ()


def resolved_spec(env_id: str | EnvSpec) -> EnvSpec:
    """The spec itself, which reaches workers that never saw its registration.

    Raises:
        UnknownSetting: no such id, with Gymnasium's own advice, or no such module.
    """
    if isinstance(env_id, EnvSpec):
        return env_id
    name = import_module_of(env_id)
    try:
        return copying.deepcopy(gym.spec(name))
    except gym.error.Error as error:
        raise UnknownSetting(f"env id {env_id!r} does not exist: {error}") from error


def import_module_of(env_id: str) -> str:
    """Import the module before the colon of an id, if there is one, which registers the id; gives the rest.

    Raises:
        UnknownSetting: the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnknownSetting(f"env id {env_id!r}: the module cannot be imported: {error}") from error
    return name


def _make_registered(spec: EnvSpec, env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    return gym.make(copying.deepcopy(spec), **env_kwargs)


def _wrapped(env_fn: EnvFn, wrappers: tuple[Callable[[Any], Any], ...]) -> EnvFn:
    for index, wrapper in enumerate(wrappers):
        if not callable(wrapper):
            raise TypeError(f"wrappers[{index}]: expected a function from env to env, got {wrapper!r}")
    return functools.partial(_make_wrapped, env_fn, wrappers) if wrappers else env_fn


def _make_wrapped(env_fn: EnvFn, wrappers: tuple[Callable[[Any], Any], ...]) -> gym.Env[Any, Any]:
    env = env_fn()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def vector_spec(env_id: Any, num_envs: int, env_kwargs: dict[str, Any]) -> EnvSpec | None:
    """The spec of the vector env, as Gymnasium's `make_vec` notes it."""
    if isinstance(env_id, str):
        if env_id.rpartition(":")[2] not in gym.registry:
            return None
        env_id = gym.spec(env_id.rpartition(":")[2])
    if not isinstance(env_id, EnvSpec):
        return None
    spec = copying.deepcopy(env_id)
    spec.kwargs = {**spec.kwargs, **env_kwargs, "num_envs": num_envs}
    return spec
