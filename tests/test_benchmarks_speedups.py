"""The speed ladders: what is measured and how it is shown, with rungs of no cost; small real trainings of DQN's."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from vecenv.agents.dqn import DQN
from vecenv.agents.dqn_player import ReplayPlayer
from vecenv.agents.dqn_staging import MinibatchStaging
from vecenv.agents.replay_buffer import Transitions
from vecenv.benchmarks import ladder, ladder_dqn, plain_wrappers, slowed_dqn, speedups, speedups_solve
from vecenv.benchmarks.ladder import Ladder, LadderTable, Rung, SolveResult, Theirs
from vecenv.benchmarks.ladder_training import TrainingSetup, train_to_mark
from vecenv.benchmarks.speedups_plot import relative_rates
from vecenv.errors import UnknownSetting

Tiny = Callable[[TrainingSetup], TrainingSetup]


class Steady:
    """A contestant with a rate of its own and nothing to do; `closed` counts calls of close."""

    def __init__(self, rate: float, closed: list[float]) -> None:
        self.rate, self._closed = rate, closed

    def measure(self, seconds: float) -> float:
        return self.rate

    def figures(self) -> Mapping[str, float]:
        return {"bytes per pair": 24.0} if self.rate == 100.0 else {}

    def close(self) -> None:
        self._closed.append(self.rate)


@pytest.fixture
def closed() -> list[float]:
    return []


@pytest.fixture
def trained() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def fake(closed: list[float], trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> Ladder:
    """A ladder of four rungs: 50, 100 and 300 a second, one that cannot run here, and one without a rate."""

    def rung(name: str, rate: float, *documents: Theirs, **more: object) -> Rung:
        def solve(seed: int, max_seconds: float) -> SolveResult:
            trained.append((name, seed))
            seconds = 60.0 * 100.0 / rate
            return SolveResult(min(seconds, max_seconds), 1000, seconds <= max_seconds, 18.5, {"busy share": 0.5})

        build: Callable[[], Steady] = lambda: Steady(rate, closed)  # noqa: E731
        return Rung(name, f"{name} changes", build, documents, solve, {"rate": rate}, **more)  # type: ignore[arg-type]

    rungs = (
        rung("base", 50.0, Theirs("document 1", 227, "52 min"), Theirs("document 2", text="slow")),
        rung("better", 100.0, Theirs("document 1", 454)),
        rung("absent", 1.0, Theirs("document 1", 700), not_applicable=lambda: "not applicable: no CUDA"),
        rung("best", 300.0),
        dataclasses.replace(rung("learning", 25.0), build=None),
    )
    tables = (LadderTable("all", "all rungs", rungs, cumulative=True),)
    notes = {"notes": ("busy share: of the time",), "solve_notes": ("roughness: of the curve",)}
    made = Ladder("fake", "Fake", "steps/s", "18 points", tables, **notes)
    monkeypatch.setattr(ladder, "LADDERS", {"fake": "nowhere"})
    monkeypatch.setattr(speedups, "LADDERS", {"fake": "nowhere"})
    monkeypatch.setattr(speedups, "find_ladder", lambda key: made)
    return made


def run(tmp_path: Path, *words: str) -> dict[str, object]:
    path = tmp_path / "result.json"
    assert speedups.main([*words, "--json", str(path)]) == 0
    document: dict[str, object] = json.loads(path.read_text())
    return document


def test_rates_ratios_and_their_figures(
    fake: Ladder, closed: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(tmp_path, "--rounds", "5", "--seconds", "0.01")
    rows = {row["rung"]: row for row in document["results"]["rungs"]}  # type: ignore[index]
    assert rows["best"]["times_base"] == 6.0
    assert rows["best"]["times_before"] == 3.0  # the rung between could not be measured
    assert rows["better"]["figures"] == {"bytes per pair": 24.0}
    assert rows["absent"]["rates"] is None
    assert "learning" not in rows  # nothing to measure
    assert rows["base"]["theirs"][0] == {"source": "document 1", "rate": 227, "text": "52 min"}
    assert document["samples"]["fake all best"]["values"] == [300.0] * 5  # type: ignore[index]
    described = {"title": "Fake: all rungs", "unit": "steps/s", "notes": ["busy share: of the time"]}
    assert document["results"]["tables"] == [{"ladder": "fake", "table": "all", **described}]  # type: ignore[index]
    assert sorted(closed) == [50.0, 100.0, 300.0]
    shown = capsys.readouterr().out
    for text in ("theirs, on their hardware", "document 1: 227, 52 min", "not applicable: no CUDA", "bytes per pair"):
        assert text in shown
    assert "busy share: of the time" in shown
    assert "roughness" not in shown  # a column of trainings to the mark alone


def test_a_rung_that_cannot_be_built_closes_the_others(fake: Ladder, closed: list[float]) -> None:
    def fail() -> Steady:
        raise RuntimeError("no such thing")

    table = fake.tables[0]
    broken = dataclasses.replace(table, rungs=(table.rungs[0], dataclasses.replace(table.rungs[1], build=fail)))
    with pytest.raises(RuntimeError, match="no such thing"):
        speedups.measure_table(broken, rounds=1, seconds=0.01)
    assert closed == [50.0]


def test_only_some_rungs(fake: Ladder, tmp_path: Path) -> None:
    document = run(tmp_path, "--quick", "--only", "better,best")
    rows = {row["rung"]: row for row in document["results"]["rungs"]}  # type: ignore[index]
    assert rows.keys() == {"better", "best"}
    assert rows["best"]["times_base"] == 3.0
    assert len(rows["best"]["rates"]["samples"]) == speedups.QUICK_ROUNDS


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dqn"], "no ladder 'dqn'; available: fake"),
        (["--only", "bettr"], "no rung 'bettr'; available: base, better"),
        (["--only", ","], "at least one rung"),
        (["--only", "learning"], "with --solve"),
        (["--solve", "--quick", "--rounds", "2"], "--quick and --rounds: for rates"),
        (["--solve", "--seconds", "2"], "--seconds: for rates"),
        (["--solve", "--plot", "x.png"], "--plot: for rates"),
        (["--seeds", "2", "--minutes", "1"], "--seeds and --minutes: for trainings to the mark; add --solve"),
        (["--solved", "x.csv"], "--solved: for trainings"),
        (["--compare", "/nowhere.json"], "nowhere.json"),
    ],
)
def test_what_makes_no_sense_is_refused_first(fake: Ladder, closed: list[float], words: list[str], text: str) -> None:
    with pytest.raises(UnknownSetting, match=text):
        speedups.main(words)
    assert closed == []


def test_trainings_go_on_where_they_were_cut_short(
    fake: Ladder,
    trained: list[tuple[str, int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--solve", "--solved", str(tmp_path / "new" / "solved.csv"), "--minutes", "2"]
    run(tmp_path, *words, "--seeds", "1", "--only", "base,best")
    assert trained == [("base", 0), ("best", 0)]
    document = run(tmp_path, *words, "--seeds", "2")
    assert trained[2:] == [("better", 0), ("learning", 0), ("base", 1), ("better", 1), ("best", 1), ("learning", 1)]
    rows = document["results"]["solutions"]  # type: ignore[index]
    assert len(rows) == 8
    assert document["samples"]["fake base to the mark"]["values"] == [120.0, 120.0]  # type: ignore[index]
    assert "fake learning to the mark" not in document["samples"]  # type: ignore[operator]
    shown = capsys.readouterr().out
    assert "2 of 2" in shown
    assert "roughness: of the curve" in shown
    assert "not reached" in shown  # `learning` would need four minutes
    run(tmp_path, *words, "--seeds", "2")
    assert len(trained) == 8  # nothing is trained twice
    run(tmp_path, *words[:3], "--minutes", "5", "--seeds", "1")
    assert trained[8:] == [("learning", 0)]  # what has reached the mark stays, what ran out of time gets more


def test_a_training_with_other_settings_does_not_count(
    fake: Ladder, trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    path = tmp_path / "solved.csv"
    speedups_solve.solve_ladder(fake, seeds=1, limit_seconds=1000.0, path=path)
    first = fake.tables[0].rungs[0]
    other = dataclasses.replace(fake.tables[0], rungs=(dataclasses.replace(first, settings={"rate": 51.0}),))
    speedups_solve.solve_ladder(dataclasses.replace(fake, tables=(other,)), seeds=1, limit_seconds=1000.0, path=path)
    assert trained.count(("base", 0)) == 2
    with path.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 5


def test_a_file_that_is_no_list_of_trainings_is_refused(fake: Ladder, tmp_path: Path) -> None:
    path = tmp_path / "solved.csv"
    for text in ("a,b\n1,2\n", "a,b\n", "{}"):
        path.write_text(text)
        with pytest.raises(UnknownSetting, match="cannot be read as a list of trainings"):
            speedups.main(["--solve", "--solved", str(path)])


def test_an_empty_file_becomes_a_list_of_trainings(tmp_path: Path) -> None:
    path = tmp_path / "solved.csv"
    path.touch()
    solution = solution_of("base", SolveResult(30.0, 10, True))
    speedups_solve.append_solution(path, solution)
    assert speedups_solve.read_solutions(path) == [solution]


def test_a_training_without_the_mark_counts_as_longer_than_any(fake: Ladder) -> None:
    def cells(*solved: bool) -> list[str]:
        results = [SolveResult(30.0 * (number + 1), 10, is_solved) for number, is_solved in enumerate(solved)]
        rungs = {name: [solution_of(name, each) for each in results] for name in ("base", "best")}
        return speedups_solve._cells(fake.tables[0], fake.tables[0].rungs[3], rungs)

    assert cells(True, True, False)[2:6] == ["2 of 3", "1.0 (0.5 - not reached)", "10 (10 - not reached)", "1.00"]
    assert cells(True, False)[2:6] == [
        "1 of 2",
        "not reached (0.5 - not reached)",
        "not reached (10 - not reached)",
        "",
    ]


def solution_of(rung: str, result: SolveResult) -> speedups_solve.Solution:
    return speedups_solve.Solution("fake", rung, "", 0, 60.0, result, "", None)


def test_bars_are_relative_to_each_ones_own_base(fake: Ladder) -> None:
    measured = speedups.measure_table(fake.tables[0], rounds=1, seconds=0.01)
    relative = relative_rates(measured)
    assert relative["ours"] == {"base": 1.0, "better": 2.0, "best": 6.0}
    assert relative["document 1"] == pytest.approx({"base": 1.0, "better": 2.0, "absent": 700 / 227})
    assert "document 2" not in relative  # it gives no rate to compare with


def test_the_picture_is_drawn(fake: Ladder, tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "speedups.png"
    run(tmp_path, "--quick", "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


# -- the ladder of DQN -------------------------------------------------------------------------------------------------


def rungs_of(key: str) -> dict[str, Rung]:
    return {rung.name: rung for table in ladder_dqn.make_ladder().tables if table.key == key for rung in table.rungs}


def test_every_ladder_that_is_named_is_there() -> None:
    for key in ladder.LADDERS:
        found = ladder.find_ladder(key)
        assert found.key == key
        for table in found.tables:
            names = [rung.name for rung in table.rungs]
            assert len(set(names)) == len(names)
            assert all(rung.base is None or rung.base in names for rung in table.rungs)


def test_every_rung_of_dqn_has_settings_of_its_own() -> None:
    rungs = [rung for table in ladder_dqn.make_ladder().tables for rung in table.rungs]
    assert len({speedups_solve.digest(rung) for rung in rungs}) == len(rungs)


def test_rungs_of_dqn_change_what_they_say() -> None:
    single = rungs_of("single")
    base = single["base"].settings
    for number in range(2, 7):
        changed = single[f"envs-{number}"].settings["settings"]
        assert changed["num_envs"] == changed["steps_per_update"] == number
        assert changed["minibatch_size"] == 32 * number
    for name, keys in {"own-process": {"num_actors"}, "gradients-left-on": set()}.items():
        own = single[name].settings
        assert {key for key in base["settings"] if own["settings"][key] != base["settings"][key]} == keys
    assert rungs_of("cumulative")["native-wrappers"].settings["settings"]["num_actors"] == 1
    assert [rung.build for rung in rungs_of("stack").values()] == [None] * 3


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, one_torch_thread: None) -> Tiny:
    """DQN's rungs with a replay, network and minibatch of almost nothing, learning at once."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(ladder_dqn, "RATE_LEARNING_STARTS", 64)

    def make(setup: TrainingSetup) -> TrainingSetup:
        small: dict[str, Any] = {
            "minibatch_size": 4,
            "replay_capacity": 400,
            "training_threads": 1,
            "learning_starts": 64,
        }
        small["network"] = "small-cnn"
        settings = dataclasses.replace(setup.config.settings, **small)
        return dataclasses.replace(setup, config=dataclasses.replace(setup.config, settings=settings))

    return make


def setup_of(rung: Rung) -> TrainingSetup:
    """What a rung of DQN trains."""
    assert rung.build is not None
    setup: TrainingSetup = rung.build.args[0]  # type: ignore[attr-defined]
    return setup


@pytest.mark.timeout(60)
def test_the_base_is_measured_while_it_learns(tiny: Tiny) -> None:
    contestant = ladder_dqn.build_contestant(tiny(setup_of(rungs_of("single")["base"])))
    try:
        learner = contestant.run.learner
        steps, updates = learner.env_steps, learner.learning.updates  # type: ignore[attr-defined]
        assert updates > 0
        assert contestant.measure(0.05) > 0.0
        assert 0.0 < contestant.figures()["learning share"] < 1.0
        assert learner.env_steps > steps
        # one update per step, in what is measured too
        assert learner.learning.updates - updates == learner.env_steps - steps  # type: ignore[attr-defined]
    finally:
        contestant.close()


@pytest.mark.timeout(90)
def test_playing_in_its_own_process_leaves_none_behind(tiny: Tiny) -> None:
    contestant = ladder_dqn.build_contestant(tiny(setup_of(rungs_of("cumulative")["steps-4-own-process"])))
    try:
        (pid,) = contestant.run.learner.actors.pids  # type: ignore[attr-defined]
        os.kill(pid, 0)
        assert contestant.measure(0.05) > 0.0
    finally:
        contestant.close()
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


@pytest.mark.timeout(60)
def test_gradients_left_on_learn_the_same(tiny: Tiny) -> None:
    weights = []
    for name in ("base", "gradients-left-on"):
        contestant = ladder_dqn.build_contestant(tiny(setup_of(rungs_of("single")[name])))
        learner = cast(DQN, contestant.run.learner)
        learning = learner.learning
        weights.append(np.concatenate([each.detach().numpy().ravel() for each in learning.network.parameters()]))
        observations = learner.replay.sample(4).observations
        values = learning.target_network.outputs(torch.from_numpy(observations))
        recorded: list[bool] = []
        learning.network.register_forward_pre_hook(lambda *_, to=recorded: to.append(torch.is_grad_enabled()))
        cast(ReplayPlayer, learner.player).policy.act(observations)
        assert [values.requires_grad, *recorded] == [name == "gradients-left-on"] * 2
        contestant.close()
    assert np.array_equal(*weights)


def test_copies_that_wait_are_copies_of_the_same() -> None:
    generator = np.random.default_rng(0)
    frames = generator.integers(0, 255, (2, 3, 4, 84, 84), np.uint8)
    floats = generator.random((3, 3)).astype(np.float32)
    whole = np.arange(3)
    transitions = Transitions(frames[0], whole, floats[0], floats[1], frames[1], floats[2], whole)
    device = torch.device("cpu")
    waited = slowed_dqn.WaitingStaging(device).stage(transitions)
    for mine, theirs in zip(waited, MinibatchStaging(device).stage(transitions), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    frames[:] = 0
    assert waited.observations.any()


@pytest.mark.timeout(60)
def test_a_training_ends_without_the_mark(tiny: Tiny) -> None:
    setup = tiny(setup_of(rungs_of("single")["base"]))
    settings = dataclasses.replace(setup.config.settings, total_steps=100)
    setup = dataclasses.replace(setup, config=dataclasses.replace(setup.config, settings=settings))
    result = train_to_mark(setup, 3, 1000.0)
    assert not result.solved
    assert result.env_steps == 100
    assert train_to_mark(setup, 3, 0.01).env_steps == 0  # the limit counts from the start of building


class Flicker(gymnasium.Env[np.ndarray, int]):
    """Screens that are bright in every second frame; every frame pays 1, the tenth ends the game."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.actions: list[int] = []

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE"]

    def screen(self) -> np.ndarray:
        return np.full((210, 160, 3), 200 if len(self.actions) % 2 else 100, np.uint8)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
        super().reset(seed=seed)
        return self.screen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.actions.append(action)
        return self.screen(), 1.0, len(self.actions) == 10, False, {}


def test_plain_wrappers_skip_pool_clip_and_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_wrappers, "NOOP_MAX", 1)
    bare = Flicker()
    env = plain_wrappers.PlainAtari(bare)
    first, _ = env.reset(seed=0)
    assert bare.actions == [0, 1]  # a frame without an action, then FIRE
    assert first.shape == env.observation_space.shape
    assert np.all(np.abs(first.astype(int) - 100) <= 1)
    observation, reward, terminated, _, _ = env.step(1)
    assert bare.actions == [0, 1, 1, 1, 1, 1]
    assert reward == 1.0
    assert not terminated
    assert np.array_equal(observation[:-1], first[1:])
    assert np.all(np.abs(observation[-1].astype(int) - 200) <= 1)  # the last screen alone is dark
    assert env.step(0)[2]
    assert len(bare.actions) == 10


def test_plain_wrappers_play_pong() -> None:
    pytest.importorskip("ale_py")
    env = plain_wrappers.PlainAtariFactory(ladder_dqn.ENV)()
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert np.array_equal(first, again)
    assert len(np.unique(first)) > 2  # a picture of the game
    observation = env.step(2)[0]
    assert env.observation_space.contains(observation)
    env.close()
