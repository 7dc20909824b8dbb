"""The picture of ``vecenv bench throughput``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .picture import save_picture
from .timing import Rates

if TYPE_CHECKING:
    from .throughput import Entry

Measured = Sequence[tuple[Sequence["Entry"], Sequence[Rates]]]


def plot_rates(path: Path, env_id: str, measured: Measured) -> None:
    """Draw bars for one number of environments, lines over several; the emulator limit as a line.

    Args:
        path: the file; its suffix chooses the format.
        env_id: for the title.
        measured: the rows of every number of environments and their rates; a rate without a row is the limit.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [(entries, rates) for entries, rates in measured if rates]
    limits = [rate.median for entries, rates in measured for rate in rates[len(entries) :]]
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    if len(measured) == 1:
        _draw_bars(axes, *measured[0])
        if limits:
            axes.axvline(limits[0], color="black", linestyle="--", label="emulator limit")
    else:
        _draw_lines(axes, measured)
        if limits:
            axes.axhline(statistics.median(limits), color="black", linestyle="--", label="emulator limit")
    axes.set_title(f"{env_id}: medians, with the slowest and the fastest round")
    if limits or len(measured) > 1:
        axes.legend(fontsize="small", frameon=False)
    save_picture(figure, path)
    pyplot.close(figure)


def _draw_bars(axes: Any, entries: Sequence[Entry], rates: Sequence[Rates]) -> None:
    rows = rates[: len(entries)]
    medians = [row.median for row in rows]
    spread = [[row.median - row.lowest for row in rows], [row.highest - row.median for row in rows]]
    colors = ["tab:blue" if entry.contender.ours else "tab:gray" for entry in entries]
    axes.barh([row.name for row in rows], medians, xerr=spread, color=colors, ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("agent steps per second")


def _draw_lines(axes: Any, measured: Measured) -> None:
    lines: dict[str, list[tuple[int, Rates]]] = {}
    for entries, rates in measured:
        for entry, rate in zip(entries, rates, strict=False):
            name = entry.contender.row_name(entry.settings, with_num_envs=False)
            lines.setdefault(name, []).append((entry.settings.num_envs, rate))
    for name, points in lines.items():
        numbers, rows = zip(*points, strict=True)
        medians = [row.median for row in rows]
        spread = [[row.median - row.lowest for row in rows], [row.highest - row.median for row in rows]]
        axes.errorbar(numbers, medians, yerr=spread, marker="o", capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("environments")
    axes.set_ylabel("agent steps per second")
