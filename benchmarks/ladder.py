"""A speed ladder: rungs that each change one thing, measured here and shown beside the figures of a document.

The documents are written accounts of earlier implementations of the same ladder; the notes of each ladder tell what is
known of them, such as the hardware, and how their figures are meant (`CONTEXT_ONLY`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from .arguments import check_known

#: Key of a ladder -> module whose ``make_ladder`` makes it; imported when the ladder is asked for.
LADDERS = {
    "dqn": "vecenv.benchmarks.ladder_dqn",
    "ppo": "vecenv.benchmarks.ladder_ppo",
    "es": "vecenv.benchmarks.ladder_es",
}
#: What the notes of every ladder say of the figures that it quotes.
CONTEXT_ONLY = (
    "No publication is known here that could be cited for these figures: they are of other hardware and other code, "
    "stand beside ours as context only, and are no results of ours."
)


class RungContestant(Protocol):
    """A rung at work."""

    def measure(self, seconds: float) -> float:
        """Work for about `seconds` seconds; returns units of work per second."""
        ...

    def close(self) -> None:
        """End everything that was started, processes included."""
        ...


@runtime_checkable
class HasFigures(Protocol):
    """A contestant that measures more than its rate."""

    def figures(self) -> Mapping[str, float]:
        """Called once after the last round: further columns of the table, such as ``{"bytes per pair": 24.0}``."""
        ...


@dataclass(frozen=True)
class Theirs:
    """What a document reports for a rung, on its hardware. No result of ours.

    Attributes:
        source: the document, such as ``"document 1"``, as the notes of the ladder name it.
        rate: its figure in the ladder's unit; None where it gives none.
        text: what else it says, such as ``"52 min to solve"``.
    """

    source: str
    rate: float | None = None
    text: str = ""

    def __str__(self) -> str:
        """For the table."""
        rate = [] if self.rate is None else [f"{self.rate:,g}"]
        return f"{self.source}: {', '.join([*rate, *([self.text] if self.text else [])])}"


@dataclass(frozen=True)
class SolveResult:
    """One training of a rung, from its first step to the mark.

    Attributes:
        seconds: wall-clock seconds, building included.
        env_steps: steps of all environments together.
        solved: whether the mark was reached; otherwise a limit ended the training.
        mean_return: of the last episodes, None where none finished.
        figures: whatever else was measured, by name.
    """

    seconds: float
    env_steps: int
    solved: bool
    mean_return: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


class Solve(Protocol):
    """Trains a rung to the ladder's mark."""

    def __call__(self, seed: int, max_seconds: float) -> SolveResult:
        """Train with the code of ``vecenv train``.

        Args:
            seed: of everything random.
            max_seconds: the training is ended after this, solved or not.
        """
        ...


@dataclass(frozen=True)
class Rung:
    """One step of a ladder.

    Attributes:
        name: a short word, once per ladder and table, that ``--only`` takes.
        changes: what is different from the rung it is compared with.
        build: builds what is measured; None: the rung is only for ``--solve``.
        documents: what the documents report.
        solve: trains it to the mark; None where that has no sense.
        settings: plain values that decide the result; a result found earlier counts only if they are the same.
        not_applicable: says in one sentence why this machine cannot run it; None where it can.
        base: name of the rung in the same table that this one changes, where that is not the first.
    """

    name: str
    changes: str
    build: Callable[[], RungContestant] | None = None
    documents: tuple[Theirs, ...] = ()
    solve: Solve | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    not_applicable: Callable[[], str | None] = lambda: None
    base: str | None = None


@dataclass(frozen=True)
class LadderTable:
    """Rungs that are measured in turns and compared with the first of them.

    Attributes:
        key: a short word, once per ladder.
        title: line above the table.
        rungs: the base first.
        cumulative: whether a rung keeps what those before it changed.
    """

    key: str
    title: str
    rungs: tuple[Rung, ...]
    cumulative: bool = False


@dataclass(frozen=True)
class Ladder:
    """All rungs of one kind of training.

    Attributes:
        key: its name on the command line.
        title: algorithm and environment.
        unit: what the rates count, such as ``"agent steps/s"``.
        mark: what counts as solved, in words.
        tables: at least one. A rung that stands in two of them under the same name is trained once.
        notes: lines below the tables: what was shortened, and why.
        solve_notes: more of them for trainings to the mark, whose tables have columns of their own.
        solve_minutes: limit of one training unless told otherwise.
    """

    key: str
    title: str
    unit: str
    mark: str
    tables: tuple[LadderTable, ...]
    notes: tuple[str, ...] = ()
    solve_notes: tuple[str, ...] = ()
    solve_minutes: float = 60.0


def needs(is_here: Callable[[], object], otherwise: str) -> Callable[[], str | None]:
    """For `Rung.not_applicable`.

    Args:
        is_here: looked at when a rung is about to be run.
        otherwise: the sentence for a machine where it is not.
    """
    return lambda: None if is_here() else f"not applicable: {otherwise}"


def find_ladder(key: str) -> Ladder:
    """A ladder by its key.

    Raises:
        UnknownSetting: there is no such ladder; the message lists what there is.
    """
    check_known([key], list(LADDERS), "ladder")
    ladder: Ladder = importlib.import_module(LADDERS[key]).make_ladder()
    return ladder
