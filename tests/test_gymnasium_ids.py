"""Ids in Gymnasium's registry, and Gymnasium's vector wrappers around every back end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

import vecenv
from vecenv.errors import UnknownSetting
from vecenv.factory import BACKENDS
from vecenv.registration import ROMS, game_name
from vecenv.toy_envs import EchoEnv

# The ray back end starts a cluster, which its own tests do once.
NEEDS = {"ale": "ale_py", "envpool": "envpool", "compiled": "numba"}


def test_every_game_is_registered_for_one_env_and_for_many() -> None:
    for rom in ROMS:
        spec = gym.spec(f"vecenv/{game_name(rom)}-v5")
        assert spec.entry_point == "vecenv.atari:make_registered_env"
        assert spec.vector_entry_point == "vecenv.gymnasium_entry:make_registered_vec"


def test_ids_resolve_lazily() -> None:
    script = (
        "import gymnasium, sys; envs = gymnasium.make_vec('vecenv:vecenv/Pong-v5', num_envs=2, backend='sync');"
        "print(type(envs).__module__, envs.num_envs, envs.reset(seed=1)[0].shape, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split("\n")[0] == "vecenv.sync_backend 2 (2, 4, 84, 84) False"


def test_make_vec_takes_the_settings_as_keywords() -> None:
    pytest.importorskip("ale_py")
    mode = gym.vector.AutoresetMode.SAME_STEP
    settings: dict[str, Any] = {
        "preprocess": "sb3",
        "seed": 3,
        "autoreset_mode": mode,
        "repeat_action_probability": 0.1,
    }
    envs = gym.make_vec("vecenv:vecenv/Pong-v5", num_envs=3, backend="subproc", num_workers=2, **settings)
    assert isinstance(envs, vecenv.SubprocVecEnv)
    assert envs.num_workers == 2
    assert envs.metadata["autoreset_mode"] is mode
    assert envs.config is not None
    assert (envs.config.conventions, envs.config.repeat_action_probability) == ("sb3", 0.1)
    first, _ = envs.reset()
    same = gym.make_vec(envs.spec)  # the spec builds the same again
    assert isinstance(same, vecenv.SubprocVecEnv)
    np.testing.assert_array_equal(same.reset()[0], first)
    envs.close()
    same.close()


def test_make_vec_of_other_modes_and_make() -> None:
    pytest.importorskip("ale_py")
    ours = gym.make_vec("vecenv:vecenv/Breakout-v5", num_envs=2, backend="sync")
    theirs = gym.make_vec("vecenv:vecenv/Breakout-v5", num_envs=2, vectorization_mode="sync")
    assert type(theirs) is gym.vector.SyncVectorEnv
    env = gym.make("vecenv:vecenv/Breakout-v5", preprocess="ale")
    observations = [envs.reset(seed=4)[0] for envs in (ours, theirs)]
    np.testing.assert_array_equal(*observations)
    np.testing.assert_array_equal(env.reset(seed=4)[0], observations[0][0])
    for envs in (ours, theirs):
        envs.action_space.seed(0)
    for _ in range(20):
        for own, other in zip(
            ours.step(ours.action_space.sample())[:4], theirs.step(theirs.action_space.sample())[:4], strict=False
        ):
            np.testing.assert_array_equal(own, other)


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownSetting, match="backend='nothing' does not exist"):
        gym.make_vec("vecenv:vecenv/Pong-v5", backend="nothing")
    with pytest.raises(UnknownSetting, match="no Atari setting 'colour'"):
        gym.make_vec("vecenv:vecenv/Pong-v5", backend="sync", colour=1)
    with pytest.raises(gym.error.Error):
        gym.make_vec("vecenv:vecenv/NoGame-v5")


# -- Gymnasium's vector wrappers ------------------------------------------------------------------------------------


def squared(observation: Any) -> Any:
    return observation * observation


WRAPPERS: dict[str, Any] = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": lambda envs: wrappers.ClipReward(envs, -0.5, 0.5),
    "DtypeObservation": lambda envs: wrappers.DtypeObservation(envs, np.float64),
    "FlattenObservation": wrappers.FlattenObservation,
    "TransformObservation": lambda envs: wrappers.TransformObservation(envs, squared),
    "TransformAction": lambda envs: wrappers.TransformAction(envs, lambda actions: 1 - actions),
    "VectorizeTransformObservation": lambda envs: wrappers.VectorizeTransformObservation(
        envs, gym.wrappers.TransformObservation, func=squared, observation_space=None
    ),
}


def steps_of(envs: Any, count: int = 60) -> Any:
    """Results of steps with fixed actions; infos that tell the time are left out."""
    rng = np.random.default_rng(0)
    results = [envs.reset(seed=5)[0]]
    for _ in range(count):
        observations, rewards, terminations, truncations, infos = envs.step(rng.integers(0, 2, envs.num_envs))
        episode = infos.get("episode", {})
        lengths = np.where(infos.get("_episode", False), episode.get("l", 0), 0)
        results += [observations, rewards, terminations, truncations, lengths]
    return results


# Gymnasium's wrappers of observations refuse SAME_STEP on any vector env.
CASES = [("NextStep", name) for name in WRAPPERS]
CASES += [
    ("SameStep", name) for name in ("RecordEpisodeStatistics", "NormalizeReward", "ClipReward", "TransformAction")
]


@pytest.mark.parametrize(("mode", "name"), CASES)
@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_wrappers_do_to_ours_what_they_do_to_theirs(backend: str, mode: str, name: str) -> None:
    ours = vecenv.make_vec("CartPole-v1", 3, backend, autoreset_mode=mode)
    theirs = gym.make_vec(
        "CartPole-v1",
        3,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode(mode)},
    )
    wrapped = WRAPPERS[name](ours)
    for own, other in zip(steps_of(wrapped), steps_of(WRAPPERS[name](theirs)), strict=True):
        np.testing.assert_array_equal(own, other)
    wrapped.close()
    assert ours.closed


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in NEEDS])
def test_wrappers_go_around_the_engines(backend: str) -> None:
    pytest.importorskip(NEEDS[backend])
    env_id = "PongNoFrameskip-v4" if backend == "ale" else "CartPole-v1"
    envs: Any = vecenv.make_vec(env_id, 3, backend)
    envs = wrappers.RecordEpisodeStatistics(wrappers.ClipReward(wrappers.DtypeObservation(envs, np.float64), -1, 1))
    observations, _ = envs.reset(seed=5)
    assert observations.dtype == np.float64
    assert observations.shape[0] == 3
    lengths: list[int] = []
    for _ in range(60):
        observations, rewards, terminations, truncations, infos = envs.step(np.ones(3, np.int64))
        assert observations in envs.observation_space
        assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, np.bool_, np.bool_)
        lengths += (
            infos.get("episode", {}).get("l", np.zeros(3, int))[infos.get("_episode", np.zeros(3, bool))].tolist()
        )
    if backend != "ale":
        assert len(lengths) > 8
        assert all(8 <= length < 13 for length in lengths)  # how long the pole stands under a constant push
    envs.close()


def test_infos_to_list_and_pictures() -> None:
    envs = wrappers.DictInfoToList(vecenv.make_vec(EchoEnv, 2, "sync", render_mode="rgb_array"))
    envs.reset(seed=0)
    assert [info["time"] for info in envs.step(np.ones(2, np.int64))[4]] == [1, 1]
    pictures = envs.render()
    assert pictures is not None
    assert [picture.shape for picture in pictures] == [(2, 2, 3)] * 2
