"""The speeds that vecenv is meant to reach, and where in the results the figures stand that tell whether it does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .document_entries import GAMES, PONG
from .document_tables import rates_of
from .engines import ALLOWED
from .limits import VECENV

Document = Mapping[str, Any]
Read = Callable[[Document], float | None]


@dataclass(frozen=True)
class Target:
    """One figure and what it should be.

    Attributes:
        work: what is done.
        wanted: the target in words.
        entry: name of the measurement that has the figure.
        read: finds it there; None where that measurement did not make it.
        bound: the figure should be at least, or at most, this.
        at_least: which of the two.
        pattern: how the figure is shown.
        explained: page, beside the page of figures, that says why it is missed.
        why: the same in a few sentences, where there is no such page.
    """

    work: str
    wanted: str
    entry: str
    read: Read
    bound: float
    at_least: bool = True
    pattern: str = "{:.2f}x"
    explained: str = ""
    why: str = ""

    def figure(self, documents: Mapping[str, Document]) -> float | None:
        """What was reached; infinity for a mark that was not, None where it was not measured."""
        return self.read(documents[self.entry]) if self.entry in documents else None

    def is_met(self, figure: float) -> bool:
        """Whether a figure is good enough."""
        return figure >= self.bound if self.at_least else figure <= self.bound


HEADER = ("work", "target", "reached", "met", "measured by", "why not")


def target_rows(documents: Mapping[str, Document]) -> list[list[str]]:
    """Cells below `HEADER`, a line for every target.

    Args:
        documents: results by the name of their entry.
    """
    rows = []
    for target in TARGETS:
        figure = target.figure(documents)
        if figure is None:
            rows.append([target.work, target.wanted, "not measured", "-", target.entry, ""])
            continue
        shown = target.pattern.format(figure) if math.isfinite(figure) else "not reached"
        met = target.is_met(figure)
        rows.append([target.work, target.wanted, shown, "yes" if met else "**no**", target.entry])
        rows[-1].append("" if met else _link(target.explained) if target.explained else "below")
    return rows


def misses(documents: Mapping[str, Document]) -> list[str]:
    """An item of a list in Markdown for every target that was measured and is not met: why, as far as it is known.

    Args:
        documents: results by the name of their entry.
    """
    items = []
    for target in TARGETS:
        figure = target.figure(documents)
        if figure is None or target.is_met(figure):
            continue
        why = f"See {_link(target.explained)}." if target.explained else target.why or "Why is not known yet."
        items.append(f"- {target.work}, {target.wanted}: {why}")
    return items


def _link(page: str) -> str:
    return f"[{page}]({page})"


def _times(other: str, document: Document) -> float | None:
    """How many times as fast as `other` the first row is; `other` is how its name begins."""
    for against in document["results"]["ratios_of_first"].values():
        for name, ratio in against.items():
            if name.startswith(other):
                return float(ratio)
    return None


def _share(game: str, document: Document) -> float | None:
    result = document["results"].get(f"{game}NoFrameskip-v4")
    return None if result is None else float(result["shares"][VECENV])


def _kernel(stage: str, document: Document) -> float | None:
    """Microseconds of the fused kernel on recorded frames."""
    rows = [row for row in document["results"]["rates"] if row["name"] == f"vecenv: {stage}"]
    return 1e6 / rows[0]["median"] if rows else None


def _over_async(document: Document) -> float:
    ours, theirs = rates_of(document["results"]["cart_pole"])
    return ours.ratio_to(theirs)


def _compiled(num_envs: int, ours: str, theirs: str, document: Document) -> float | None:
    result = document["results"].get(str(num_envs))
    return None if result is None else result["ratios"].get(ours, {}).get(theirs)


def _adapter(engine: str, num_envs: int, document: Document) -> float | None:
    """Share of the time per step that the adapter of an engine costs."""
    result = document["results"].get(f"{PONG}, {engine}, {num_envs} envs")
    return None if result is None else float(result["cost"][0])


def _start_seconds(document: Document) -> float | None:
    build, settings = document["results"]["build"].get("subproc"), document["settings"]
    if build is None or (settings["env_id"], settings["num_envs"]) != (PONG, 16):
        return None
    return float(statistics.median(sum(run["seconds"]) for run in build["warm"]))


def _worker_memory(document: Document) -> float | None:
    """MB of the largest worker; with 16 envs and 2 workers each has 8."""
    build, settings = document["results"]["build"].get("subproc"), document["settings"]
    if build is None or (settings["env_id"], settings["num_envs"]) != (PONG, 8 * settings["num_workers"]):
        return None
    return float(max(size for run in build["warm"] for size in run["private_bytes"])) / 1e6


def _times_before(table: str, rung: str, document: Document) -> float | None:
    """How many times as fast a rung of ES is as the one it changes."""
    for row in document["results"]["rungs"]:
        if (row["ladder"], row["table"], row["rung"]) == ("es", table, rung):
            return None if row["times_before"] is None else float(row["times_before"])
    return None


def _runs(algorithm: str, env_id: str, document: Document, *, of: str = "runs") -> list[Mapping[str, Any]]:
    return [row for row in document["results"].get(of, ()) if (row["algorithm"], row["env"]) == (algorithm, env_id)]


def _solved_in(algorithm: str, env_id: str, mark: float, unit: float, document: Document) -> float | None:
    """Median seconds to the mark, in units of `unit`; one that has not reached it, or failed, counts as infinity."""
    rows = [*_runs(algorithm, env_id, document), *_runs(algorithm, env_id, document, of="failures")]
    rows = [row for row in rows if row["solve_at"] == mark]
    return statistics.median(row["seconds"] / unit if row["solved"] else math.inf for row in rows) if rows else None


def _first(points: Mapping[str, Sequence[float | None]], column: str, at_least: float, wanted: str) -> float:
    """The value of `wanted` where a column is first at least so much; infinity where it never is."""
    for value, place in zip(points[column], points[wanted], strict=True):
        if value is not None and place is not None and value >= at_least:
            return place
    return math.inf


def _cheetah(column: str, at_least: float, wanted: str, unit: float, document: Document) -> float | None:
    points = [row["points"] for row in _runs("es", "HalfCheetah-v5", document)]
    points = [one for one in points if column in one]
    if not points:
        return None
    failed = [math.inf for _ in _runs("es", "HalfCheetah-v5", document, of="failures")]
    return statistics.median([*(_first(one, column, at_least, wanted) / unit for one in points), *failed])


_PONG = "Pong, 16 envs, gray 84x84x4, skip 4, max-pool, sticky 0"
_ATARI = "atari-speed.md"
_SUBPROC = "CartPole, subproc, 8 envs, 2 workers"
_ROUND = (
    "On a machine of two cores a round takes about 80 us, of which 26 us are CartPole's own four steps in a worker, "
    "5 us what the worker does around them and 10 to 17 us the caller's Python; the rest are hand-overs between three "
    "processes on two cores."
)
_EMPTY = (
    "Most of it is handing over between three processes on two cores: 36 us where nothing else wants them, more in "
    "hours in which others have a share of this virtual machine's processor, as the emulator limit tells."
)
_SPAWNED = (
    "A worker that is spawned loads all by itself, so all counts as its own: Python, NumPy, Gymnasium and ale-py "
    "23 MB, Numba and LLVM 20 MB, kernels 9 MB, eight games 12 MB; with `forkserver`, the default, workers share all "
    "but the games."
)
_KERNEL = (
    "What is left is reading two screens and what they were before (134 kB a step), moving the stack on and the rows "
    "that did change; between steps the emulators take the caches. See [atari-speed.md](atari-speed.md)."
)
_LARGE = (
    "Half of a step is the physics, bound by its multiplications; ended episodes, observations and Python share the "
    "rest. Stepping blocks that fit a cache gained nothing."
)
_BARE = (
    "Both cores are busy 97 % of the time, with the bare engine 85 %: besides stepping, a generation has the forward "
    "passes of 120 networks, the checks and statistics of every step, and engines built anew with its seeds."
)
_CHEETAH_TIME = (
    "Both cores step EnvPool's physics nearly all the time, so it follows the hour: the same five trainings, bit for "
    "bit, took 250 to 275 s when nobody else wanted this virtual machine's processor."
)
_COMPILED = "CartPole, compiled, {:,} envs"
_CHEETAH = "ES on HalfCheetah-v5, 60 pairs"


def _pong(other: str, wanted: str, bound: float) -> Target:
    return Target(_PONG, wanted, "throughput-pong", partial(_times, other), bound, explained=_ATARI)


def _game(game: str) -> Target:
    wanted = "at least 0.88 of its own limit"
    return Target(f"{game}, 16 envs", wanted, "limits", partial(_share, game), 0.88, pattern="{:.2f}", explained=_ATARI)


def _kernels() -> list[Target]:
    found = []
    for num_envs, bounds in ((1024, (7.0, 4.0, 3.0)), (16384, (8.0, 5.0, 4.0))):
        names = ("compiled", "compiled, statistics", "compiled, SameStep")
        labels = ("statistics off", "statistics in infos", "SAME_STEP")
        for name, label, bound in zip(names, labels, bounds, strict=True):
            read = partial(_compiled, num_envs, name, "CartPoleVectorEnv")
            wanted = f"{label}: at least {bound:g}x Gymnasium's `CartPoleVectorEnv`"
            why = _LARGE if num_envs == 16384 else ""
            found.append(Target(_COMPILED.format(num_envs), wanted, "compiled", read, bound, why=why))
    read = partial(_compiled, 1024, "compiled", "EnvPool")
    return [*found, Target(_COMPILED.format(1024), "at least 60x EnvPool", "compiled", read, 60.0, pattern="{:.0f}x")]


def _at_most(work: str, wanted: str, entry: str, read: Read, bound: float, pattern: str, why: str = "") -> Target:
    return Target(work, wanted, entry, read, bound, at_least=False, pattern=pattern, why=why)


def _fused(rows: str, stage: str, bound: float) -> Target:
    wanted = f"at most {bound:g} us"
    return _at_most(f"fused kernel, {rows}", wanted, "wrappers", partial(_kernel, stage), bound, "{:.1f} us", _KERNEL)


TARGETS: tuple[Target, ...] = (
    _pong("emulator limit", "at least 0.90 of the emulator limit", 0.90),
    _pong("ale-py AtariVectorEnv", "at least 1.3x ale-py's `AtariVectorEnv`", 1.3),
    _pong("EnvPool", "at least 1.4x EnvPool", 1.4),
    _pong("Gymnasium AsyncVectorEnv", "at least 3.5x Gymnasium's `AsyncVectorEnv`", 3.5),
    _pong("SB3 SubprocVecEnv", "at least 3.5x SB3's `SubprocVecEnv`", 3.5),
    *(_game(game) for game in GAMES),
    _fused("changed rows only", "observe", 8.0),
    _fused("full game frame", "observe, whole frame", 20.0),
    Target(_SUBPROC, "at least 6x Gymnasium's `AsyncVectorEnv`", "workers", _over_async, 6.0, why=_ROUND),
    _at_most(
        "empty round of 2 workers",
        "at most 50 us",
        "workers",
        lambda document: float(document["results"]["round"]["median"]),
        50.0,
        "{:.0f} us",
        why=_EMPTY,
    ),
    *_kernels(),
    *(
        _at_most(
            f"adapter of `{engine}`, Pong, {num_envs} envs",
            f"at most {ALLOWED:.0%} of the bare engine's time per step",
            "engines",
            partial(_adapter, engine, num_envs),
            ALLOWED,
            "{:+.1%}",
        )
        for engine in ("ale", "envpool")
        for num_envs in (8, 64)
    ),
    _at_most("start of 16 Pong envs, warm cache", "at most 3 s", "startup", _start_seconds, 3.0, "{:.1f} s"),
    _at_most("worker with 8 Pong envs", "at most 25 MB private", "startup", _worker_memory, 25.0, "{:.1f} MB"),
    _at_most(
        "the same, start method spawn",
        "at most 60 MB private",
        "startup-spawn",
        _worker_memory,
        60.0,
        "{:.1f} MB",
        why=_SPAWNED,
    ),
    *(
        _at_most(
            f"{algorithm.upper()}, CartPole-v1 to mean 475 over 100 episodes",
            f"at most {seconds:.0f} s",
            "learning-cartpole",
            partial(_solved_in, algorithm, "CartPole-v1", 475.0, 1.0),
            seconds,
            "median {:.1f} s",
        )
        for algorithm, seconds in (("ppo", 15.0), ("dqn", 60.0), ("es", 60.0))
    ),
    *(
        _at_most(
            f"{algorithm.upper()}, Pong to mean 18 over 100 episodes",
            f"median at most {minutes:.0f} min",
            entry,
            partial(_solved_in, algorithm, PONG, 18.0, 60.0),
            minutes,
            "median {:.1f} min",
        )
        for algorithm, entry, minutes in (("ppo", "learning-pong", 5.0), ("dqn", "learning-pong-dqn", 30.0))
    ),
    _at_most(
        _CHEETAH,
        "population mean 1,500 within 20 generations",
        "learning-halfcheetah",
        partial(_cheetah, "population_mean", 1_500.0, "generation", 1.0),
        20,
        "median {:.0f}",
    ),
    _at_most(
        _CHEETAH,
        "population mean 3,000 within 100 generations",
        "learning-halfcheetah",
        partial(_cheetah, "population_mean", 3_000.0, "generation", 1.0),
        100,
        "median {:.0f}",
    ),
    _at_most(
        _CHEETAH,
        "100 generations in at most 5 min",
        "learning-halfcheetah",
        partial(_cheetah, "generation", 100.0, "seconds", 60.0),
        5.0,
        "median {:.1f} min",
        why=_CHEETAH_TIME,
    ),
    Target(
        _CHEETAH,
        "at least 0.85 of the bare engine's rate",
        "speedups-es",
        partial(_times_before, "engines", "envpool"),
        0.85,
        pattern="{:.2f}",
        why=_BARE,
    ),
    Target(
        _CHEETAH,
        "at least 2x the observations/s of one network per worker, one observation per forward pass",
        "speedups-es",
        partial(_times_before, "cumulative", "population"),
        2.0,
    ),
)
