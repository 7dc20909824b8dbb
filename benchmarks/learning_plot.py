"""The picture of ``vecenv bench learning``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .learning_curves import BAND, band_of, grouped
from .picture import save_picture

_PANELS = (("seconds", "seconds of wall clock", 1.0), ("env_steps", "thousand env steps", 1000.0))


def plot_learning(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw return against seconds and against env steps, a row of two panels for every environment.

    Lines are medians over the seeds, bands reach from the 10th to the 90th percentile over the seeds.

    Args:
        path: the file; its suffix chooses the format.
        rows: trainings as a result of the benchmark holds them.
    """
    from matplotlib.figure import Figure

    groups = grouped(rows)
    env_ids = list(dict.fromkeys(env_id for _, env_id in groups))
    colours = {algorithm: f"C{number}" for number, algorithm in enumerate(dict.fromkeys(key[0] for key in groups))}
    figure = Figure(figsize=(9.5, 0.6 + 3.4 * len(env_ids)), layout="constrained")
    panels = figure.subplots(len(env_ids), 2, squeeze=False, sharey="row")
    for env_id, axes_row in zip(env_ids, panels, strict=True):
        own = {algorithm: group for (algorithm, env), group in groups.items() if env == env_id}
        for axes, (column, label, unit) in zip(axes_row, _PANELS, strict=True):
            for algorithm, group in own.items():
                _draw(axes, [row["points"] for row in group], column, unit, colours[algorithm], algorithm, len(group))
            marks = {row["solve_at"] for group in own.values() for row in group} - {None}
            for mark in marks:
                axes.axhline(mark, color="black", linestyle="--", linewidth=1)
            axes.set(xlabel=label, title=env_id)
            axes.set_xlim(left=0)
            axes.grid(alpha=0.3)
        axes_row[0].set_ylabel("mean return, last 100 episodes")
        if axes_row[0].get_legend_handles_labels()[0]:
            axes_row[0].legend(fontsize="small", loc="lower right")
    figure.suptitle(
        f"median over seeds, band: {BAND[0]}th to {BAND[1]}th percentile over seeds; dashed: the mark", fontsize="small"
    )
    save_picture(figure, path)


def _draw(
    axes: Any, curves: Sequence[Mapping[str, Any]], column: str, unit: float, colour: str, name: str, seeds: int
) -> None:
    band = band_of(curves, column)
    if band is None:
        return
    places = band.places / unit
    axes.plot(places, band.median, color=colour, label=f"{name}, {seeds} seed{'s' * (seeds != 1)}")
    axes.fill_between(places, band.lower, band.upper, color=colour, alpha=0.2, linewidth=0)
