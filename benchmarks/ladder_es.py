"""The speed ladder of evolution strategies on HalfCheetah: from one observation per forward pass to a population."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from vecenv.agents.algorithms import find_algorithm, preset_for
from vecenv.agents.config import RunConfig
from vecenv.agents.es_config import ESConfig
from vecenv.agents.training_run import TrainingRun
from vecenv.cores import usable_cores

from .bare_engine import bare_envpool, bare_gymnasium
from .ladder import CONTEXT_ONLY, Ladder, LadderTable, Rung, Theirs, needs
from .ladder_training import TrainingContestant, TrainingSetup, train_to_mark
from .one_by_one import OneByOneEngine, OneByOneProcesses, OneByOneSetup

ENV = "HalfCheetah-v5"
SOLVE_AT = 1_500.0
#: The account whose figures are quoted; the last of the notes says what is known of it.
DOCUMENT = "ES document"
#: Pairs per process and sample of the rungs without a batch, whose rate does not depend on how many there are.
PAIRS_PER_PROCESS = 4


class PayloadCounted(TrainingContestant):
    """A run of ES, and how many bytes come back from its workers per pair.

    Args:
        setup: what to train.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        super().__init__(setup, warm_up_steps=0)

    def figures(self) -> Mapping[str, float]:
        """Payload of the results, without frames around messages; nothing where there are no workers."""
        learner: Any = self.run.learner
        received = getattr(learner.engine, "bytes_received", None)
        if received is None or learner.generation == 0:
            return {}
        return {"bytes per pair": received / (learner.generation * learner.config.played_pairs)}


def put_one_by_one(run: TrainingRun, *, num_workers: int = 0, sends_noise: bool = False) -> None:
    """Let members be played one after the other, with a forward pass per observation.

    Args:
        run: of ES on an environment of Gymnasium.
        num_workers: processes; 0: in this one.
        sends_noise: whether workers send each pair's noise back.
    """
    learner: Any = run.learner
    learner.engine.close()
    setup = OneByOneSetup(run.config.env, learner.config, run.config.seed, sends_noise)
    learner.engine = OneByOneProcesses(setup, num_workers) if num_workers else OneByOneEngine(setup)


def config_of(backend: str, *, device: str = "cpu", **changes: Any) -> RunConfig:
    """The preset for `ENV` on another back end."""
    settings: ESConfig = preset_for(find_algorithm("es"), ENV)
    settings = dataclasses.replace(settings, **changes)
    return RunConfig(ENV, backend=backend, device=device, solve_at=SOLVE_AT, algorithm="es", settings=settings)


def _needs_envpool() -> Callable[[], str | None]:
    return needs(lambda: find_spec("envpool"), "EnvPool is not installed")


def _one_by_one(name: str, changes: str, *documents: Theirs, base: str | None = None, **how: Any) -> Rung:
    """A rung without a batch; rates are measured on fewer pairs than trainings are."""
    change = partial(put_one_by_one, **how)
    # Two environments tell the spaces; nobody plays in them.
    config = config_of("sync", engine="inline", pairs_at_once=1)
    num_pairs = PAIRS_PER_PROCESS * max(1, how.get("num_workers", 0))
    short = dataclasses.replace(config, settings=dataclasses.replace(config.settings, num_pairs=num_pairs))
    return Rung(
        name,
        changes,
        build=partial(PayloadCounted, TrainingSetup(short, change=change)),
        documents=documents,
        solve=partial(train_to_mark, TrainingSetup(config, change=change)),
        settings={**dataclasses.asdict(config), **how, "one_by_one": True, "pairs_per_sample": num_pairs},
        base=base,
    )


def _population(
    name: str,
    changes: str,
    config: RunConfig,
    *documents: Theirs,
    base: str | None = None,
    not_applicable: Callable[[], str | None] = lambda: None,
) -> Rung:
    setup = TrainingSetup(config)
    return Rung(
        name,
        changes,
        build=partial(PayloadCounted, setup),
        documents=documents,
        solve=partial(train_to_mark, setup),
        settings=dataclasses.asdict(config),
        not_applicable=not_applicable,
        base=base,
    )


def _default(num_workers: int, base: str) -> Rung:
    changes = f"the population in {num_workers} processes: vecenv train es"
    return _population("population", changes, config_of("auto-fast"), base=base)


def _on_envpool(num_workers: int, base: str) -> Rung:
    changes = f"{num_workers} processes on EnvPool: --backend envpool"
    return _population("envpool", changes, config_of("envpool"), base=base, not_applicable=_needs_envpool())


def _climb(num_workers: int) -> LadderTable:
    num_members = config_of("sync").settings.num_envs
    engine = "envpool" if find_spec("envpool") else "sync"
    return LadderTable(
        "cumulative",
        "each rung on top of the one before",
        (
            _one_by_one("one-network", "one process, one observation per forward pass"),
            _one_by_one(
                "noise-sent",
                f"{num_workers} processes, one network each; noise comes back with the scores",
                num_workers=num_workers,
                sends_noise=True,
            ),
            _one_by_one(
                "seeds-sent",
                "in place of the noise comes back the key (the seed) that draws it again",
                Theirs(DOCUMENT, 20_000, "up to 21,000, in 6 processes; return 1,500-1,600 after 100 updates"),
                num_workers=num_workers,
            ),
            _population(
                "population-inline",
                f"one process, {num_members} members in one forward pass",
                config_of("sync", engine="inline"),
                base="one-network",
            ),
            _default(num_workers, base="seeds-sent"),
            _on_envpool(num_workers, base="seeds-sent"),
            _population(
                "cuda",
                f"one process, the {num_members} members' networks on the GPU",
                config_of(engine, device="cuda", engine="inline"),
                Theirs(DOCUMENT, 9_000, "one observation per forward pass"),
                base="seeds-sent",
                not_applicable=needs(torch.cuda.is_available, "torch finds no CUDA device here"),
            ),
        ),
        cumulative=True,
    )


def _against_engines(num_workers: int) -> LadderTable:
    num_envs = config_of("envpool").settings.num_envs
    return LadderTable(
        "engines",
        "against the engine alone, stepped with random actions",
        (
            Rung(
                "bare-gymnasium",
                f"{num_workers} processes, no network",
                build=partial(bare_gymnasium, ENV, num_workers),
                settings={"num_workers": num_workers},
            ),
            _default(num_workers, base="bare-gymnasium"),
            Rung(
                "bare-envpool",
                f"{num_workers} threads, {num_envs} envs, no network",
                build=partial(bare_envpool, ENV, num_envs, num_workers),
                settings={"num_workers": num_workers, "num_envs": num_envs},
                not_applicable=_needs_envpool(),
            ),
            _on_envpool(num_workers, base="bare-envpool"),
        ),
    )


def make_ladder() -> Ladder:
    """The ladder of evolution strategies, for the cores and packages of this machine."""
    return Ladder(
        key="es",
        title=f"ES on {ENV}",
        unit="observations/s",
        mark=f"mean return of the last 100 members' episodes >= {SOLVE_AT:,g}",
        tables=(_climb(usable_cores()), _against_engines(usable_cores())),
        notes=(
            f"rates are of whole generations of {config_of('sync').settings.num_pairs} pairs and whole episodes, "
            f"update included; rungs without a batch play {PAIRS_PER_PROCESS} pairs per process instead, which "
            "shortens a sample and not a step.",
            "x before compares population-inline with one-network and the rungs below it with seeds-sent; in the "
            "second table, population with bare-gymnasium and envpool with bare-envpool.",
            "a pair: two members, whose parameters have the same noise added and subtracted; bytes per pair: what "
            "workers send back of it, without what a message has around it. In noise-sent the learner draws the noise "
            "again all the same.",
            f"{DOCUMENT}: a written account of an earlier ES whose workers send seeds in place of noise, in 6 "
            f"processes on a CPU and once with CUDA; the models of CPU and GPU are not known here. {CONTEXT_ONLY}",
        ),
        solve_minutes=30.0,
    )
