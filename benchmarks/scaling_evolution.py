"""Generations of evolution strategies by processes and by Ray's actors: rates in turns, and the bytes that travel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from vecenv.agents.es import ES, env_settings
from vecenv.agents.es_config import ESConfig
from vecenv.factory import make_vec

from .timing import Rates, alternate, measure_rate

#: Back end that is measured -> engine that plays a population in workers of its kind.
ENGINES = {"subproc": "processes", "ray": "ray"}
#: Environment, the package that it needs, a population on it. Parameters stay where they are, so that every generation
#: is the same work; episodes are cut so that a sample holds several generations.
POPULATIONS = (
    (
        "HalfCheetah-v5",
        "mujoco",
        ESConfig(
            num_pairs=16,
            noise_std=0.02,
            learning_rate=1e-12,
            hidden_size=64,
            normalise_observations=True,
            max_episode_steps=200,
        ),
    ),
    ("CartPole-v1", "gymnasium", ESConfig(num_pairs=256, learning_rate=1e-12)),
)


@dataclasses.dataclass(frozen=True)
class MeasuredEngine:
    """One engine on one environment.

    Attributes:
        rates: env steps per second of whole generations, learning included.
        bytes_per_pair: payload that came back, per pair; moments of observations included where those are sent.
        bytes_per_worker: parameters and statistics that a worker is given, per generation.
        pairs: of a generation.
    """

    rates: Rates
    bytes_per_pair: float
    bytes_per_worker: int
    pairs: int


class Population:
    """A learner that plays one generation after the other for as long as it is told to.

    Args:
        name: of the row.
        learner: closed, with its envs, by `close`.
    """

    def __init__(self, name: str, learner: ES) -> None:
        self.name = name
        self.learner = learner

    def measure(self, seconds: float) -> float:
        """Env steps per second."""

        def play() -> int:
            before = self.learner.env_steps
            self.learner.train_once()
            return self.learner.env_steps - before

        return measure_rate(play, seconds)

    def measured(self, rates: Rates) -> MeasuredEngine:
        """The rates, with what was counted meanwhile."""
        config, engine, statistics = self.learner.config, self.learner.engine, self.learner.observation_statistics
        received: int = engine.bytes_received  # type: ignore[attr-defined]
        given = 4 * self.learner.parameters.numel() + (0 if statistics is None else 2 * 4 * len(statistics.mean))
        return MeasuredEngine(
            rates, received / (self.learner.generation * config.played_pairs), given, config.played_pairs
        )

    def close(self) -> None:
        """End the workers."""
        self.learner.close()
        self.learner.envs.close()


def build_population(env_id: str, engine: Any, config: ESConfig, workers: int) -> Population:
    """A population that an engine plays; Ray's actors share cores as processes do."""
    shared: dict[str, Any] = {"ray_cpus": 0.1} if engine == "ray" else {}
    own = dataclasses.replace(config, engine=engine, workers=workers, **shared)
    envs = make_vec(env_id, backend="auto-fast", **env_settings(own))
    try:
        return Population(f"ES on {env_id}, {engine}, {workers} workers", ES(envs, own))
    except BaseException:
        envs.close()
        raise


def measure_evolution(backends: Sequence[str], rounds: int, seconds: float, workers: int = 2) -> list[MeasuredEngine]:
    """Rates and bytes of the engines that belong to some back ends, in alternating turns on every environment.

    Args:
        backends: keys of `ENGINES`.
        rounds: samples of each.
        seconds: length of a sample; the generation begun last is finished.
        workers: of each engine.

    Returns:
        The engines in the order of ``backends``, on one environment after the other; one whose package is not
        installed is left out.
    """
    measured = []
    for env_id, package, config in POPULATIONS:
        if find_spec(package) is None:
            continue
        with ExitStack() as stack:
            populations = []
            for backend in backends:
                populations.append(build_population(env_id, ENGINES[backend], config, workers))
                stack.callback(populations[-1].close)
            rates = alternate(populations, rounds=rounds, seconds=seconds, warm_up_seconds=seconds)
            measured += [one.measured(own) for one, own in zip(populations, rates, strict=True)]
    return measured
