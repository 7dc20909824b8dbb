"""A model of one step, and of one generation of evolution strategies, on many cores, fitted to measurements on few.

One process drives all workers, step by step. Envs run side by side, one core each; what the driver does for every
message, env and byte of observations it does one after the other. That sum is all there is to the model: no network
between machines, no stragglers, no learner. It tells where the driver becomes the limit, not how fast a cluster is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

#: Up to so many bytes Ray sends a reply in the message itself, not through its object store.
STORED_BYTES = 100 * 1024


@dataclass(frozen=True)
class Round:
    """One measured configuration of envs that do nothing.

    Attributes:
        workers: processes or actors.
        envs: in all.
        observation_bytes: of one env.
        seconds: processor time of the driver for one step.
    """

    workers: int
    envs: int
    observation_bytes: int
    seconds: float


@dataclass(frozen=True)
class Costs:
    """What a step costs beside the envs, in seconds of the driver.

    Attributes:
        fixed: once per step; waking up and waiting included, see `with_latency`.
        message: per worker and step.
        row: per env and step.
        byte: per byte of observations.
        stored: more per message of over `STORED_BYTES`, where an object store takes those.
    """

    fixed: float
    message: float
    row: float
    byte: float
    stored: float = 0.0

    def per_message(self, observation_bytes: int) -> float:
        """Seconds per message that carries so many bytes of observations, those bytes not counted."""
        return self.message + (self.stored if observation_bytes > STORED_BYTES else 0.0)


def with_latency(costs: Costs, smallest: Round, seconds: float) -> Costs:
    """Costs whose fixed part holds what the smallest round takes beyond the driver's own work.

    Args:
        costs: of the driver's processor time.
        smallest: round with the fewest workers, envs and bytes.
        seconds: that one step of it takes.
    """
    return replace(costs, fixed=costs.fixed + max(0.0, seconds - smallest.seconds))


def fit(rounds: Sequence[Round], has_store: bool = False) -> Costs:
    """Costs by least squares over relative errors; none below 0.

    Args:
        rounds: with workers, envs and bytes that vary independently.
        has_store: whether messages of over `STORED_BYTES` have a cost of their own.

    Raises:
        ValueError: too few rounds to tell the costs apart.
    """
    columns = [[1.0, r.workers, r.envs, r.envs * r.observation_bytes] for r in rounds]
    if has_store:
        for column, r in zip(columns, rounds, strict=True):
            column.append(r.workers if r.envs * r.observation_bytes > STORED_BYTES * r.workers else 0.0)
    seconds = np.array([r.seconds for r in rounds])
    weighted = np.array(columns) / seconds[:, None]
    count = weighted.shape[1]
    scale = np.linalg.norm(weighted, axis=0)
    if not scale.all() or np.linalg.matrix_rank(weighted / scale) < count:
        raise ValueError(f"{len(rounds)} rounds do not tell {count} costs apart")
    kept = list(range(count))
    while True:  # a cost that comes out below 0 is left out, the worst first
        solution, *_ = np.linalg.lstsq(weighted[:, kept] / scale[kept], np.ones(len(rounds)), rcond=None)
        if (solution >= 0).all():
            break
        kept.pop(int(np.argmin(solution)))
    costs = np.zeros(count)
    costs[kept] = solution / scale[kept]
    return Costs(*costs.tolist())


@dataclass(frozen=True)
class Workload:
    """What every core is given.

    Attributes:
        name: for the table.
        envs_per_core: environments of one worker.
        env_seconds: of one step of one env.
        observation_bytes: of one env.
    """

    name: str
    envs_per_core: int
    env_seconds: float
    observation_bytes: int


@dataclass(frozen=True)
class Prediction:
    """What the model says of a workload.

    Attributes:
        cores: that run envs, one worker each.
        rate: env steps per second.
        efficiency: share of what that many cores would do without a driver.
        limit: what takes the most time: ``"envs"``, ``"messages"``, ``"rows"`` or ``"observation bytes"``.
        bytes_per_second: observations that reach the driver.
    """

    cores: int
    rate: float
    efficiency: float
    limit: str
    bytes_per_second: float


def predict(costs: Costs, workload: Workload, cores: int) -> Prediction:
    """Evaluate the model for a number of cores."""
    envs = workload.envs_per_core * cores
    parts = {
        "envs": workload.envs_per_core * workload.env_seconds,
        "messages": costs.fixed + costs.per_message(workload.envs_per_core * workload.observation_bytes) * cores,
        "rows": costs.row * envs,
        "observation bytes": costs.byte * envs * workload.observation_bytes,
    }
    seconds = sum(parts.values())
    return Prediction(
        cores=cores,
        rate=envs / seconds,
        efficiency=parts["envs"] / seconds,
        limit=max(parts, key=lambda name: parts[name]),
        bytes_per_second=envs * workload.observation_bytes / seconds,
    )


@dataclass(frozen=True)
class Evolution:
    """A generation of evolution strategies.

    Attributes:
        pairs: mirrored pairs of a generation.
        steps: of one episode.
        env_seconds: of one step of one env, policy included.
        parameters: of the policy, 4 bytes each, sent once to every worker.
        bytes_per_pair: that come back, statistics of observations included.
    """

    pairs: int
    steps: int
    env_seconds: float
    parameters: int
    bytes_per_pair: int = 36


def predict_generation(costs: Costs, evolution: Evolution, cores: int) -> tuple[float, float, str]:
    """Evaluate the model for one generation.

    Returns:
        seconds: of the generation.
        efficiency: share of what that many cores would do if the work could be split at will and nothing were sent.
        limit: ``"envs"``, ``"pairs"`` (too few for so many cores), ``"broadcast"`` or ``"messages"``.
    """
    pair_seconds = 2 * evolution.steps * evolution.env_seconds
    ideal = evolution.pairs * pair_seconds / cores
    envs = math.ceil(evolution.pairs / cores) * pair_seconds
    broadcast = costs.byte * 4 * evolution.parameters * cores
    messages = costs.fixed + costs.message * cores + costs.byte * evolution.bytes_per_pair * evolution.pairs
    seconds = envs + broadcast + messages
    parts = {"envs": ideal, "pairs": envs - ideal, "broadcast": broadcast, "messages": messages}
    return seconds, ideal / seconds, max(parts, key=lambda name: parts[name])
