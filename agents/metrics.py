"""Writes figures of a run to ``metrics.csv`` and to TensorBoard."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from vecenv.whole_file import whole_file

Figure = float | int | None


class MetricsWriter:
    """One row per update in a CSV file, and the same figures as TensorBoard scalars over env steps."""

    CHARTS = frozenset(
        ("episodes", "mean_return", "mean_length", "steps_per_second", "learning_rate", "epsilon", "seconds")
    )
    """Figures that TensorBoard shows under charts; all others are shown under losses."""

    def __init__(self, csv_path: Path, last_env_steps: int | None = None) -> None:
        """Append to ``csv_path``; TensorBoard's event files go beside it.

        Args:
            csv_path: the file.
            last_env_steps: rows beyond it are taken out first: a run that goes on from a checkpoint repeats them.
        """
        if last_env_steps is not None and csv_path.exists():
            _drop_rows_after(csv_path, last_env_steps)
        self._columns = _columns_of(csv_path)
        self._path = csv_path
        self._file = csv_path.open("a", newline="")
        self._rows: csv.DictWriter[str] | None = None
        purge = None if last_env_steps is None else last_env_steps + 1
        self._board = SummaryWriter(str(csv_path.parent), purge_step=purge)

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
        """Write one row; a figure that is None is left empty. The first row decides which columns there are.

        Raises:
            ValueError: the figures have other names than the columns of the file.
        """
        if self._columns and self._columns != list(figures):
            raise ValueError(f"{self._path} has the columns {', '.join(self._columns)}, not {', '.join(figures)}")
        if self._rows is None:
            self._rows = csv.DictWriter(self._file, list(figures))
            if not self._columns:
                self._rows.writeheader()
                self._columns = list(figures)
        self._rows.writerow(figures)
        self._file.flush()
        env_steps = figures["env_steps"]
        for name, figure in figures.items():
            if figure is not None and name != "env_steps":
                tag = f"{'charts' if name in self.CHARTS else 'losses'}/{name}"
                self._board.add_scalar(tag, figure, env_steps)


def read_metrics(csv_path: Path) -> dict[str, list[float]]:
    """Columns of a ``metrics.csv``; empty cells read as NaN."""
    with csv_path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return {column: [float(row[column] or "nan") for row in rows] for column in _columns_of(csv_path)}


def _drop_rows_after(csv_path: Path, last_env_steps: int) -> None:
    lines = csv_path.read_text().splitlines(keepends=True)
    kept = [line for line in lines[1:] if line.endswith("\n") and int(line.split(",", 1)[0]) <= last_env_steps]
    with whole_file(csv_path) as unfinished:
        unfinished.write_text("".join([*lines[:1], *kept]))


def _columns_of(csv_path: Path) -> list[str]:
    """The names in the first line of a file, none where there is no such line."""
    if not csv_path.exists():
        return []
    with csv_path.open(newline="") as file:
        return next(csv.reader(file), [])
