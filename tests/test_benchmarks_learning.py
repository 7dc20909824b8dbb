"""Learning curves over seeds: the numbers by hand, what is refused, what goes on, and one real training."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from vecenv.benchmarks import learning, learning_runs
from vecenv.benchmarks.child_command import last_line, run_command
from vecenv.benchmarks.learning_curves import HEADER, Spread, band_of, table_rows, to_the_mark
from vecenv.benchmarks.learning_plot import plot_learning
from vecenv.benchmarks.learning_runs import make_run, read_points, state_of, thinned
from vecenv.errors import UnknownSetting

TINY = ["--envs", "CartPole-v1", "--total-steps", "600"]
SMALL_RUN = ["--", "--num-envs", "4", "--num-steps", "32", "--backend", "sync"]


def row(seed: int, solved: bool, seconds: float, *, algorithm: str = "ppo", mark: float | None = 475.0) -> Any:
    return {
        "algorithm": algorithm,
        "env": "CartPole-v1",
        "seed": seed,
        "solve_at": mark,
        "solved": solved,
        "stopped_by": "solved" if solved else "total_steps",
        "seconds": seconds,
        "env_steps": int(1000 * seconds),
        "mean_return": 480.0 if solved else 100.0,
        "steps_per_second": 1000.0,
        "resumed": 0,
        "points": {"env_steps": [0, 1000], "seconds": [0.0, 1.0], "mean_return": [20.0, 100.0 * (seed + 1)]},
    }


def test_band_is_the_median_and_percentiles_over_the_seeds() -> None:
    curves = [{"seconds": [0.0, 10.0], "mean_return": [0.0, 10.0 * slope]} for slope in range(11)]
    band = band_of(curves, "seconds")
    assert band is not None
    assert (band.places[0], band.places[-1]) == (0.0, 10.0)
    assert (band.lower[-1], band.median[-1], band.upper[-1]) == pytest.approx((10.0, 50.0, 90.0))
    middle = len(band.places) // 2
    assert band.median[middle] == pytest.approx(5 * band.places[middle])  # linear between points


def test_band_begins_where_all_have_a_value_and_holds_the_last_one() -> None:
    short, late = {"seconds": [1.0, 2.0], "mean_return": [5.0, 7.0]}, {"seconds": [3.0, 6.0], "mean_return": [0.0, 9.0]}
    band = band_of([short, late, {"seconds": [], "mean_return": []}], "seconds")
    assert band is not None
    assert (band.places[0], band.places[-1]) == (3.0, 6.0)
    assert (band.median[0], band.median[-1]) == pytest.approx((3.5, 8.0))
    assert band_of([{"seconds": [], "mean_return": []}], "seconds") is None


def test_a_mark_that_is_not_reached_counts_as_longer_than_any() -> None:
    rows = [row(0, True, 7.0), row(1, False, 2.0), row(2, True, 9.0)]
    assert to_the_mark(rows, "seconds") == Spread(9.0, 7.0, math.inf)
    assert to_the_mark(rows, "seconds").text("{:.1f}") == "9.0 (7.0 - not reached)"
    assert to_the_mark(rows[1:2], "seconds").text() == "not reached"
    cells = dict(zip(HEADER, table_rows(rows)[0], strict=True))
    assert (cells["seeds"], cells["solved"]) == ("3", "2 of 3")
    assert cells["steps to the mark"] == "9,000 (7,000 - not reached)"
    assert cells["final return"] == "480.0 (100.0 - 480.0)"


def test_without_a_mark_nothing_is_solved_or_not() -> None:
    cells = table_rows([row(0, False, 2.0, mark=None), row(0, False, 2.0, mark=None, algorithm="es")])
    assert [line[0] for line in cells] == ["ppo", "es"]
    assert cells[0][2:6] == ["1", "-", "-", "-"]


def failed(seed: int, *, algorithm: str = "ppo", mark: float | None = 475.0) -> Any:
    of = {"algorithm": algorithm, "env": "CartPole-v1", "seed": seed, "solve_at": mark}
    return {**of, "solved": False, "message": f"{algorithm} on CartPole-v1, seed {seed}: it broke"}


def test_a_training_that_failed_counts_as_one_without_the_mark() -> None:
    rows = [row(0, True, 7.0), row(1, True, 9.0)]
    lines = table_rows(rows, [failed(2), failed(3), failed(0, algorithm="es")])
    cells = dict(zip(HEADER, lines[0], strict=True))
    assert (cells["seeds"], cells["solved"]) == ("4, 2 failed", "2 of 4")
    assert cells["seconds to the mark"] == "not reached (7.0 - not reached)"
    assert cells["final return"] == "480.0"
    assert lines[1] == ["es", "CartPole-v1", "1, 1 failed", "0 of 1", "not reached", "not reached", "-", "-"]
    assert "ppo on CartPole-v1: s to the mark" in learning.samples(rows, [failed(0, algorithm="es")])
    assert "ppo on CartPole-v1: s to the mark" not in learning.samples(rows, [failed(2)])


def test_samples_hold_times_only_where_all_reached_the_mark() -> None:
    found = learning.samples([row(0, True, 7.0), row(1, True, 9.0), row(0, False, 1.0, algorithm="es")])
    assert found["ppo on CartPole-v1: s to the mark"].values == (7.0, 9.0)
    assert not found["ppo on CartPole-v1: s to the mark"].higher_is_better
    assert "es on CartPole-v1: s to the mark" not in found
    assert found["es on CartPole-v1: speed"].values == (1000.0,)


def test_points_are_thinned_after_the_first_and_without_what_json_has_not() -> None:
    points = thinned({"seconds": list(range(1000)), "population_mean": [math.nan] * 1000}, most=10)
    assert points["seconds"][:10] == list(range(10))  # where targets are read nothing is missing
    assert points["seconds"][10:] == [108, 207, 306, 405, 504, 603, 702, 801, 900, 999]
    assert points["population_mean"] == [None] * 20
    assert thinned({"seconds": list(range(13))}, most=10) == {"seconds": list(range(13))}
    assert thinned({"seconds": [1.0, 2.0]}) == {"seconds": [1.0, 2.0]}
    assert thinned({}) == {}


def test_points_begin_with_the_first_finished_episode(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("env_steps,seconds,mean_return,loss\n10,0.1,,1\n20,0.2,5.5,2\n")
    assert read_points(path) == {"env_steps": [20.0], "seconds": [0.2], "mean_return": [5.5]}
    empty: dict[str, list[float]] = {"env_steps": [], "seconds": [], "mean_return": []}
    assert read_points(tmp_path / "none.csv") == empty
    assert thinned(empty) == empty


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--algorithms", "sarsa", *TINY], "no algorithm 'sarsa'"),
        (["--envs", "NoSuchEnv-v0", "--total-steps", "9"], "NoSuchEnv"),
        (["--envs", "CartPole-v1"], "no limit"),
        (["--solve-at", "1,2,3", "--envs", "CartPole-v1,Acrobot-v1"], "one for each of the 2"),
        ([*TINY, "--", "--no-such-setting", "3"], "no-such-setting"),
        ([*TINY, "--", "--num-envs", "0"], "num_envs"),
        ([*TINY, "--", "--seed", "7"], "--seed cannot stand after --"),
        ([*TINY, "--", "--env=Acrobot-v1"], "--env cannot stand after --"),
        ([*TINY, "--", "--run_dir", "elsewhere"], "--run-dir cannot stand after --"),
        ([*TINY, "--", "--resume", "elsewhere"], "--resume cannot stand after --"),
        ([*TINY, "--", "--total-steps", "900"], "--total-steps after -- and --total-steps before it"),
        ([*TINY, "--minutes", "1", "--", "--max-seconds=9"], "--max-seconds after -- and --minutes before it"),
        (["--", "--num-workers", "1"], "no limit"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "train", lambda run: pytest.fail("a training began"))
    with pytest.raises(UnknownSetting, match=text):
        learning.main(["--run-dir", str(tmp_path / "runs"), *words])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["--max-seconds", "--solve-at", "--stop-at-steps", "--total-steps", "--max_seconds"])
def test_limits_of_the_training_itself_are_limits(flag: str, tmp_path: Path) -> None:
    arguments = learning._parser().parse_args(["--seeds", "1", "--run-dir", str(tmp_path)])
    (run,) = learning.plan(arguments, [flag, "60"])
    assert run.words[-2:] == (flag, "60")


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--minutes", "0"], ["--solve-at", "x"], ["--solve-at", ","]])
def test_numbers_are_checked(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        learning.main([*TINY, *words])


def test_first_seed_of_everything_comes_first(tmp_path: Path) -> None:
    words = ["--algorithms", "ppo,es", "--envs", "CartPole-v1,Acrobot-v1", "--seeds", "2", "--solve-at", "475,-100"]
    arguments = learning._parser().parse_args([*words, "--run-dir", str(tmp_path), "--minutes", "0.5"])
    runs = learning.plan(arguments, ["--num-workers", "1"])
    assert [(run.algorithm, run.env_id, run.seed) for run in runs[:5]] == [
        ("ppo", "CartPole-v1", 0),
        ("es", "CartPole-v1", 0),
        ("ppo", "Acrobot-v1", 0),
        ("es", "Acrobot-v1", 0),
        ("ppo", "CartPole-v1", 1),
    ]
    assert [run.config["solve_at"] for run in runs[:3]] == [475.0, 475.0, -100.0]
    assert {run.config["max_seconds"] for run in runs} == {30.0}
    assert {run.config["num_workers"] for run in runs} == {1}
    assert len({run.folder for run in runs}) == 8


def fake_training(monkeypatch: pytest.MonkeyPatch, *, code: int = 0, stopped_by: str | None = "total_steps") -> list:
    """Replaces `vecenv train`: leaves a summary and a curve in the folder that it is told, and notes its words."""
    called: list[list[str]] = []

    def run(words: list[str], log: Path) -> int:
        called.append(list(words))
        flag = "--resume" if "--resume" in words else "--run-dir"
        folder = Path(words[words.index(flag) + 1])
        log.write_text("vecenv train: it broke\n")
        if stopped_by is not None:
            summary = {"solved": False, "stopped_by": stopped_by, "seconds": 2.0, "env_steps": 600, "mean_return": 20.0}
            (folder / "summary.json").write_text(json.dumps(summary))
            (folder / "metrics.csv").write_text("env_steps,seconds,mean_return\n300,1.0,10\n600,2.0,20\n")
        return code

    monkeypatch.setattr(learning_runs, "run_command", run)
    return called


def bench(tmp_path: Path, *words: str) -> int:
    return learning.main([*TINY, "--run-dir", str(tmp_path / "r"), "--json", str(tmp_path / "new.json"), *words])


def test_what_has_ended_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = fake_training(monkeypatch)
    assert bench(tmp_path, "--seeds", "2") == 0
    assert bench(tmp_path, "--seeds", "3") == 0
    assert [words[words.index("--seed") + 1] for words in called] == ["0", "1", "2"]
    with pytest.raises(UnknownSetting, match="other settings"):
        bench(tmp_path, "--solve-at", "400")
    assert bench(tmp_path, "--seeds", "1", "--fresh", "--solve-at", "400") == 0
    assert len(called) == 4
    results = json.loads((tmp_path / "new.json").read_text())["results"]
    assert results["runs"][0]["points"]["mean_return"] == [10.0, 20.0]
    with (tmp_path / "r" / "learning.csv").open() as file:
        assert list(csv.reader(file))[1:] == [["ppo", "CartPole-v1", "0", str(n), s, r] for n, s, r in POINTS]


POINTS = ((300, "1.0", "10.0"), (600, "2.0", "20.0"))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = fake_training(monkeypatch)
    folder = tmp_path / "r" / "CartPole-v1-ppo-seed0"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(UnknownSetting, match="something else"):
        bench(tmp_path, "--fresh")
    assert (folder / "thesis.txt").exists()
    assert not called


def test_failures_are_told_and_do_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = fake_training(monkeypatch, code=1, stopped_by=None)
    assert bench(tmp_path, "--seeds", "2") == 1
    assert len(called) == 2
    assert "seed 1: exit status 1: vecenv train: it broke" in capsys.readouterr().err
    assert not (tmp_path / "new.json").exists()
    fake_training(monkeypatch, code=1, stopped_by="not_finite")  # that is an end of a training, not a failure
    assert bench(tmp_path, "--seeds", "2") == 0
    assert json.loads((tmp_path / "new.json").read_text())["results"]["failures"] == []
    fake_training(monkeypatch, code=1, stopped_by=None)
    assert bench(tmp_path, "--seeds", "3") == 1
    assert "3, 1 failed" in capsys.readouterr().out
    (failure,) = json.loads((tmp_path / "new.json").read_text())["results"]["failures"]
    assert (failure["algorithm"], failure["seed"], failure["solve_at"]) == ("ppo", 2, None)
    assert "seed 2: exit status 1" in failure["message"]


def test_interrupted_before_a_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = fake_training(monkeypatch, code=130, stopped_by="interrupted")
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, "--seeds", "1")
    stale = tmp_path / "r" / "CartPole-v1-ppo-seed0" / "metrics.csv"
    assert stale.exists()
    fake_training(monkeypatch, stopped_by=None, code=1)
    assert bench(tmp_path, "--seeds", "1") == 1
    assert not stale.exists()
    told = capsys.readouterr().out
    assert "begins anew" in told
    assert "goes on" not in told
    assert "--resume" not in called[0]


def test_picture_has_a_row_of_two_panels_per_environment(tmp_path: Path) -> None:
    rows = [row(seed, True, 7.0, algorithm=name) for seed in range(3) for name in ("ppo", "dqn")]
    plot_learning(tmp_path / "new" / "curves.svg", rows)
    first = (tmp_path / "new" / "curves.svg").read_text()
    assert len(re.findall(r'id="axes_\d+"', first)) == 2
    more = [*rows, {**row(0, True, 7.0), "env": "Acrobot-v1"}]
    plot_learning(tmp_path / "more.svg", more)
    assert len(re.findall(r'id="axes_\d+"', (tmp_path / "more.svg").read_text())) == 4
    plot_learning(tmp_path / "again.svg", rows)
    assert (tmp_path / "again.svg").read_text() == first


def test_real_training_is_interrupted_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves a checkpoint; the same command goes on from it, with what is left of the time."""
    folder = tmp_path / "r" / "CartPole-v1-ppo-seed0"
    words = ["bench", "learning", "--envs", "CartPole-v1", "--seeds", "1", "--minutes", "2"]
    words += ["--run-dir", str(tmp_path / "r"), "--json", str(tmp_path / "new.json")]
    words += [*SMALL_RUN, "--total-steps", "100000000"]  # it cannot win the race against the interrupt
    command = [sys.executable, "-m", "vecenv", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        metrics, deadline = folder / "metrics.csv", time.monotonic() + 90
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None, process.communicate(timeout=5)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=10)
    assert process.returncode == 130
    assert "the same command goes on with it" in errors
    interrupted = json.loads((folder / "summary.json").read_text())
    assert interrupted["stopped_by"] == "interrupted"
    train_words = ["--max-seconds", "120.0", *SMALL_RUN[1:], "--total-steps", "100000000"]
    run = make_run("ppo", "CartPole-v1", 0, train_words, tmp_path / "r")
    assert state_of(run) == "unfinished"
    going_on = learning_runs._words_to_go_on(run)
    assert going_on is not None
    assert going_on[:3] == ["ppo", "--resume", str(folder)]
    assert going_on[3] == "--max-seconds"
    assert 60 < float(going_on[4]) < 120
    little = ["--stop-at-steps", str(interrupted["env_steps"] + 128)]  # nobody waits for all of it
    monkeypatch.setattr(learning_runs, "_words_to_go_on", lambda run: [*going_on, *little])
    assert learning.main(words[2:]) == 0
    (result,) = json.loads((tmp_path / "new.json").read_text())["results"]["runs"]
    assert result["stopped_by"] == "stop_at_steps"
    assert result["env_steps"] > interrupted["env_steps"]
    assert result["resumed"] == 1
    steps = result["points"]["env_steps"]
    assert steps == sorted(set(steps))
    (folder / "summary.json").unlink()
    (folder / "checkpoint.pt").write_text("cut off")
    assert state_of(run) == "lost"


def test_commands_say_why_they_failed(tmp_path: Path) -> None:
    log = tmp_path / "new" / "x.log"
    assert run_command(["bench", "no-such-benchmark"], log) == 2
    assert "no-such-benchmark" in last_line(log)
    (tmp_path / "empty.log").write_text("\n")
    assert last_line(tmp_path / "empty.log") == "it said nothing"


def test_commands_do_not_outlive_who_started_them(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    script = (
        "from pathlib import Path\nfrom vecenv.benchmarks.child_command import run_command\n"
        "run_command(['bench', 'workers', '--rounds', '1000'], Path('log'))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    try:
        log, deadline = tmp_path / "log", time.monotonic() + 90
        while not (log.exists() and log.read_text()):  # it has begun
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (command,) = psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.wait(timeout=10)
    command.wait(timeout=10)
