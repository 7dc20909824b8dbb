"""The commands `vecenv train` and `vecenv eval`, from their words to their files."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from waiting import wait_until

from vecenv import cli
from vecenv.agents import ppo, train
from vecenv.agents.algorithms import ALGORITHMS, run_config_from_dict
from vecenv.agents.checkpoint import load_checkpoint
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.train_arguments import read_arguments
from vecenv.errors import UnknownSetting
from vecenv.factory import BACKENDS

SHORT = ["--env", "CartPole-v1", "--backend", "sync", "--num-envs", "4", "--num-steps", "16", "--seed", "3"]


def run(capsys, *words):
    """Exit code, output and errors of one command."""
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def finished(tmp_path, capsys):
    """Folder of a short finished run."""
    folder = tmp_path / "first"
    code, _, errors = run(capsys, "train", "ppo", *SHORT, "--total-steps", 600, "--run-dir", folder)
    assert (code, errors) == (0, "")
    return folder


def test_a_run_leaves_its_files(finished):
    names = {file.name for file in finished.iterdir()}
    assert {"config.json", "metrics.csv", "checkpoint.pt", "summary.json", "curve.png"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert len(names) == 6  # nothing temporary is left
    summary = json.loads((finished / "summary.json").read_text())
    config = json.loads((finished / "config.json").read_text())
    assert summary["settings"] == config
    assert (config["env"], config["seed"], config["settings"]["num_envs"]) == ("CartPole-v1", 3, 4)
    assert (summary["solved"], summary["stopped_by"]) == (False, "total_steps")
    assert 600 <= summary["env_steps"] < 600 + 4 * 16
    assert summary["steps_per_second"] == pytest.approx(summary["env_steps"] / summary["seconds"], rel=0.01)
    assert summary["versions"]["torch"] == torch.__version__
    rows = list(csv.DictReader((finished / "metrics.csv").open()))
    assert int(rows[-1]["env_steps"]) == summary["env_steps"]
    assert float(rows[-1]["mean_return"]) == summary["mean_return"]
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_reads_the_events(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished))
    events.Reload()
    assert {"charts/mean_return", "charts/steps_per_second", "losses/value_loss"} <= set(events.Tags()["scalars"])
    rows = list(csv.DictReader((finished / "metrics.csv").open()))
    assert [event.step for event in events.Scalars("losses/value_loss")] == [int(row["env_steps"]) for row in rows]


def test_the_checkpoint_holds_only_tensors_and_plain_values(finished):
    def walk(value):
        if type(value) is dict:
            for key, item in value.items():
                assert type(key) in (str, int)
                walk(item)
        elif type(value) in (list, tuple):
            for item in value:
                walk(item)
        else:
            assert type(value) in (bool, int, float, str, bytes, type(None), torch.Tensor)

    content = torch.load(finished / "checkpoint.pt", weights_only=True)
    walk(content)
    assert {"run", "learner", "window", "seconds"} <= set(content)


def test_resume_goes_on_counting(finished, capsys):
    before = load_checkpoint(finished)
    rows_before = len((finished / "metrics.csv").read_text().splitlines())
    code, output, errors = run(capsys, "train", "ppo", "--resume", finished, "--total-steps", 1200)
    assert (code, errors) == (0, "")
    assert re.search(r"resumed at 6\d\d env steps: .*environments go on in the middle of their episodes", output)
    assert "nothing was learnt" not in output
    after = load_checkpoint(finished)
    assert after["run"]["env"] == "CartPole-v1"
    assert after["run"]["settings"]["num_steps"] == 16  # settings of the first run hold
    assert 1200 <= after["learner"]["env_steps"] < 1200 + 4 * 16
    assert after["window"]["finished"] > before["window"]["finished"]
    assert after["seconds"] > before["seconds"]
    rows = (finished / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("env_steps")
    assert len(rows) > rows_before
    steps = [int(row.split(",")[0]) for row in rows[1:]]
    assert steps == sorted(set(steps))


def test_resume_into_another_folder_leaves_the_first_alone(finished, tmp_path, capsys):
    kept = (finished / "checkpoint.pt").read_bytes()
    words = ("--resume", finished / "checkpoint.pt", "--total-steps", 700, "--run-dir", tmp_path / "second")
    assert run(capsys, "train", "ppo", *words)[0] == 0
    assert (finished / "checkpoint.pt").read_bytes() == kept
    assert load_checkpoint(tmp_path / "second")["learner"]["env_steps"] >= 700


def test_solving_stops_the_run(tmp_path, capsys):
    words = ("--solve-at", 15, "--total-steps", 100_000, "--run-dir", tmp_path / "run")
    code, output, _ = run(capsys, "train", "ppo", *SHORT, *words)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert code == 0
    assert (summary["solved"], summary["stopped_by"]) == (True, "solved")
    assert summary["episodes"] >= 100
    assert summary["mean_return"] >= 15
    assert "solved: mean return" in output
    output = run(capsys, "train", "ppo", "--resume", tmp_path / "run")[1]
    assert output.endswith(
        "nothing was learnt: the checkpoint had reached --solve-at 15 already; to go on, --resume it with a higher "
        "--solve-at, or --solve-at None\n"
    )


@pytest.mark.parametrize(
    ("flags", "held", "higher"),
    [
        ((), "the checkpoint had reached --total-steps 600 already", "--total-steps"),
        (
            ("--total-steps", 5000, "--stop-at-steps", 300),
            "the checkpoint had reached --stop-at-steps 300 already",
            "--stop-at-steps, or --stop-at-steps None",
        ),
        (
            ("--total-steps", 5000, "--max-seconds", "1e-6"),
            "--max-seconds 1e-06 was over before the first update",
            "--max-seconds, or --max-seconds None",
        ),
    ],
    ids=["total-steps", "stop-at-steps", "max-seconds"],
)
def test_a_resume_that_stops_at_once_says_at_which_limit_and_how_to_go_on(flags, held, higher, finished, capsys):
    code, output, errors = run(capsys, "train", "ppo", "--resume", finished, *flags)
    assert (code, errors) == (0, "")
    assert output.endswith(f"nothing was learnt: {held}; to go on, --resume it with a higher {higher}\n")


def test_a_run_without_a_step_is_not_offered_for_playing(tmp_path, capsys):
    words = ("--env", "CartPole-v1", "--max-seconds", "1e-6", "--run-dir", tmp_path / "run")
    code, output, _ = run(capsys, "train", "es", *words)
    assert code == 0
    assert "after 0 env steps" in output
    assert "vecenv eval" not in output


def test_default_folder_names_environment_algorithm_and_time(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(capsys, "train", "ppo", *SHORT, "--total-steps", 64)[0] == 0
    folders = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert all(re.fullmatch(r"CartPole-v1-ppo-\d{8}-\d{6}(-\d+)?", folder) for folder in folders)


def help_of(capsys, *words):
    """What --help prints, as one line without frames."""
    try:
        code = cli.main([*words, "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0
    return " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())


def test_help_leads_from_the_algorithm_to_its_settings(capsys):
    text = help_of(capsys, "train")
    assert "--env CartPole-v1 --help" in text
    for name in ALGORITHMS:
        assert f" {name} " in text
        assert "--env" in help_of(capsys, "train", name)
    assert run(capsys, "train")[:2] == (2, "usage: vecenv train {dqn,ppo,es} --env ID [--help]\n")


@pytest.mark.parametrize("words", [["train", "dqn"], ["eval"]], ids=["train", "eval"])
def test_help_names_every_back_end(words, capsys):
    listed = re.search(r"steps the environments: (.*?)\.", help_of(capsys, *words)).group(1)
    assert set(re.split(", | or ", listed)) == set(BACKENDS)


def test_eval_plays_whole_episodes(finished, capsys):
    code, output, errors = run(capsys, "eval", finished / "checkpoint.pt", "--episodes", 5, "--backend", "sync")
    assert (code, errors) == (0, "")
    assert re.search(r"CartPole-v1: mean return \d+\.\d+ over 5 episodes", output)
    again = run(capsys, "eval", finished, "--episodes", 5, "--backend", "sync", "--num-envs", 5)[1]
    assert again == output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "ppo"], "vecenv: --env is missing: Id of the environment, such as CartPole-v1"),
        (["train", "sarsa", "--env", "CartPole-v1"], "no algorithm 'sarsa'"),
        (["train", "ppo", "--env", "KartPole-v1"], "KartPole"),
        (["train", "ppo", *SHORT, "--momentum", "0.9"], "--momentum"),
        (["train", "ppo", *SHORT, "--gamma", "high"], "vecenv: --gamma must be a number, got 'high' (see"),
        (["train", "ppo", *SHORT, "--max-seconds", "long"], "--max-seconds must be a number, got 'long' (see"),
        (["train", "ppo", *SHORT, "--gamma", "1.5"], "gamma must lie between 0 and 1, got 1.5"),
        (["train", "ppo", *SHORT, "--num-steps", "1"], "num_steps must be at least 2"),
        (["train", "ppo", *SHORT, "--num-envs", "2.5"], "vecenv: --num-envs must be a whole number, got '2.5' (see"),
        (["train", "ppo", *SHORT, "--backend", "warp"], "warp"),
        (["train", "ppo", *SHORT, "--device", "abacus"], "no torch device 'abacus'"),
        (["train", "ppo", *SHORT, "--precision", "float8"], "float8"),
        (["train", "ppo", *SHORT, "--network", "small-cnn"], "small-cnn needs uint8 images"),
        (["train", "ppo", "--env", "Blackjack-v1", "--backend", "sync"], "agents read Box observations only"),
        (["train", "ppo", "--resume", "nowhere.pt"], "there is no checkpoint at nowhere.pt"),
        (["eval", "--video", "a.gif"], "CHECKPOINT is missing: it comes before --video"),
        (["train", "ppo", *SHORT, "--momentum", "0.9"], "vecenv: there is no option --momentum (see"),
        (["train", "ppo", *SHORT, "--num-env", "3"], "there is no option --num-env; did you mean --num-envs? (see"),
        (["train", "ppo", *SHORT, "--run-dir", __file__], "test_agents_train.py is a file, not a folder"),
        (["train", "ppo", *SHORT, "--seed", "-1"], "vecenv: seed must be a whole number of at least 0, got -1 (see"),
        (["train", "ppo", *SHORT, "--gamma"], "--gamma needs a value (see"),
        (["train", "ppo", *SHORT, "--lr-schedule", "flat"], "--lr-schedule must be one of 'linear', 'kl', got 'flat'"),
        (
            ["train", "ppo", *SHORT, "--num-envs", "0"],
            "vecenv: num_envs must be a whole number of at least 1, got 0 (see",
        ),
        (["eval", "nowhere.pt"], "there is no checkpoint at nowhere.pt"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_code_2(words, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = run(capsys, *words)
    assert code == 2
    assert named in errors
    assert len(errors.splitlines()) == 1
    assert "full helptext" not in errors
    assert output == ""
    assert list(tmp_path.iterdir()) == []  # no folder for a run that never began


def test_resume_with_a_network_that_does_not_fit_is_one_line(finished, capsys):
    code, _, errors = run(capsys, "train", "ppo", "--resume", finished, "--hidden-size", 32)
    assert code == 2
    assert "does not fit these settings" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill), (signal.SIGTERM, os.killpg)],
    ids=["ctrl-c", "sigterm", "sigterm-to-all"],
)
def test_a_signal_saves_a_checkpoint_and_ends(number, send, tmp_path, capsys):
    folder = tmp_path / "run"
    metrics = folder / "metrics.csv"
    command = [sys.executable, "-m", "vecenv", "train", "ppo", "--env", "CartPole-v1", "--backend", "subproc"]
    command += ["--num-workers", "1", "--num-envs", "4", "--total-steps", "100000000", "--run-dir", str(folder)]
    # A process group of its own, which its workers are in too, as in a terminal.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )

    def is_learning_or_gone():
        is_learning = metrics.exists() and len(metrics.read_text().splitlines()) >= 3
        return is_learning or process.poll() is not None

    try:
        wait_until(is_learning_or_gone, 90.0)
        assert process.poll() is None, process.communicate()[0]
        send(process.pid, number)
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "stopped (interrupted)" in output
    content = load_checkpoint(folder)
    steps = content["learner"]["env_steps"]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped_by"], summary["env_steps"]) == ("interrupted", steps)
    assert steps == int(metrics.read_text().splitlines()[-1].split(",")[0])
    if (number, send) != (signal.SIGTERM, os.killpg):  # which ends workers, before or after they were asked
        assert content["env_states"] is not None
    assert run(capsys, "train", "ppo", "--resume", folder, "--stop-at-steps", steps + 1)[0] == 0


def test_a_worker_that_a_signal_ended_in_the_middle_of_a_step_is_no_error(tmp_path, capsys, monkeypatch):
    learn = ppo.PPO.train_once

    def end_worker(self, stop_requested):
        if self.env_steps:
            self.envs.processes[0].kill()
            self.envs.processes[0].join(10.0)
            if is_asked:
                signal.raise_signal(signal.SIGINT)
            learn(self)  # which does not look whether it is to stop
        return learn(self, stop_requested)

    monkeypatch.setattr(ppo.PPO, "train_once", end_worker)
    words = ["train", "ppo", "--env", "CartPole-v1", "--backend", "subproc", "--num-workers", "1", "--num-envs", "4"]
    words += ["--num-steps", "16", "--overlap", "--run-dir"]
    is_asked = False
    code, _, errors = run(capsys, *words, tmp_path / "first")
    assert code == 1
    assert "died during" in errors
    assert not (tmp_path / "first" / "checkpoint.pt").exists()
    is_asked = True
    assert run(capsys, *words, tmp_path / "second")[0] == 130
    content = load_checkpoint(tmp_path / "second")
    assert content["learner"]["env_steps"] > 0
    assert content["without_env_states"] == "their workers had ended when they were to be saved"


def test_a_former_name_of_a_scaling_is_read_from_files_and_is_no_setting(tmp_path):
    values = dataclasses.asdict(RunConfig("CartPole-v1", settings=PPOConfig()))  # as a checkpoint holds them
    values["settings"]["lr_scaling"] = "document"
    assert run_config_from_dict(values).settings.lr_scaling == "linear-0.8"
    (tmp_path / "config.json").write_text(json.dumps(values))
    arguments, _ = read_arguments("ppo", ["--config", str(tmp_path)])
    assert arguments.settings.lr_scaling == "linear-0.8"
    with pytest.raises(UnknownSetting, match=r"lr_scaling must be one of none, linear, linear-0\.8, got 'document'"):
        PPOConfig(lr_scaling="document")
    values["settings"]["lr_scaling"] = ["document"]
    with pytest.raises(UnknownSetting, match="lr_scaling must be one of"):
        run_config_from_dict(values)


def test_envs_are_closed_when_training_fails(tmp_path, monkeypatch):
    closed = []
    learn = ppo.PPO.train_once

    def fail_later(self, *arguments):
        if self.env_steps:
            closed.append(self.collector.envs)
            raise ZeroDivisionError("planted")
        return learn(self, *arguments)

    monkeypatch.setattr(ppo.PPO, "train_once", fail_later)
    with pytest.raises(ZeroDivisionError, match="planted"):
        train.main(["ppo", *SHORT, "--run-dir", str(tmp_path / "run")])
    assert closed[0].closed
