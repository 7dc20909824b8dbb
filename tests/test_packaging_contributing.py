"""CONTRIBUTING, the hooks and the issue forms name commands that exist; CI and the hooks run the same checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vecenv.cli import BENCHMARKS, COMMANDS

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TEXTS = [ROOT / "CONTRIBUTING.md", ROOT / ".github" / "pull_request_template.md", *FORMS]
COMMAND = re.compile(r"(?:^|`)((?:make|vecenv) [^`\n]+)", re.MULTILINE)
PATH = re.compile(r"`((?:vecenv|preprocess|agents|benchmarks|tests|examples|docs)/[\w./-]*)`")


def prerequisites(target: str) -> list[str]:
    match = re.search(rf"^{target}:(.*)$", MAKEFILE, re.MULTILINE)
    assert match is not None, target
    return match[1].split()


def hooks() -> list[dict[str, Any]]:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"], "a mirror has versions of its own"
    return [hook for repository in repositories for hook in repository["hooks"]]


def test_hooks_are_what_ci_checks_first() -> None:
    entries = [hook["entry"] for hook in hooks()]
    assert entries == ["make lint", "make types"]
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks())
    assert {entry.removeprefix("make ") for entry in entries} <= set(prerequisites("check"))
    assert re.search(r"^make check$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_and_files_exist(path: Path) -> None:
    text = path.read_text()
    for line in COMMAND.findall(text):
        words = line.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", MAKEFILE, re.MULTILINE), line
        else:
            assert words[1] in COMMANDS, line
            assert words[1] != "bench" or words[2] in {*BENCHMARKS, "..."}, line
    for name in PATH.findall(text):
        assert (ROOT / name).exists() or name == "vecenv/preprocess/", name


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_issue_form_is_whole(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "labels", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_forms_ask_for_the_facts() -> None:
    texts = {path.stem: path.read_text() for path in FORMS}
    assert {"bug", "speed", "question"} <= set(texts)
    assert "vecenv doctor --json" in texts["bug"]
    assert "vecenv doctor --json" in texts["speed"]
    assert "--json slow.json" in texts["speed"]


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    unlimited = re.compile(r"\.timeout\(\s*(?:timeout\s*=\s*)?(?:0\s*[,)]|None)|func_only\s*=\s*True")
    assert not [path.name for path in (ROOT / "tests").glob("test_*.py") if unlimited.search(path.read_text())]
