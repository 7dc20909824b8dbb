"""An environment of your own on the compiled back end: three functions on one row of a batch, and a registration.

python examples/compiled_env.py
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

import vecenv
from vecenv.pcg64 import uniform


class Walk(NamedTuple):
    """A walk on a line: home is 0, lost is beyond the edge."""

    edge: float = 10.0
    wind: float = 0.5


def start(state, row, generators, bounds, parameters):
    state[0, row] = uniform(generators, row, bounds[0], bounds[1])


def advance(state, row, actions, generators, parameters):
    gust = uniform(generators, row, -parameters.wind, parameters.wind)
    state[0, row] += (1.0 if actions[row] == 1 else -1.0) + gust
    return -abs(state[0, row]), abs(state[0, row]) > parameters.edge  # reward, terminated


def observe(state, row, observations, parameters):
    observations[row, 0] = state[0, row]


walk = vecenv.CompiledEnv(
    observation_space=spaces.Box(-np.inf, np.inf, (1,), np.float32),
    action_space=spaces.Discrete(2),
    state_size=1,
    parameters=Walk(),
    start=start,
    advance=advance,
    observe=observe,
    bounds=(-5.0, 5.0),
    max_episode_steps=100,
    keywords={"wind": "wind"},
)
vecenv.register_compiled_env("examples/Walk-v0", walk)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An environment of your own on the compiled back end.")
    parser.add_argument("--short", action="store_true", help="fewer steps")
    steps = 200 if parser.parse_args().short else 10_000
    with vecenv.make_vec("examples/Walk-v0", 1024, "compiled", statistics=True, wind=0.2) as envs:
        observations, _ = envs.reset(seed=0)
        observations, *_ = envs.step((observations[:, 0] < 0).astype(np.int64))  # compiled here
        began = time.perf_counter()
        for _ in range(steps):
            observations, *_ = envs.step((observations[:, 0] < 0).astype(np.int64))  # towards home
        rate = steps * envs.num_envs / (time.perf_counter() - began)
        print(f"{rate / 1e6:.1f} million steps/s, mean return {np.nanmean(envs.episode_statistics().last_returns):.1f}")
