"""The page of figures as Markdown, and the pictures in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vecenv.doctor import describe_machine

from .document_pictures import draw
from .document_runs import Measured
from .document_tables import TABLES
from .report import markdown_table
from .targets import HEADER, misses, target_rows

_INTRODUCTION = """# Figures

Written by `{program}` from what the commands below wrote, not by hand. What is compared with each other took turns in
one run, so ratios hold where the machine was busy for a while and rates do not. Medians, with the slowest and the
fastest round; "first row / this" is the median over the rounds of the ratio within a round.
"""
_QUICK = "**Rough:** measured with `--quick`, a few short rounds of everything. These are no figures to quote.\n"
_TARGETS = """## Targets

What vecenv is meant to reach, and what it reached in the tables above. Whether a target is met is decided by the figure
as it was measured, not as it is rounded here.
"""
_MISSES = "## Targets that are not met, and why\n"


def write_page(path: Path, measured: Sequence[Measured], *, quick: bool = False) -> None:
    """Write the page, and its pictures into a folder beside it that has the page's name.

    Args:
        path: the page, a file that ends in ``.md``.
        measured: what is known of each entry, in the order of the page.
        quick: whether it was measured roughly.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    program = "vecenv bench document --run --quick" if quick else "make bench"
    parts = [_INTRODUCTION.format(program=program)]
    parts += [_QUICK] if quick else []
    known = [one.document for one in measured if one.document is not None]
    parts.append(_facts(known))
    documents = {}
    for one in measured:
        head = _head(one)
        try:
            body = _body(one, known[0] if known else None, path)
            if one.document is not None:
                documents[one.entry.name] = one.document
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # An hour of measuring is not lost for one result; it is of another version, which wrote it differently.
            body = [f"**Cannot be shown:** its result is not of the form that this version writes ({error!r}).\n"]
        parts += [*head, *body]
    parts += [_TARGETS, markdown_table(HEADER, target_rows(documents), text_columns=len(HEADER))]
    missed = misses(documents)
    parts += [_MISSES, "\n".join(missed)] if missed else []
    path.write_text("\n".join(part.rstrip("\n") + "\n" for part in parts))


def _facts(documents: Sequence[Mapping[str, Any]]) -> str:
    """Where, when and with what it was measured; sections say where they differ."""
    if not documents:
        return "Nothing has been measured yet.\n"
    first = documents[0]
    times = sorted(document["time"] for document in documents)
    commits = list(dict.fromkeys(document["commit"] for document in documents))
    packages = [f"{name} {number}" for name, number in first["packages"].items() if number]
    absent = [name for name, number in first["packages"].items() if not number]
    lines = [
        f"- Machine: {describe_machine(first['machine'])}",
        f"- Versions: {', '.join(packages)}",
        f"- Commit: {', '.join(_commit(name) for name in commits)}",
        f"- Measured: {times[0]} to {times[-1]}",
    ]
    return "\n".join([*lines, *([f"- Not installed: {', '.join(absent)}"] if absent else [])]) + "\n"


def _head(one: Measured) -> list[str]:
    """Title, note and command of an entry, and what went wrong."""
    parts = [f"## {one.entry.title}\n"]
    parts += [f"{one.entry.note}\n"] if one.entry.note else []
    parts.append(f"```console\n{one.command}\n```\n")
    if one.failure is not None:
        parts.append(f"**Did not end well:** {_plain(one.failure)}\n")
    if one.run is not None:
        parts += [f"Left out: {_plain(line)}\n" for line in one.run["results"]["left_out"]]
    return parts


def _body(one: Measured, first: Mapping[str, Any] | None, page: Path) -> list[str]:
    """Tables and picture of an entry."""
    if one.document is None:
        return [] if one.failure else ["Not measured yet.\n"]
    parts = _differences(one.document, first)
    for table in TABLES[one.entry.verb](one.document):
        markdown = markdown_table(table.header, table.rows, text_columns=table.text_columns)
        parts.append(f"{table.title}:\n\n{markdown}")
        parts += [f"{note[:1].upper()}{note[1:]}\n" for note in table.notes]
    picture = page.parent / page.stem / f"{one.entry.name}.svg"
    if draw(one.entry.verb, one.document, picture):
        parts.append(f"![{one.entry.title}]({page.stem}/{picture.name})\n")
    return parts


def _differences(document: Mapping[str, Any], first: Mapping[str, Any] | None) -> list[str]:
    """A line where the machine, a version or the commit is not that of the head of the page."""
    if first is None:
        return []
    lines = []
    if document["machine"] != first["machine"]:
        lines.append(f"Measured on another machine: {describe_machine(document['machine'])}.\n")
    changed = [f"{k} {v}" for k, v in document["packages"].items() if v != first["packages"].get(k)]
    if changed:
        lines.append(f"Measured with other versions: {', '.join(changed)}.\n")
    if document["commit"] != first["commit"]:
        lines.append(f"Measured at commit {_commit(document['commit'])}.\n")
    return lines


def _commit(name: str | None) -> str:
    """Twelve characters of it, and whether files differed from it."""
    if name is None:
        return "none (not a checkout)"
    digits, dirty, _ = name.partition("-dirty")
    return f"`{digits[:12]}`" + (" with changed files" if dirty else "")


def _plain(text: str) -> str:
    """Text that Markdown does not take for markup."""
    return f"`{text.replace('`', chr(39))}`"
