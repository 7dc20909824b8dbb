"""Rungs that are trainings: the rate of a real learner at work, and a whole training to its mark."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vecenv import VecEnv
from vecenv.agents.config import RunConfig
from vecenv.agents.display import ProgressDisplay, quiet_console
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.training_run import TrainingRun

from .ladder import SolveResult

MakeEnvs = Callable[[RunConfig], VecEnv]
Change = Callable[[TrainingRun], None]


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """A run, and what a rung changes about it beyond its settings.

    Attributes:
        config: settings of the run; ``solve_at`` is its mark.
        make_envs: builds the environments in place of the run; they are closed with it.
        change: is given the run once it is built.
    """

    config: RunConfig
    make_envs: MakeEnvs | None = None
    change: Change | None = None

    @contextlib.contextmanager
    def build(self) -> Iterator[TrainingRun]:
        """Build the run; environments and run are closed afterwards."""
        with contextlib.ExitStack() as stack:
            envs = None
            if self.make_envs is not None:
                envs = stack.enter_context(contextlib.closing(self.make_envs(self.config)))
            run = stack.enter_context(TrainingRun(self.config, envs=envs))
            if self.change is not None:
                self.change(run)
            yield run


class TrainingContestant:
    """A training run, driven one report after the other; the rate counts playing and learning.

    Args:
        setup: what to train.
        warm_up_steps: env steps taken before anything is measured; enough that learning has begun.
    """

    def __init__(self, setup: TrainingSetup, *, warm_up_steps: int) -> None:
        with contextlib.ExitStack() as stack:
            self.run = stack.enter_context(setup.build())
            self.run.learner.reset(seed=setup.config.seed)
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


def train_to_mark(setup: TrainingSetup, seed: int, max_seconds: float) -> SolveResult:
    """Train as ``vecenv train`` does; the run's files are thrown away.

    Args:
        setup: what to train.
        seed: of everything random.
        max_seconds: the training is ended after this.

    Returns:
        What came of it. A training whose numbers are no longer finite has not reached the mark; the reason is printed.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the training.
    """
    config = dataclasses.replace(setup.config, seed=seed, max_seconds=max_seconds)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="vecenv-ladder-") as folder,
        dataclasses.replace(setup, config=config).build() as run,
    ):
        display = ProgressDisplay(config.settings.total_steps, config.solve_at, quiet_console())
        try:
            summary = run.train(RunDirectory(Path(folder) / "run"), display)
        except FloatingPointError as error:  # one bad rung must not end the list of all others
            print(f"the training with seed {seed} failed: {error}", file=sys.stderr)
            return SolveResult(time.perf_counter() - start, run.learner.env_steps, solved=False)
        seconds = time.perf_counter() - start
    if summary["stopped_by"] == "interrupted":
        raise KeyboardInterrupt
    return SolveResult(seconds, summary["env_steps"], summary["solved"], summary["mean_return"])
