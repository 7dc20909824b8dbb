"""``vecenv bench limits``: every row does agent steps of the same game, and the refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vecenv.benchmarks.limits import main
from vecenv.benchmarks.parallel_players import ParallelPlayers
from vecenv.cores import usable_cores
from vecenv.errors import UnknownSetting


class CountPlayer:
    def __call__(self) -> int:
        return 7


def test_every_row_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "limits.json"
    words = [
        "PongNoFrameskip-v4",
        "--num-envs",
        str(2 * usable_cores()),
        "--rounds",
        "2",
        "--seconds",
        "0.2",
        "--json",
        str(target),
    ]
    assert main(words) == 0
    result = json.loads(target.read_text())["results"]["PongNoFrameskip-v4"]
    assert len(result["rates"]) == len(result["shares"]) == 4
    assert result["shares"][0] == 1.0
    assert all(share > 0.02 for share in result["shares"])
    assert "share of the emulator limit" in capsys.readouterr().out


def test_other_environments_are_refused() -> None:
    with pytest.raises(UnknownSetting, match="not the id of an Atari game"):
        main(["PongNoFrameskip-v4,CartPole-v1"])
    with pytest.raises(UnknownSetting, match="--num-envs must be at least"):
        main(["PongNoFrameskip-v4", "--num-envs", "1"])


def test_players_add_up() -> None:
    players = ParallelPlayers("count", [CountPlayer, CountPlayer])
    try:
        assert players.measure(0.05) > 14 / 0.05
    finally:
        players.close()
