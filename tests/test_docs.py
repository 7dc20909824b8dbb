"""The documentation: its snippets run, its examples in docstrings hold, what it quotes exists."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vecenv
from vecenv import errors
from vecenv.cli import BENCHMARKS, COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Folder -> package that it is imported as.
FOLDERS = {"vecenv": "vecenv", "preprocess": "vecenv.preprocess", "agents": "vecenv.agents"}
#: Runs snippets one after the other, each as a script of its own would run; says which one failed.
RUN_SNIPPETS = """
import json, sys
for number, snippet in enumerate(json.load(sys.stdin)):
    print(f"--- snippet {number}", file=sys.stderr, flush=True)
    exec(compile(snippet, f"snippet {number}", "exec"), {"__name__": "__main__"})
"""


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def modules_with_examples() -> list[str]:
    """Every module with an interactive example in a docstring."""
    return sorted(
        f"{package}.{path.stem}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).glob("*.py")
        if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)
    )


# -- snippets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if SNIPPET.search(text_of(page))])
def test_snippets_run(page: str, tmp_path: Path) -> None:
    snippets = SNIPPET.findall(text_of(page))
    for package in ("stable_baselines3", "tianshou", "envpool", "torch", "ale_py"):
        if any(re.search(rf"\b{package}\b", snippet) for snippet in snippets) and not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    finished = subprocess.run(
        [sys.executable, "-c", RUN_SNIPPETS],
        input=json.dumps(snippets),
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # PyTorch's threads wait for each other on a busy machine
    )
    assert finished.returncode == 0, finished.stderr[-4000:]


@pytest.mark.parametrize("page", ["architecture.md", "migrating.md", "own-backend.md", "workers.md", "agents.md"])
def test_guides_show_code(page: str) -> None:
    assert SNIPPET.search(text_of(page))


@pytest.mark.parametrize("page", PAGES)
def test_included_files_exist(page: str) -> None:
    """Whole examples are shown by including the files, which have tests of their own."""
    for name in re.findall(r'^--8<-- "([^":]+)', text_of(page), re.MULTILINE):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    """Every shown command is one that the front door or the Makefile knows, with options that it has."""
    text = text_of(page)
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`((?:vecenv|make) [a-z][^`]*)`", text)
    makefile = (ROOT / "Makefile").read_text()
    for line in lines:
        words = line.split()
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), line
        elif words[0] == "vecenv":
            assert words[1] in COMMANDS, line
            assert words[1] != "bench" or words[2] in {*BENCHMARKS, "--help"}, line
        elif words[0] == "torchrun":
            assert line.partition(" -m vecenv ")[2].partition(" ")[0] in COMMANDS, line
        else:
            assert words[0] in ("pip", "python", "cat", "ls"), line


# -- pages ------------------------------------------------------------------------------------------------------------


def navigation() -> str:
    return (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


def test_every_page_has_its_place() -> None:
    hook = (DOCS / "navigation.py").read_text()
    for page in PAGES:
        assert re.search(rf"^ +- {re.escape(page)}$", navigation(), re.MULTILINE) or f'"{page}"' in hook, page


def build_page(folder: Path, text: str) -> int:
    """Exit status of the Makefile's command for a site of one page, under the rules for links of ours."""
    yaml = pytest.importorskip("yaml")
    command = re.search(r"^docs:.*\n\t.*/python -m (mkdocs .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command is not None
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config.update(nav=["index.md"], plugins=[], hooks=[], theme={"name": "mkdocs"})
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config))
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "index.md").write_text(text)
    words = [sys.executable, "-m", *command[1].split()]
    return subprocess.run(words, cwd=folder, capture_output=True, timeout=60).returncode


def test_dead_links_fail_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    assert build_page(tmp_path, "# One\n\n[here](#one)\n") == 0
    for link in ("[page](other.md)", "[anchor](#two)", "![picture](none.svg)", "[source](../examples/none.py)"):
        assert build_page(tmp_path, f"# One\n\n{link}\n") != 0, link


def test_pages_that_may_be_missing_are_put_in_where_they_are(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("navigation", DOCS / "navigation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = {"docs_dir": str(tmp_path), "nav": ["index.md", {"Figures": ["parity.md"]}]}
    assert module.on_config(config)["nav"][1]["Figures"] == ["parity.md"]
    (tmp_path / "benchmarks.md").touch()
    for _ in range(2):  # a second build with the same settings changes nothing
        assert module.on_config(config)["nav"][1]["Figures"] == ["benchmarks.md", "parity.md"]


def test_every_public_name_is_in_the_reference() -> None:
    named = {
        name for page in (DOCS / "reference").glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    }
    for home in ("vecenv", "vecenv.testing", "vecenv.sb3", "vecenv.tianshou", "vecenv.preprocess.wrappers"):
        for name in importlib.import_module(home).__all__:
            thing = getattr(importlib.import_module(home), name)
            if name == "AutoresetMode":  # Gymnasium's
                continue
            module = thing.__module__
            names = {f"{home}.{name}", f"{module}.{name}", module, home if home != "vecenv" else ""}
            assert names & named, f"{home}.{name}"


# -- troubleshooting --------------------------------------------------------------------------------------------------


def error_classes() -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, BaseException) and value.__module__ == errors.__name__
    ]


def agents_error_classes() -> dict[str, str]:
    """Name -> module of the agents' errors, read from the sources: their modules need torch."""
    bases = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
    bases |= set(error_classes())
    classes = {
        node.name: path.stem
        for path in (ROOT / "agents").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and bases & {base.id for base in node.bases if isinstance(base, ast.Name)}
    }
    del classes["CollectionInterrupted"]  # how a learner says that it stopped as it was told to, never shown
    return classes


@pytest.mark.parametrize("name", [*error_classes(), *agents_error_classes()])
def test_every_error_class_has_an_entry(name: str) -> None:
    assert re.search(rf"^##+ .*`{name}`", text_of("troubleshooting.md"), re.MULTILINE)


def test_every_error_class_is_in_the_reference() -> None:
    reference = text_of("reference/errors.md") + text_of("reference/agents.md")
    assert {"RankLost", "WorkersNotReady", "CheckpointError"} <= set(agents_error_classes())
    for name, module in agents_error_classes().items():
        assert f"::: vecenv.agents.{module}.{name}\n" in reference, name


def quoted_messages() -> list[str]:
    """The messages that the page quotes, in blocks of their own."""
    blocks = re.findall(r"^```text\n(.*?)^```", text_of("troubleshooting.md"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def plain_sources() -> str:
    """The texts of the sources, with parts of one string joined."""
    paths = [path for folder in (*FOLDERS, "benchmarks") for path in (ROOT / folder).glob("*.py")]
    text = "\n".join(path.read_text() for path in paths)
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_quoted_messages_are_those_of_the_source() -> None:
    """Every quoted message, cut where it holds values (``...``), is found in the source word for word."""
    sources, messages = plain_sources(), quoted_messages()
    assert len(messages) >= 25
    for message in messages:
        fragments = [fragment.strip() for fragment in message.split("...") if len(fragment.strip()) > 2]
        assert fragments, message
        for fragment in fragments:
            assert fragment in sources, f"{fragment!r} of {message!r}"


# -- docstrings -------------------------------------------------------------------------------------------------------


def test_there_are_examples() -> None:
    documented = {"vecenv.factory", "vecenv.sync_backend", "vecenv.subproc_backend", "vecenv.contract", "vecenv.atari"}
    assert documented <= set(modules_with_examples())


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        module = importlib.import_module(name)
    except vecenv.MissingExtra as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
