"""Presets through make_vec beside the peers' vector environments, and the wrappers in make_vec."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import ale_py
import envpool
import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

import vecenv
from vecenv.preprocess.config import AtariConfig, find_preset
from vecenv.preprocess.wrappers import ClipReward, EpisodicLife, FireReset, FrameSkip, FrameStack, GrayscaleResize

NUM_ENVS, SEED, STEPS = 3, 5, 220
BACKENDS = ("subproc", pytest.param("sync", marks=pytest.mark.slow))


def actions() -> np.ndarray:
    return np.random.default_rng(SEED).integers(4, size=(STEPS, NUM_ENVS))


def game(**settings: Any) -> gymnasium.Env[Any, Any]:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py.AtariEnv("breakout", frameskip=1, **settings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_gymnasium(backend: str, mode: str) -> None:
    def build() -> gymnasium.Env[Any, Any]:
        env = game(repeat_action_probability=0.25, max_num_frames_per_episode=400)
        env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
        return gymnasium.wrappers.FrameStackObservation(env, 4)

    theirs = gymnasium.vector.SyncVectorEnv([build] * NUM_ENVS, autoreset_mode=gymnasium.vector.AutoresetMode(mode))
    settings = {"episodic_life": True, "max_episode_frames": 400}
    with vecenv.make_vec(
        "ALE/Breakout-v5", NUM_ENVS, backend=backend, preprocess="gymnasium", autoreset_mode=mode, **settings
    ) as ours:
        assert ours.single_observation_space == theirs.single_observation_space
        expected: tuple[Any, ...] = theirs.reset(seed=SEED)
        got: tuple[Any, ...] = ours.reset(seed=SEED)
        ends = 0
        for batch in actions():
            np.testing.assert_array_equal(got[0], expected[0])
            for name in ("lives", "frame_number", "episode_frame_number"):
                np.testing.assert_array_equal(got[-1][name], expected[-1][name])
            expected, got = theirs.step(batch), ours.step(batch)
            for index in (1, 2, 3):
                np.testing.assert_array_equal(got[index], expected[index])
            for env in np.flatnonzero(expected[-1].get("_final_obs", [])):
                np.testing.assert_array_equal(got[-1]["final_obs"][env], expected[-1]["final_obs"][env])
            ends += int((expected[2] | expected[3]).sum())
    theirs.close()
    assert ends >= 9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("episodic_life", [False, True])
def test_envpool(backend: str, episodic_life: bool) -> None:
    theirs = envpool.make(
        "Breakout-v5",
        env_type="gymnasium",
        num_envs=NUM_ENVS,
        num_threads=1,
        seed=SEED,
        max_episode_steps=90,
        episodic_life=episodic_life,
    )
    config = dataclasses.replace(
        find_preset("envpool"), max_episode_steps=90, episodic_life=episodic_life, next_life=episodic_life
    )
    with vecenv.make_vec("BreakoutNoFrameskip-v4", NUM_ENVS, backend=backend, preprocess=config) as ours:
        expected: tuple[Any, ...] = theirs.reset()
        got: tuple[Any, ...] = ours.reset(seed=SEED)
        ends = 0
        for batch in actions():
            np.testing.assert_array_equal(got[0], expected[0])
            np.testing.assert_array_equal(got[-1]["lives"], expected[-1]["lives"])
            expected, got = theirs.step(batch.astype(np.int32)), ours.step(batch)
            for index in (1, 2, 3):
                np.testing.assert_array_equal(got[index], expected[index])
            ends += int((expected[2] | expected[3]).sum())
    theirs.close()
    assert ends >= 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_sb3(backend: str) -> None:
    def build() -> gymnasium.Env[Any, Any]:
        return AtariWrapper(game(repeat_action_probability=0.0, max_num_frames_per_episode=600))

    theirs = VecFrameStack(DummyVecEnv([build] * NUM_ENVS), 4)
    with vecenv.make_vec(
        "BreakoutNoFrameskip-v4",
        NUM_ENVS,
        backend=backend,
        preprocess="sb3",
        autoreset_mode="SameStep",
        max_episode_frames=600,
    ) as ours:
        assert ours.single_observation_space == theirs.observation_space
        theirs.seed(SEED)
        expected = theirs.reset()
        got = ours.reset(seed=SEED)[0]
        ends = 0
        for batch in actions():
            np.testing.assert_array_equal(got, expected)
            expected, their_rewards, dones, their_infos = theirs.step(batch)
            got, rewards, terminations, truncations, infos = ours.step(batch)
            np.testing.assert_array_equal(rewards, their_rewards)
            np.testing.assert_array_equal(terminations | truncations, dones)
            for env in np.flatnonzero(dones):
                np.testing.assert_array_equal(infos["final_obs"][env], their_infos[env]["terminal_observation"])
                limited = truncations[env] and not terminations[env]
                assert limited == their_infos[env]["TimeLimit.truncated"]
            ends += int(dones.sum())
    theirs.close()
    assert ends >= 9


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_count_whole_games_and_raw_rewards(backend: str) -> None:
    """With the preset sb3 an episode is a life and rewards are signs; statistics are of games."""
    with vecenv.make_vec(
        "BreakoutNoFrameskip-v4", 2, backend=backend, preprocess="sb3", statistics=True, clip_reward=True
    ) as envs:
        envs.reset(seed=0)
        generator = np.random.default_rng(0)
        ends, games = 0, 0
        for _ in range(700):
            _, _, terminations, _, infos = envs.step(generator.integers(4, size=2))
            ends += int(terminations.sum())
            games += int(np.sum(infos.get("_episode", 0)))
    assert 0 < games < ends


def whole_pipeline(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return FireReset(EpisodicLife(FrameSkip(env, 4)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_in_make_vec(backend: str) -> None:
    """Atari without its preset, wrapped by hand, equals the same wrappers in one process by hand."""
    wrappers = [whole_pipeline, GrayscaleResize, ClipReward, FrameStack]

    def build(seed: int) -> gymnasium.Env[Any, Any]:
        env = game(repeat_action_probability=0.0)
        for wrap in wrappers:
            env = wrap(env)
        return env

    single = build(0)
    with vecenv.make_vec(
        "BreakoutNoFrameskip-v4", 1, backend=backend, preprocess="none", wrappers=wrappers, autoreset_mode="SameStep"
    ) as envs:
        expected, _ = single.reset(seed=3)
        observations, _ = envs.reset(seed=3)
        for batch in actions()[:, :1]:
            np.testing.assert_array_equal(observations[0], expected)
            expected, reward, terminated, truncated, _ = single.step(batch[0])
            observations, rewards, terminations, _, _ = envs.step(batch)
            assert (rewards[0], terminations[0]) == (reward, terminated)
            if terminated or truncated:
                expected, _ = single.reset()


PLAIN_PYTHON = """
import hashlib
import numpy as np
from vecenv.atari import AtariEnv
from vecenv.preprocess.config import AtariConfig
from vecenv.preprocess.images import ImageResizer
digest = hashlib.sha256()
for settings in ({}, {"grayscale": False}, {"gray": "opencv", "channel_order": "last"}):
    env = AtariEnv("pong", AtariConfig(screen_size=(30, 16), **settings))
    digest.update(env.reset(seed=0)[0])
    for action in (2, 3):
        digest.update(env.step(action)[0])
image = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.uint8)
for size in ((15, 20), (10, 10), (7, 9)):
    for grayscale in (True, False):
        digest.update(ImageResizer(image.shape, size, grayscale)(image))
print(digest.hexdigest())
"""


def test_kernels_give_the_same_bits_as_plain_python() -> None:
    def run(**environment: str) -> str:
        command = [sys.executable, "-W", "error", "-c", PLAIN_PYTHON]
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=150, check=True
        ).stdout

    assert run() == run(NUMBA_DISABLE_JIT="1")


def test_every_preset_may_be_named() -> None:
    for preset in ("ale", "gymnasium", "sb3", "envpool", "fast"):
        with vecenv.make_vec("ALE/Pong-v5", 1, backend="sync", preprocess=preset) as envs:
            expected = dataclasses.replace(find_preset(preset), repeat_action_probability=0.25)
            assert envs.config == expected
            assert isinstance(envs.config, AtariConfig)


class ModulesEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def modules(self) -> set[str]:
        return set(sys.modules)


def test_workers_load_nothing_that_the_fork_server_could_have_loaded_for_all() -> None:
    with vecenv.make_vec("PongNoFrameskip-v4", 2, "subproc", num_workers=2, wrappers=[ModulesEnv]) as envs:
        built = envs.call("modules")
        envs.reset(seed=0)
        envs.step([0, 0])
        for before, after in zip(built, envs.call("modules"), strict=True):
            assert "numba" in before
            assert after - before == set()
