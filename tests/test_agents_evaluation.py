"""`vecenv eval`: fixed shares, the step cap, clips; and the health that the display shows."""

from __future__ import annotations

import importlib.util
import io
import os
import platform
import signal
import subprocess
import sys
import types

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console
from waiting import is_gone, wait_until

import vecenv
from vecenv import cli
from vecenv.agents import dqn, health, training_run
from vecenv.agents.checkpoint import save_checkpoint
from vecenv.agents.config import PPOConfig
from vecenv.agents.display import ProgressDisplay, ProgressFigures
from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.health import Health, take_health
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.networks import build_actor_critic
from vecenv.agents.playing import play_episodes
from vecenv.signals import uses_linux_means


class LengthEnv(gymnasium.Env):
    """Episodes of ``uid + 1`` steps that pay 1 each (uid 9: they never end); frames show the step."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, uid=2, render_mode=None):
        self.uid, self.render_mode = uid, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.uid < 9 and self.t > self.uid, False, {}

    def render(self):
        return np.full((32, 48, 3), 60 * (self.t % 4), np.uint8)


gymnasium.register("vecenv-tests/Length-v0", LengthEnv)
gymnasium.register("vecenv-tests/Endless-v0", LengthEnv, kwargs={"uid": 9})
gymnasium.register("vecenv-tests/Blind-v0", LengthEnv, kwargs={})


def a_policy():
    network = build_actor_critic(LengthEnv.observation_space, LengthEnv.action_space, PPOConfig(), seed=0)
    return BatchedPolicy(network, head="greedy")


def envs_of(uids):
    return vecenv.make_vec(LengthEnv, len(uids), "sync", per_env_kwargs=[{"uid": uid} for uid in uids], statistics=True)


def test_every_env_plays_its_share_however_short_its_episodes_are():
    with envs_of([0, 4, 1]) as envs:
        played = play_episodes(envs, a_policy(), 7)
    assert [episode.length for episode in played.episodes] == [1, 1, 1, 5, 5, 2, 2]
    assert [episode.total_reward for episode in played.episodes] == [1, 1, 1, 5, 5, 2, 2]
    assert played.unfinished == 0


def test_the_step_cap_ends_what_does_not_end():
    with envs_of([0, 9, 3]) as envs:
        played = play_episodes(envs, a_policy(), 6, max_steps=9)
    assert [episode.length for episode in played.episodes] == [1, 1, 4, 4]
    assert played.unfinished == 2


@pytest.fixture
def checkpoint(tmp_path, capsys):
    """A checkpoint of an env, made for the test by a run of a few steps."""

    def make(env_id):
        folder = tmp_path / env_id.rpartition("/")[2]
        words = ["train", "ppo", "--env", env_id, "--backend", "sync", "--num-envs", "2", "--num-steps", "4"]
        assert cli.main([*words, "--total-steps", "8", "--run-dir", str(folder)]) == 0
        capsys.readouterr()
        return str(folder)

    return make


def test_unfinished_episodes_are_told(checkpoint, capsys):
    path = checkpoint("vecenv-tests/Endless-v0")
    assert cli.main(["eval", path, "--episodes", "3", "--backend", "sync", "--max-steps", "20"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("3 of 3 episodes had not ended after 20 steps per environment")


def test_a_gif_shows_one_episode(checkpoint, tmp_path, capsys):
    import imageio.v3

    path, clip = checkpoint("vecenv-tests/Length-v0"), tmp_path / "clip.gif"
    assert cli.main(["eval", path, "--episodes", "2", "--backend", "sync", "--video", str(clip)]) == 0
    output = capsys.readouterr().out
    assert f"{clip}: 3 frames of one episode" in output
    assert "mean return 3.00 over 2 episodes" in output
    frames = imageio.v3.imread(clip)
    assert frames.shape == (3, 32, 48, 3)
    assert [int(frame.mean().round()) for frame in frames] == [0, 60, 120]
    assert imageio.v3.immeta(clip)["duration"] == 50  # milliseconds per frame, at 20 frames per second
    assert cli.main(["eval", path, "--episodes", "2", "--video", str(clip), "--video-frames", "2"]) == 0
    assert len(imageio.v3.imread(clip)) == 2


def test_a_clip_is_drawn_without_a_screen():
    pytest.importorskip("pygame")
    script = """
import os
from vecenv.agents.config import RunConfig
from vecenv.agents.video import make_rendered_envs, no_screen

with no_screen(), make_rendered_envs(RunConfig("CartPole-v1")) as envs:
    envs.reset(seed=0)
    print(envs.render()[0].shape, os.environ.pop("SDL_VIDEODRIVER"))
os.environ["SDL_VIDEODRIVER"] = "named"
with no_screen():
    print(os.environ.pop("SDL_VIDEODRIVER"))
with no_screen():
    pass
print("SDL_VIDEODRIVER" in os.environ)
"""
    screens = ("SDL_VIDEODRIVER", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in screens}
    command = [sys.executable, "-c", script]
    drawn = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert drawn.stdout == "(400, 600, 3) dummy\nnamed\nFalse\n"
    assert "XDG_RUNTIME_DIR" not in drawn.stderr


def test_an_endless_clip_ends(checkpoint, tmp_path):
    import imageio.v3

    words = ["eval", checkpoint("vecenv-tests/Endless-v0"), "--episodes", "1", "--backend", "sync", "--max-steps", "5"]
    assert cli.main([*words, "--video", str(tmp_path / "clip.gif"), "--video-frames", "7"]) == 1
    assert len(imageio.v3.imread(tmp_path / "clip.gif")) == 7


@pytest.mark.parametrize(
    ("clip", "named"),
    [
        ("clip.avi", "--video must end in .gif or .mp4"),
        ("nowhere/clip.gif", "there is no folder"),
        ("clip.mp4", "mp4 needs an encoder (pip install imageio-ffmpeg)"),
        ("clip.gif", "cannot be rendered (broken screen)"),
    ],
)
def test_clips_that_cannot_be_are_one_line(clip, named, checkpoint, tmp_path, capsys, monkeypatch):
    from vecenv.agents import video

    path = checkpoint("vecenv-tests/Blind-v0")
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)

    def broken(self):
        raise RuntimeError("broken screen")

    monkeypatch.setattr(LengthEnv, "render", broken)
    assert cli.main(["eval", path, "--backend", "sync", "--video", str(tmp_path / clip)]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert not (tmp_path / clip).exists()


@pytest.mark.parametrize("words", [["--episodes", "0"], ["--max-steps", "-1"], ["--video-frames", "0"]])
def test_numbers_are_checked(words, checkpoint, capsys):
    assert cli.main(["eval", checkpoint("vecenv-tests/Length-v0"), *words]) == 2
    assert f"must be a whole number of at least 1, got {words[1]}" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_of_a_run_is_one_line(tmp_path, capsys):
    save_checkpoint(tmp_path / "odd.pt", {"weights": torch.ones(1)})
    for words in (["eval", str(tmp_path / "odd.pt")], ["train", "ppo", "--resume", str(tmp_path / "odd.pt")]):
        assert cli.main(words) == 2
        errors = capsys.readouterr().err
        assert "is not the checkpoint of a run" in errors
        assert len(errors.splitlines()) == 1


# -- health ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["linux", "psutil"])
def way_to_look(request, monkeypatch):
    """Both ways in which processes are looked at."""
    if request.param == "psutil":
        pytest.importorskip("psutil")
        monkeypatch.setattr(health, "uses_linux_means", lambda: False)
    elif not uses_linux_means():
        pytest.skip("there is no /proc to read")


class Workers:
    """A vector env, or a learner, of which only its workers and their machines are known."""

    def __init__(self, pids, machines=None):
        self.worker_pids, self.worker_machines = pids, machines

    def episode_statistics(self):
        return types.SimpleNamespace(last_returns=np.full(1, np.nan))


@pytest.fixture
def sleeping_pid():
    """Of a process that does nothing, and ends with the test."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate(timeout=10)


@pytest.mark.usefixtures("way_to_look")
def test_health_counts_the_living_and_their_memory():
    with vecenv.make_vec("CartPole-v1", 4, "subproc", num_workers=2) as envs:
        envs.reset(seed=0)
        seen = take_health(envs, "cpu")
        assert (seen.workers, seen.alive, seen.has_losses) == (2, 2, False)
        assert seen.worker_mib > 1
        assert seen.main_mib > 10
        assert seen.device_mib is None
        assert np.isnan(seen.returns).all()
        for _ in range(300):
            envs.step(np.zeros(4, np.int64))
        assert (take_health(envs, "cpu").returns >= 8).all()
        pids = envs.worker_pids
    wait_until(lambda: all(map(is_gone, pids)), 10.0)
    seen = take_health(Workers(pids), "cpu")
    assert (seen.workers, seen.alive, seen.worker_mib, seen.has_losses) == (2, 0, 0, True)


@pytest.mark.usefixtures("way_to_look")
def test_health_does_not_count_a_process_that_has_ended_and_that_nobody_has_asked_after(sleeping_pid):
    os.kill(sleeping_pid, signal.SIGKILL)
    wait_until(lambda: is_gone(sleeping_pid), 10.0)
    seen = take_health(Workers([sleeping_pid, os.getpid()]), "cpu")
    assert (seen.workers, seen.alive) == (2, 1)


def test_health_looks_at_workers_of_the_learner_and_at_none_on_other_machines(sleeping_pid):
    learner = Workers([sleeping_pid, 1, 2], [platform.node(), "another", "another"])
    seen = take_health(Workers([os.getpid()]), "cpu", learner)
    assert (seen.workers, seen.alive, seen.elsewhere) == (2, 2, 2)
    assert "workers 2 of 2 alive" in str(seen)
    assert "; 2 workers on other machines" in str(seen)
    seen = take_health(Workers([]), "cpu", Workers([1], ["another"]))
    assert str(seen).startswith("no workers here; 1 worker on other machines")


def test_health_says_so_where_there_is_no_way_to_look(monkeypatch):
    monkeypatch.setattr(health, "uses_linux_means", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    seen = take_health(Workers([1, 2]), "cpu")
    assert (seen.workers, seen.alive, seen.worker_mib, seen.main_mib, seen.has_losses) == (2, None, None, None, False)
    assert str(seen) == "2 workers"


def test_dqn_names_the_processes_that_play_for_it():
    config = DQNConfig(num_envs=2, num_actors=1, minibatch_size=8, learning_starts=100, replay_capacity=4_000)
    with vecenv.make_vec("CartPole-v1", backend="sync", **dqn.env_settings(config)) as envs:
        learner = dqn.DQN(envs, config)
        try:
            assert take_health(envs, "cpu", learner).workers == 0  # they start with the first reset
            learner.reset(0)
            assert take_health(envs, "cpu", learner).workers == 1
        finally:
            learner.close()
        assert learner.worker_pids == ()


def test_a_run_tells_of_the_processes_that_play_for_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(training_run, "SECONDS_BETWEEN_HEALTH", 0.0)
    monkeypatch.setattr(ProgressDisplay, "SECONDS_BETWEEN_HEALTH_LINES", 0.0)
    words = ["train", "es", "--env", "CartPole-v1", "--backend", "sync", "--engine", "processes", "--workers", "1"]
    words += ["--num-pairs", "2", "--hidden-size", "2", "--total-steps", "1", "--run-dir", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert "workers 1 of 1 alive" in capsys.readouterr().out


def test_the_panel_and_the_line_say_it():
    seen = Health(2, 1, 40.0, 300.0, None, np.array([1.0, 5.0, np.nan, 3.0]))
    line = "workers 1 of 2 alive, 40 MiB; this process 300 MiB; last return per environment 1.0 | 3.0 | 5.0"
    assert str(seen).startswith(line)
    for is_terminal in (True, False):
        file = io.StringIO()
        display = ProgressDisplay(100, None, Console(file=file, force_terminal=is_terminal, width=140))
        with display:
            display.show_health(seen)  # a dead worker is told at once, also off a terminal
            display.update(ProgressFigures(10, 1.0, 10.0, 1, 2.0), is_last=True)
        assert "workers 1 of 2 alive, 40 MiB" in file.getvalue()
        assert "10" in file.getvalue()
