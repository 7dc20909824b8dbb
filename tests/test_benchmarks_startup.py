"""The start-up benchmark: one small real run, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vecenv.benchmarks import startup
from vecenv.errors import MissingExtra, UnknownSetting


def test_startup_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["--env", "CartPole-v1", "--num-envs", "2", "--num-workers", "2", "--rounds", "1", "--builds", "2"]
    assert startup.main([*words, "--backends", "subproc,sync", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    results = document["results"]
    assert {len(samples) for samples in results["import"]["seconds"].values()} == {1}
    for backend, processes in (("subproc", 2), ("sync", 1)):
        build = results["build"][backend]
        assert len(build["warm"]) == 2
        for run in (build["cold"], *build["warm"]):
            assert len(run["seconds"]) == len(startup.PHASES)
            assert min(run["seconds"]) > 0
            assert len(run["private_bytes"]) == processes
            assert min(run["private_bytes"]) > 0
    assert len(document["samples"]["import vecenv over numpy and gymnasium"]["values"]) == 1
    assert len(document["samples"]["subproc: start of CartPole-v1, warm"]["values"]) == 2
    assert document["samples"]["sync: private memory with CartPole-v1"]["higher_is_better"] is False
    assert "private memory per worker" in capsys.readouterr().out


def test_startup_says_in_one_line_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup, "resolved_spec", lambda env_id: None)
    assert startup.main(["--env", "NoSuchEnv-v0", "--num-envs", "1", "--rounds", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "NoSuchEnv" in captured.err


def test_back_ends_are_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownSetting, match="no back end 'threads'"):
        startup.main(["--backends", "threads"])
    with pytest.raises(UnknownSetting, match="NoSuchEnv"):
        startup.main(["--env", "NoSuchEnv-v0"])
    with pytest.raises(UnknownSetting, match="Atari games only"):
        startup.main(["--backends", "ale", "--env", "CartPole-v1"])
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="envpool"):
        startup.main(["--backends", "envpool"])
