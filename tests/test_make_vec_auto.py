"""`backend="auto"` and `"auto-fast"`: the documented rule, and that the choice never changes a bit."""

from __future__ import annotations

import functools
import sys
import types

import gymnasium as gym
import numpy as np
import pytest

from vecenv import SubprocVecEnv, SyncVecEnv, UnknownSetting, backend_choice, engines, make_vec
from vecenv.testing import CountEnv, assert_same


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    monkeypatch.setattr(backend_choice, "usable_cores", lambda: 2)


def chosen(env_id, num_envs, cores=None, monkeypatch=None, **settings):
    if cores is not None:
        monkeypatch.setattr(backend_choice, "usable_cores", lambda: cores)
    with make_vec(env_id, num_envs, **settings) as envs:
        return type(envs)


def test_several_envs_get_workers():
    assert chosen(CountEnv, 2) is SubprocVecEnv
    assert chosen(functools.partial(gym.make, "CartPole-v1"), 2) is SubprocVecEnv  # a function: its cost is unknown


def test_one_env_or_one_core_gets_none(monkeypatch):
    assert chosen(CountEnv, 1) is SyncVecEnv
    assert chosen(CountEnv, 4, 1, monkeypatch) is SyncVecEnv


@pytest.mark.parametrize("env_id", ["CartPole-v1", "gymnasium:CartPole-v1", gym.spec("Pendulum-v1"), "FrozenLake-v1"])
def test_cheap_envs_get_workers_only_where_there_are_many(env_id):
    assert chosen(env_id, 63) is SyncVecEnv
    assert chosen(env_id, 64) is SubprocVecEnv


def test_wrapped_envs_are_not_known_to_be_cheap():
    assert chosen("CartPole-v1", 2, wrappers=[gym.wrappers.FlattenObservation]) is SubprocVecEnv


def test_who_asks_for_workers_gets_them(monkeypatch):
    assert chosen("CartPole-v1", 2, num_workers=1) is SubprocVecEnv
    assert chosen("CartPole-v1", 1, 1, monkeypatch, backend_options={"step_timeout": 9.0}) is SubprocVecEnv
    assert chosen("CartPole-v1", 2, backend_options={"observation_mode": "same"}) is SyncVecEnv
    with pytest.raises(UnknownSetting, match="contxt"):
        make_vec("CartPole-v1", 2, backend_options={"contxt": "spawn"})


@pytest.mark.parametrize("env_id", ["CartPole-v1", "vecenv/Pong-v5"])
def test_the_choice_changes_no_bit(env_id):
    results = []
    if env_id != "CartPole-v1":
        pytest.importorskip("ale_py")
    for backend in ("auto", "sync", "subproc"):
        with make_vec(env_id, 3, backend) as envs:
            rows = [envs.reset(seed=5)]
            rng = np.random.default_rng(0)
            rows += [envs.step(rng.integers(0, 2, 3)) for _ in range(40)]
        results.append(rows)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


class Compiled(types.ModuleType):
    """Stands in for the module of the compiled back end."""

    OPTIONS = ("threads",)

    def __init__(self, refuses=False):
        super().__init__("fake")
        self.refuses = refuses
        self.requests = []

    def supports(self, env_id):
        return env_id == "CartPole-v1"

    def make_envs(self, request):
        self.requests.append(request)
        if self.refuses:
            raise NotImplementedError("wrappers: compiled envs have no Python env to wrap")
        return "compiled envs"


def use(monkeypatch, module):
    name = engines.ENGINES["compiled"]
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_auto_never_takes_compiled(monkeypatch):
    module = use(monkeypatch, Compiled())
    assert chosen("CartPole-v1", 2) is SyncVecEnv
    assert not module.requests


def test_auto_fast_takes_compiled_where_it_can(monkeypatch):
    module = use(monkeypatch, Compiled())
    assert make_vec("CartPole-v1", 7, "auto-fast", slots=3, backend_options={"threads": 1}) == "compiled envs"
    assert make_vec(gym.spec("CartPole-v1"), 7, "auto-fast") == "compiled envs"
    request = module.requests[0]
    assert (request.num_envs, request.settings["slots"], dict(request.options)) == (7, 3, {"threads": 1})


def test_auto_fast_is_auto_elsewhere(monkeypatch):
    module = use(monkeypatch, Compiled())
    assert chosen("Pendulum-v1", 2, backend="auto-fast") is SyncVecEnv
    assert chosen(CountEnv, 2, backend="auto-fast") is SubprocVecEnv
    assert chosen("CartPole-v1", 2, backend="auto-fast", num_workers=2) is SubprocVecEnv
    assert chosen("CartPole-v1", 2, backend="auto-fast", backend_options={"balance": True}) is SubprocVecEnv
    assert not module.requests
    use(monkeypatch, Compiled(refuses=True))
    assert chosen("CartPole-v1", 2, backend="auto-fast") is SyncVecEnv
