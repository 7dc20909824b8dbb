"""The life of a run: going on bit for bit, what is kept, what is refused, and how it ends badly."""

from __future__ import annotations

import csv
import dataclasses
import json
import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import vecenv
from vecenv import cli
from vecenv.agents import checkpoint_keeper, ppo_update, stopping, training_run
from vecenv.agents.agent import Agent
from vecenv.agents.algorithms import ALGORITHMS, find_algorithm
from vecenv.agents.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.display import ProgressDisplay
from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.env_states import pack_states, unpack_states
from vecenv.agents.learner import Episode
from vecenv.agents.ppo import env_settings
from vecenv.agents.run_directory import RunDirectory

CARTPOLE = ("--env", "CartPole-v1", "--backend", "sync", "--seed", "3")
SMALL = ("--num-envs", "4", "--num-steps", "16", "--total-steps", "4000")
PONG = ("--env", "PongNoFrameskip-v4", "--backend", "sync", "--seed", "3", "--num-envs", "2", "--precision", "float32")


def run(capsys, *words):
    """Exit code, output and errors of one command."""
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def same(first, second):
    """Whether two plain values hold the same bits."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


def without_clocks(folder):
    """The figures of metrics.csv that do not tell the time."""
    clocks = {"seconds", "steps_per_second", "smoothed_steps_per_second", "gather_seconds", "train_seconds",
              "gather_steps_per_second"}  # fmt: skip
    with (folder / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if name not in clocks} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    "words",
    [
        ("ppo", *CARTPOLE, *SMALL),
        ("ppo", *CARTPOLE, *SMALL, "--async-collect", "--normalise-observations", "--normalise-rewards"),
        ("ppo", *CARTPOLE, *SMALL, "--overlap", "--lr-schedule", "kl"),
        ("ppo", *PONG, "--num-steps", "16", "--total-steps", "384"),
        ("dqn", *CARTPOLE, "--num-envs", "4", "--total-steps", "4000", "--save-replay", "True"),
        ("es", *CARTPOLE, "--total-steps", "4000"),
    ],
    ids=["cartpole", "async", "overlap", "pong", "dqn", "es"],
)
def test_two_halves_of_a_run_are_the_whole_run_bit_for_bit(words, tmp_path, capsys):
    if "PongNoFrameskip-v4" in words:
        pytest.importorskip("ale_py")
    half = int(words[words.index("--total-steps") + 1]) // 2
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    assert run(capsys, "train", *words, "--run-dir", straight)[0] == 0
    assert run(capsys, "train", *words, "--run-dir", halves, "--stop-at-steps", half)[0] == 0
    summary = json.loads((halves / "summary.json").read_text())
    assert summary["stopped_by"] == "stop_at_steps"
    assert summary["env_steps"] >= half
    code, output, errors = run(capsys, "train", words[0], "--resume", halves, "--stop-at-steps", "None")
    assert (code, errors) == (0, "")
    assert "go on in the middle of their episodes" in output
    assert "steps/s since it was resumed)" in output  # of which the seconds before are no part
    whole, resumed = load_checkpoint(straight), load_checkpoint(halves)
    assert whole["learner"]["env_steps"] >= 2 * half
    assert same(whole["learner"], resumed["learner"])
    assert same(whole["window"], resumed["window"])
    assert without_clocks(straight) == without_clocks(halves)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    """Folder of a short finished run that no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    settings = PPOConfig(num_envs=4, num_steps=16, total_steps=600)
    Agent(RunConfig("CartPole-v1", backend="sync", settings=settings)).train(run_dir=folder)
    return folder


@pytest.fixture
def finished(tmp_path, capsys):
    """Folder of a short finished run."""
    folder = tmp_path / "first"
    assert run(capsys, "train", "ppo", *CARTPOLE, *SMALL[:4], "--total-steps", 600, "--run-dir", folder)[0] == 0
    return folder


def test_new_episodes_on_request_or_where_there_are_no_states(finished, tmp_path, capsys):
    words = ("--total-steps", 700, "--run-dir")
    told = run(capsys, "train", "ppo", "--resume", finished, *words, tmp_path / "a", "--fresh-envs")[1]
    assert "the environments start new episodes, because --fresh-envs was given" in told
    told = run(capsys, "train", "ppo", "--resume", finished, *words, tmp_path / "b", "--num-envs", 8)[1]
    assert "because there were 4 and are 8 now" in told
    content = load_checkpoint(finished)
    save_checkpoint(finished / "checkpoint.pt", {**content, "env_states": None, "without_env_states": "of a test"})
    told = run(capsys, "train", "ppo", "--resume", finished, *words, tmp_path / "c")[1]
    assert "because of a test" in told


def test_rows_after_the_checkpoint_are_taken_out_on_resume(finished, capsys):
    metrics = finished / "metrics.csv"
    lines = metrics.read_text().splitlines()
    steps = int(lines[-1].split(",")[0])
    metrics.write_text("\n".join([*lines, lines[-1].replace(str(steps), str(steps + 64), 1), "123"]))  # and half a row
    assert run(capsys, "train", "ppo", "--resume", finished, "--total-steps", steps + 64)[0] == 0
    found = [int(row["env_steps"]) for row in csv.DictReader(metrics.open())]
    assert found == sorted(set(found))
    assert found[: len(lines) - 1] == [int(line.split(",")[0]) for line in lines[1:]]


# -- states of environments ------------------------------------------------------------------------------------------


class Trap:
    """Unpickling one leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_states_come_back_and_damage_is_noticed():
    states = [b"", b"abc", bytes(range(256))]
    packed = pack_states(states)
    assert unpack_states(packed) == states
    packed[1]["bytes"][0] += 1
    with pytest.raises(CheckpointError, match="environment 1 is damaged"):
        unpack_states(packed)
    with pytest.raises(CheckpointError, match="environment 0 cannot be read"):
        unpack_states([{"sha256": ""}])


def test_only_a_resume_unpickles_states_and_only_after_the_hash(finished, tmp_path, capsys):
    content, mark = load_checkpoint(finished), tmp_path / "ran"
    trap = pack_states([pickle.dumps(Trap(mark))] * 4)
    path = finished / "checkpoint.pt"
    save_checkpoint(path, {**content, "env_states": trap})
    assert run(capsys, "eval", path, "--episodes", 1, "--backend", "sync")[0] == 0
    words = ("train", "ppo", "--resume", path, "--total-steps", 700, "--run-dir")
    assert run(capsys, *words, tmp_path / "second", "--fresh-envs")[0] == 0
    for entry in trap:
        entry["sha256"] = "0" * 64
    save_checkpoint(path, {**content, "env_states": trap})
    code, _, errors = run(capsys, *words, tmp_path / "third")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "the saved state of environment 0 is damaged" in errors
    assert not mark.exists()


def test_states_that_cannot_be_brought_back_are_one_line(finished, capsys):
    content = load_checkpoint(finished)
    save_checkpoint(finished / "checkpoint.pt", {**content, "env_states": pack_states([b"nonsense"] * 4)})
    code, _, errors = run(capsys, "train", "ppo", "--resume", finished, "--total-steps", 700)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "--fresh-envs starts new episodes" in errors


# -- refusals --------------------------------------------------------------------------------------------------------


def test_other_spaces_and_other_algorithms_are_one_line(finished, tmp_path, capsys):
    words = ("--resume", finished, "--run-dir", tmp_path / "x", "--total-steps", 700)
    code, _, errors = run(capsys, "train", "ppo", *words, "--env", "Acrobot-v1")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "the checkpoint is for observations Box(" in errors
    assert "those of Acrobot-v1 are" in errors
    content = load_checkpoint(finished)
    for name, wanted in (("acrobot.pt", "Acrobot-v1"), ("mountain.pt", "MountainCar-v0")):
        changed = {**content, "run": {**content["run"], "env": wanted}}
        save_checkpoint(tmp_path / name, changed)
        code, _, errors = run(capsys, "eval", tmp_path / name, "--backend", "sync", "--episodes", 1)
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"those of {wanted} are" in errors
    code, _, errors = run(capsys, "train", "es", *words)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "go on from it with vecenv train ppo" in errors
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "words", "flag"),
    [
        ("dqn", ("--num-envs", "1", "--learning-starts", "90", "--categorical"), "--value-max=20"),
    ],
)
def test_a_setting_that_the_saved_state_holds_is_not_changed_in_silence(name, words, flag, tmp_path, capsys):
    assert run(capsys, "train", name, *CARTPOLE, *words, "--total-steps", 100, "--run-dir", tmp_path / "a")[0] == 0
    code, _, errors = run(capsys, "train", name, "--resume", tmp_path / "a", "--total-steps", 200, flag)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "cannot be changed in the middle of a run: it was" in errors


@pytest.mark.parametrize(
    ("name", "words", "flags"),
    [
        ("ppo", SMALL[:4], ("--no-subtract-mean-image",)),
        ("es", ("--num-pairs", "1", "--hidden-size", "2"), ("--no-subtract-mean-image",)),
        ("dqn", ("--num-envs", "1", "--learning-starts", "90"), ("--value-max=20", "--no-subtract-mean-image")),
    ],
)
def test_a_setting_that_counts_for_nothing_may_change(name, words, flags, tmp_path, capsys):
    assert run(capsys, "train", name, *CARTPOLE, *words, "--total-steps", 100, "--run-dir", tmp_path / "a")[0] == 0
    assert run(capsys, "train", name, "--resume", tmp_path / "a", "--total-steps", 200, *flags)[0] == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_mean_image_stays_where_there_are_images(algorithm):
    counts = find_algorithm(algorithm).fixed_settings["subtract_mean_image"]
    settings = find_algorithm(algorithm).config
    assert counts(settings(network="small-cnn"))
    assert counts(settings(network="nature-cnn"))
    assert not counts(settings(network="mlp"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("learner",), None),
        (("learner", "network"), []),
        (("learner", "network", "value_head.bias"), "x"),
        (("spaces",), {}),
        (("run", "env"), 5),
        (("run", "num_workers"), "x"),
        (("window", "recent"), [1]),
    ],
)
def test_a_checkpoint_with_something_else_in_it_is_one_line(place, value, tmp_path, capsys, finished_once):
    content = load_checkpoint(finished_once)
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    save_checkpoint(tmp_path / "checkpoint.pt", content)
    commands = [("train", "ppo", "--resume", tmp_path, "--total-steps", 700), ("eval", tmp_path, "--episodes", 1)]
    for words in commands[: 1 if place[0] == "window" else 2]:  # playing does not look at the window
        code, _, errors = run(capsys, *words)
        assert (code, len(errors.splitlines())) == (2, 1), errors


def test_a_seed_beyond_those_of_torch_is_one_line(finished_once, capsys):
    for words in (("train", "ppo", *CARTPOLE), ("train", "dqn", *CARTPOLE), ("eval", finished_once)):
        code, _, errors = run(capsys, *words, "--seed", 2**64)
        assert (code, len(errors.splitlines())) == (2, 1)
        assert "seed must be below 2**64" in errors


def test_actor_processes_that_take_over_begin_new_episodes(tmp_path):
    settings = DQNConfig(num_envs=1, learning_starts=90, total_steps=100)
    config = RunConfig("CartPole-v1", backend="sync", algorithm="dqn", settings=settings)
    Agent(config).train(run_dir=tmp_path)
    with_actor = dataclasses.replace(config, settings=dataclasses.replace(settings, num_actors=1, total_steps=200))
    with training_run.TrainingRun(with_actor, training_run.Resume(load_checkpoint(tmp_path), tmp_path)) as resumed:
        [anew] = resumed.starts_anew
    assert anew == "the environments start new episodes, because processes of their own play now"


def test_a_folder_with_a_run_is_not_written_over(finished, capsys):
    before = (finished / "metrics.csv").read_text()
    code, _, errors = run(capsys, "train", "ppo", *CARTPOLE, *SMALL, "--run-dir", finished)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert f"go on with --resume {finished}" in errors
    assert (finished / "metrics.csv").read_text() == before


# -- config files ----------------------------------------------------------------------------------------------------


def test_a_config_file_stands_between_preset_and_flags(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"env": "CartPole-v1", "seed": 9, "backend": "sync", "settings": {"num_envs": 3}}))
    folder = tmp_path / "run"
    words = ("--num-steps", 8, "--seed", 10, "--total-steps", 50, "--run-dir", folder)
    assert run(capsys, "train", "ppo", "--config", file, *words)[0] == 0
    config = json.loads((folder / "config.json").read_text())
    assert (config["env"], config["seed"], config["algorithm"]) == ("CartPole-v1", 10, "ppo")
    settings = config["settings"]
    assert (settings["num_envs"], settings["num_steps"], settings["minibatch_size"]) == (3, 8, 256)
    again = tmp_path / "again"
    assert run(capsys, "train", "ppo", "--config", folder, "--run-dir", again)[0] == 0  # a run's folder repeats it
    assert json.loads((again / "config.json").read_text()) == config
    assert same(load_checkpoint(again)["learner"], load_checkpoint(folder)["learner"])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "there is no config file at"),
        ("{", "cannot be read as JSON"),
        ("[]", "must hold a table of settings"),
        ('{"env": "CartPole-v1", "settings": 3}', "must hold a table of settings"),
        ('{"env": "CartPole-v1", "momentum": 1}', "unknown setting momentum"),
        ('{"env": "CartPole-v1", "settings": {"momentum": 1}}', "unknown setting momentum"),
        ('{"env": "CartPole-v1", "settings": {"gamma": 2}}', "gamma must lie between 0 and 1, got 2"),
        ('{"env": "CartPole-v1", "settings": {"overlap": "false"}}', "overlap must be true or false, got 'false'"),
        ('{"env": "CartPole-v1", "num_workers": "2"}', "num_workers must be a whole number or null, got '2'"),
        ('{"env": 5}', "env must be text, got 5"),
        ('{"env": "CartPole-v1", "checkpoint_seconds": -1}', "checkpoint_seconds must be at least 0, got -1"),
        ('{"env": "CartPole-v1", "algorithm": "es"}', "is for another algorithm than ppo"),
        ("{}", "--env"),
    ],
)
def test_what_a_config_file_cannot_say_is_one_line(content, named, tmp_path, capsys):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    code, _, errors = run(capsys, "train", "ppo", "--config", file, "--run-dir", tmp_path / "run")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert named in errors
    assert not (tmp_path / "run").exists()


def test_presets_by_name(tmp_path, capsys):
    words = ("--run-dir", tmp_path / "run", "--total-steps", 1, "--num-envs", 2, "--num-steps", 2)
    assert run(capsys, "train", "ppo", *CARTPOLE, "--preset", "mujoco", *words)[0] == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["normalise_observations"] is True
    code, _, errors = run(capsys, "train", "ppo", *CARTPOLE, "--preset", "nine")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "PPO has no preset 'nine'; there are classic-control" in errors


# -- what is kept, and how it ends badly -----------------------------------------------------------------------------


def test_the_best_checkpoint_stays_when_returns_fall(tmp_path, capsys, monkeypatch):
    returns = iter([10.0] * 100 + [50.0] * 100 + [1.0] * 10_000)

    class RisingAndFalling(stopping.EpisodeWindow):
        def add(self, episodes):
            super().add([Episode(next(returns), 1) for _ in episodes])  # whatever was played

    monkeypatch.setattr(training_run, "EpisodeWindow", RisingAndFalling)
    words = ("--total-steps", 6000, "--checkpoint-seconds", 0, "--num-envs", 8, "--num-steps", 32)
    words += ("--learning-rate", 1e-9)  # random play: 22 steps per episode
    assert run(capsys, "train", "ppo", *CARTPOLE, *words, "--run-dir", tmp_path / "run")[0] == 0
    best, last = load_checkpoint(tmp_path / "run" / "best.pt"), load_checkpoint(tmp_path / "run")
    assert best["best_mean_return"] == last["best_mean_return"] > 40
    assert best["learner"]["env_steps"] < last["learner"]["env_steps"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_mean_return"] == best["best_mean_return"] > summary["mean_return"]
    assert run(capsys, "eval", tmp_path / "run" / "best.pt", "--episodes", 1, "--backend", "sync")[0] == 0


def test_a_loss_that_is_not_finite_ends_with_a_report(tmp_path, capsys, monkeypatch):
    learn, folder = ppo_update.PPOUpdate.learn, tmp_path / "run"

    def spoil(self, rollout, env_steps):
        if env_steps > 200:
            rollout.rewards[:] = np.nan
        return learn(self, rollout, env_steps)

    monkeypatch.setattr(ppo_update.PPOUpdate, "learn", spoil)
    code, _, errors = run(capsys, "train", "ppo", *CARTPOLE, *SMALL, "--checkpoint-seconds", 0, "--run-dir", folder)
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert "the loss is no longer finite" in errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped_by"] == "not_finite"
    assert "no longer finite" in summary["error"]
    network = load_checkpoint(folder)["learner"]["network"]  # of before
    assert all(torch.isfinite(weight).all() for weight in network.values())


def test_a_full_disk_does_not_end_a_run_but_its_end_says_so(tmp_path, capsys, monkeypatch):
    save, calls = checkpoint_keeper.save_checkpoint, []

    def full(path, content):
        calls.append(path.name)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        save(path, content)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", full)
    folder = tmp_path / "run"
    code, output, errors = run(
        capsys, "train", "ppo", *CARTPOLE, *SMALL, "--checkpoint-seconds", 0, "--run-dir", folder
    )
    assert code == 1
    assert "no checkpoint written ([Errno 28] No space left on device); the one before stays" in output
    assert len(errors.splitlines()) == 1
    assert "could not be written" in errors
    assert len(calls) > 3
    assert load_checkpoint(folder)["learner"]["env_steps"] < 4000


class Unsaveable(gymnasium.Wrapper):
    """Holds what no pickle can."""

    def __init__(self, env):
        super().__init__(env)
        self.lock = (_ for _ in ())


def test_envs_without_a_state_are_no_obstacle(tmp_path):
    settings = PPOConfig(num_envs=2, num_steps=8, total_steps=50)
    config = RunConfig("CartPole-v1", settings=settings)
    with vecenv.make_vec("CartPole-v1", backend="sync", wrappers=[Unsaveable], **env_settings(settings)) as envs:
        with training_run.TrainingRun(config, envs=envs) as training:
            training.train(RunDirectory(tmp_path / "run"), ProgressDisplay(50, None))
        assert not envs.closed  # they are the caller's
        content = load_checkpoint(tmp_path / "run")
        assert content["env_states"] is None
        assert "cannot be saved" in content["without_env_states"]
        resume = training_run.Resume(content, tmp_path / "run")
        with training_run.TrainingRun(config, resume, envs) as training:
            assert "because not all can be saved: the state of" in training.starts_anew[0]
        assert len(training.starts_anew[0].splitlines()) == 1
