"""``vecenv bench workers``: what a round of messages costs, how busy workers are kept, and what uneven envs cost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine

from .arguments import add_output, add_timing, make_parser
from .compare import Samples
from .contestants import Settings, VectorContestant
from .report import check_output, publish, samples_of
from .timing import Rates, alternate


class TimedEnv(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Does nothing for a given time.

    Args:
        seconds: length of a step.
        sleeps: whether it sleeps (as an env that waits for something does) or keeps its core busy.
        length: steps of an episode.
    """

    def __init__(self, seconds: float = 0.0, sleeps: bool = False, length: int = 50) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.seconds, self.sleeps, self.length = seconds, sleeps, length
        self.observation = np.zeros(4, np.float32)
        self.time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.time = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Let the time pass."""
        self.time += 1
        if self.sleeps:
            time.sleep(self.seconds)
        elif self.seconds:
            end = time.perf_counter() + self.seconds
            while time.perf_counter() < end:
                pass
        return self.observation, 0.0, False, self.time >= self.length, {}


def _contestant(name: str, envs: Any) -> VectorContestant:
    """Steps a vector env whole, or in parts of its batch size; all actions are 0."""
    part = getattr(envs, "batch_size", envs.num_envs)
    settings = Settings(name, envs.num_envs, 1, batch_size=part if part < envs.num_envs else None)
    return VectorContestant(name, envs, [np.zeros(envs.num_envs, np.int64)], settings)


def _ours(fns: Sequence[Callable[[], Any]], num_workers: int, **settings: Any) -> Any:
    from vecenv import SubprocVecEnv

    return SubprocVecEnv(fns, num_workers=num_workers, **settings)


def _measure(contestants: Sequence[VectorContestant], rounds: int, seconds: float, warm_up: float = 1.0) -> list[Rates]:
    """Rates of contestants that take turns; they are closed afterwards."""
    try:
        return alternate(contestants, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up)
    finally:
        for contestant in contestants:
            contestant.close()


def measure_round(workers: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Steps of envs that cost nothing, one per worker: what is left is the round itself, in microseconds."""
    (rates,) = _measure([_contestant("round", _ours([TimedEnv] * workers, workers))], rounds, seconds)
    samples = [workers / rate * 1e6 for rate in rates.samples]
    return {"microseconds": samples, "median": float(np.median(samples))}


def measure_cart_pole(num_envs: int, workers: int, rounds: int, seconds: float) -> list[Rates]:
    """CartPole-v1 against Gymnasium's vector envs."""
    fns = [functools.partial(gymnasium.make, "CartPole-v1")] * num_envs
    contestants = [
        _contestant("subproc", _ours(fns, workers)),
        _contestant("gymnasium-async", gymnasium.vector.AsyncVectorEnv(fns)),
    ]
    return _measure(contestants, rounds, seconds)


def measure_busy_share(workers: int, rounds: int, seconds: float, step_seconds: float = 100e-6) -> dict[str, Any]:
    """Envs that keep a core busy for 100 microseconds: steps per second over cores / step time."""
    envs = _ours([functools.partial(TimedEnv, step_seconds)] * (8 * workers), workers)
    (rates,) = _measure([_contestant("busy", envs)], rounds, seconds)
    shares = [rate * step_seconds / workers for rate in rates.samples]
    return {"shares": shares, "median": float(np.median(shares))}


def measure_uneven(rounds: int, seconds: float, step_seconds: float = 0.001) -> dict[str, list[Rates]]:
    """One env ten times as slow as the others: half batches and balancing against the plain way."""
    slow, fast = functools.partial(TimedEnv, 10 * step_seconds, True), functools.partial(TimedEnv, step_seconds, True)
    eight, many = [slow] + [fast] * 7, [slow] + [fast] * 31
    comparisons = {
        "batch_size": [
            _contestant("half batches", _ours(eight, 8, batch_size=4)),
            _contestant("whole batches", _ours(eight, 8)),
        ],
        "balance": [
            _contestant("balanced", _ours(many, 4, balance=True)),
            _contestant("not balanced", _ours(many, 4)),
        ],
    }
    results = {}
    for name, contestants in comparisons.items():
        results[name] = _measure(contestants, rounds, seconds, warm_up=3.0)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write a JSON file.

    Args:
        argv: words after ``vecenv bench workers``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something got slower beyond noise.
    """
    parser = make_parser("vecenv bench workers", __doc__)
    add_timing(parser, rounds=20, seconds=0.4)
    add_output(parser, "workers")
    arguments = parser.parse_args(argv)
    check_output(arguments, "workers")
    rounds, seconds, workers = arguments.rounds, arguments.seconds, max(2, usable_cores())
    print(describe_machine())
    round_cost = measure_round(2, rounds, seconds)
    print(f"a round of 2 workers with envs that cost nothing: {round_cost['median']:.0f} microseconds")
    cart_pole = measure_cart_pole(8, 2, rounds, seconds)
    print(
        f"CartPole-v1, 8 envs, 2 workers: {cart_pole[0].median:,.0f} steps/s, "
        f"{cart_pole[0].ratio_to(cart_pole[1]):.2f} times AsyncVectorEnv ({cart_pole[1].median:,.0f})"
    )
    busy = measure_busy_share(workers, rounds, seconds)
    print(f"envs of 100 microseconds on {workers} workers: {busy['median']:.2f} of cores / step time")
    uneven = measure_uneven(rounds, seconds)
    for name, (ours, plain) in uneven.items():
        print(f"one env ten times as slow, {name}: {ours.ratio_to(plain):.2f} times the plain rate")
    results = {
        "round": round_cost,
        "cart_pole": [rates.as_dict() for rates in cart_pole],
        "busy": busy,
        "uneven": {name: [rates.as_dict() for rates in pair] for name, pair in uneven.items()},
    }
    samples = {
        "round of 2 workers": Samples(tuple(round_cost["microseconds"]), "us", higher_is_better=False),
        "busy share": Samples(tuple(busy["shares"]), "of cores / step time"),
        **samples_of(cart_pole, "steps/s", theirs=["gymnasium-async"]),
    }
    for pair in uneven.values():
        samples.update(samples_of(pair, "steps/s"))
    settings = {"rounds": rounds, "seconds": seconds, "workers": workers}
    return publish(arguments, "workers", settings=settings, results=results, samples=samples)
