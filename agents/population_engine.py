"""Who plays a population: this process, several, or actors of a Ray cluster; what comes back is the same bits.

An engine takes the parameters once per generation and gives one `PairResult` per pair. One with workers is a
:class:`~vecenv.agents.population_dealing.DealingEngine`, with a
:class:`~vecenv.agents.population_player.PopulationPlayer` wherever it plays, and an entry in :data:`ENGINES`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import vecenv
from vecenv import VecEnv
from vecenv.errors import UnknownSetting

from .es_config import ESConfig
from .population_evaluation import Broadcast, PairResult, PopulationEvaluator

EnvMaker = Callable[[int], VecEnv]
"""Builds a vector env with that many environments; sent to other processes by value where it has to be."""


class PopulationEngine(Protocol):
    """Plays whole generations."""

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Play every pair of one generation.

        Returns:
            One result per pair, in the order of the pairs; fewer where the config lets late ones be cut off.

        Raises:
            CollectionInterrupted: ``stop_requested`` said so.
            EnvError: an environment raised.
            WorkerDied: nobody is left to play.
        """

    def close(self) -> None:
        """End what the engine started; may be called again."""


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is built from.

    Attributes:
        envs: the caller's own vector env.
        make_envs: builds more of the kind, elsewhere; None: how is not known.
        config: hyper-parameters.
        seed: of the run.
        device: where the networks lie.
    """

    envs: VecEnv
    make_envs: EnvMaker | None
    config: ESConfig
    seed: int
    device: str


class InlineEngine:
    """Plays in this process, in the caller's vector env."""

    def __init__(self, request: EngineRequest) -> None:
        """Build the networks.

        Raises:
            NotImplementedError, ValueError: see :class:`PopulationEvaluator`.
        """
        config = request.config
        self._pairs = range(config.played_pairs)
        self._evaluator = PopulationEvaluator(request.envs, config, seed=request.seed, device=request.device)

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Play every pair of one generation; see :class:`PopulationEngine`."""
        return self._evaluator.evaluate(broadcast, self._pairs, stop_requested)

    def close(self) -> None:
        """Nothing to end: the envs are the caller's."""


def _make_processes(request: EngineRequest) -> PopulationEngine:
    from .population_processes import ProcessEngine  # not there on Windows

    return ProcessEngine(request)


def _make_ray(request: EngineRequest) -> PopulationEngine:
    from .ray_population import RayEngine

    return RayEngine(request)


ENGINES: dict[str, Callable[[EngineRequest], PopulationEngine]] = {
    "inline": InlineEngine,
    "processes": _make_processes,
    "ray": _make_ray,
}
"""Name -> what builds the engine."""


def env_maker_of(envs: VecEnv) -> EnvMaker | None:
    """How to build more environments like the first of ``envs`` in a worker; None where that is not known.

    Workers step environments in their own process: with the constructor of ``sync`` and ``subproc``, or on the engine
    that ``envs`` runs on, with one thread.
    """
    env_fns = getattr(envs, "env_fns", None)
    if env_fns:
        return functools.partial(_make_sync, env_fns[0])
    is_compiled = type(envs).__module__.startswith("vecenv.compiled")  # asked like this, Numba is not imported
    engine = "compiled" if is_compiled else getattr(envs, "engine", None)
    if engine is None or envs.spec is None:
        return None
    spec = copy.deepcopy(envs.spec)
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "num_envs"}
    threads: dict[str, Any] = {} if engine == "compiled" else {"num_workers": 1}
    if envs.config is not None:  # an Atari game, whose preset holds what the arguments said
        return functools.partial(_make_on_engine, spec.id, backend=engine, preprocess=envs.config, **threads)
    return functools.partial(_make_on_engine, spec.id, backend=engine, **threads, **kwargs)


def _make_sync(env_fn: Callable[[], Any], num_envs: int) -> VecEnv:
    return vecenv.SyncVecEnv([env_fn] * num_envs, shared_memory=None, copy=False)


def _make_on_engine(env_id: str, num_envs: int, **settings: Any) -> VecEnv:
    return vecenv.make_vec(env_id, num_envs, copy=False, **settings)


def require_env_maker(request: EngineRequest) -> EnvMaker:
    """What builds environments in a worker.

    Raises:
        UnknownSetting: the environments have no registered id, and no ``make_envs`` was given.
    """
    if request.make_envs is None:
        raise UnknownSetting(
            f"engine {request.config.engine!r} builds environments of its own, but these have no registered id: pass "
            "make_envs, a function from a number of environments to a vector env"
        )
    return request.make_envs
