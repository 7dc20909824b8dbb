"""What the README shows works as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vecenv.cli import BENCHMARKS, COMMANDS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMAND_LINES = [
    *(
        line
        for block in re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ),
    *re.findall(r"`((?:vecenv|make) [^`]+)`", README),
]


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 3
    assert len(COMMAND_LINES) >= 8


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs(number: int, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPETS[number])
    finished = subprocess.run([sys.executable, "snippet.py"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("line", sorted(set(COMMAND_LINES)))
def test_command_exists(line: str) -> None:
    """Every shown command is one that the front door, the Makefile or pip knows; options are tested with the pages'."""
    words = line.split()
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "vecenv":
        assert words[1] in COMMANDS
        assert words[1] != "bench" or set(words[2:3]) <= set(BENCHMARKS)
    else:
        assert line.startswith("pip install -c constraints.txt '.[")


def test_extras_of_the_table_exist() -> None:
    setup_cfg = (ROOT / "setup.cfg").read_text()
    table = README[README.index("| extra |") : README.index("## Three uses")]
    names = [
        name for row in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert {"atari", "agents"} <= set(names)
    for name in names:
        assert re.search(rf"^{name} =", setup_cfg, re.MULTILINE), name
