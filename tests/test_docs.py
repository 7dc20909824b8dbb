"""The documentation: its snippets run, its commands are parsed, examples in docstrings hold, what it quotes exists."""

from __future__ import annotations

import argparse
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
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import vecenv
from vecenv import errors
from vecenv.cli import BENCHMARKS, COMMANDS, main

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
    """Every shown command is one that the front door or the Makefile knows."""
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


# -- options of the commands that are shown ---------------------------------------------------------------------------


class Parsed(Exception):
    """Ends a command once it has read its words."""


def command_lines(*verbs: str) -> list[str]:
    """The commands of these verbs in the README and on all pages, each once; not what only names a command."""
    lines = set()
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = path.read_text()
        blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        shown = [line.split() for block in blocks for line in block.splitlines()]
        named = [line.split() for line in re.findall(r"`((?:vecenv|torchrun) [^`]+)`", text)]
        shown += [words for words in named if len(words) > (3 if {"bench", "train"} & set(words[:2]) else 2)]
        for words in shown:
            if "-m" in words:  # as of torchrun
                words = words[words.index("-m") + 1 :]
            if len(words) > 1 and words[0] == "vecenv" and words[1] in verbs and "--help" not in words:
                lines.add(" ".join(words))
    return sorted(lines)


def read_training(name: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``vecenv train NAME`` read its words; what --resume names is taken for a run of the same algorithm."""
    pytest.importorskip("torch")
    pytest.importorskip("tyro")
    from vecenv.agents import train_arguments
    from vecenv.agents.algorithms import find_algorithm, preset_for
    from vecenv.agents.config import RunConfig

    saved = RunConfig("CartPole-v1", algorithm=name, settings=preset_for(find_algorithm(name), "CartPole-v1"))
    monkeypatch.setattr(train_arguments, "load_run", lambda path: (saved, {}))
    assert train_arguments.read_arguments(name, words)[0].run_config().algorithm == name


def test_commands_are_found() -> None:
    for verb in ("train", "eval", "bench", "tune"):
        assert len(command_lines(verb)) >= 2, verb


@pytest.mark.parametrize("line", command_lines("train"))
def test_options_of_trainings_exist(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = line.split()
    read_training(words[2], [word for word in words[3:] if word != "..."], monkeypatch)


@pytest.mark.parametrize("line", command_lines("eval"))
def test_options_of_evaluations_exist(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tyro")
    from vecenv.agents import evaluation

    def stop(path: Path) -> NoReturn:
        raise Parsed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "load_run", stop)
    with pytest.raises(Parsed):
        main(line.split()[1:])


@pytest.mark.parametrize("line", command_lines("bench", "tune"))
def test_options_of_benchmarks_exist(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the line is parsed, values too; what stands after ``--`` goes to trainings."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, words: Sequence[str]) -> NoReturn:
        parser.allow_abbrev = False
        parse_args(parser, words)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        with pytest.raises(Parsed):
            main(line.split()[1:])
    own, _, of_training = line.partition(" -- ")
    if of_training:
        algorithms = re.search(r" --algorithms (\S+)", own)
        assert algorithms is not None
        for name in algorithms[1].split(","):
            read_training(name, ["--env", "CartPole-v1", *of_training.split()], monkeypatch)


# -- figures ----------------------------------------------------------------------------------------------------------

#: Row of the first table of the page of figures -> what the texts of its picture call it.
PICTURE_NAMES = {
    "vecenv subproc": "vecenv",
    "Gymnasium AsyncVectorEnv": "Gymnasium's AsyncVectorEnv",
    "ale-py AtariVectorEnv": "ale-py",
    "EnvPool": "EnvPool",
    "SB3 SubprocVecEnv": "SB3's SubprocVecEnv",
    "emulator limit": "the emulator alone would reach",
}


def measured_on_pong() -> dict[str, int]:
    """Agent steps per second by row, from the first table of the page of figures."""
    section = text_of("benchmarks.md").partition("\n## ")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?)(?: \([^|]*\))? \| ([\d,]+) \|", section, re.MULTILINE)
    return {name: int(rate.replace(",", "")) for name, rate in rows}


def is_rounded(said: str, measured: int) -> bool:
    """Whether a figure in words, such as 4,330, is the measured one, rounded to no fewer than three digits."""
    unit = 10 ** max(0, len(str(measured)) - 3)
    return abs(int(said.replace(",", "")) - measured) <= unit / 2


@pytest.mark.parametrize("path", ["README.md", "docs/index.md"])
def test_texts_of_the_picture_say_what_its_table_says(path: str) -> None:
    (text,) = re.findall(r"!\[([^\]]*)\]\([^)]*/throughput-pong\.svg\)", (ROOT / path).read_text())
    measured = measured_on_pong()
    found = {row: re.search(rf"{re.escape(name)} (\d[\d,]*\d)", text) for row, name in PICTURE_NAMES.items()}
    said = {row: match[1] for row, match in found.items() if match is not None}
    assert said.keys() == measured.keys()
    for row, rate in said.items():
        assert is_rounded(rate, measured[row]), f"{path} says {rate} of {row}, the table {measured[row]:,}"


def test_the_readme_says_how_fast_the_emulator_was_when_the_page_was_measured() -> None:
    """Its other figures are of other hours; of the page it says this one beside those of the picture."""
    readme = (ROOT / "README.md").read_text()
    for said in re.findall(r"\(docs/benchmarks\.md\) was measured,[^.]*? it reached (\d[\d,]*\d)", readme):
        assert is_rounded(said, measured_on_pong()["emulator limit"]), said


def test_every_measurement_has_its_heading_on_the_page_of_figures() -> None:
    """A page without one was made before there was that measurement: it has to be made anew."""
    from vecenv.benchmarks.document_entries import ENTRIES

    headings = re.findall(r"^## (.+)$", text_of("benchmarks.md"), re.MULTILINE)
    titles = [heading for heading in headings if not heading.startswith("Targets")]
    assert titles == [entry.title for entry in ENTRIES]


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
