"""Stable-Baselines3 takes our vector envs for its own: the same results, infos, attributes and learning curves."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO
from stable_baselines3.common import env_util
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor as TheirMonitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize
from stable_baselines3.common.vec_env import VecEnv as TheirVecEnv

import vecenv
import vecenv.addressable_env
import vecenv.backend_choice
from vecenv.env_state import dump_env
from vecenv.errors import EnvError, UnknownSetting, WorkerDied
from vecenv.factory import BACKENDS
from vecenv.per_env import batch_of_actions
from vecenv.preprocess.config import PRESETS
from vecenv.sb3 import SubprocVecEnv, SyncVecEnv, make_atari_env, make_vec_env, wrap
from vecenv.sb3_atari import MonitoredAtari, MonitoredAtariEnv
from vecenv.sb3_monitor import Monitor, MonitoredEnv
from vecenv.toy_envs import CountEnv, EchoEnv, NestedEnv

CLASSES = [SubprocVecEnv, SyncVecEnv]


def walk_class() -> Any:
    """A class that travels to workers by value: this module would bring Stable-Baselines3 along."""

    class WalkEnv(gym.Env[Any, Any]):
        """Episodes of random length, ended by either flag or both, with infos of many kinds."""

        def __init__(self, uid: int = 0) -> None:
            self.observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
            self.action_space = gym.spaces.Discrete(3)
            self.uid = uid

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            self.time = 0
            return self.np_random.random(2, np.float32), {"start": self.uid, "options": options}

        def step(self, action: Any) -> Any:
            self.time += 1
            draw = int(self.np_random.integers(8))
            info: dict[str, Any] = {"time": self.time, "text": f"{self.uid}:{action}", "nest": {"draw": draw}}
            if draw % 2:
                info["odd"] = np.arange(draw)
            return self.np_random.random(2, np.float32), draw / 2, draw in (0, 1), draw in (1, 2), info

        def loaded(self, name: str) -> bool:
            return name in sys.modules

    return WalkEnv


class StrictResetEnv(CountEnv):
    """Takes no options at all."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal by value and structure, arrays included."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs, strict=True):
            assert_same(own, other)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def run_beside(ours: TheirVecEnv, theirs: TheirVecEnv, steps: int) -> tuple[int, int]:
    """Step both with the same actions and compare everything; gives the numbers of ended episodes and of reports."""
    ends = reports = 0
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    assert_same(list(ours.reset_infos), list(theirs.reset_infos))
    for _ in range(steps):
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        np.testing.assert_array_equal(actions, [ours.action_space.sample() for _ in range(theirs.num_envs)])
        (observations, rewards, dones, infos), expected = ours.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(observations, expected[0])
        np.testing.assert_array_equal(rewards, expected[1])
        np.testing.assert_array_equal(dones, expected[2])
        assert (rewards.dtype, dones.dtype) == (np.float64, np.bool_)
        for own, other in zip(infos, expected[3], strict=True):
            if "episode" in other:
                reports += 1
                assert own["episode"].pop("t") >= 0
                assert other["episode"].pop("t") >= 0
            assert type(own["TimeLimit.truncated"]) is bool
            assert_same(own, dict(other))
        assert_same(list(ours.reset_infos), list(theirs.reset_infos))
        ends += int(dones.sum())
    return ends, reports


def episode_rows(paths: list[Path]) -> list[list[tuple[str, str]]]:
    """Returns and lengths in files of monitors."""
    return [[(row["r"], row["l"]) for row in csv.DictReader(path.read_text().splitlines()[1:])] for path in paths]


# -- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vec_env_class", CLASSES)
def test_results_are_those_of_their_class(vec_env_class: Any) -> None:
    env_fns = [functools.partial(walk_class(), uid) for uid in range(3)]
    ours, theirs = vec_env_class(env_fns), DummyVecEnv(env_fns)
    assert isinstance(ours, TheirVecEnv)
    for envs in (ours, theirs):
        assert envs.seed(7) == [7, 8, 9]
        envs.action_space.seed(1)
    ends, _ = run_beside(ours, theirs, 60)
    assert ends > 20
    ours.close()
    ours.close()
    assert ours.closed


def test_terminal_observations_of_nests_and_reused_buffers() -> None:
    envs = SyncVecEnv([lambda: NestedEnv(length=2, reuses=True), lambda: NestedEnv(uid=1, length=3, reuses=True)])
    envs.reset()
    envs.step([0, 1])
    observations, _, dones, infos = envs.step([0, 1])
    assert dones.tolist() == [True, False]
    assert infos[0]["terminal_observation"]["count"].tolist() == [0, 0, 2]
    assert "terminal_observation" not in infos[1]
    assert observations["count"].tolist() == [[0, 1, 0], [1, 0, 2]]
    assert infos[0]["time"] == 2
    assert envs.reset_infos[0]["time"] == 0
    envs.close()


@pytest.mark.parametrize("kind", ["truncates", "terminates"])
def test_time_limit_is_told_apart(kind: str) -> None:
    envs = SyncVecEnv([lambda: CountEnv(length=1, truncates=kind == "truncates")])
    envs.reset()
    _, _, dones, infos = envs.step([0])
    assert dones.tolist() == [True]
    assert infos[0]["TimeLimit.truncated"] is (kind == "truncates")


def test_results_are_independent_of_later_calls() -> None:
    envs = SyncVecEnv([CountEnv, CountEnv])
    first = envs.reset()
    kept = [envs.step([0, 0]) for _ in range(3)]
    assert first.tolist() == [[0, 0, 0]] * 2
    assert [result[0][0, 2] for result in kept] == [1, 2, 3]
    assert [result[1].tolist() for result in kept] == [[1, 1], [2, 2], [3, 3]]
    assert [result[3][1]["time"] for result in kept] == [1, 2, 3]


def test_step_async_and_wait_and_what_interrupts_them() -> None:
    envs = SubprocVecEnv([CountEnv, CountEnv])
    envs.reset()
    envs.step_async(np.array([0, 1]))
    assert envs.waiting
    assert envs.step_wait()[0][:, 2].tolist() == [1, 1]
    assert not envs.waiting
    envs.step_async(np.array([0, 1]))
    assert envs.reset()[:, 2].tolist() == [0, 0]
    envs.step_async(np.array([0, 1]))
    envs.close()


@pytest.mark.parametrize("vec_env_class", CLASSES)
def test_a_ctrl_c_while_a_step_is_waited_for_leaves_envs_that_can_be_reset(
    vec_env_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(timeout: float | None) -> None:
        raise KeyboardInterrupt

    envs = vec_env_class([CountEnv, CountEnv])
    envs.reset()
    with monkeypatch.context() as patched:
        patched.setattr(envs.vector_env, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0, 1]))
    assert envs.reset()[:, 1:].tolist() == [[1, 0], [1, 0]]
    assert not envs.waiting
    assert envs.step(np.array([0, 1]))[0][:, 1:].tolist() == [[1, 1], [1, 1]]
    envs.close()


@pytest.mark.parametrize("begun", [True, False])
def test_a_ctrl_c_while_a_step_is_begun_leaves_envs_that_can_be_reset(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs: Any = SubprocVecEnv([CountEnv, CountEnv])
    begin = envs.vector_env.step_async

    def interrupted(actions: Any) -> None:
        if begun:
            begin(actions)
        raise KeyboardInterrupt

    envs.reset()
    with monkeypatch.context() as patched:
        patched.setattr(envs.vector_env, "step_async", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0, 1]))
    assert envs.reset()[:, 1:].tolist() == [[1, 0], [1, 0]]
    envs.step_async(np.array([0, 1]))
    with pytest.raises(gym.error.AlreadyPendingCallError):
        envs.step_async(np.array([0, 1]))
    assert envs.step_wait()[0][:, 1:].tolist() == [[1, 1], [1, 1]]
    envs.close()


@pytest.mark.parametrize("vec_env_class", CLASSES)
def test_nothing_is_waited_for_that_was_not_begun(vec_env_class: Any) -> None:
    envs = vec_env_class([CountEnv])
    envs.reset()
    envs.step([0])
    with pytest.raises(gym.error.NoAsyncCallError, match="step_async"):
        envs.step_wait()
    envs.step([0])
    envs.close()


def test_actions_of_every_kind_reach_the_envs() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2,), np.float32)})
    envs = SyncVecEnv([lambda: EchoEnv(action_space=space)] * 2)
    envs.reset()
    envs.step([{"a": 1, "b": np.zeros(2, np.float32)}, {"a": 2, "b": np.ones(2, np.float32)}])
    got = envs.get_attr("last_action")
    assert [action["a"] for action in got] == [1, 2]
    assert got[1]["b"].tolist() == [1, 1]
    box = gym.spaces.Box(0, 255, (2,), np.uint8)
    assert batch_of_actions(box, np.zeros((3, 2))).dtype == np.uint8
    assert batch_of_actions(box, np.full((3, 2), 0.5)).dtype == np.float64  # refused by the vector env, not rounded
    assert batch_of_actions(gym.spaces.Box(-1, 1, (2,), np.float32), np.full((1, 2), 0.1)).dtype == np.float64
    bits = gym.spaces.MultiBinary(2)
    assert batch_of_actions(bits, np.ones((3, 2), np.float32)).dtype == np.int8  # as SB3's policies give them
    assert batch_of_actions(bits, np.full((3, 2), np.nan)).dtype == np.float64
    pair = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2)))
    assert batch_of_actions(pair, [(0, 1), (1, 1)]) == ([0, 1], [1, 1])


# -- seeds, options, attributes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vec_env_class", CLASSES)
def test_seeds_and_options_serve_one_reset(vec_env_class: Any) -> None:
    envs = vec_env_class([functools.partial(walk_class(), uid) for uid in range(2)])
    envs.seed(3)
    envs.set_options([{"level": 1}, {}])
    first = envs.reset()
    assert [info["options"] for info in envs.reset_infos] == [{"level": 1}, None]
    second = envs.reset()
    assert not np.array_equal(first, second)
    assert [info["options"] for info in envs.reset_infos] == [None, None]
    envs.seed(3)
    envs.set_options({"level": 2})
    np.testing.assert_array_equal(envs.reset(), first)
    assert [info["options"] for info in envs.reset_infos] == [{"level": 2}] * 2
    envs.set_options([{}])
    with pytest.raises(ValueError, match="2 dicts, one per environment, got 1"):
        envs.reset()
    envs.close()


def test_envs_without_options_are_reset_without() -> None:
    envs = SyncVecEnv([StrictResetEnv])
    assert envs.reset().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("vec_env_class", CLASSES)
def test_attributes_of_some_envs(vec_env_class: Any) -> None:
    envs = vec_env_class([lambda uid=uid: Monitor(EchoEnv(uid, render_mode="rgb_array")) for uid in range(3)])
    assert envs.get_attr("uid") == [0, 1, 2]
    assert envs.get_attr("twice_uid", indices=[-1, 0]) == [4, 0]
    assert envs.env_method("add", 10, more=1, indices=[2, 0, 2]) == [13, 11, 13]
    assert envs.env_method("add", 1, indices=1) == [2]
    assert envs.env_method("add", 1) == [1, 2, 3]
    envs.set_attr("uid", 7, indices=1)
    assert envs.get_attr("uid") == [0, 7, 2]
    assert envs.reset()[:, 0].tolist() == [0, 7, 2]  # the env itself has it, not a wrapper in front of it
    assert envs.has_attr("uid")
    assert not envs.has_attr("nothing")
    assert envs.env_is_wrapped(TheirMonitor, indices=[0, 2]) == [True, True]
    assert envs.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * 3
    with pytest.raises(AttributeError, match="nothing"):
        envs.get_attr("nothing", indices=2)
    for indices in (np.int64(1), np.array([1]), slice(1, 2), range(1, 2), (np.int8(-2),), iter([1])):
        assert envs.get_attr("uid", indices=indices) == [7]
    assert envs.get_attr("uid", indices=[]) == []
    for wrong in (3, [0, -4]):
        with pytest.raises(IndexError, match="indices of environments from 0 to 2"):
            envs.get_attr("uid", indices=wrong)
    for wrong in ([True, False, True], np.array([False, True, False]), "uid", 1.0, [[0, 1]], np.zeros((1, 2), int)):
        with pytest.raises(TypeError, match="expected indices of environments"):
            envs.env_method("add", 1, indices=wrong)
    assert envs.render_mode == "rgb_array"
    assert [image[0, 0, 0] for image in envs.get_images()] == [0, 7, 2]
    assert envs.render().shape == (4, 4, 3)
    envs.close()


def test_a_method_runs_once_where_it_is_meant_to() -> None:
    envs = SyncVecEnv([CountEnv] * 3)
    envs.reset()
    envs.env_method("reset", indices=[1, 1])
    assert envs.get_attr("episode") == [0, 2, 0]
    assert envs.envs[1].unwrapped.episode == 2


def test_pictures_need_a_render_mode() -> None:
    envs = SyncVecEnv([EchoEnv, EchoEnv])
    with pytest.warns(UserWarning, match="rgb_array"):
        assert envs.get_images() == [None, None]


# -- construction, processes, failures -----------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_start_methods(start_method: str) -> None:
    envs = SubprocVecEnv([CountEnv, lambda: CountEnv(uid=1)], start_method)
    assert envs.reset()[:, 0].tolist() == [0, 1]
    envs.close()


def test_a_start_method_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'illegal_method'"):
        SubprocVecEnv([CountEnv], start_method="illegal_method")


def test_one_process_per_env_up_to_four_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vecenv.addressable_env, "usable_cores", lambda: 1)
    for count, processes in ((3, 3), (6, 4)):
        envs = SubprocVecEnv([lambda uid=uid: CountEnv(uid) for uid in range(count)])
        assert len(envs.processes) == processes
        assert envs.reset()[:, 0].tolist() == list(range(count))
        envs.close()


def test_the_same_env_twice() -> None:
    env = CountEnv()
    with pytest.raises(ValueError, match="returned the same env"):
        SyncVecEnv([lambda: env, lambda: env])


def test_failures_name_the_env_and_keep_their_class() -> None:
    envs = SubprocVecEnv([CountEnv, lambda: CountEnv(uid=1, fails_at=2)])
    envs.reset()
    envs.step([0, 0])
    with pytest.raises(ValueError, match="boom from env 1") as raised:
        envs.step([0, 0])
    assert isinstance(raised.value, EnvError)
    assert raised.value.env_index == 1
    assert envs.reset()[:, 2].tolist() == [0, 0]
    os.kill(envs.processes[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        envs.step([0, 0])
    envs.close()


def test_a_worker_may_be_replaced() -> None:
    envs = SubprocVecEnv([CountEnv, CountEnv], worker_options={"on_worker_failure": "restart"})
    envs.reset()
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    _, _, dones, infos = envs.step([0, 0])
    assert dones.tolist() == [False, True]
    assert infos[1]["worker_restarted"]
    assert infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"].tolist() == [0, 0, 0]
    assert envs.get_attr("uid", indices=[1]) == [0]
    envs.close()


# -- make_vec_env ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vec_env_class", "built"), [(None, SyncVecEnv), (SubprocVecEnv, SubprocVecEnv)])
def test_make_vec_env_builds_what_theirs_builds(vec_env_class: Any, built: Any, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"n_envs": 2, "seed": 5, "start_index": 3, "env_kwargs": {"sutton_barto_reward": True}}
    kwargs["monitor_kwargs"] = {"info_keywords": ()}
    ours = make_vec_env("CartPole-v1", monitor_dir=str(tmp_path / "ours"), vec_env_cls=vec_env_class, **kwargs)
    theirs = env_util.make_vec_env("CartPole-v1", monitor_dir=str(tmp_path / "theirs"), **kwargs)
    assert type(ours) is built
    assert ours.render_mode == "rgb_array"
    ends, reports = run_beside(ours, theirs, 150)
    assert ends == reports > 3
    assert ours.env_is_wrapped(TheirMonitor) == [True, True]
    assert ours.env_method("get_episode_lengths") == theirs.env_method("get_episode_lengths")
    ours.close()
    theirs.close()
    paths = {side: sorted((tmp_path / side).glob("*.csv")) for side in ("ours", "theirs")}
    assert [path.name for path in paths["ours"]] == ["3.monitor.csv", "4.monitor.csv"]
    head = json.loads(paths["ours"][0].read_text().splitlines()[0].removeprefix("#"))
    assert head.keys() == {"t_start", "env_id"}
    assert head["env_id"] == "CartPole-v1"
    rows = episode_rows(paths["ours"])
    assert rows == episode_rows(paths["theirs"])
    assert sum(map(len, rows)) == reports


@pytest.mark.parametrize(
    ("env_id", "n_envs", "cores", "settings", "built"),
    [
        ("CartPole-v1", 2, 2, {}, SyncVecEnv),
        ("CartPole-v1", 64, 2, {}, SubprocVecEnv),
        ("CartPole-v1", 2, 2, {"wrapper_class": gym.wrappers.FlattenObservation}, SubprocVecEnv),
        ("CartPole-v1", 2, 2, {"vec_env_kwargs": {"num_workers": 1}}, SubprocVecEnv),
        ("CartPole-v1", 1, 2, {"vec_env_kwargs": {"worker_options": {"step_timeout": 9.0}}}, SubprocVecEnv),
        (CountEnv, 2, 2, {}, SubprocVecEnv),
        (CountEnv, 1, 2, {}, SyncVecEnv),
        (CountEnv, 2, 1, {}, SyncVecEnv),
    ],
)
def test_make_vec_env_takes_workers_by_the_rule_of_auto(
    env_id: Any, n_envs: int, cores: int, settings: Any, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vecenv.backend_choice, "usable_cores", lambda: cores)
    envs = make_vec_env(env_id, n_envs, seed=0, **settings)
    assert type(envs) is built
    assert len(envs.reset()) == n_envs
    envs.close()


def test_workers_do_not_import_torch() -> None:
    envs = make_vec_env(walk_class(), n_envs=2, vec_env_cls=SubprocVecEnv)
    assert envs.env_method("loaded", "stable_baselines3") == envs.env_method("loaded", "torch") == [False, False]
    envs.close()


def test_make_vec_env_wraps_outside_of_the_monitor_and_leaves_other_classes_to_theirs() -> None:
    limits = {"wrapper_class": gym.wrappers.TimeLimit, "wrapper_kwargs": {"max_episode_steps": 3}}
    ours = make_vec_env(CountEnv, vec_env_cls=SyncVecEnv, env_kwargs={"length": 9}, **limits)
    assert ours.env_is_wrapped(gym.wrappers.TimeLimit) == [True]
    ours.reset()
    *_, infos = [ours.step([0]) for _ in range(3)][-1]
    assert infos[0]["TimeLimit.truncated"]
    assert "episode" not in infos[0]
    partly = make_vec_env(CountEnv, vec_env_cls=functools.partial(SyncVecEnv))
    assert type(partly) is SyncVecEnv
    theirs = make_vec_env(CountEnv, vec_env_cls=DummyVecEnv)
    assert type(theirs) is DummyVecEnv
    with pytest.raises(UnknownSetting, match="NoSuchEnv"):
        make_vec_env("NoSuchEnv-v0")


def test_our_monitor_does_what_theirs_does(tmp_path: Path) -> None:
    refused = 0
    for monitor in (Monitor, TheirMonitor):
        env: Any = monitor(CountEnv(length=2), str(tmp_path / monitor.__module__), False, ("options",), ("time",))
        with pytest.raises(ValueError, match="options"):
            env.reset()
        env.needs_reset = True
        env.reset(options={"a": 1})
        env.step(0)
        with pytest.raises(RuntimeError):
            env.reset(options={})
        refused += 1
        info = env.step(0)[4]
        assert {**info["episode"], "t": 0} == {"r": 3.0, "l": 2, "t": 0, "time": 2, "options": {"a": 1}}
        with pytest.raises(RuntimeError):
            env.step(0)
        assert (env.get_total_steps(), env.get_episode_rewards(), env.get_episode_lengths()) == (2, [3.0], [2])
        assert len(env.get_episode_times()) == 1
        env.close()
    texts = [path.read_text().splitlines() for path in sorted(tmp_path.glob("*.monitor.csv"))]
    assert refused == len(texts) == 2
    assert texts[0][1] == texts[1][1] == "r,l,t,options,time"


def test_a_restart_goes_on_with_the_file_of_the_monitor(tmp_path: Path) -> None:
    envs: Any = make_vec_env(
        CountEnv,
        2,
        monitor_dir=str(tmp_path),
        env_kwargs={"length": 2},
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"num_workers": 2, "worker_options": {"on_worker_failure": "restart"}},
    )
    envs.reset()
    for _ in range(4):
        envs.step([0, 0])
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    infos = envs.step([0, 0])[3]
    assert infos[1]["worker_restarted"]
    for _ in range(2):
        envs.step([0, 0])
    envs.close()
    paths = sorted(tmp_path.glob("*.csv"))
    assert episode_rows(paths) == [[("3.0", "2")] * 3] * 2
    times = [float(row["t"]) for row in csv.DictReader(paths[1].read_text().splitlines()[1:])]
    assert times == sorted(times)


def test_only_an_env_that_is_built_again_goes_on_with_a_file(tmp_path: Path) -> None:
    made = MonitoredEnv(CountEnv, {"length": 1}, monitor_path=str(tmp_path / "0"))
    path = tmp_path / "0.monitor.csv"
    path.write_text("something else\n")
    starts = []
    for rows in (1, 2, 1):
        if len(starts) == 2:  # another vector env
            made = dataclasses.replace(made, begun=time.time())
        env: Any = made()
        env.reset()
        env.step(0)
        env.close()
        assert episode_rows([path]) == [[("1.0", "1")] * rows]
        starts.append(json.loads(path.read_text().splitlines()[0].removeprefix("#"))["t_start"])
        assert env.t_start == starts[-1]
    assert starts[0] == starts[1] < starts[2]


# -- Atari ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "steps", "settings"),
    [
        ("BreakoutNoFrameskip-v4", 200, {}),
        (
            "MsPacmanNoFrameskip-v4",
            60,
            {"wrapper_kwargs": {"noop_max": 0, "terminal_on_life_loss": False, "action_repeat_probability": 0.25}},
        ),
    ],
)
def test_atari_envs_are_theirs_bit_for_bit(env_id: str, steps: int, settings: Any, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    ours = make_atari_env(env_id, 2, 11, monitor_dir=str(tmp_path / "ours"), vec_env_cls=SyncVecEnv, **settings)
    assert type(ours.envs[0]).__name__ == "MonitoredAtariEnv"
    theirs = env_util.make_atari_env(env_id, 2, 11, monitor_dir=str(tmp_path / "theirs"), **settings)
    ends, reports = run_beside(VecFrameStack(ours, 4), VecFrameStack(theirs, 4), steps)
    if not settings:
        assert ends > reports > 0
        rows = {side: episode_rows(sorted((tmp_path / side).glob("*.monitor.csv"))) for side in ("ours", "theirs")}
        assert rows["ours"] == rows["theirs"] != [[], []]
    assert ours.env_is_wrapped(TheirMonitor) == [True, True]
    np.testing.assert_array_equal(ours.get_images()[0], theirs.get_images()[0])
    ours.close()


def test_atari_reports_count_what_the_start_of_a_game_earned() -> None:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    plain = gym.make("BoxingNoFrameskip-v4")
    plain.reset(seed=6)
    noops = int(plain.unwrapped.np_random.integers(1, 2001))
    earned = sum(float(plain.step(action)[1]) for action in [0] * noops + [1] * 4 + [2] * 4)
    assert earned != 0  # the opponent has hit
    config = dataclasses.replace(PRESETS["sb3"], noop_max=2000, stack_size=1, max_episode_frames=noops + 40)
    env = MonitoredAtariEnv("boxing", dataclasses.replace(config, clip_reward=False))
    env.reset(seed=6)
    total, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, info = env.step(0)
        total += reward
        ended = terminated or truncated
    assert (info["episode"]["r"], info["episode"]["l"]) == (earned + total, noops + 40)


def test_atari_reports_go_on_from_a_state() -> None:
    pytest.importorskip("ale_py")
    config = dataclasses.replace(PRESETS["sb3"], stack_size=1, max_episode_frames=1200)
    env = MonitoredAtariEnv("pong", config)
    env.reset(seed=6)
    total = sum(env.step(0)[1] for _ in range(200))
    assert total != 0  # the opponent has scored
    twin = pickle.loads(pickle.dumps(env))
    reports = []
    for each in (env, twin):
        ended = False
        while not ended:
            _, _, terminated, truncated, info = each.step(0)
            ended = terminated or truncated
        reports.append((info["episode"]["r"], info["episode"]["l"]))
    assert reports[0] == reports[1]
    assert twin.t_start == env.t_start
    state = {key: value for key, value in env.__getstate__().items() if key != "counted"}
    twin.__setstate__(state)  # as earlier versions saved it
    assert twin.game_over


def test_an_atari_env_that_writes_a_file_is_not_moved_or_saved(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    config = dataclasses.replace(PRESETS["sb3"], stack_size=1)
    made = MonitoredAtari("PongNoFrameskip-v4", "pong", config, monitor_path=str(tmp_path / "0"))
    starts = []
    for _ in range(2):  # the second time as after a restart
        env = made()
        env.reset(seed=0)
        with pytest.raises(TypeError, match="writes its episodes into a file"):
            pickle.dumps(env)
        with pytest.raises(TypeError, match="MonitoredAtariEnv cannot be saved"):
            dump_env(env, None)
        env.close()
        starts.append(env.t_start)
    assert starts[0] == starts[1]


def test_atari_settings_of_the_pipeline_and_of_their_wrapper() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(UnknownSetting, match="noops"):
        make_atari_env("PongNoFrameskip-v4", wrapper_kwargs={"noops": 3})
    theirs = make_atari_env("ALE/Pong-v5")  # skips four frames by itself, four times
    assert theirs.env_is_wrapped(TheirMonitor) == [True]
    assert theirs.reset().shape == (1, 84, 84, 1)
    before = theirs.env_method("get_wrapper_attr", "ale")[0].getFrameNumber()
    theirs.step([0])
    assert theirs.env_method("get_wrapper_attr", "ale")[0].getFrameNumber() == before + 16


# -- wrap -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_wrap_reports_episodes(backend: str) -> None:
    made = vecenv.make_vec(lambda: CountEnv(length=3), 2, backend, autoreset_mode="SameStep", seed=1)
    envs = wrap(made)
    envs.reset()
    for _ in range(2):
        assert "episode" not in envs.step([0, 0])[3][0]
    infos = envs.step([0, 0])[3]
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(6.0, 3)] * 2
    assert envs.env_is_wrapped(TheirMonitor) == [True, True]
    assert envs.get_attr("uid", indices=[1]) == [0]
    envs.set_attr("uid", 4)
    assert envs.get_attr("uid") == [4, 4]
    assert envs.env_method("get_wrapper_attr", "uid") == [4, 4]
    assert envs.has_attr("uid")
    assert not envs.has_attr("nothing")
    envs.set_options({"a": 1})
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == ["{'a': 1}"] * 2
    if backend == "sync":
        envs.set_attr("uid", 5, indices=0)
        assert envs.get_attr("uid") == [5, 4]
    else:
        with pytest.raises(NotImplementedError, match="single envs"):
            envs.set_attr("uid", 5, indices=0)
    envs.set_options([{"a": 1}, {}])
    with pytest.raises(NotImplementedError, match="one dict per environment"):
        envs.reset()
    envs.close()


@pytest.mark.parametrize("backend", ["ale", "envpool", "compiled"])
def test_wrap_takes_the_engines(backend: str) -> None:
    if backend not in BACKENDS:
        pytest.skip(f"there is no {backend} back end")
    pytest.importorskip({"ale": "ale_py", "envpool": "envpool", "compiled": "numba"}[backend])
    env_id = "CartPole-v1" if backend != "ale" else "PongNoFrameskip-v4"
    envs = wrap(vecenv.make_vec(env_id, 2, backend, autoreset_mode="SameStep", seed=1))
    first = envs.reset()
    seen = []
    for _ in range(40):
        observations, rewards, dones, infos = envs.step(np.ones(2, np.int64))
        assert observations.shape == first.shape
        assert rewards.dtype == np.float64
        seen += [info for info, done in zip(infos, dones, strict=True) if done]
    if backend != "ale":
        assert seen
        assert all(info["episode"]["l"] == info["episode"]["r"] and 8 <= info["episode"]["l"] < 12 for info in seen)
        assert all(abs(info["terminal_observation"][2]) > 0.2 for info in seen)  # the pole has fallen
    envs.close()


def test_wrap_refuses_what_it_cannot_serve() -> None:
    with pytest.raises(ValueError, match="SameStep"):
        wrap(vecenv.make_vec(CountEnv, 2, "sync"))
    with pytest.raises(TypeError, match="vector env of this package"):
        wrap(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))  # type: ignore[arg-type]


# -- training -------------------------------------------------------------------------------------------------------


def weights(model: Any) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


def trained(model: Any, steps: int) -> tuple[dict[str, Any], list[tuple[float, int]]]:
    """The weights after training, and returns and lengths of the episodes seen."""
    model.learn(steps)
    return weights(model), [(info["r"], info["l"]) for info in model.ep_info_buffer]


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize(
    ("algorithm", "steps", "settings"),
    [
        (PPO, 256, {"n_steps": 64, "n_epochs": 2}),
        (DQN, 200, {"learning_starts": 50, "buffer_size": 1000, "target_update_interval": 100}),
    ],
)
def test_cartpole_is_learnt_along_the_same_curve(algorithm: Any, steps: int, settings: Any) -> None:
    curves = []
    made = [
        env_util.make_vec_env("CartPole-v1", 2, seed=0),
        make_vec_env("CartPole-v1", 2, seed=0),
        make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv),
        wrap(vecenv.make_vec("CartPole-v1", 2, "sync", autoreset_mode="SameStep")),
    ]
    for envs in made:
        model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **settings)
        curves.append(trained(model, steps))
        envs.close()
    assert len(curves[0][1]) > 3
    for curve in curves[1:]:
        assert curve[1] == curves[0][1]
        assert_same(curve[0], curves[0][0])


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (PPO, {"n_steps": 12, "n_epochs": 1, "batch_size": 12}),
        (DQN, {"learning_starts": 8, "buffer_size": 64, "batch_size": 8}),
    ],
)
def test_pong_is_played_along_the_same_curve(algorithm: Any, settings: Any) -> None:
    pytest.importorskip("ale_py")
    results = []
    for make in (env_util.make_atari_env, make_atari_env):
        envs = VecFrameStack(make("PongNoFrameskip-v4", 2, seed=0), 4)
        results.append(trained(algorithm("CnnPolicy", envs, seed=0, device="cpu", **settings), 24)[0])
        envs.close()
    assert_same(results[1], results[0])


@pytest.mark.usefixtures("one_torch_thread")
def test_their_wrappers_and_evaluation_go_around_ours() -> None:
    envs = VecNormalize(VecMonitor(make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SyncVecEnv)))
    model = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(32)
    envs.training = False
    returns, lengths = evaluate_policy(model, envs, n_eval_episodes=3, return_episode_rewards=True)
    assert len(returns) == 3
    assert returns == lengths


def test_attributes_of_compiled_envs() -> None:
    envs = wrap(vecenv.make_vec("CartPole-v1", 2, "compiled", autoreset_mode="SameStep"))
    assert envs.get_attr("gravity") == [9.8, 9.8]
    assert envs.get_attr("gravity", indices=1) == [9.8]
    assert envs.has_attr("gravity")
    assert not envs.has_attr("nothing")
    envs.close()
