"""The speed ladder of DQN on Pong."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from vecenv.agents.config import RunConfig
from vecenv.agents.dqn_config import DQN_PRESETS

from .ladder import Ladder, LadderTable, Rung, Theirs
from .ladder_training import TrainingContestant, train_to_mark

ENV = "PongNoFrameskip-v4"
SOLVE_AT = 18.0
#: Env steps played before learning begins, in the measurement of rates only.
RATE_LEARNING_STARTS = 1_000
RATE_REPORT_STEPS = 32


def _config(preset: str = "ladder-baseline", run: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    settings = dataclasses.replace(DQN_PRESETS[preset], **changes)
    return RunConfig(ENV, algorithm="dqn", settings=settings, solve_at=SOLVE_AT, checkpoint_seconds=1e9, **(run or {}))


def _for_rates(config: RunConfig) -> RunConfig:
    short = {"learning_starts": RATE_LEARNING_STARTS, "report_steps": RATE_REPORT_STEPS}
    return dataclasses.replace(config, settings=dataclasses.replace(config.settings, **short))


def _contestant(config: RunConfig) -> TrainingContestant:
    return TrainingContestant(_for_rates(config), warm_up_steps=RATE_LEARNING_STARTS + 4 * RATE_REPORT_STEPS)


def _rung(name: str, changes: str, config: RunConfig, *documents: Theirs) -> Rung:
    return Rung(
        name,
        changes,
        build=partial(_contestant, config),
        documents=documents,
        solve=partial(train_to_mark, config),
        settings=dataclasses.asdict(config),
    )


LADDER = Ladder(
    key="dqn",
    title=f"DQN on {ENV}",
    unit="agent steps/s",
    mark=f"mean return of the last 100 episodes >= {SOLVE_AT:g}",
    tables=(
        LadderTable(
            "single",
            "single changes on the base",
            (
                _rung(
                    "base",
                    "1 env, batch 32, an update per step",
                    _config(),
                    Theirs("document 1", 227, "52 min to solve"),
                    Theirs("document 2", 154, "60-90 min to solve"),
                ),
            ),
        ),
    ),
)
