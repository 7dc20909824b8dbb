"""Draws the learning curve of a run."""

from __future__ import annotations

from pathlib import Path

from .metrics import read_metrics


def draw_curve(metrics_csv: Path, picture: Path, title: str, solve_at: float | None = None) -> None:
    """Draw the mean return of the last 100 episodes over seconds, and over env steps, as a PNG.

    Args:
        metrics_csv: written by :class:`~vecenv.agents.metrics.MetricsWriter`.
        picture: where the PNG goes.
        title: printed above.
        solve_at: a return to mark by a line.
    """
    from matplotlib.figure import Figure  # slow to import, and wanted once at the end of a run

    columns = read_metrics(metrics_csv) or {"seconds": [], "env_steps": [], "mean_return": []}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    over = (("seconds", "seconds", 1), ("env_steps", "thousand env steps", 1000))
    for axes, (column, label, unit) in zip(figure.subplots(1, 2, sharey=True), over, strict=True):
        axes.plot([value / unit for value in columns[column]], columns["mean_return"], linewidth=1.5)
        if solve_at is not None:
            axes.axhline(solve_at, color="tab:green", linestyle="--", linewidth=1)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("mean return, last 100 episodes")
    figure.savefig(picture, dpi=110)
