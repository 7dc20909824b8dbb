"""``vecenv bench scaling``: what a message and a byte of observations cost, and a model of that on more cores.

It measures subproc and Ray with envs that do nothing, over numbers of workers, envs and bytes; what a second worker
adds with envs that keep a core busy; generations of evolution strategies by both; and evaluates
`vecenv.benchmarks.scaling_model` for 16 to 1,024 cores. With ``--report`` it writes all of that as `docs/scaling.md`,
and a picture beside it.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from vecenv.base import VecEnv
from vecenv.doctor import describe_machine
from vecenv.factory import make_vec
from vecenv.writable import check_writable

from .arguments import add_output, add_timing, check_known, make_parser, some_words
from .report import check_output, print_table, publish, samples_of
from .scaling_evolution import measure_evolution
from .scaling_model import STORED_BYTES, Costs, Evolution, Round, Workload, fit, with_latency
from .scaling_report import (
    draw,
    evolution_table,
    measured_evolution_table,
    measured_tables,
    predicted_tables,
    write_report,
)
from .timing import Rates, alternate, measure_rate

BACKENDS = ("subproc", "ray")
#: (workers, envs, bytes of an observation): every figure varies while others stay.
GRID = (
    (1, 8, 64),
    (2, 8, 64),
    (4, 8, 64),
    (2, 64, 64),
    (1, 128, 64),
    (2, 2, 28_224),
    (2, 8, 28_224),
    (2, 32, 28_224),
    (4, 32, 28_224),
    (1, 8, 28_224),
)
#: What keeps a core busy, in seconds of a step.
BUSY_SECONDS = 0.0002
#: A policy of two hidden layers of 64 for HalfCheetah, 17 numbers in, 6 out.
HALF_CHEETAH_PARAMETERS = 17 * 64 + 64 + 64 * 64 + 64 + 64 * 6 + 6
#: What comes back of a pair: key and scores, mean and variance of 17 components.
HALF_CHEETAH_BYTES = 36 + 8 * 17


class IdleEnv(gym.Env[Any, Any]):
    """Gives an observation and does nothing.

    Args:
        observation_bytes: of it.
    """

    action_space = gym.spaces.Discrete(2)

    def __init__(self, observation_bytes: int = 64) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (observation_bytes,), np.uint8)
        self._observation = np.zeros(observation_bytes, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode that never ends."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do nothing."""
        return self._observation, 0.0, False, False, {}


class BusyEnv(IdleEnv):
    """Keeps its core busy for `BUSY_SECONDS` of processor time in every step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count until the time is over: processor time, so that a busy machine does not make it shorter."""
        end = time.thread_time() + BUSY_SECONDS
        while time.thread_time() < end:
            pass
        return super().step(action)


@dataclass
class Stepper:
    """A vector env that is stepped for as long as it is told to.

    Attributes:
        name: of the row.
        envs: what is stepped.
        driver_seconds: processor time of this process per step, one figure per sample, the warm-up first.
    """

    name: str
    envs: VecEnv
    driver_seconds: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> float:
        """Steps of the whole batch per second."""
        actions, steps = np.zeros(self.envs.num_envs, np.int64), 0

        def step() -> int:
            nonlocal steps
            self.envs.step(actions)
            steps += 1
            return 1

        start = time.process_time()
        rate = measure_rate(step, seconds)
        self.driver_seconds.append((time.process_time() - start) / steps)
        return rate


class Measured(NamedTuple):
    """One configuration: steps per second, and what the driver itself needs."""

    rates: Rates
    driver: Round


def build(backend: str, env: Any, workers: int, num_envs: int) -> VecEnv:
    """A vector env of a back end, reset; Ray's actors share cores as processes do, and send as from other machines."""
    options = {"num_cpus": 0.1, "share_memory": False} if backend == "ray" else {}
    envs = make_vec(env, num_envs, backend, num_workers=workers, copy=False, backend_options=options)
    envs.reset(seed=0)
    return envs


def measure_rounds(backends: Sequence[str], rounds: int, seconds: float) -> dict[str, list[Measured]]:
    """All configurations of `GRID`, one after the other, the back ends in alternating turns."""
    measured: dict[str, list[Measured]] = {backend: [] for backend in backends}
    for point in GRID:
        workers, num_envs, size = point
        with ExitStack() as stack:
            steppers = []
            for backend in backends:
                envs = stack.enter_context(build(backend, functools.partial(IdleEnv, size), workers, num_envs))
                steppers.append(Stepper(f"{backend}, {workers} workers, {num_envs} envs, {size} bytes", envs))
            rates = alternate(steppers, rounds=rounds, seconds=seconds, warm_up_seconds=0.2)
        for backend, stepper, own in zip(backends, steppers, rates, strict=True):
            measured[backend].append(Measured(own, Round(*point, min(stepper.driver_seconds[1:]))))
    return measured


def measure_efficiency(backends: Sequence[str], rounds: int, seconds: float) -> list[Rates]:
    """Rates of 32 busy envs with one and with two workers."""
    with ExitStack() as stack:
        steppers = [
            Stepper(f"{backend}, busy, {workers} workers", stack.enter_context(build(backend, BusyEnv, workers, 32)))
            for backend in backends
            for workers in (1, 2)
        ]
        return alternate(steppers, rounds=rounds, seconds=seconds, warm_up_seconds=0.2)


def efficiency_of(backends: Sequence[str], busy: Sequence[Rates]) -> dict[str, float]:
    """The rate with two workers over twice the rate with one, by back end: the median of the rounds.

    Args:
        backends: that were measured.
        busy: their rates, as `measure_efficiency` returns them.
    """
    return {
        backend: statistics.median(b / a / 2 for a, b in zip(one.samples, two.samples, strict=True))
        for backend, one, two in zip(backends, busy[::2], busy[1::2], strict=True)
    }


def costs_of(backend: str, measured: Sequence[Measured]) -> Costs:
    """The costs of a back end, fitted to its least disturbed samples."""
    smallest = measured[0]
    fitted = fit([one.driver for one in measured], has_store=backend == "ray")
    return with_latency(fitted, smallest.driver, 1.0 / smallest.rates.highest)


def workloads() -> list[Workload]:
    """What the model is evaluated for; seconds of a step as measured on one core of this kind of machine."""
    return [
        Workload("Pong, 84x84x4 bytes", 32, 210e-6, 4 * 84 * 84),
        Workload("HalfCheetah, 17 float64", 32, 45e-6, 17 * 8),
        Workload("a slow simulator, 10 ms, 1 kB", 4, 10e-3, 1024),
    ]


def evolutions() -> list[Evolution]:
    """Generations of HalfCheetah that the model is evaluated for."""
    return [Evolution(pairs, 1000, 45e-6, HALF_CHEETAH_PARAMETERS, HALF_CHEETAH_BYTES) for pairs in (64, 1024)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, write a JSON file and, if asked, the report.

    Args:
        argv: words after ``vecenv bench scaling``; None: those of this process.

    Returns:
        The exit code: 0.

    Raises:
        MissingExtra: Ray is not installed.
        UnknownSetting: a back end that is not measured here.
    """
    arguments = _parser().parse_args(argv)
    check_known(arguments.backends, BACKENDS, "back end")
    check_output(arguments, "scaling")
    if arguments.report is not None:
        check_writable(arguments.report, "--report")
    with _one_ray_cluster(arguments.backends):
        print(describe_machine())
        measured = measure_rounds(arguments.backends, arguments.rounds, arguments.seconds)
        busy = measure_efficiency(arguments.backends, arguments.rounds, arguments.seconds)
        evolved = measure_evolution(arguments.backends, arguments.rounds, arguments.seconds)
    costs = {backend: costs_of(backend, own) for backend, own in measured.items()}
    efficiency = efficiency_of(arguments.backends, busy)
    known = measured_tables(costs, efficiency)
    predicted = predicted_tables(costs, workloads())
    generations = [measured_evolution_table(evolved, arguments.backends)]
    generations += [evolution_table(costs, evolution) for evolution in evolutions()]
    for title, header, rows in (*known, *predicted, *generations):
        print_table(title, header, rows)
    if arguments.report is not None:
        picture = draw(arguments.report.with_suffix(".svg"), costs, workloads())
        rounds = [(one.rates, one.driver) for own in measured.values() for one in own]
        write_report(arguments.report, picture, known, predicted, generations, rounds)
    results = {
        "costs": {name: asdict(own) for name, own in costs.items()},
        "efficiency": efficiency,
        "evolution": {one.rates.name: asdict(one) for one in evolved},
    }
    rates = [one.rates for own in measured.values() for one in own] + busy + [one.rates for one in evolved]
    samples = samples_of(rates, "steps/s")
    return publish(arguments, "scaling", settings={"grid": GRID}, results=results, samples=samples)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench scaling", __doc__)
    text = "comma-separated: subproc, ray (default: both)"
    parser.add_argument("--backends", type=some_words, default=list(BACKENDS), metavar="NAMES", help=text)
    text = "write costs and model to this Markdown file (docs/scaling.md is one), and a picture beside it"
    parser.add_argument("--report", type=Path, metavar="FILE", help=text)
    add_timing(parser, rounds=5, seconds=0.5)
    add_output(parser, "scaling")
    return parser


@contextmanager
def _one_ray_cluster(backends: Sequence[str]) -> Iterator[None]:
    """Keep one cluster for everything that is measured in the block; without Ray among the back ends, none."""
    if "ray" not in backends:
        yield
        return
    from vecenv.ray_cluster import RayConnection

    # As in a cluster of several machines: the model has larger messages go through the object store.
    os.environ.setdefault("RAY_max_direct_call_object_size", str(STORED_BYTES))
    hold = RayConnection("local", object_store_memory=256 * 2**20)
    try:
        yield
    finally:
        hold.release()
