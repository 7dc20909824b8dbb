"""Paired timing: order of the turns, arithmetic of the ratios, refusals."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from vecenv.benchmarks.report import default_path, print_rates, write_json
from vecenv.benchmarks.timing import Rates, alternate, measure_rate


class Scripted:
    """Answers with prepared rates and writes down each turn."""

    def __init__(self, name: str, rates: list[float], log: list[tuple[str, float]]) -> None:
        self.name = name
        self._rates = iter(rates)
        self._log = log

    def measure(self, seconds: float) -> float:
        self._log.append((self.name, seconds))
        return next(self._rates)


def test_turns_alternate_and_warm_up_is_not_recorded() -> None:
    log: list[tuple[str, float]] = []
    contestants = [Scripted("a", [999, 1, 2, 3], log), Scripted("b", [999, 10, 20, 30], log)]
    rates = alternate(contestants, rounds=3, seconds=2, warm_up_seconds=1)
    assert [row.samples for row in rates] == [(1, 2, 3), (10, 20, 30)]
    warm_up, rest = log[:2], log[2:]
    assert warm_up == [("a", 1), ("b", 1)]
    assert [name for name, _ in rest] == ["a", "b", "b", "a", "a", "b"]
    assert {seconds for _, seconds in rest} == {2}


def test_no_warm_up_when_it_is_zero() -> None:
    log: list[tuple[str, float]] = []
    alternate([Scripted("a", [1], log)], rounds=1, seconds=2, warm_up_seconds=0)
    assert log == [("a", 2)]


def test_each_sample_is_reported() -> None:
    seen: list[tuple[int, str, float]] = []
    alternate(
        [Scripted("a", [1, 2], [])],
        rounds=2,
        seconds=1,
        warm_up_seconds=0,
        on_sample=lambda turn, name, rate: seen.append((turn, name, rate)),
    )
    assert seen == [(0, "a", 1), (1, "a", 2)]


def test_ratio_pairs_the_rounds() -> None:
    """A machine that halves its speed half-way changes neither pair's ratio, though it changes both medians."""
    ours = Rates("ours", (300.0, 150.0, 301.0, 151.0))
    theirs = Rates("theirs", (100.0, 50.0, 100.0, 50.0))
    assert ours.ratio_to(theirs) == statistics.median([3.0, 3.0, 3.01, 3.02])
    assert (ours.lowest, ours.median, ours.highest) == (150.0, 225.5, 301.0)


@pytest.mark.parametrize(
    ("names", "rounds", "seconds", "warm_up"),
    [([], 1, 1, 0), (["a", "a"], 1, 1, 0), (["a"], 0, 1, 0), (["a"], 1, 0, 0), (["a"], 1, 1, -1)],
)
def test_senseless_settings_are_refused(names: list[str], rounds: int, seconds: float, warm_up: float) -> None:
    log: list[tuple[str, float]] = []
    contestants = [Scripted(name, [1, 1], log) for name in names]
    with pytest.raises(ValueError, match="must be"):
        alternate(contestants, rounds=rounds, seconds=seconds, warm_up_seconds=warm_up)
    assert not log


def test_measure_rate_counts_whole_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.0, 1.5])
    monkeypatch.setattr("vecenv.benchmarks.timing.time.perf_counter", lambda: next(clock))
    assert measure_rate(lambda: 6, 1.2) == 18 / 1.5


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = [Rates("vecenv subproc", (200.0, 220.0)), Rates("Gymnasium AsyncVectorEnv", (100.0, 110.0))]
    print_rates("Pong", rates, frames_per_step=4, unit="agent steps/s")
    text = capsys.readouterr().out
    assert "2.00x" in text
    assert "Gymnasium AsyncVectorEnv" in text
    assert "840" in text  # frames per second of the first row
    path = tmp_path / "new" / "x.json"
    write_json(path, name="throughput", settings={"num_envs": 2}, results={"a": rates[0].as_dict()})
    document = json.loads(path.read_text())
    assert document["results"]["a"]["samples"] == [200.0, 220.0]
    assert document["settings"] == {"num_envs": 2}
    assert document["machine"]["usable_cores"] >= 1
    assert document["packages"]["numpy"]
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_default_path_is_one_file_name() -> None:
    path = default_path("throughput-ALE/Pong-v5")
    assert path.parent == Path("results")
    assert path.name.startswith("throughput-ALE-Pong-v5-")
