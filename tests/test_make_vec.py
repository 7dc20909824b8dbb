"""`make_vec`: what it builds, and one clear error for everything that it refuses."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

import gymnasium as gym
import numpy as np
import psutil
import pytest

import vecenv
from vecenv import MissingExtra, UnknownSetting, make_vec
from vecenv.testing import CountEnv, assert_same


@pytest.mark.parametrize("backend", ["auto", "sync", "subproc"])
def test_builds_from_ids_specs_and_functions(backend):
    for env_id in ("CartPole-v1", gym.spec("CartPole-v1"), functools.partial(gym.make, "CartPole-v1")):
        with make_vec(env_id, 3, backend, seed=1) as envs:
            assert isinstance(envs, gym.vector.VectorEnv)
            assert envs.num_envs == 3
            observations, infos = envs.reset()
            assert observations.shape == (3, 4)
            assert infos == {}
            assert observations in envs.observation_space


def test_env_arguments_and_wrappers():
    with make_vec("CartPole-v1", 2, "sync", max_episode_steps=3, wrappers=[gym.wrappers.FlattenObservation]) as envs:
        envs.reset()
        for _ in range(3):
            truncations = envs.step([0, 1])[3]
        assert truncations.all()
        assert type(envs.envs[0]) is gym.wrappers.FlattenObservation
        assert envs.spec.id == "CartPole-v1"
        assert envs.spec.kwargs == {"max_episode_steps": 3, "num_envs": 2}
    with make_vec(CountEnv, 2, length=4) as envs:
        assert envs.get_attr("length") == (4, 4)


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_arguments_of_single_envs(backend):
    with make_vec(CountEnv, 3, backend, length=9, per_env_kwargs=[{}, {"length": 4}, {"uid": 7}]) as envs:
        assert envs.get_attr("length") == (9, 4, 9)
        assert envs.get_attr("uid") == (0, 0, 7)
    with make_vec("Pendulum-v1", 2, backend, per_env_kwargs=[{"g": 1.0}, {"g": 9.0}]) as envs:
        assert envs.get_attr("g") == (1.0, 9.0)
    for wrong, error in (([{}], ValueError), ({"g": 1}, TypeError), ([1, 2], TypeError)):
        with pytest.raises(error, match="per_env_kwargs"):
            make_vec("Pendulum-v1", 2, backend, per_env_kwargs=wrong)


def test_module_prefix_of_ids():
    with make_vec("gymnasium:CartPole-v1", 1, "sync") as envs:
        assert envs.spec.id == "CartPole-v1"
        assert envs.reset()[0].shape == (1, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("CartPol-v1", 2), UnknownSetting, "CartPol-v1.*CartPole"),
        (("Nothing/At-All-v0", 2), UnknownSetting, "Nothing"),
        (("", 2), UnknownSetting, "does not exist"),
        (("no_such_module_x:Env-v0", 2), UnknownSetting, "'no_such_module_x:Env-v0': the module cannot be imported"),
        (("no_such_module_x:Env-v0", 2, "compiled"), UnknownSetting, "no_such_module_x:Env-v0"),
        ((5, 2), TypeError, "env_id"),
        (("CartPole-v1", 0), ValueError, "num_envs.*got 0"),
        (("CartPole-v1", -3), ValueError, "num_envs.*got -3"),
        (("CartPole-v1", 2.0), TypeError, "num_envs.*2.0"),
        (("CartPole-v1", True), TypeError, "num_envs.*True"),
        (("CartPole-v1", "4"), TypeError, "num_envs.*'4'"),
        (("CartPole-v1", 2, "threads"), UnknownSetting, "threads.*auto, auto-fast, sync, subproc"),
    ],
)
def test_refuses_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        make_vec(*arguments)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"num_workers": 0}, ValueError, "num_workers"),
        ({"num_workers": "2"}, TypeError, "num_workers"),
        ({"num_workers": 2, "backend": "sync"}, ValueError, "sync back end has no workers"),
        ({"batch_size": 3}, ValueError, "batch_size.*num_envs=2"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"autoreset_mode": "Sometimes"}, UnknownSetting, "Sometimes.*NextStep"),
        ({"slots": 0}, ValueError, "slots"),
        ({"preprocess": "ale"}, UnknownSetting, "only Atari"),
        ({"wrappers": [3]}, TypeError, r"wrappers\[0\]"),
        ({"backend_options": {"contxt": "spawn"}, "backend": "subproc"}, UnknownSetting, "contxt.*context"),
        ({"backend_options": {"context": "spon"}, "backend": "subproc"}, UnknownSetting, "spon.*forkserver"),
        ({"backend_options": {"context": "spawn"}, "backend": "sync"}, UnknownSetting, "context.*there are"),
        ({"no_such_argument": 1}, TypeError, "no_such_argument"),
    ],
)
def test_refuses_settings(settings, error, text):
    children = len(psutil.Process().children(recursive=True))
    with pytest.raises(error, match=text):
        make_vec("CartPole-v1", 2, **{"backend": "sync", **settings})
    assert len(psutil.Process().children(recursive=True)) <= children + 1


def test_missing_atari_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ale_py" else find(name, *rest)
    )
    with pytest.raises(MissingExtra, match=r"ale-py is not installed; run: pip install 'vecenv\[atari\]'"):
        make_vec("PongNoFrameskip-v4", 2)


@pytest.mark.parametrize(
    ("slots", "mode"),
    [
        (2, "NextStep"),
        (5, "SameStep"),
        pytest.param(2, "SameStep", marks=pytest.mark.slow),
        pytest.param(5, "NextStep", marks=pytest.mark.slow),
    ],
)
def test_atari_is_the_same_on_both_back_ends(slots, mode):
    pytest.importorskip("ale_py")
    arguments = {"autoreset_mode": mode, "slots": slots, "statistics": True, "repeat_action_probability": 0.25}
    with (
        make_vec("BreakoutNoFrameskip-v4", 4, "sync", **arguments) as one,
        make_vec("BreakoutNoFrameskip-v4", 4, "subproc", num_workers=2, **arguments) as two,
    ):
        assert one.config == two.config
        assert one.config.repeat_action_probability == 0.25
        assert one.single_observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        assert_same(one.reset(seed=9), two.reset(seed=9))
        rng = np.random.default_rng(0)
        ended = 0
        for step in range(400):
            actions = rng.integers(0, 4, 4)
            left, right = one.step(actions), two.step(actions)
            for result in (left, right):
                if "episode" in result[4]:
                    ended += 1
                    result[4]["episode"].pop("t")
            assert_same(left, right, f"step {step}")
        assert ended >= 2


def test_atari_writes_into_the_ring():
    pytest.importorskip("ale_py")
    with make_vec("PongNoFrameskip-v4", 3, "subproc", num_workers=2, copy=False, slots=4) as envs:
        observations, infos = envs.reset(seed=0)
        assert envs.observation_slots.shape == (4, 3, 4, 84, 84)
        assert np.shares_memory(observations, envs.observation_slots[envs.slot])
        assert infos["lives"].dtype == np.int64
        seen = [observations.copy()]
        for _ in range(3):
            seen.append(envs.step([2, 3, 2])[0].copy())
        order = [(envs.slot + 1 + k) % 4 for k in range(4)]
        np.testing.assert_array_equal(envs.observation_slots[order], seen)


def test_names_of_the_package():
    for name in vecenv.__all__:
        assert getattr(vecenv, name) is not None
    assert set(vecenv.__all__) <= set(dir(vecenv))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vecenv.no_such_name


def test_windows_has_sync_and_refuses_workers_with_one_sentence():
    code = """
import sys, gymnasium, numpy, cloudpickle
sys.modules["fcntl"] = sys.modules["termios"] = None
sys.platform = "win32"
import vecenv
with vecenv.make_vec("CartPole-v1", 4) as envs:
    print(type(envs).__name__, envs.reset()[0].shape)
for build in (
    lambda: vecenv.make_vec("CartPole-v1", 4, "subproc"),
    lambda: vecenv.make_vec("CartPole-v1", 4, num_workers=2),
    lambda: vecenv.SubprocVecEnv,
):
    try:
        build()
    except (NotImplementedError, ImportError) as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0] == "SyncVecEnv (4, 4)", done.stderr
    assert len(lines) == 4
    assert all("not available on Windows; use backend='sync'" in line for line in lines[1:])
