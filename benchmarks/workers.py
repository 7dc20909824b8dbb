"""``vecenv bench workers``: what a round of messages costs, how busy workers are kept, and what uneven envs cost."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine

from .report import default_path, write_json
from .timing import Rates, alternate, measure_rate


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


class Steps:
    """Steps a vector env whole, or in parts of its `batch_size`."""

    def __init__(self, name: str, envs: Any) -> None:
        self.name = name
        self.envs = envs
        self.parts = getattr(envs, "batch_size", envs.num_envs) < envs.num_envs
        self.actions = np.zeros(envs.num_envs, np.int64)
        envs.reset(seed=0)
        if self.parts:
            envs.send(self.actions, np.arange(envs.num_envs))

    def _work(self) -> int:
        if not self.parts:
            self.envs.step(self.actions)
            return int(self.envs.num_envs)
        env_ids = self.envs.recv()[4]["env_id"]
        self.envs.send(self.actions[: len(env_ids)], env_ids)
        return len(env_ids)

    def measure(self, seconds: float) -> float:
        """Env steps per second."""
        return measure_rate(self._work, seconds)


def _ours(fns: Sequence[Callable[[], Any]], num_workers: int, **settings: Any) -> Any:
    from vecenv import SubprocVecEnv

    return SubprocVecEnv(fns, num_workers=num_workers, **settings)


def measure_round(workers: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Steps of envs that cost nothing, one per worker: what is left is the round itself, in microseconds."""
    envs = _ours([TimedEnv] * workers, workers)
    (rates,) = alternate([Steps("round", envs)], rounds=rounds, seconds=seconds)
    envs.close()
    samples = [workers / rate * 1e6 for rate in rates.samples]
    return {"microseconds": samples, "median": float(np.median(samples))}


def measure_cart_pole(num_envs: int, workers: int, rounds: int, seconds: float) -> list[Rates]:
    """CartPole-v1 against Gymnasium's vector envs."""
    fns = [functools.partial(gymnasium.make, "CartPole-v1")] * num_envs
    contestants = [
        Steps("subproc", _ours(fns, workers)),
        Steps("gymnasium-async", gymnasium.vector.AsyncVectorEnv(fns)),
    ]
    rates = alternate(contestants, rounds=rounds, seconds=seconds)
    for contestant in contestants:
        contestant.envs.close()
    return rates


def measure_busy_share(workers: int, rounds: int, seconds: float, step_seconds: float = 100e-6) -> dict[str, Any]:
    """Envs that keep a core busy for 100 microseconds: steps per second over cores / step time."""
    envs = _ours([functools.partial(TimedEnv, step_seconds)] * (8 * workers), workers)
    (rates,) = alternate([Steps("busy", envs)], rounds=rounds, seconds=seconds)
    envs.close()
    shares = [rate * step_seconds / workers for rate in rates.samples]
    return {"shares": shares, "median": float(np.median(shares))}


def measure_uneven(rounds: int, seconds: float, step_seconds: float = 0.001) -> dict[str, list[Rates]]:
    """One env ten times as slow as the others: half batches and balancing against the plain way."""
    slow, fast = functools.partial(TimedEnv, 10 * step_seconds, True), functools.partial(TimedEnv, step_seconds, True)
    eight, many = [slow] + [fast] * 7, [slow] + [fast] * 31
    comparisons = {
        "batch_size": [
            Steps("half batches", _ours(eight, 8, batch_size=4)),
            Steps("whole batches", _ours(eight, 8)),
        ],
        "balance": [
            Steps("balanced", _ours(many, 4, balance=True)),
            Steps("not balanced", _ours(many, 4)),
        ],
    }
    results = {}
    for name, contestants in comparisons.items():
        results[name] = alternate(contestants, rounds=rounds, seconds=seconds, warm_up_seconds=3.0)
        for contestant in contestants:
            contestant.envs.close()
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write a JSON file.

    Args:
        argv: words after ``vecenv bench workers``; None: those of this process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="vecenv bench workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one sample (default 1)")
    parser.add_argument("--json", type=Path, help="where to write the result (default results/workers-TIME.json)")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1 or not 0 < arguments.seconds < 3600:
        parser.error("--rounds must be at least 1 and --seconds above 0 and below an hour")
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
    path = arguments.json or default_path("workers")
    write_json(
        path, name="workers", settings={"rounds": rounds, "seconds": seconds, "workers": workers}, results=results
    )
    print(f"written to {path}")
    return 0
