"""`vecenv eval`: fixed shares, the step cap, clips; and the health that the display shows."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

import vecenv
from vecenv import cli
from vecenv.agents.checkpoint import save_checkpoint
from vecenv.agents.config import PPOConfig
from vecenv.agents.display import ProgressDisplay, ProgressFigures
from vecenv.agents.health import Health, take_health
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.networks import build_actor_critic
from vecenv.agents.playing import play_episodes


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


def test_health_counts_the_living_and_their_memory():
    pytest.importorskip("psutil")
    with vecenv.make_vec("CartPole-v1", 4, "subproc", num_workers=2) as envs:
        envs.reset(seed=0)
        health = take_health(envs, "cpu")
        assert (health.workers, health.alive) == (2, 2)
        assert health.worker_mib > 1
        assert health.main_mib > 10
        assert health.device_mib is None
        assert np.isnan(health.returns).all()
        for _ in range(300):
            envs.step(np.zeros(4, np.int64))
        assert (take_health(envs, "cpu").returns >= 8).all()
        pids = envs.worker_pids
    import psutil

    running = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            running.append(psutil.Process(pid))
    psutil.wait_procs(running, timeout=10)

    class Ended:
        worker_pids = pids

        def episode_statistics(self):
            return envs.episode_statistics()

    assert (take_health(Ended(), "cpu").workers, take_health(Ended(), "cpu").alive) == (2, 0)


def test_the_panel_and_the_line_say_it():
    health = Health(2, 1, 40.0, 300.0, None, np.array([1.0, 5.0, np.nan, 3.0]))
    line = "workers 1 of 2 alive, 40 MiB; this process 300 MiB; last return per environment 1.0 | 3.0 | 5.0"
    assert str(health).startswith(line)
    for is_terminal in (True, False):
        file = io.StringIO()
        display = ProgressDisplay(100, None, Console(file=file, force_terminal=is_terminal, width=140))
        with display:
            display.show_health(health)  # a dead worker is told at once, also off a terminal
            display.update(ProgressFigures(10, 1.0, 10.0, 1, 2.0), is_last=True)
        assert "workers 1 of 2 alive, 40 MiB" in file.getvalue()
        assert "10" in file.getvalue()
