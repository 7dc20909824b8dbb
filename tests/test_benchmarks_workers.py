"""The benchmark of the workers measures what it says, in a moment."""

from __future__ import annotations

import json

from vecenv.benchmarks import workers


def test_figures_and_file(tmp_path, capsys):
    path = tmp_path / "workers.json"
    assert workers.main(["--rounds", "1", "--seconds", "0.05", "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert results["round"]["median"] > 0
    assert 0 < results["busy"]["median"] < 1.5
    assert set(results["uneven"]) == {"batch_size", "balance"}
    assert "times AsyncVectorEnv" in capsys.readouterr().out
