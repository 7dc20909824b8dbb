"""Rungs that are trainings: the rate of a real learner at work, and a whole training to its mark."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vecenv import VecEnv
from vecenv.agents.config import RunConfig
from vecenv.agents.display import ProgressDisplay, quiet_console
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.training_run import TrainingRun

from .ladder import SolveResult

MakeEnvs = Callable[[RunConfig], VecEnv]
Watch = Callable[[TrainingRun], Callable[[], Mapping[str, float]]]
"""Is given a run before it trains, and gives a function that is asked for further figures afterwards."""


class TrainingContestant:
    """A training run, driven one report after the other; the rate counts playing and learning.

    Args:
        config: the run.
        warm_up_steps: env steps taken before anything is measured; enough that learning has begun.
        make_envs: builds the environments in place of the run; they are closed with it.
    """

    def __init__(self, config: RunConfig, *, warm_up_steps: int, make_envs: MakeEnvs | None = None) -> None:
        with contextlib.ExitStack() as stack:
            envs = None
            if make_envs is not None:
                envs = stack.enter_context(contextlib.closing(make_envs(config)))
            self.run = stack.enter_context(TrainingRun(config, envs=envs))
            self.run.learner.reset(seed=config.seed)
            self.run.learner.prepare()
            while self.run.learner.env_steps < warm_up_steps:
                self.run.learner.train_once(lambda: False)
            self._at_close = stack.pop_all()

    def measure(self, seconds: float) -> float:
        """Train for `seconds` seconds, the report begun last is finished.

        Returns:
            Env steps per second, all environments together.
        """
        learner, before, start = self.run.learner, self.run.learner.env_steps, time.perf_counter()
        while True:
            learner.train_once(lambda: False)
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return (learner.env_steps - before) / elapsed

    def close(self) -> None:
        """End the learner, its processes and environments; may be called again."""
        self._at_close.close()


def train_to_mark(
    config: RunConfig,
    seed: int,
    max_seconds: float,
    make_envs: MakeEnvs | None = None,
    watch: Watch = lambda run: dict,
) -> SolveResult:
    """Train as ``vecenv train`` does; the run's files are thrown away.

    Args:
        config: the run; ``solve_at`` is its mark.
        seed: of everything random.
        max_seconds: the training is ended after this.
        make_envs: builds the environments in place of the run; they are closed at the end.
        watch: looks on, or puts a part of its own into the run.
    """
    config = dataclasses.replace(config, seed=seed, max_seconds=max_seconds)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="vecenv-ladder-") as folder, contextlib.ExitStack() as stack:
        envs = None if make_envs is None else stack.enter_context(contextlib.closing(make_envs(config)))
        run = stack.enter_context(TrainingRun(config, envs=envs))
        figures = watch(run)
        display = ProgressDisplay(config.settings.total_steps, config.solve_at, quiet_console())
        summary = run.train(RunDirectory(Path(folder) / "run"), display)
        seconds = time.perf_counter() - start
    if summary["stopped_by"] == "interrupted":
        raise KeyboardInterrupt
    return SolveResult(seconds, summary["env_steps"], summary["solved"], summary["mean_return"], figures())
