"""What a measurement leaves behind: a table in the terminal and a JSON file to compare against next month."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vecenv.doctor import report as installation_report
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.whole_file import whole_file
from vecenv.writable import check_writable

from .compare import Change, Samples, compare_results, differing_facts, machine_drift, read_result
from .picture import PICTURE_SUFFIXES
from .timing import Rates

EXIT_SLOWER = 1


def print_rates(title: str, rates: Sequence[Rates], *, frames_per_step: int, unit: str) -> None:
    """Print a table: median, spread, and how the first row compares with each of the others.

    Args:
        title: line above the table.
        rates: the measured rates; the first row is the one that the others are compared with.
        frames_per_step: emulator frames in an agent step; 1 leaves the column out.
        unit: what the rates count, such as ``"agent steps/s"``.
    """
    print_table(title, *rate_table(rates, frames_per_step=frames_per_step, unit=unit))


def rate_table(rates: Sequence[Rates], *, frames_per_step: int, unit: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that `print_rates` prints; see there."""
    header = ["what", unit, "lowest - highest"]
    header += ["frames/s"] * (frames_per_step > 1) + ["first row / this"]
    rows = []
    for row in rates:
        cells = [row.name, f"{row.median:,.0f}", f"{row.lowest:,.0f} - {row.highest:,.0f}"]
        if frames_per_step > 1:
            cells.append(f"{row.median * frames_per_step:,.0f}")
        cells.append("" if row is rates[0] else f"{rates[0].ratio_to(row):.2f}x")
        rows.append(cells)
    return header, rows


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """A table in Markdown, ended by a newline.

    Args:
        header: names of the columns.
        rows: cells of each line.
        text_columns: so many columns from the left are text, the others are figures.
    """
    figures = len(header) - text_columns
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * text_columns}{'--:|' * figures}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 130) -> None:
    """Print a table whose first column is text and whose others are figures.

    Args:
        title: line above the table.
        header: names of the columns.
        rows: cells of each line.
        width: characters that it may take where the output is no terminal: rich would assume 80 and cut names.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for cells in rows:
        table.add_row(*cells)
    console = Console()
    Console(width=max(width, console.width) if not console.is_terminal else None).print(table)


def samples_of(rates: Sequence[Rates], unit: str, *, theirs: Sequence[str] = ()) -> dict[str, Samples]:
    """Raw samples of rates, by the name of the row.

    Args:
        rates: the measured rates.
        unit: what they count.
        theirs: names of rows that are not ours.
    """
    return {row.name: Samples(row.samples, unit, ours=row.name not in theirs) for row in rates}


def check_output(arguments: argparse.Namespace, name: str) -> None:
    """Look at what `publish` and the picture will need, before minutes are spent on measuring.

    Args:
        arguments: as `vecenv.benchmarks.arguments.add_output` declares them.
        name: which benchmark this is.

    Raises:
        UnknownSetting: what is to be compared with cannot be read, or a file cannot be written.
        MissingExtra: nothing can print the table, or a picture was asked for and nothing can draw it.
    """
    if find_spec("rich") is None:
        raise MissingExtra("rich", "bench")
    if arguments.compare is not None:
        read_result(arguments.compare, name)
    check_writable(arguments.json or default_path(name), "--json")
    plot = getattr(arguments, "plot", None)
    if plot is None:
        return
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "agents")
    if plot.suffix not in PICTURE_SUFFIXES:
        raise UnknownSetting(f"--plot {plot}: a picture must end in one of {', '.join(PICTURE_SUFFIXES)}")
    check_writable(plot, "--plot")


def publish(
    arguments: argparse.Namespace,
    name: str,
    *,
    settings: dict[str, Any],
    results: dict[str, Any],
    samples: Mapping[str, Samples],
    file_name: str = "",
) -> int:
    """Write the result where the user wants it, and compare it with an earlier one if one was named.

    Args:
        arguments: as `vecenv.benchmarks.arguments.add_output` declares them.
        name: which benchmark this is.
        settings: what was asked for.
        results: what was measured, plain values only.
        samples: the raw samples that results of two runs are compared by.
        file_name: of the default file, before the time of day; `name` where empty.

    Returns:
        The exit code: 0, or `EXIT_SLOWER` if something of ours got slower beyond noise.

    Raises:
        UnknownSetting: what is to be compared with cannot be read. The new result is written all the same.
    """
    path = arguments.json or default_path(file_name or name)
    document = write_json(path, name=name, settings=settings, results=results, samples=samples)
    print(f"written to {path}")
    if arguments.compare is None:
        return 0
    old_document, old = read_result(arguments.compare, name)
    changes = compare_results(old, samples)
    print_changes(arguments.compare, changes, differing_facts(old_document, document))
    for title, names in (("only then", old.keys() - samples.keys()), ("only now", samples.keys() - old.keys())):
        if names:
            print(f"{title}: {', '.join(sorted(names))}")
    return EXIT_SLOWER if any(change.ours and change.verdict == "slower" for change in changes) else 0


def print_changes(path: Path, changes: Sequence[Change], other_facts: Sequence[str]) -> None:
    """Print a comparison: every row, what differs between the machines, and a last line that sums it up."""
    rows = []
    for change in changes:
        cells = [change.name, f"{change.old:,.4g}", f"{change.new:,.4g}", change.unit, f"{change.speed:.2f}x"]
        rows.append([*cells, f"{change.p_value:.3f}", change.verdict + ("" if change.ours else " (not ours)")])
    header = ["compared with " + path.name, "then", "now", "unit", "speed", "p", "verdict"]
    print_table(
        "Mann-Whitney U on the raw samples; slower: p <= 0.05 and 5 % or more, beyond the machine", header, rows
    )
    for line in other_facts:
        print(f"  differs: {line}")
    if any(not change.ours for change in changes):
        speed = f"{machine_drift(changes):.2f} times its speed of then"
        print(f"  what is not ours ran at {speed}, which is taken for the machine's doing")
    slower = [change.name for change in changes if change.ours and change.verdict == "slower"]
    print(f"slower beyond noise: {', '.join(slower)}" if slower else "nothing of ours got slower beyond noise")


def write_json(
    path: Path,
    *,
    name: str,
    settings: dict[str, Any],
    results: dict[str, Any],
    samples: Mapping[str, Samples] | None = None,
) -> dict[str, Any]:
    """Write a measurement with everything needed to judge it: machine, versions, commit, settings, raw samples.

    Args:
        path: the file; its folder is made. The file appears whole or not at all.
        name: which measurement this is.
        settings: what was asked for.
        results: what was measured, plain values only.
        samples: raw samples by the name of the row.

    Returns:
        What was written.
    """
    document = {
        "name": name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
        "settings": settings,
        "results": results,
        "samples": {key: row.as_dict() for key, row in (samples or {}).items()},
        **installation_report(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(document, indent=2) + "\n")
    return document


def commit() -> str | None:
    """The commit that is checked out, with ``-dirty`` where files differ from it; None outside of a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # installed: a repository further up is somebody else's
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def as_file_name(name: str) -> str:
    """`name` with dashes for the characters that do not belong in a file name."""
    return "".join(character if character.isalnum() or character in "-_." else "-" for character in name)


def default_path(name: str) -> Path:
    """``results/NAME-TIME.json``."""
    return Path("results") / f"{as_file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}.json"
