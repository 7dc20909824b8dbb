"""Comparing two results: the test on the raw samples, the verdicts, the exit status."""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import pytest

from vecenv.benchmarks import arguments as words_of
from vecenv.benchmarks.compare import Samples, compare_results, compare_samples, mann_whitney, read_result
from vecenv.benchmarks.report import EXIT_SLOWER, check_output, commit, publish
from vecenv.cli import main
from vecenv.errors import MissingExtra, UnknownSetting


@pytest.mark.parametrize("sizes", [(3, 3), (5, 5), (4, 7), (12, 14)])
def test_mann_whitney_is_that_of_scipy(sizes: tuple[int, int]) -> None:
    """The last sizes are beyond counting: SciPy's normal approximation then."""
    stats = pytest.importorskip("scipy.stats")
    generator = random.Random(3)
    for shift in (0.0, 1.0, -1.0):
        one = [generator.gauss(0, 1) for _ in range(sizes[0])]
        two = [generator.gauss(shift, 1) for _ in range(sizes[1])]
        method = "exact" if sum(sizes) < 20 else "asymptotic"
        expected = stats.mannwhitneyu(one, two, alternative="less", method=method).pvalue
        assert mann_whitney(one, two) == pytest.approx(expected, abs=1e-6)


def test_mann_whitney_by_hand() -> None:
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert mann_whitney([4, 5, 6], [1, 2, 3]) == 1.0
    assert mann_whitney([1, 2], [2, 3]) == pytest.approx(2 / 6)  # ranks 1, 2.5, 2.5, 4: sums of 3.5 come twice
    assert mann_whitney([5.0] * 12, [5.0] * 12) == 1.0


OLD = Samples((100.0, 101.0, 99.0, 102.0, 98.0), "steps/s")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((80.0, 81.0, 79.0, 82.0, 78.0), "slower"),
        ((130.0, 131.0, 129.0, 128.0, 132.0), "faster"),
        ((97.0, 96.0, 97.5, 96.5, 95.9), "same"),  # lower in every round, but by 3 %
        ((60.0, 150.0, 90.0, 140.0, 80.0), "same"),  # ten per cent lower in the middle, and noise
        ((50.0, 51.0), "slower"),  # two against five: one division of 21
        ((50.0,), "too few samples"),
    ],
)
def test_verdicts(values: tuple[float, ...], verdict: str) -> None:
    assert compare_samples("row", OLD, Samples(values, "steps/s")).verdict == verdict


def test_what_the_machine_did_to_everything_is_not_held_against_us() -> None:
    old = {"ours": OLD, "peer": Samples(OLD.values, "steps/s", ours=False)}

    def verdict(ours: float, peer: float) -> str:
        new = {
            "ours": Samples(tuple(value * ours for value in OLD.values), "steps/s"),
            "peer": Samples(tuple(value * peer for value in OLD.values), "steps/s", ours=False),
        }
        return compare_results(old, new)[0].verdict

    assert verdict(0.7, 1.0) == "slower"
    assert verdict(0.7, 0.7) == "same"  # a slow minute
    assert verdict(0.5, 0.7) == "slower"
    assert verdict(1.0, 1.4) == "same"  # the peer got better, we did not get worse
    assert verdict(1.4, 1.4) == "same"
    assert verdict(1.4, 1.0) == "faster"


def test_a_slow_machine_makes_times_longer() -> None:
    def rows(ours: float, peer: float) -> dict[str, Samples]:
        return {
            "ours": Samples(tuple(value * ours for value in OLD.values), "s", higher_is_better=False),
            "peer": Samples(tuple(value * peer for value in OLD.values), "s", higher_is_better=False, ours=False),
        }

    assert compare_results(rows(1, 1), rows(2, 2))[0].verdict == "same"
    assert compare_results(rows(1, 1), rows(2, 1))[0].verdict == "slower"


def test_times_are_better_when_lower() -> None:
    old = Samples((2.0, 2.1, 1.9, 2.2), "s", higher_is_better=False)
    change = compare_samples("row", old, Samples((4.0, 4.1, 3.9, 4.2), "s", higher_is_better=False))
    assert (change.verdict, round(change.speed, 1)) == ("slower", 0.5)
    change = compare_samples("row", old, Samples((1.0, 1.1, 0.9, 1.2), "s", higher_is_better=False))
    assert change.verdict == "faster"


def published(folder: Path, rates: dict[str, tuple[float, ...]], compare: Path | None = None, **other: str) -> int:
    parser = argparse.ArgumentParser()
    words_of.add_output(parser, "fake")
    words = ["--json", str(folder / other.get("file", "new.json"))]
    arguments = parser.parse_args(words + (["--compare", str(compare)] if compare else []))
    check_output(arguments, "fake")
    samples = {name: Samples(values, "steps/s", ours="peer" not in name) for name, values in rates.items()}
    return publish(arguments, "fake", settings={"num_envs": 3}, results={}, samples=samples)


FAST, SLOW = (100.0, 101.0, 99.0, 102.0), (50.0, 51.0, 49.0, 52.0)


def test_exit_status_and_text_tell_what_got_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    assert published(tmp_path, {"ours": FAST, "peer": FAST, "gone": FAST}, file="old.json") == 0
    assert published(tmp_path, {"ours": FAST, "peer": SLOW, "fresh": FAST}, old) == 0
    text = capsys.readouterr().out
    assert "nothing of ours got slower" in text
    assert "slower (not ours)" in text
    assert "0.50 times its speed" in text
    assert "only then: gone" in text
    assert "only now: fresh" in text
    assert published(tmp_path, {"ours": SLOW, "peer": FAST}, old) == EXIT_SLOWER == 1
    assert "slower beyond noise: ours" in capsys.readouterr().out


def test_a_result_carries_what_is_needed_to_judge_it(tmp_path: Path) -> None:
    published(tmp_path, {"ours": FAST})
    document = json.loads((tmp_path / "new.json").read_text())
    assert document["samples"]["ours"]["values"] == list(FAST)
    assert document["settings"] == {"num_envs": 3}
    assert document["machine"]["usable_cores"] >= 1
    assert document["packages"]["numpy"]
    assert document["commit"] == commit()
    assert document["commit"] is None or len(document["commit"].removesuffix("-dirty")) == 40
    assert document["time"]


def test_another_machine_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(tmp_path, {"ours": FAST}, file="old.json")
    old = tmp_path / "old.json"
    document = json.loads(old.read_text())
    document["machine"]["processor"] = "abacus"
    old.write_text(json.dumps(document))
    published(tmp_path, {"ours": FAST}, old)
    assert "differs: processor: abacus then" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file"),
        ("{", "not a result"),
        ("[]", "not a result"),
        ('{"name": "fake"}', "not a result"),
        ('{"name": "other", "samples": {}}', "a result of 'other', not of 'fake'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    tmp_path: Path, content: str | None, text: str
) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UnknownSetting, match=text):
        read_result(path, "fake")
    with pytest.raises(UnknownSetting, match=text):
        published(tmp_path, {"ours": FAST}, path)
    assert not (tmp_path / "new.json").exists()


def test_table_without_rich_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vecenv.benchmarks.report.find_spec", lambda name: None if name == "rich" else True)
    for words in (["bench", "throughput", "CartPole-v1"], ["tune", "CartPole-v1"], ["bench", "adapters"]):
        assert main(words) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", "vecenv: rich is not installed; run: pip install 'vecenv[bench]'\n")


def test_quick_stands_for_rounds_and_seconds() -> None:
    parser = argparse.ArgumentParser()
    words_of.add_timing(parser, rounds=40, seconds=3.0)
    words_of.add_quick(parser, rounds=5, seconds=0.1)
    for words, timing in (([], (40, 3.0)), (["--quick"], (5, 0.1)), (["--quick", "--rounds", "7"], (7, 0.1))):
        arguments = parser.parse_args(words)
        assert (arguments.rounds, arguments.seconds) == timing


def test_picture_without_matplotlib_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.benchmarks.report.find_spec", lambda name: None if name == "matplotlib" else True)
    parser = argparse.ArgumentParser()
    words_of.add_output(parser, "fake", plot="bars")
    with pytest.raises(MissingExtra, match="matplotlib"):
        check_output(parser.parse_args(["--plot", "x.png"]), "fake")
    check_output(parser.parse_args([]), "fake")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--json", "file/new.json"], r"--json: .*file is a file, not a folder"),
        (["--json", "folder"], r"--json: folder is a folder, not a file"),
        (["--json", "sealed/deep/new.json"], r"--json: no permission to write to .*sealed"),
        (["--plot", "file/x.png"], r"--plot: .*file is a file"),
        (["--plot", "x.doc"], r"--plot x\.doc: a picture must end in one of \.png"),
        (["--json", "new/deep/new.json", "--plot", "new/x.svg"], ""),
    ],
)
def test_what_cannot_be_written_is_refused_first(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "sealed").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sealed" and access(path, mode))  # for root
    parser = argparse.ArgumentParser()
    words_of.add_output(parser, "fake", plot="bars")
    arguments = parser.parse_args(words)
    if text:
        with pytest.raises(UnknownSetting, match=text):
            check_output(arguments, "fake")
    else:
        check_output(arguments, "fake")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "sealed"]


def test_words_of_the_command_line() -> None:
    assert words_of.words(" a, b,,a ") == ["a", "b"]
    assert words_of.words("") == []
    assert words_of.some_words("a,b") == ["a", "b"]
    assert words_of.positive_ints("8, 64") == [8, 64]
    assert words_of.natural_number("0") == 0
    for function, text in (
        (words_of.positive_int, "0"),
        (words_of.positive_int, "x"),
        (words_of.positive_int, "1.5"),
        (words_of.positive_ints, ""),
        (words_of.natural_number, "-1"),
        (words_of.natural_number, "0.5"),
        (words_of.some_words, " ,"),
        (words_of.positive_ints, "3,-1"),
        (words_of.positive_number, "nan"),
        (words_of.positive_number, "inf"),
        (words_of.positive_number, "0"),
        (words_of.positive_number, "x"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="must be"):
            function(text)
    with pytest.raises(UnknownSetting, match=r"no peer 'x'; available: a, b"):
        words_of.check_known(["a", "x"], ["a", "b"], "peer")
