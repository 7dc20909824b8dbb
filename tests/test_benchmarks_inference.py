"""`vecenv bench inference`: every way decides the same, and the figures come out."""

from __future__ import annotations

import json

import pytest

from vecenv import cli
from vecenv.benchmarks import inference

FAST = ["--rounds", "1", "--seconds", "0.01", "--batch-sizes", "1,3"]


@pytest.mark.parametrize("network", ["mlp", "small-cnn"])
@pytest.mark.usefixtures("one_torch_thread")
def test_all_ways_decide_alike(network):
    shared = inference.shared_contestants(network, 5, ["float32"], "cpu")
    own = inference.per_env_contestants(network, 5)
    for batched, one_by_one in (shared, own):
        assert batched.act().actions.tolist() == one_by_one.act()
        assert batched.batch_size == 5


def test_the_command_writes_its_figures(tmp_path, capsys):
    path = tmp_path / "inference.json"
    assert cli.main(["bench", "inference", "--network", "mlp", *FAST, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["settings"]["batch_sizes"] == [1, 3]
    assert set(document["results"]) == {"1", "3"}
    names = [row["name"] for row in document["results"]["3"]]
    assert names == [
        "batched, float32",
        "batched, bfloat16",
        "once per env, float32",
        "own weights, batched",
        "own weights, once per env",
    ]
    assert all(row["median"] > 0 for row in document["results"]["3"])
    assert document["samples"]["batched, float32, batch 3"]["ours"] is True
    assert document["samples"]["once per env, float32, batch 3"]["ours"] is False
    assert "3 environments at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--network", "transformer"], "there is no network 'transformer'"),
        (["--precisions", "float8"], "there is no precision 'float8'"),
        (["--precisions", ","], "at least one of float32"),
        (["--device", "abacus"], "device 'abacus' was asked for"),
    ],
)
def test_what_there_is_not_is_one_line(words, named, capsys):
    assert cli.main(["bench", "inference", *words]) == 2
    errors = capsys.readouterr().err
    assert named in errors
    assert len(errors.splitlines()) == 1


def test_without_a_compiler_nothing_is_compiled(monkeypatch, capsys):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert cli.main(["bench", "inference", "--compiled"]) == 2
    assert "no C++ compiler here: none of g++, clang++, c++" in capsys.readouterr().err
    monkeypatch.setenv("CXX", "my-compiler")
    assert cli.main(["bench", "inference", "--compiled"]) == 2
    assert "none of my-compiler is found" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.usefixtures("one_torch_thread")
def test_what_is_compiled_decides_alike(precision, monkeypatch):
    asked = []

    def traced(network, **keywords):  # stands in for torch.compile, which needs minutes on a busy machine
        asked.append(keywords)
        return network

    monkeypatch.setattr("torch.compile", traced)
    rows = {row.name: row for row in inference.shared_contestants("mlp", 5, [precision], "cpu", with_compiled=True)}
    compiled, batched = rows[f"compiled, {precision}"], rows[f"batched, {precision}"]
    assert asked == [{"dynamic": False}]
    assert compiled.act().actions.tolist() == batched.act().actions.tolist()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torch_compiles_what_acts(tmp_path):
    path = tmp_path / "inference.json"
    words = ["--network", "mlp", "--batch-sizes", "4", "--rounds", "1", "--seconds", "0.01", "--compiled"]
    assert cli.main(["bench", "inference", *words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["samples"]["compiled, bfloat16, batch 4"]["ours"] is False
    assert all(row["median"] > 0 for row in document["results"]["4"])
