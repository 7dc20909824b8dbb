"""The command that measures trainers on their own vector envs and on ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vecenv.benchmarks import adapters
from vecenv.errors import MissingExtra, UnknownSetting


def test_a_run_compares_ours_with_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("tianshou")
    path = tmp_path / "adapters.json"
    words = ["--num-envs", "2", "--rollout-steps", "4", "--rounds", "1", "--seconds", "0.01", "--json", str(path)]
    assert adapters.main(words) == 0
    samples = json.loads(path.read_text())["samples"]
    assert len(samples) == 8
    assert {name: row["ours"] for name, row in samples.items()} == {name: "vecenv" in name for name in samples}
    assert capsys.readouterr().out.count("CartPole-v1, 2 envs") == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["PongNoFrameskip-v4", "--trainer", "tianshou"], "an Atari game, which is measured with --trainer sb3 only"),
        (["Pendulum-v1"], "Tianshou's rows need a Discrete action space, got Box"),
        (["NoSuchEnv-v0", "--trainer", "tianshou"], "NoSuchEnv"),
    ],
)
def test_what_tianshou_cannot_play_is_refused_before_sb3_is_measured(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: True)
    monkeypatch.setattr(adapters, "sb3_contestants", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(UnknownSetting, match=text):
        adapters.main(words)


def test_a_trainer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"vecenv\[sb3\]"):
        adapters.main([])
