"""The start-up benchmark: one small real run, and the line it says when something fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vecenv.benchmarks import startup


@pytest.mark.slow
def test_startup_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["--env", "CartPole-v1", "--num-envs", "2", "--num-workers", "2", "--rounds", "2"]
    assert startup.main([*words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    results = document["results"]
    assert {len(samples) for samples in results["import"]["seconds"].values()} == {2}
    assert all(len(results["build"][name]["private_bytes"]) == 2 for name in ("cold", "warm"))
    assert min(results["build"]["warm"]["private_bytes"]) > 0
    assert len(document["samples"]["import vecenv over numpy and gymnasium"]["values"]) == 2
    assert "private memory per worker" in capsys.readouterr().out


def test_startup_says_in_one_line_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert startup.main(["--env", "NoSuchEnv-v0", "--num-envs", "1", "--rounds", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "NoSuchEnv" in captured.err
