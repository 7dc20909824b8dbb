"""What a measurement leaves behind: a table in the terminal and a JSON file to compare against next month."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vecenv.doctor import report as installation_report

from .timing import Rates


def print_rates(title: str, rates: Sequence[Rates], *, frames_per_step: int, unit: str) -> None:
    """Print a table: median, spread, and how the first row compares with each of the others.

    Args:
        title: line above the table.
        rates: the measured rates; the first row is the one that the others are compared with.
        frames_per_step: emulator frames in an agent step; 1 leaves the column out.
        unit: what the rates count, such as ``"agent steps/s"``.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column(unit, justify="right")
    table.add_column("lowest - highest", justify="right")
    if frames_per_step > 1:
        table.add_column("frames/s", justify="right")
    table.add_column(f"{rates[0].name} is", justify="right")
    for row in rates:
        cells = [row.name, f"{row.median:,.0f}", f"{row.lowest:,.0f} - {row.highest:,.0f}"]
        if frames_per_step > 1:
            cells.append(f"{row.median * frames_per_step:,.0f}")
        cells.append("" if row is rates[0] else f"{rates[0].ratio_to(row):.2f}x")
        table.add_row(*cells)
    # Where the output is not a terminal rich assumes 80 columns and would cut the names.
    console = Console()
    Console(width=max(100, console.width) if not console.is_terminal else None).print(table)


def write_json(path: Path, *, name: str, settings: dict[str, Any], results: dict[str, Any]) -> Path:
    """Write a measurement with everything needed to judge it: machine, versions, settings, raw samples.

    Args:
        path: the file; its folder is made. The file appears whole or not at all.
        name: which measurement this is.
        settings: what was asked for.
        results: what was measured, plain values only.

    Returns:
        `path`.
    """
    document = {
        "name": name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": settings,
        "results": results,
        **installation_report(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(unfinished, path)
    return path


def default_path(name: str) -> Path:
    """``results/NAME-TIME.json``; characters of `name` that do not belong in a file name become dashes."""
    safe = "".join(character if character.isalnum() or character in "-_." else "-" for character in name)
    return Path("results") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}.json"
