"""The throughput benchmark: what is measured, refusals, and small real runs. No test looks at a speed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from vecenv.benchmarks import throughput
from vecenv.benchmarks.contestants import BACKENDS, Settings, draw_actions
from vecenv.benchmarks.peers import PEERS
from vecenv.errors import MissingExtra, UnknownSetting


def choose(*words: str) -> list[str]:
    """Titles of what a command line lets run."""
    return [contender.title for contender, _ in throughput.choose(throughput._parser().parse_args(words))]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["PongNoFrameskip-v4", "--peers", "gym"], r"no peer 'gym'.*gymnasium-async.*envpool"),
        (["PongNoFrameskip-v4", "--backends", "threads"], r"no back end 'threads'.*subproc"),
        (["CartPole-v1", "--peers", "ale"], "Atari games only"),
        (["CartPole-v1", "--backends", "ale"], "Atari games only"),
    ],
)
def test_what_does_not_exist_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(UnknownSetting, match=text):
        choose(*words)


def test_what_is_not_installed_is_named_and_skipped_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(throughput, "find_spec", lambda name: None)
    assert choose("PongNoFrameskip-v4") == ["vecenv subproc", "Gymnasium AsyncVectorEnv"]
    assert "vecenv[envpool]" in capsys.readouterr().err
    with pytest.raises(MissingExtra, match=r"vecenv\[envpool\]"):
        choose("PongNoFrameskip-v4", "--peers", "envpool")


def test_all_back_ends_without_those_that_cannot() -> None:
    titles = choose("CartPole-v1", "--backends", "all", "--peers", "")
    assert titles[:2] == ["vecenv subproc", "vecenv sync"]
    assert "vecenv ale" not in titles


@pytest.mark.parametrize(
    "words",
    [
        ["--num-envs", "0"],
        ["--num-envs", "8,x"],
        ["--rounds", "-1"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--num-workers", "x"],
        ["--batch-size", ""],
    ],
)
def test_senseless_numbers_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        throughput.main(["CartPole-v1", *words])
    assert exit_info.value.code == 2


def rows_of(*words: str) -> list[list[str]]:
    arguments = throughput._parser().parse_args(["CartPole-v1", *words])
    groups = throughput._groups(throughput.choose(arguments), throughput.settings_grid(arguments))
    return [[entry.row_name for entry in group] for group in groups]


def test_the_grid_has_every_combination_that_makes_a_difference() -> None:
    peers = ["--peers", "gymnasium-sync,gymnasium-async", "--backends", "subproc,sync"]
    assert rows_of("--num-envs", "4,128", "--num-workers", "1,2", "--batch-size", "2,4", *peers) == [
        [
            "vecenv subproc (4 envs, 1 workers, batches of 2)",
            "vecenv subproc (4 envs, 1 workers)",
            "vecenv subproc (4 envs, 2 workers, batches of 2)",
            "vecenv subproc (4 envs, 2 workers)",
            "vecenv sync (4 envs, batches of 2)",
            "vecenv sync (4 envs)",
            "Gymnasium SyncVectorEnv (4 envs)",
            "Gymnasium AsyncVectorEnv (4 envs)",
        ],
        [
            "vecenv subproc (128 envs, 1 workers, batches of 2)",
            "vecenv subproc (128 envs, 1 workers, batches of 4)",
            "vecenv subproc (128 envs, 2 workers, batches of 2)",
            "vecenv subproc (128 envs, 2 workers, batches of 4)",
            "vecenv sync (128 envs, batches of 2)",
            "vecenv sync (128 envs, batches of 4)",
            "Gymnasium SyncVectorEnv (128 envs)",  # and not 128 processes of AsyncVectorEnv
        ],
    ]
    assert rows_of("--num-envs", "2", "--num-workers", "8", "--peers", "") == [["vecenv subproc (2 envs, 2 workers)"]]
    with pytest.raises(UnknownSetting, match="larger than every"):
        rows_of("--num-envs", "2", "--batch-size", "4")


def test_actions_are_the_same_for_everyone() -> None:
    settings = Settings("CartPole-v1", 3, 1, seed=5)
    first, second = draw_actions(settings), draw_actions(settings)
    np.testing.assert_array_equal(first, second)
    assert len({batch.tobytes() for batch in first}) > 1


def test_atari_actions_are_drawn_without_a_pipeline() -> None:
    """Only a peer with OpenCV wrappers needs OpenCV."""
    pytest.importorskip("ale_py")
    script = """
import sys
sys.modules["cv2"] = None
from vecenv.benchmarks.contestants import Settings, draw_actions
actions = draw_actions(Settings("BreakoutNoFrameskip-v4", 3, 1))
print({int(value) for batch in actions for value in batch})
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.stdout == "{0, 1, 2, 3}\n", finished.stderr


def test_a_run_writes_table_json_and_picture_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "result.json", tmp_path / "pictures" / "bars.png"
    words = ["CartPole-v1", "--num-envs", "2", "--num-workers", "2", "--backends", "subproc,sync"]
    words += ["--rounds", "2", "--seconds", "0.05"]
    assert throughput.main([*words, "--json", str(path), "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    document = json.loads(path.read_text())
    names = [row["name"] for row in document["results"]["rates"]]
    assert names[:4] == [
        "vecenv subproc (2 envs, 2 workers)",
        "vecenv sync (2 envs)",
        "Gymnasium AsyncVectorEnv (2 envs)",
        "Gymnasium SyncVectorEnv (2 envs)",
    ]
    assert all(name in text for name in names)
    assert all(len(row["values"]) == 2 and min(row["values"]) > 0 for row in document["samples"].values())
    assert [name for name, row in document["samples"].items() if row["ours"]] == names[:2]
    assert document["settings"]["num_envs"] == [2]
    assert document["results"]["rates"][1]["settings"]["num_envs"] == 2
    assert picture.read_bytes()[:4] == b"\x89PNG"
    # two samples against two can show nothing
    assert throughput.main([*words, "--peers", "", "--json", str(tmp_path / "b.json"), "--compare", str(path)]) == 0
    assert "too few samples" in capsys.readouterr().out


def test_several_numbers_of_envs_and_parts_of_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "result.json", tmp_path / "lines.png"
    words = [
        "CartPole-v1",
        "--num-envs",
        "2,4",
        "--num-workers",
        "2",
        "--batch-size",
        "2",
        "--backends",
        "subproc,sync",
    ]
    words += ["--peers", "", "--rounds", "1", "--seconds", "0.05", "--json", str(path), "--plot", str(picture)]
    assert throughput.main(words) == 0
    assert len(json.loads(path.read_text())["samples"]) == 4
    assert "vecenv subproc (4 envs, 2 workers, batches of 2)" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_back_end_that_cannot_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*arguments: object) -> None:
        raise NotImplementedError("this one has no such env")

    sync, broken = BACKENDS["sync"], throughput.Contender("broken", refuse)  # type: ignore[arg-type]
    settings = Settings("CartPole-v1", 2, 1)
    entries = [throughput.Entry(broken, settings, named=False), throughput.Entry(sync, settings)]
    built, rates = throughput.measure_group(entries, rounds=1, seconds=0.01)
    assert [row.name for row in rates] == ["vecenv sync (2 envs)"] == [entry.row_name for entry in built]
    assert "left out: broken (2 envs): this one has no such env" in capsys.readouterr().err
    with pytest.raises(UnknownSetting, match="no such env"):
        throughput.measure_group([throughput.Entry(broken, settings)], rounds=1, seconds=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in {**PEERS, **BACKENDS} if not name.startswith("gymnasium-")])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_contestant_plays_pong(name: str, batch_size: int | None) -> None:
    """Every contestant is asked for the same work: 84x84 gray, stacked by 4."""
    contenders = [table[name] for table in (PEERS, BACKENDS) if name in table]
    for contender in contenders:
        pytest.importorskip(contender.module or "gymnasium")
        if batch_size is not None and not contender.uses_batch_size:
            continue
        settings = Settings("PongNoFrameskip-v4", 2, 2, batch_size=batch_size)
        try:
            contestant = contender.build(settings, "row", draw_actions(settings))
        except (NotImplementedError, UnknownSetting):
            assert name not in ("sync", "subproc")
            continue
        with closing(contestant):
            assert contestant.measure(0.2) > 0
            assert sorted(contestant.observation_shape) == sorted([batch_size or 2, 4, 84, 84])


@pytest.mark.slow
def test_pong_run_includes_the_emulator_limit(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["PongNoFrameskip-v4", "--num-envs", "2", "--peers", "ale", "--quick"]
    assert throughput.main([*words, "--json", str(path), "--plot", str(tmp_path / "p.svg")]) == 0
    document = json.loads(path.read_text())
    names = [row["name"].partition(" (")[0] for row in document["results"]["rates"]]
    assert names == ["vecenv subproc", "ale-py AtariVectorEnv", "emulator limit"]
    assert document["samples"]["emulator limit beside 2 envs"]["ours"] is False
    assert "emulator limit" in (tmp_path / "p.svg").read_text()
