"""The parity report: what it says about equal and unequal runs, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenv.benchmarks import parity, parity_peers
from vecenv.benchmarks.parity_peers import EnvDriver, Step
from vecenv.errors import UnknownSetting


def test_a_run_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs" / "parity.md"
    words = ["--peers", "gymnasium", "--games", "pong,breakout", "--seeds", "2", "--steps", "40"]
    assert parity.main([*words, "--report", str(path)]) == 0
    text = path.read_text()
    assert "**160 agent steps compared in 4 runs; 0 runs differ.**" in text
    assert "| pong | 2 | 80 | 0 | 0 | 0 | equal |" in text
    assert "gymnasium " in text
    assert parity.main(words) == 0
    assert text in capsys.readouterr().out


def test_a_difference_is_found_and_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def one_frame_short(name: str, rom: str, config: Any, seed: int) -> EnvDriver:
        return parity_peers.ours(name, rom, dataclasses.replace(config, noop_max=0), seed)

    monkeypatch.setattr(parity, "ours", one_frame_short)
    assert parity.main(["--peers", "ale", "--games", "pong", "--seeds", "1", "--steps", "10"]) == 1
    output = capsys.readouterr().out
    assert "1 runs differ" in output
    assert "seed 0: observation: " in output


def test_everything_is_compared() -> None:
    picture = np.zeros((2, 2), np.uint8)
    step = Step(picture, 1.0, False, False, 3)
    assert parity.describe_difference(step, Step(picture.copy(), 1.0, False, False, None)) == ""
    changes: list[tuple[dict[str, Any], str]] = [
        ({"observation": picture + 1}, "observation: 4 of 4 values"),
        ({"observation": picture.astype(np.float32)}, "observation: uint8 (2, 2), not float32 (2, 2)"),
        ({"reward": 2.0}, "reward: 1.0, not 2.0"),
        ({"terminated": True}, "terminated: False, not True"),
        ({"truncated": True}, "truncated: False, not True"),
        ({"lives": 2}, "lives: 3, not 2"),
        ({"final_observation": picture}, "only one of both was reset"),
    ]
    for change, expected in changes:
        assert parity.describe_difference(step, dataclasses.replace(step, **change)) == expected
    ended = dataclasses.replace(step, final_observation=picture)
    other = dataclasses.replace(step, final_observation=picture + 1)
    assert parity.describe_difference(ended, other) == "final observation: 4 of 4 values"


@pytest.mark.parametrize("words", [["--peers", "gym"], ["--games", "Pong"]])
def test_unknown_names_are_refused(words: list[str]) -> None:
    with pytest.raises(UnknownSetting, match="available: "):
        parity.main(words)


def test_peers_that_are_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parity, "find_spec", lambda name: None)
    with pytest.raises(UnknownSetting, match="nothing would be compared"):
        parity.main(["--games", "pong", "--seeds", "1", "--steps", "5"])
    assert capsys.readouterr().err.count("left out: ") == 4
