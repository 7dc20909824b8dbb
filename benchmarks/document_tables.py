"""Tables of the page of figures, each made from what one benchmark wrote and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vecenv.registration import find_game

from .emulator_limit import FRAME_SKIP
from .engines import HEADER as COST_HEADER
from .engines import cost_row
from .ladder import Theirs
from .learning_curves import HEADER, table_rows, to_the_mark
from .limits import IN_TURNS, LIMIT, PIPELINE, VECENV
from .report import rate_table
from .scaling_model import Costs
from .scaling_report import measured_tables
from .startup import build_table
from .timing import Rates
from .wrappers import price_table

Document = Mapping[str, Any]


class PageTable(NamedTuple):
    """One table; `text_columns` as of `vecenv.benchmarks.report.markdown_table`, `notes` are lines below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    notes: Sequence[str] = ()


class RungTable(NamedTuple):
    """Rungs that took turns, as ``vecenv bench speedups`` wrote them; `unit` is what their rates count."""

    title: str
    unit: str
    notes: Sequence[str]
    rungs: Sequence[Mapping[str, Any]]


def rates_of(rows: Sequence[Mapping[str, Any]]) -> list[Rates]:
    """Rates as they were measured."""
    return [Rates(row["name"], tuple(row["samples"])) for row in rows]


def throughput_groups(document: Document) -> dict[str, list[Rates]]:
    """The rows of every number of environments, ours first, the limit of a game last; by a title."""
    firsts = document["results"]["ratios_of_first"]
    groups: dict[str, list[Rates]] = {}
    title = ""
    for row, rates in zip(document["results"]["rates"], rates_of(document["results"]["rates"]), strict=True):
        if row["name"] in firsts:
            title = f"{document['settings']['env_id']}, {row['settings']['num_envs']} environments"
        groups.setdefault(title, []).append(rates)
    return groups


def adapter_groups(document: Document) -> dict[str, list[Rates]]:
    """The rows of every trainer."""
    env_id, num_envs = document["settings"]["env"], document["settings"]["num_envs"]
    titles = {"sb3": "Stable-Baselines3", "tianshou": "Tianshou"}
    return {
        f"{titles.get(name, name)}: {env_id}, {num_envs} environments": rates_of(rows)
        for name, rows in document["results"].items()
    }


def compiled_groups(document: Document) -> dict[str, list[Rates]]:
    """The rows of every batch size."""
    env_id = document["settings"]["env_id"]
    return {f"{env_id}, {int(n):,} environments": rates_of(own["rates"]) for n, own in document["results"].items()}


def rung_tables(document: Document) -> list[RungTable]:
    """The tables of the ladders; notes that several of them have are at the last of these."""
    results = document["results"]
    described = {(each["ladder"], each["table"]): each for each in results.get("tables", ())}
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in results.get("rungs", ()):
        groups.setdefault((row["ladder"], row["table"]), []).append(row)
    tables: list[RungTable] = []
    told: set[str] = set()
    for key, rungs in reversed(groups.items()):
        own = described.get(key, {})
        notes = [note for note in own.get("notes", ()) if note not in told]
        told.update(notes)
        tables.insert(0, RungTable(own.get("title", key[1]), own.get("unit", "units of work/s"), notes, rungs))
    return tables


def rung_groups(document: Document) -> dict[str, list[Rates]]:
    """The measured rungs of every table, by title and unit."""
    groups: dict[str, list[Rates]] = {}
    for table in rung_tables(document):
        for row in table.rungs:
            if row["rates"] is not None:
                rates = rates_of([{**row["rates"], "name": row["rung"]}])
                groups.setdefault(f"{table.title}, {table.unit}", []).extend(rates)
    return groups


def _rate_tables(groups: Mapping[str, Sequence[Rates]], unit: str, frames_per_step: int = 1) -> list[PageTable]:
    return [
        PageTable(title, *rate_table(rates, frames_per_step=frames_per_step, unit=unit))
        for title, rates in groups.items()
    ]


def _throughput(document: Document) -> list[PageTable]:
    is_atari = any(row["name"] == "emulator limit" for row in document["results"]["rates"])
    return _rate_tables(throughput_groups(document), "agent steps/s", FRAME_SKIP if is_atari else 1)


def _limits(document: Document) -> list[PageTable]:
    header = ("game", "emulator limit, agent steps/s", "emulators in turns", "pipeline", "vecenv", "agent steps/s")
    rows = []
    for env_id, result in document["results"].items():
        limit, ours = result["rates"][LIMIT]["median"], result["rates"][VECENV]["median"]
        shares = [f"{result['shares'][row]:.2f}" for row in (IN_TURNS, PIPELINE, VECENV)]
        rows.append([env_id.removesuffix("NoFrameskip-v4"), f"{limit:,.0f}", *shares, f"{ours:,.0f}"])
    return [PageTable("Shares of the emulator limit", header, rows)]


def _wrappers(document: Document) -> list[PageTable]:
    times = {row.name: [1e6 / rate for rate in row.samples] for row in rates_of(document["results"]["rates"])}
    kernels = {"vecenv: observe": "changed rows only", "vecenv: observe, whole frame": "the whole frame"}
    rows = [
        [text, f"{statistics.median(own):.1f}", f"{min(own):.1f} - {max(own):.1f}"]
        for name, text in kernels.items()
        for own in [times.get(name)]
        if own is not None
    ]
    return [
        PageTable("Microseconds per agent step", *price_table(document["results"]["microseconds"])),
        PageTable("The fused kernel (gray + max, resize, stack)", ("computed", "us", "fastest - slowest"), rows),
    ]


def _compiled(document: Document) -> list[PageTable]:
    tables = []
    for (title, rates), own in zip(compiled_groups(document).items(), document["results"].values(), strict=True):
        peers = list(dict.fromkeys(peer for against in own["ratios"].values() for peer in against))
        rows = []
        for row in rates:
            against = own["ratios"].get(row.name, {})
            cells = [f"{against[peer]:.1f}x" if peer in against else "" for peer in peers]
            rows.append([row.name, f"{row.median:,.0f}", f"{row.lowest:,.0f} - {row.highest:,.0f}", *cells])
        tables.append(PageTable(title, ("what", "steps/s", "lowest - highest", *(f"over {p}" for p in peers)), rows))
    return tables


def _workers(document: Document) -> list[PageTable]:
    results = document["results"]
    ours, theirs = rates_of(results["cart_pole"])
    workers = document["settings"]["workers"]
    rows = [
        ["a round of 2 workers with envs that cost nothing", f"{results['round']['median']:.0f} us"],
        [
            "CartPole-v1, 8 envs, 2 workers",
            f"{ours.median:,.0f} steps/s, {ours.ratio_to(theirs):.2f}x `AsyncVectorEnv` ({theirs.median:,.0f})",
        ],
        [f"envs of 100 us on {workers} workers", f"{results['busy']['median']:.2f} of cores / step time"],
    ]
    names = {"batch_size": "`batch_size = num_envs / 2`", "balance": "`balance=True`"}
    for name, pair in results["uneven"].items():
        better, plain = rates_of(pair)
        rows.append([f"one env ten times as slow, {names.get(name, name)}", f"{better.ratio_to(plain):.2f}x plain"])
    return [PageTable("Rounds", ("what", "figure"), rows)]


def _startup(document: Document) -> list[PageTable]:
    results, settings = document["results"], document["settings"]
    seconds, differences = results["import"]["seconds"], results["import"]["median_differences"]
    rows = [
        ["`import numpy, gymnasium`", f"{statistics.median(seconds['base']):.3f}"],
        ["`import vecenv` on top", f"{differences['with_vecenv']:.3f}"],
        ["with `vecenv.make_vec` looked up", f"{differences['with_make_vec']:.3f}"],
    ]
    title = f"{settings['num_envs']} x {settings['env_id']}, seconds (medians); memory in MiB x processes"
    return [
        PageTable("Importing", ("what", "seconds, median"), rows),
        PageTable(title, *build_table(results["build"])),
    ]


def _inference(document: Document) -> list[PageTable]:
    results = document["results"]
    names = list(dict.fromkeys(row["name"] for rows in results.values() for row in rows))
    medians = {size: {row["name"]: row["median"] for row in rows} for size, rows in results.items()}
    rows = [[name, *(f"{own[name]:,.0f}" if name in own else "" for own in medians.values())] for name in names]
    title = f"{document['settings']['network']} on {document['settings']['device']}, actions/s"
    return [PageTable(title, ("what", *(f"batch {size}" for size in results)), rows)]


def _engines(document: Document) -> list[PageTable]:
    rows = [
        cost_row(name, result, is_atari=find_game(name.partition(",")[0]) is not None)
        for name, result in document["results"].items()
    ]
    return [PageTable("Share of the time per step, medians of the rounds", COST_HEADER, rows)]


def _speedups(document: Document) -> list[PageTable]:
    solutions = document["results"].get("solutions")
    return [
        *map(_ladder_table, rung_tables(document)),
        *([] if solutions is None else [_solved_table(solutions)]),
    ]


def _solved_table(solutions: Sequence[Mapping[str, Any]]) -> PageTable:
    """Trainings of the rungs to the mark."""
    rungs: dict[str, list[dict[str, Any]]] = {}
    for row in solutions:
        rungs.setdefault(row["rung"], []).append({**row, "minutes": row["seconds"] / 60})
    rows = []
    for name, own in rungs.items():
        cells = [name, f"{sum(row['solved'] for row in own)} of {len(own)}"]
        rows.append([*cells, to_the_mark(own, "minutes").text("{:,.2f}"), to_the_mark(own, "env_steps").text()])
    return PageTable("To the mark, medians and range", ("rung", "solved", "minutes", "steps"), rows)


def _ladder_table(table: RungTable) -> PageTable:
    rungs = table.rungs
    extra = list(dict.fromkeys(name for rung in rungs for name in rung["figures"]))
    rows = []
    for rung in rungs:
        theirs = "; ".join(str(Theirs(**each)) for each in rung["theirs"])
        if rung["rates"] is None:
            rows.append([rung["rung"], rung["left_out"] or rung["changes"], *["-"] * (4 + len(extra)), theirs])
            continue
        (rates,) = rates_of([rung["rates"]])
        cells = [rung["rung"], rung["changes"], f"{rates.median:,.0f}", f"{rates.lowest:,.0f} - {rates.highest:,.0f}"]
        cells += ["" if times is None else f"{times:.2f}" for times in (rung["times_base"], rung["times_before"])]
        cells += [f"{rung['figures'][name]:,.4g}" if name in rung["figures"] else "" for name in extra]
        rows.append([*cells, theirs])
    header = ("rung", "what changes", table.unit, "lowest - highest", "x base", "x before", *extra, "theirs")
    return PageTable(table.title, header, rows, text_columns=2, notes=table.notes)


def _learning(document: Document) -> list[PageTable]:
    results = document["results"]
    rows = table_rows(results["runs"], results["failures"])
    tables = [PageTable("Medians over the seeds, and their range", HEADER, rows, text_columns=2)]
    failed = [[row["message"]] for row in results["failures"]]
    return [*tables, *([PageTable("Trainings that failed", ("what",), failed)] if failed else [])]


def _scaling(document: Document) -> list[PageTable]:
    results = document["results"]
    costs = {name: Costs(**own) for name, own in results["costs"].items()}
    ((_, header, rows),) = measured_tables(costs, results["efficiency"])
    return [PageTable("Costs beside the environments, in processor time of the driver", header, rows)]


#: Benchmark -> its tables.
TABLES: dict[str, Callable[[Document], list[PageTable]]] = {
    "throughput": _throughput,
    "limits": _limits,
    "wrappers": _wrappers,
    "compiled": _compiled,
    "workers": _workers,
    "startup": _startup,
    "inference": _inference,
    "engines": _engines,
    "adapters": lambda document: _rate_tables(adapter_groups(document), "steps/s"),
    "speedups": _speedups,
    "learning": _learning,
    "scaling": _scaling,
}
