"""A first use of an installed vecenv: ``python smoke.py ENV [ENV ...]`` steps four environments of each in two workers.

Run it from a folder outside the checkout. It has no ``if __name__ == "__main__"`` on purpose: scripts without it work,
and workers must not take files that lie beside the script for parts of vecenv.
"""

from __future__ import annotations

import sys

import numpy as np

import vecenv
import vecenv.agents
import vecenv.benchmarks
import vecenv.preprocess

if not vecenv.__file__.startswith(sys.prefix):
    sys.exit(f"vecenv comes from {vecenv.__file__}, not from the environment {sys.prefix}")
for env_id in sys.argv[1:]:
    with vecenv.make_vec(env_id, 4, "subproc", num_workers=2) as envs:
        first, _ = envs.reset(seed=0)
        for _ in range(20):
            observations, *_ = envs.step(envs.action_space.sample())
    if observations.shape != first.shape or not np.isfinite(observations).all() or (observations == first).all():
        sys.exit(f"{env_id}: 20 steps gave no observations that can be right")
    print("stepped", env_id, observations.shape, observations.dtype)
