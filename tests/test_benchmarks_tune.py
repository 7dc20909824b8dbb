"""`vecenv tune`: the advice, the search within its time, and one small real run. No test looks at a speed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from vecenv.benchmarks import tune
from vecenv.benchmarks.contestants import Settings
from vecenv.benchmarks.tune import Search, Trial, advised


def trial(backend: str, num_envs: int, workers: int, rate: float, batch_size: int | None = None) -> Trial:
    return Trial(backend, Settings("CartPole-v1", num_envs, workers, batch_size=batch_size), (rate,))


def test_the_simplest_of_those_as_fast_as_the_fastest_is_advised() -> None:
    fastest = trial("subproc", 64, 4, 1000.0)
    assert advised([fastest, trial("subproc", 8, 4, 900.0)]) is fastest
    fewer = trial("subproc", 32, 4, 960.0)
    assert advised([fastest, fewer]) is fewer
    without_workers = trial("sync", 32, 4, 955.0)
    assert advised([fastest, fewer, without_workers]) is without_workers


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (trial("subproc", 8, 2, 1.0, 4), {"num_envs": 8, "backend": "subproc", "num_workers": 2, "batch_size": 4}),
        (trial("sync", 8, 2, 1.0), {"num_envs": 8, "backend": "sync"}),
        (trial("compiled", 8, 2, 1.0), {"num_envs": 8, "backend": "compiled"}),
    ],
)
def test_line_of_code(made: Trial, words: dict[str, object]) -> None:
    call = ast.parse(made.line_of_code()).body[0].value  # type: ignore[attr-defined]
    assert ast.unparse(call.func) == "vecenv.make_vec"
    assert [ast.literal_eval(argument) for argument in call.args] == ["CartPole-v1"]
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == words


def test_same_bits() -> None:
    assert trial("sync", 1, 1, 1.0).same_bits
    assert trial("subproc", 1, 1, 1.0).same_bits
    assert not trial("compiled", 1, 1, 1.0).same_bits
    assert Trial("ale", Settings("PongNoFrameskip-v4", 1, 1), (1.0,)).same_bits


class Fake:
    """Stands in for a contestant: the rate follows from what was built."""

    def __init__(self, backend: str, settings: Settings) -> None:
        self.name = f"{backend} {settings}"
        speed = {"sync": 10.0, "subproc": 15.0, "compiled": 99.0}.get(backend, 1.0)
        self.rate = speed * settings.num_envs * (1.5 if settings.batch_size else 1.0) / abs(settings.num_workers - 3.1)

    def measure(self, seconds: float) -> float:
        return self.rate

    def close(self) -> None:
        pass


def test_the_search_varies_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_build", Fake)
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    search = Search("CartPole-v1", 60.0, [2, 4, 8])
    search.run()
    tried = [(t.backend, t.settings.num_envs, t.workers, t.settings.batch_size) for t in search.trials]
    assert len(set(tried)) == len(tried)
    assert {("subproc", 2, 2, None), ("sync", 8, 0, None), ("subproc", 8, 1, None), ("subproc", 8, 3, None)} <= set(
        tried
    )
    assert ("subproc", 8, 2, 4) in tried
    best = advised([t for t in search.trials if t.same_bits])
    assert (best.backend, best.settings.num_envs, best.workers) == ("subproc", 8, 3)
    assert len(best.samples) == 3  # it took turns with the next best


def test_the_search_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(tune, "_build", Fake)
    monkeypatch.setattr(tune.time, "monotonic", lambda: float(next(now)))
    search = Search("CartPole-v1", 10.0, list(range(1, 100)))
    search.run()
    assert 1 <= len(search.trials) <= 8


def test_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tune.json"
    words = ["CartPole-v1", "--seconds", "1", "--num-envs", "2,4", "--json", str(path)]
    assert tune.main(words) == 0
    text = capsys.readouterr().out
    document = json.loads(path.read_text())
    results = document["results"]
    assert results["step_seconds"] > 0
    assert results["advised"]["same_bits"] is True
    assert results["advised"]["line_of_code"] in text
    assert not results["memory_per_env_bytes"] or results["largest_num_envs"] > 1000
    assert any(name.startswith("vecenv s") for name in document["samples"])
    assert "same bits" in text
    assert "rules of thumb" in text


def test_numbers_beyond_the_memory_are_named_and_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = tune._parser().parse_args(["CartPole-v1", "--num-envs", "2,64,8"])
    assert tune._numbers(arguments, 10) == [2, 8]
    assert "64 envs" in capsys.readouterr().err
    assert tune._numbers(arguments, None) == [2, 8, 64]
    assert tune._numbers(arguments, 0) == [1]
