"""The throughput and start-up benchmarks: refusals, and small real runs. No test looks at a speed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from vecenv.benchmarks import startup, throughput
from vecenv.benchmarks.contestants import PEERS, Settings, draw_actions
from vecenv.errors import MissingExtra, UnknownSetting


def test_unknown_peer_lists_the_peers() -> None:
    with pytest.raises(UnknownSetting, match=r"'gym'.*subproc.*envpool"):
        throughput.choose_peers(["gym"], is_atari=True)


def test_atari_only_peer_is_refused_elsewhere() -> None:
    with pytest.raises(UnknownSetting, match="Atari games only"):
        throughput.choose_peers(["ale"], is_atari=False)


def test_peer_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"vecenv\[envpool\]"):
        throughput.choose_peers(["envpool"], is_atari=True)


def test_default_peers_that_are_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(throughput, "find_spec", lambda name: None)
    assert throughput._installed(("gymnasium-async", "envpool")) == ["gymnasium-async"]
    assert "vecenv[envpool]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--num-envs", "0"], ["--rounds", "-1"], ["--seconds", "0"], ["--seconds", "nan"], ["--num-workers", "x"]]
)
def test_senseless_numbers_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        throughput.main(["CartPole-v1", *words])
    assert exit_info.value.code == 2


def test_actions_are_the_same_for_everyone() -> None:
    settings = Settings("CartPole-v1", 3, 1, seed=5)
    first, second = draw_actions(settings), draw_actions(settings)
    np.testing.assert_array_equal(first, second)
    assert len({batch.tobytes() for batch in first}) > 1


def test_cartpole_run_writes_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["CartPole-v1", "--num-envs", "2", "--num-workers", "2", "--backends", "subproc,sync"]
    assert throughput.main([*words, "--rounds", "2", "--seconds", "0.05", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    document = json.loads(path.read_text())
    names = [row["name"] for row in document["results"]["rates"]]
    assert names == ["vecenv subproc", "vecenv sync", "Gymnasium AsyncVectorEnv", "Gymnasium SyncVectorEnv"]
    assert all(name in text for name in names)
    assert all(len(row["samples"]) == 2 and min(row["samples"]) > 0 for row in document["results"]["rates"])
    assert document["settings"]["num_envs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PEERS if name != "gymnasium-sync"])
def test_contestant_plays_pong(name: str) -> None:
    """Every contestant is asked for the same work: 84x84 gray, stacked by 4."""
    pytest.importorskip(PEERS[name].module or "gymnasium")
    with closing(PEERS[name].build(Settings("PongNoFrameskip-v4", 2, 2))) as contestant:
        assert contestant.measure(0.2) > 0
        shape = contestant.observation_shape
    assert sorted(shape) == [2, 4, 84, 84]


@pytest.mark.slow
def test_pong_run_includes_the_emulator_limit(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["PongNoFrameskip-v4", "--num-envs", "2", "--peers", "ale", "--rounds", "1", "--seconds", "0.2"]
    assert throughput.main([*words, "--json", str(path)]) == 0
    rates = json.loads(path.read_text())["results"]["rates"]
    assert [row["name"] for row in rates] == ["vecenv subproc", "ale-py AtariVectorEnv", "emulator limit"]


@pytest.mark.slow
def test_startup_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["--env", "CartPole-v1", "--num-envs", "2", "--num-workers", "2", "--rounds", "2"]
    assert startup.main([*words, "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert {len(samples) for samples in results["import"]["seconds"].values()} == {2}
    assert all(len(results["build"][name]["private_bytes"]) == 2 for name in ("cold", "warm"))
    assert min(results["build"]["warm"]["private_bytes"]) > 0
    assert "private memory per worker" in capsys.readouterr().out


def test_startup_says_in_one_line_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert startup.main(["--env", "NoSuchEnv-v0", "--num-envs", "1", "--rounds", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "NoSuchEnv" in captured.err
