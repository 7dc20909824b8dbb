"""Makes the measurements of the page of figures, one after the other, and keeps what became of each.

Every entry leaves ``NAME.json``, what the benchmark wrote, ``NAME.run.json``, how it was run and how that ended, and
``NAME.log``, what it printed. What ended well at the same commit, on the same machine, with the same words is not made
again. The commit counts without its ``-dirty``: writing the page itself changes a file.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vecenv.doctor import machine_facts
from vecenv.errors import UnknownSetting

from .child_command import last_line, run_command
from .document_entries import Entry, command_of
from .report import commit, write_json

_DIRTY = "-dirty"


@dataclass(frozen=True)
class Measured:
    """What is known of one entry.

    Attributes:
        entry: the entry.
        run: how it was run, None where it never was.
        document: what it wrote, None where it wrote nothing.
    """

    entry: Entry
    run: Mapping[str, Any] | None
    document: Mapping[str, Any] | None

    @property
    def failure(self) -> str | None:
        """Why it did not end well; None where it did, or was never run."""
        if self.run is None or self.run["results"]["exit_code"] == 0:
            return None
        return f"exit status {self.run['results']['exit_code']}: {self.run['results']['message']}"

    @property
    def command(self) -> str:
        """As a user would type it."""
        words = self.run["settings"]["words"] if self.run is not None else list(self.entry.words)
        return f"vecenv bench {shlex.join(words)}"


def read_measured(folder: Path, entry: Entry) -> Measured:
    """What is in the folder of one entry.

    Raises:
        UnknownSetting: a file there is no result of this entry.
    """
    run = _read(folder / f"{entry.name}.run.json", "run")
    return Measured(entry, run, _read(folder / f"{entry.name}.json", entry.verb) if run is not None else None)


def measure_all(entries: Sequence[Entry], folder: Path, *, quick: bool, fresh: bool) -> list[Measured]:
    """Measure what is not there yet; what fails is told and does not stop the rest.

    Args:
        entries: what to measure.
        folder: for all files.
        quick: rough and fast.
        fresh: measure again what is there.

    Returns:
        What is known of each.

    Raises:
        KeyboardInterrupt: Ctrl-C; what has ended stays, and the same call goes on after it.
    """
    found = []
    for number, entry in enumerate(entries):
        place = f"[{number + 1}/{len(entries)}] {entry.name}"
        words, missing = command_of(entry, quick=quick)
        known = read_measured(folder, entry)
        if not fresh and is_current(known, words):
            print(f"{place}: is there already, of {known.run['time'] if known.run else ''}", flush=True)
        else:
            log = folder / f"{entry.name}.log"
            print(f"{place}: vecenv bench {shlex.join(words)} (output in {log})", flush=True)
            seconds = _measure(entry, folder, words, missing, fresh=fresh)
            known = read_measured(folder, entry)
            print(f"    {known.failure or 'done'}, {seconds:.0f} s", flush=True)
        found.append(known)
    return found


def is_current(known: Measured, words: Sequence[str]) -> bool:
    """Whether it ended well, here, at this commit, with these words."""
    if known.run is None or known.document is None or known.failure is not None:
        return False
    facts = json.loads(json.dumps(machine_facts()))
    same_commit = _base(known.run["commit"]) == _base(commit())
    return same_commit and known.run["machine"] == facts and known.run["settings"]["words"] == list(words)


def _measure(entry: Entry, folder: Path, words: Sequence[str], missing: Sequence[str], *, fresh: bool) -> float:
    """Run one entry in a process of its own; returns its seconds."""
    result, log = folder / f"{entry.name}.json", folder / f"{entry.name}.log"
    for path in (result, log, folder / f"{entry.name}.run.json"):
        path.unlink(missing_ok=True)
    options = ["--json", str(result)]
    if entry.kept_by is not None:
        # What another commit has left is not gone on with.
        kept = folder / f"{entry.name}-kept" / (_base(commit()) or "no-commit")[:12]
        if fresh and kept.exists():
            shutil.rmtree(kept)
        kept.mkdir(parents=True, exist_ok=True)
        option, name = entry.kept_by
        options += [option, str(kept / name)]
    place = words.index("--") if "--" in words else len(words)
    start = time.perf_counter()
    exit_code = run_command(["bench", *words[:place], *options, *words[place:]], log)
    seconds = time.perf_counter() - start
    left_out = [line.partition(":")[2].strip() for line in log.read_text().splitlines() if line.startswith("left out:")]
    results = {
        "exit_code": exit_code,
        "message": "" if exit_code == 0 else last_line(log),
        "seconds": round(seconds, 1),
        "left_out": [*missing, *left_out],
    }
    write_json(
        folder / f"{entry.name}.run.json",
        name="run",
        settings={"entry": entry.name, "words": list(words)},
        results=results,
    )
    return seconds


def _base(name: str | None) -> str | None:
    return None if name is None else name.removesuffix(_DIRTY)


def _read(path: Path, name: str) -> dict[str, Any] | None:
    """What a benchmark wrote, None where it wrote nothing."""
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        written_by = document["name"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnknownSetting(f"{path} is no result of a benchmark ({error!r}); remove it") from error
    if written_by != name:
        raise UnknownSetting(f"{path} is a result of {written_by!r}, not of {name!r}; remove it")
    return dict(document)
