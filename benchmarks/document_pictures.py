"""Pictures of the page of figures, each drawn from what one benchmark wrote and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .document_tables import Document, adapter_groups, compiled_groups, rung_groups, throughput_groups
from .learning_plot import plot_learning
from .limits import IN_TURNS, PIPELINE, VECENV
from .picture import save_picture
from .timing import Rates
from .wrappers import plot_prices

#: Rates further apart than this stand on a logarithmic scale, where the slowest can still be seen.
MOST_TIMES = 30


def draw(verb: str, document: Document, path: Path) -> bool:
    """Draw the picture of a benchmark.

    Args:
        verb: which benchmark it is of.
        document: what it wrote.
        path: an SVG file; its folder is made.

    Returns:
        Whether there is anything to draw.
    """
    if verb not in _PICTURES or (verb == "speedups" and not rung_groups(document)):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    _PICTURES[verb](document, path)
    return True


def draw_bars(path: Path, groups: Mapping[str, Sequence[Rates]], unit: str, theirs: Sequence[str] = ()) -> None:
    """Draw a panel of bars for every group: medians, with the slowest and the fastest round.

    Args:
        path: the file.
        groups: rates by the title of their panel.
        unit: of the rates.
        theirs: rows that are not ours; they are gray.
    """
    from matplotlib.figure import Figure

    heights = [0.8 + 0.34 * len(rates) for rates in groups.values()]
    figure = Figure(figsize=(9.5, 0.3 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rates) in zip(panels, groups.items(), strict=True):
        medians = [row.median for row in rates]
        spread = [[row.median - row.lowest for row in rates], [row.highest - row.median for row in rates]]
        colours = ["tab:gray" if row.name in theirs else "tab:blue" for row in rates]
        axes.barh([row.name for row in rates], medians, xerr=spread, color=colours, ecolor="black", capsize=2)
        axes.invert_yaxis()
        axes.set_title(title, fontsize="medium", loc="left")
        is_wide = max(medians) > MOST_TIMES * min(medians)
        axes.set_xscale("log" if is_wide else "linear")
        axes.set_xlabel(f"{unit} (logarithmic)" if is_wide else unit)
        axes.tick_params(axis="y", labelsize="small")
    save_picture(figure, path)


def _draw_limits(document: Document, path: Path) -> None:
    from matplotlib.figure import Figure

    games = [env_id.removesuffix("NoFrameskip-v4") for env_id in document["results"]]
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes: Any = figure.add_subplot()
    rows = ((IN_TURNS, "emulators in turns"), (PIPELINE, "pipeline"), (VECENV, "vecenv"))
    for index, (row, name) in enumerate(rows):
        shares = [result["shares"][row] for result in document["results"].values()]
        places = [place + 0.27 * (index - 1) for place in range(len(games))]
        axes.bar(places, shares, width=0.25, label=name, color=("lightgray", "tab:gray", "tab:blue")[index])
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="emulator limit")
    axes.set_xticks(range(len(games)), games, rotation=30, ha="right", fontsize="small")
    axes.set_ylabel("share of the emulator limit")
    axes.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save_picture(figure, path)


def _not_ours(document: Document) -> list[str]:
    """Names of rows that are not ours; what follows a name in the key of a sample is cut off."""
    rows = [key for key, row in document["samples"].items() if not row["ours"]]
    return [*rows, *(key.partition(" beside ")[0] for key in rows), *(key.rpartition(", ")[0] for key in rows)]


#: Benchmark -> how to draw it.
_PICTURES: dict[str, Callable[[Document, Path], None]] = {
    "throughput": lambda document, path: draw_bars(
        path, throughput_groups(document), "agent steps/s", _not_ours(document)
    ),
    "compiled": lambda document, path: draw_bars(path, compiled_groups(document), "steps/s", _not_ours(document)),
    "adapters": lambda document, path: draw_bars(path, adapter_groups(document), "steps/s", _not_ours(document)),
    "speedups": lambda document, path: draw_bars(path, rung_groups(document), "a second"),
    "limits": _draw_limits,
    "wrappers": lambda document, path: plot_prices(
        path, document["settings"]["env_id"], document["results"]["microseconds"]
    ),
    "learning": lambda document, path: plot_learning(path, document["results"]["runs"]),
}
