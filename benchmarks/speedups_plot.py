"""The picture of ``vecenv bench speedups``: every rung's speed, ours beside theirs, each relative to its own base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ladder import Ladder, Rung
from .picture import save_picture

if TYPE_CHECKING:
    from .speedups import MeasuredTable


def relative_rates(measured: MeasuredTable) -> dict[str, dict[str, float]]:
    """Rates divided by that of the first rung, by source (``"ours"`` or a document) and rung.

    A document is there only where it gives a figure for the first rung.
    """
    rungs = measured.table.rungs
    base = measured.base
    relative: dict[str, dict[str, float]] = {"ours": {}}
    if base is not None:
        relative["ours"] = {name: row.ratio_to(base) for name, row in measured.rates.items()}
    for first in rungs[0].documents:
        if first.rate is not None:
            rates = {rung.name: _rate_of(rung, first.source) for rung in rungs}
            relative[first.source] = {name: rate / first.rate for name, rate in rates.items() if rate is not None}
    return relative


def _rate_of(rung: Rung, source: str) -> float | None:
    return next((theirs.rate for theirs in rung.documents if theirs.source == source), None)


def plot_speedups(path: Path, measured: Sequence[tuple[Ladder, MeasuredTable]]) -> None:
    """Draw a panel for every table that was measured.

    Args:
        path: the file; its suffix chooses the format.
        measured: ladders with one of their tables each.
    """
    from matplotlib.figure import Figure

    measured = [(ladder, table) for ladder, table in measured if table.rates]
    heights = [1.0 + 0.5 * len(table.rates) for _, table in measured]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    panels = figure.subplots(len(measured), squeeze=False, height_ratios=heights)
    for axes, (ladder, table) in zip(panels[:, 0], measured, strict=True):
        _draw_table(axes, ladder, table)
    save_picture(figure, path)


def _draw_table(axes: Any, ladder: Ladder, table: MeasuredTable) -> None:
    names = [rung.name for rung in table.table.rungs if rung.name in table.rates]
    sources = relative_rates(table)
    height = 0.8 / len(sources)
    colors = ["tab:blue", "tab:gray", "silver"]
    for number, (source, rates) in enumerate(sources.items()):
        places = [place + (number - (len(sources) - 1) / 2) * height for place in range(len(names))]
        shown = [(place, rates[name]) for place, name in zip(places, names, strict=True) if name in rates]
        label = source if source == "ours" else f"{source}, its own hardware"
        color = colors[number % len(colors)]
        axes.barh([place for place, _ in shown], [rate for _, rate in shown], height * 0.95, color=color, label=label)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speed, the first rung of the same source = 1")
    axes.set_title(f"{ladder.title}: {table.table.title}", fontsize="medium", loc="left")
    axes.legend(fontsize="small", frameon=False)
