"""The speed ladder of PPO on CartPole: from one environment in one process to what ``vecenv train ppo`` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import vecenv
from vecenv import VecEnv
from vecenv.agents.algorithms import find_algorithm, preset_for
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.learner import UpdateReport
from vecenv.agents.ppo import PPO
from vecenv.agents.training_run import TrainingRun

from .copied_storage import with_copied_storage
from .ladder import CONTEXT_ONLY, Ladder, LadderTable, Rung, SolveResult, Theirs
from .ladder_training import MakeEnvs, TrainingContestant, TrainingSetup, train_to_mark
from .learner_watch import BusyShare, ReturnCurve

ENV = "CartPole-v1"
SOLVE_AT = 475.0
#: The account whose figures are quoted; the last of the notes says what is known of it.
DOCUMENT = "PPO document"
#: Env steps per update of every rung, so that all learn equally often.
ROWS = 1024
NUM_ENVS = 8


class WatchedPPO(TrainingContestant):
    """PPO at work, and how much of the time its network computes.

    Args:
        setup: what to train.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        super().__init__(setup, warm_up_steps=ROWS)
        self._share = BusyShare(cast(PPO, self.run.learner))

    def measure(self, seconds: float) -> float:
        """As of any training."""
        rate: float = self._share.during(lambda: super(WatchedPPO, self).measure(seconds))
        return rate

    def figures(self) -> Mapping[str, float]:
        """Shares of the time of all rounds."""
        return self._share.figures()


class Onlooker:
    """Looks on at a training to the mark.

    Args:
        run: not begun yet.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._share, self._curve = BusyShare(cast(PPO, run.learner)), ReturnCurve()
        self._train_once = run.learner.train_once
        setattr(run.learner, "train_once", self._watched)  # noqa: B010 - mypy lets no method be replaced

    def _watched(self, stop_requested: Callable[[], bool]) -> UpdateReport:
        report: UpdateReport = self._share.during(lambda: self._train_once(stop_requested))
        self._curve.add(report)
        return report

    def figures(self) -> Mapping[str, float]:
        """Shares of the time, and the roughness of the curve."""
        return {**self._share.figures(), **self._curve.figures()}


def solve(setup: TrainingSetup, seed: int, max_seconds: float) -> SolveResult:
    """`train_to_mark` with an onlooker's figures."""
    onlookers: list[Onlooker] = []
    watched = dataclasses.replace(setup, change=lambda run: onlookers.append(Onlooker(run)))
    result = train_to_mark(watched, seed, max_seconds)
    return dataclasses.replace(result, figures=onlookers[0].figures())


def config_of(num_envs: int, backend: str, num_workers: int | None = None, *, overlap: bool = False) -> RunConfig:
    """The default hyper-parameters on other environments, with as many env steps per update."""
    settings = dataclasses.replace(PPOConfig(), num_envs=num_envs, num_steps=ROWS // num_envs, overlap=overlap)
    return _run_config(settings, backend, num_workers)


def default_config() -> RunConfig:
    """What ``vecenv train ppo --env CartPole-v1 --solve-at 475`` runs."""
    settings: PPOConfig = preset_for(find_algorithm("ppo"), ENV)
    return _run_config(settings, RunConfig(ENV).backend, None)


def _run_config(settings: PPOConfig, backend: str, num_workers: int | None) -> RunConfig:
    return RunConfig(ENV, backend=backend, num_workers=num_workers, solve_at=SOLVE_AT, settings=settings)


def make_copying_envs(config: RunConfig) -> VecEnv:
    """Environments whose observations are copied twice in every step: for the caller, and into the rollout."""
    settings = config.settings
    envs = vecenv.make_vec(
        config.env,
        settings.num_envs,
        config.backend,
        num_workers=config.num_workers,
        copy=True,
        statistics=True,
    )
    return with_copied_storage(envs, settings.num_steps)


def _rung(name: str, changes: str, config: RunConfig, *documents: Theirs, make_envs: MakeEnvs | None = None) -> Rung:
    setup = TrainingSetup(config, make_envs)
    return Rung(
        name,
        changes,
        build=partial(WatchedPPO, setup),
        documents=documents,
        solve=partial(solve, setup),
        settings={**dataclasses.asdict(config), "copied_storage": make_envs is not None},
    )


def _climb() -> LadderTable:
    return LadderTable(
        "cumulative",
        f"each rung on top of the one before, {ROWS:,} env steps per update",
        (
            _rung(
                "serial",
                "1 env in the learner's process, storage copied",
                config_of(1, "sync"),
                Theirs(DOCUMENT, text="4 h, GPU used 15 %"),
                make_envs=make_copying_envs,
            ),
            _rung(
                "one-process",
                f"{NUM_ENVS} envs, still in the learner's process",
                config_of(NUM_ENVS, "sync"),
                make_envs=make_copying_envs,
            ),
            _rung(
                "worker-per-env",
                f"{NUM_ENVS} workers with one env each",
                config_of(NUM_ENVS, "subproc", NUM_ENVS),
                Theirs(DOCUMENT, text="35 min, GPU used 85 %, curve 60 % less rough"),
                make_envs=make_copying_envs,
            ),
            _rung(
                "worker-per-core",
                f"{NUM_ENVS} envs, a worker per usable core",
                config_of(NUM_ENVS, "subproc"),
                make_envs=make_copying_envs,
            ),
            _rung("in-place", "workers write into the rollout itself", config_of(NUM_ENVS, "subproc")),
            _rung(
                "two-groups",
                "one half of the envs steps while the policy decides for the other",
                config_of(NUM_ENVS, "subproc", overlap=True),
            ),
            _rung("default", f"vecenv train ppo --env {ENV}", default_config()),
        ),
        cumulative=True,
    )


def make_ladder() -> Ladder:
    """The ladder of PPO."""
    return Ladder(
        key="ppo",
        title=f"PPO on {ENV}",
        unit="agent steps/s",
        mark=f"mean return of the last 100 episodes >= {SOLVE_AT:g}",
        tables=(_climb(),),
        notes=(
            "busy share: part of the wall-clock in which the network decides or learns, timed around the calls "
            "themselves; learning alone: part of the wall-clock in which it learns; process on CPU: processor time of "
            "the learner's process over wall-clock, environments in it included.",
            "CartPole steps in less time than waking a worker takes (vecenv bench workers): the default steps such "
            "environments in the learner's process, and workers pay only where a step costs more.",
            f"the default has {default_config().settings.num_envs} envs, whose storage is the rollout itself.",
            f"{DOCUMENT}: a written account of an earlier PPO over 8 worker processes and a GPU; the GPU's "
            f"model and the number of cores are not known here. {CONTEXT_ONLY}",
        ),
        solve_notes=(
            "roughness: standard deviation of the differences of successive mean returns, "
            f"one per {ROWS:,} env steps, over the range of these means.",
        ),
        solve_minutes=10.0,
    )
