"""Writes figures of a run to ``metrics.csv`` and to TensorBoard."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter

Figure = float | int | None


class MetricsWriter:
    """One row per update in a CSV file, and the same figures as TensorBoard scalars over env steps."""

    COLUMNS = (
        "env_steps",
        "seconds",
        "episodes",
        "mean_return",
        "mean_length",
        "steps_per_second",
        "learning_rate",
        "policy_loss",
        "value_loss",
        "entropy",
        "approximate_kl",
        "clip_fraction",
        "explained_variance",
    )
    GROUP = dict.fromkeys(COLUMNS[2:7], "charts")

    def __init__(self, csv_path: Path) -> None:
        """Append to ``csv_path``; TensorBoard's event files go beside it."""
        is_new = not csv_path.exists() or csv_path.stat().st_size == 0
        self._file = csv_path.open("a", newline="")
        self._rows = csv.DictWriter(self._file, self.COLUMNS)
        if is_new:
            self._rows.writeheader()
        self._board = SummaryWriter(str(csv_path.parent))

    def __enter__(self) -> MetricsWriter:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close both files."""
        self._file.close()
        self._board.close()

    def write(self, figures: dict[str, Figure]) -> None:
        """Write one row; a figure that is None is left empty, a name that is not a column is an error."""
        self._rows.writerow(figures)
        self._file.flush()
        env_steps = figures["env_steps"]
        for name, figure in figures.items():
            if figure is not None and name != "env_steps":
                tag = f"{self.GROUP.get(name, 'losses')}/{name}"
                self._board.add_scalar(tag, figure, env_steps)


def read_metrics(csv_path: Path) -> dict[str, list[float]]:
    """Columns of a ``metrics.csv``; empty cells read as NaN."""
    with csv_path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return {column: [float(row[column] or "nan") for row in rows] for column in MetricsWriter.COLUMNS}
