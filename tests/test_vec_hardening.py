"""Careless users and hostile environments: what once went wrong, kept right."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import threading
import time
from fractions import Fraction

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from waiting import wait_until

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, WorkerDied, make_vec
from vecenv.testing import CountEnv, DrawEnv, assert_same

BUILDS = [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)]
both = pytest.mark.parametrize("build", BUILDS)


def count_fns(count=2, env_class=CountEnv, **settings):
    return [functools.partial(env_class, uid=uid, **settings) for uid in range(count)]


class ForkingEnv(CountEnv):
    """Has a child process that outlives it."""

    def reset(self, **arguments):
        if not hasattr(self, "child"):
            self.child = os.fork()
            if self.child == 0:
                time.sleep(20)
                os._exit(0)
        return super().reset(**arguments)


def test_a_dead_worker_is_seen_though_its_child_lives():
    envs = SubprocVecEnv(count_fns(2, ForkingEnv, seconds=0.5), num_workers=2)
    children = []
    try:
        envs.reset()
        children = [child for pid in envs.worker_pids for child in psutil.Process(pid).children()]
        envs.step_async([0, 0])
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            envs.step_wait(timeout=20)
    finally:
        envs.close()
        for child in children:
            child.kill()


class InPlaceEnv(CountEnv):
    def reset_into(self, out, *, seed=None, options=None):
        observation, info = self.reset(seed=seed, options=options)
        out[:] = observation
        return info

    def step_into(self, action, out):
        observation, *rest = self.step(action)
        out[:] = observation
        return tuple(rest)


class ForwardingWrapper(gym.Wrapper):
    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation * 10, reward * 100, *rest


@both
def test_wrappers_that_forward_attributes_are_not_passed_by(build):
    with build([lambda: ForwardingWrapper(InPlaceEnv(uid=1)), lambda: InPlaceEnv(uid=2)]) as envs:
        envs.reset()
        observations, rewards, *_ = envs.step([0, 0])
        np.testing.assert_array_equal(observations, [[10, 0, 10], [2, 0, 1]])
        np.testing.assert_array_equal(rewards, [100, 1])


def test_a_fork_of_the_user_may_not_use_the_workers():
    with SubprocVecEnv(count_fns()) as envs:
        envs.reset()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for call in (lambda: envs.step([0, 0]), envs.reset, lambda: envs.call("uid")):
                try:
                    call()
                    os.write(writer, b"worked ")
                except ClosedEnvironmentError as error:
                    os.write(writer, b"refused " if "fork" in str(error) else b"other ")
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reader, 100) == b"refused refused refused "
        os.close(reader)
        os.close(writer)
        np.testing.assert_array_equal(envs.step([0, 0])[0], [[0, 0, 1], [1, 0, 1]])


@both
def test_calls_while_rows_are_outstanding(build):
    with build(count_fns(4), batch_size=2) as envs:
        envs.reset()
        envs.send([0] * 4, range(4))
        for call in (
            lambda: envs.get_attr("uid"),
            lambda: envs.call("render"),
            lambda: envs.set_attr("length", 3),
            envs.get_state,
        ):
            with pytest.raises(AlreadyPendingCallError, match="outstanding"):
                call()
        infos = envs.recv(timeout=20)[4]
        assert infos["_time"].all()


class LargeTalk(CountEnv):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.action_space = spaces.Sequence(spaces.Discrete(2))

    def step(self, action):
        return *super().step(action)[:4], {"text": "x" * 20_000_000}


def test_large_words_both_ways_at_once():
    with SubprocVecEnv(count_fns(4, LargeTalk), num_workers=1, batch_size=1, shared_memory=None) as envs:
        envs.reset()
        envs.send(((0,), (0,)), [0, 1])
        time.sleep(0.5)
        large = tuple([1] * 2_000_000)
        envs.send((large, large), [2, 3])
        for _ in range(4):
            assert len(envs.recv(timeout=60)[4]["text"][0]) == 20_000_000


class TalkingEnv(CountEnv):
    def step(self, action):
        return *super().step(action)[:4], {"text": "x"}


def test_polling_without_waiting():
    with SubprocVecEnv(count_fns(2, TalkingEnv), num_workers=2, batch_size=2) as envs:
        envs.reset()
        envs.step_async([0, 0])
        control = envs._control
        # A worker answers after it has sent its messages, which nobody has read yet.
        wait_until(lambda: (control.answered == control.sequence[0]).all(), 30.0)
        assert envs.step_wait(timeout=0)[4]["text"].tolist() == ["x", "x"]
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.processes[0].join(10)
        with pytest.raises(WorkerDied):
            envs.step_async([0, 0]) or envs.step_wait(timeout=0)


class DaemonEnv(CountEnv):
    """Starts a daemonic process, which multiprocessing ends at the exit of its parent."""

    def reset(self, **arguments):
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
        process.start()
        self.pid = process.pid
        return super().reset(**arguments)


@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_what_envs_register_for_the_end_runs(context):
    envs = SubprocVecEnv([DaemonEnv], context=context)
    envs.reset()
    (pid,) = envs.get_attr("pid")
    assert psutil.pid_exists(pid)
    envs.close()
    wait_until(lambda: not psutil.pid_exists(pid), 30.0)


@both
def test_copies_and_pickles_are_refused(build):
    with build(count_fns()) as envs:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                attempt(envs)


class RewardEnv(CountEnv):
    def __init__(self, reward, **arguments):
        super().__init__(**arguments)
        self.reward = reward

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.reward, *rest


@both
@pytest.mark.parametrize("reward", [None, "3.0", np.array(None), [1, 2], np.zeros(2), object()])
def test_rewards_that_are_no_numbers(build, reward):
    fns = [
        functools.partial(CountEnv, length=1),
        functools.partial(RewardEnv, reward, length=1),
        functools.partial(RewardEnv, reward),
    ]
    with build(fns) as envs:
        envs.reset()
        with pytest.raises(EnvError, match="single number as reward") as caught:
            envs.step([0] * 3)
        assert [failure.env_index for failure in caught.value.failures] == [1, 2]
        assert envs.episode_statistics().episode_counts.tolist() == [1, 1, 0]
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True, True])})
        np.testing.assert_array_equal(observations, [[0, 0, 1], [0, 1, 0], [0, 1, 0]])
        np.testing.assert_array_equal(envs._done, [True, False, False])


@both
@pytest.mark.parametrize(
    "reward", [True, np.float32(2.5), np.array([2.0]), np.array(3), 7, float("nan"), Fraction(1, 2), 10**20]
)
def test_rewards_that_are_numbers(build, reward):
    with build([functools.partial(RewardEnv, reward), CountEnv]) as envs:
        envs.reset()
        np.testing.assert_array_equal(envs.step([0, 0])[1], [float(np.asarray(reward).item()), 1.0])


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_in_place_envs_without_arrays_to_write_into(backend):
    with make_vec(InPlaceEnv, 2, backend, backend_options={"shared_memory": False}) as envs:
        envs.reset()
        np.testing.assert_array_equal(envs.step([0, 0])[0], [[0, 0, 1], [0, 0, 1]])


class Panic(BaseException):
    """What bindings to other languages raise."""


class PanickingEnv(CountEnv):
    def step(self, action):
        raise Panic("from native code")


@both
def test_exceptions_outside_the_usual_tree(build):
    with build([CountEnv, PanickingEnv, CountEnv]) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 1 .*Panic.*native code"):
            envs.step([0] * 3)
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        np.testing.assert_array_equal(observations[:, 2], [1, 0, 1])


class SelfInfoEnv(CountEnv):
    def step(self, action):
        info = {"a": 1}
        info["self"] = info
        return *super().step(action)[:4], info


@both
def test_infos_that_hold_themselves(build):
    with build([CountEnv, SelfInfoEnv]) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 1 .*RecursionError"):
            envs.step([0, 0])
        with pytest.raises(gym.error.ResetNeeded):
            envs.step([0, 0])
        envs.reset()


class CallEnv(CountEnv):
    def poke(self):
        self.poked = True
        if self.uid < 2:
            raise KeyError(self.uid)


@pytest.mark.parametrize("build", [*BUILDS, functools.partial(SubprocVecEnv, num_workers=4)])
def test_all_failures_of_a_call_are_named(build):
    with build(count_fns(4, CallEnv)) as envs:
        with pytest.raises(KeyError) as caught:
            envs.call("poke")
        assert [failure.env_index for failure in caught.value.failures] == [0, 1]
        assert envs.get_attr("poked") == (True,) * 4


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_masked_reset_does_not_hide_a_restart(mode):
    with SubprocVecEnv(count_fns(4), num_workers=2, on_worker_failure="restart", autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.processes[0].join(10)
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
        np.testing.assert_array_equal(observations, [[0, 0, 0], [1, 0, 1], [2, 0, 1], [3, 0, 1]])
        _, rewards, _, truncations, infos = envs.step([0] * 4)
        np.testing.assert_array_equal(truncations, [False, True, False, False])
        np.testing.assert_array_equal(rewards, [1, 0, 2, 2])
        np.testing.assert_array_equal(infos["worker_restarted"], [False, True, False, False])


class KindsEnv(CountEnv):
    KINDS = (1, "s", 2.5, True, np.float32(2), None, np.int64(4), [1], np.arange(2))

    def step(self, action):
        *rest, info = super().step(action)
        info["kind"] = self.KINDS[(self.uid + self.time) % len(self.KINDS)]
        info["few"] = self.KINDS[(self.uid * 2 + self.time // 3) % 3 * 2]
        return *rest, info


def test_kinds_of_infos_do_not_depend_on_the_back_end():
    fns = count_fns(5, KindsEnv, length=40)
    with SyncVecEnv(fns) as one, SubprocVecEnv(fns, num_workers=2) as two:
        assert_same(one.reset(), two.reset())
        for step in range(30):
            assert_same(one.step([0] * 5), two.step([0] * 5), f"step {step}")


class GrowingInfoEnv(CountEnv):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.list, self.ragged, self.deep = [], np.zeros(self.uid + 1), {"inner": []}

    def step(self, action):
        self.list.append(self.time)
        self.deep["inner"].append(self.time)
        self.ragged += 1
        return *super().step(action)[:4], {"list": self.list, "ragged": self.ragged, "deep": self.deep}


@both
def test_infos_do_not_change_later(build):
    with build(count_fns(2, GrowingInfoEnv, length=50)) as envs:
        envs.reset()
        kept = [envs.step([0, 0])[4] for _ in range(4)]
        snapshot = copy.deepcopy(kept)
        envs.step([0, 0])
        assert_same(kept, snapshot)
        assert kept[0]["list"][0] == [0]


class OptionsEnv(CountEnv):
    def reset(self, *, seed=None, options=None):
        self.level = (options or {}).pop("level", None)
        return super().reset(seed=seed, options=options)


@both
def test_options_are_each_envs_own(build):
    with build(count_fns(3, OptionsEnv)) as envs:
        options = {"level": [4]}
        envs.reset(options=options)
        assert options == {"level": [4]}
        assert envs.get_attr("level") == ([4],) * 3


@both
def test_a_wrong_out_loses_nothing(build):
    with build(count_fns(2)) as envs:
        envs.reset()
        for call in (lambda out: envs.step([0, 0], out=out), lambda out: envs.reset(out=out)):
            with pytest.raises(ValueError, match="out"):
                call(np.zeros((3, 3), np.float32))
        np.testing.assert_array_equal(envs.step([0, 0])[0][:, 2], [1, 1])


def test_a_time_limit_holds_for_rows_sent_alone():
    fns = [functools.partial(CountEnv, uid=uid, seconds=100.0 if uid == 0 else 0.0) for uid in range(3)]
    with SubprocVecEnv(fns, num_workers=3, batch_size=1, step_timeout=2.0) as envs:
        envs.reset()
        envs.send([0] * 3, range(3))
        seen = sorted(int(envs.recv(timeout=30)[4]["env_id"][0]) for _ in range(2))
        assert seen == [1, 2]
        with pytest.raises(WorkerDied, match=r"environments 0.*step_timeout"):
            envs.recv(timeout=30)


class SometimesEnv(CountEnv):
    broken = True

    def step(self, action):
        if self.uid in (1, 2):
            raise ValueError("step")
        return super().step(action)

    def reset(self, **arguments):
        if self.uid == 1 and self.episode >= 0:
            raise ValueError("reset")
        return super().reset(**arguments)


@both
def test_envs_that_were_reset_are_no_longer_failed(build):
    with build(count_fns(4, SometimesEnv)) as envs:
        envs.reset()
        with pytest.raises(EnvError):
            envs.step([0] * 4)
        with pytest.raises(EnvError, match="environment 1 "):
            envs.reset()
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\]"):
            envs.step([0] * 4)


class SecondTryEnv(DrawEnv):
    """Cannot be reset the first time, before its generator is seeded, if it is told so."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def reset(self, **arguments):
        fails, self.fails = self.fails, False
        if fails:
            raise ValueError("not yet")
        return super().reset(**arguments)


SECOND_TRY_FNS = [functools.partial(SecondTryEnv, False), functools.partial(SecondTryEnv, True)]


@both
@pytest.mark.parametrize("options", [None, {"reset_mask": np.array([False, True])}])
def test_a_first_reset_that_failed_is_tried_again_with_the_seed_of_the_constructor(build, options):
    with build(SECOND_TRY_FNS, seed=5) as envs:
        with pytest.raises(EnvError, match="not yet"):
            envs.reset()
        wanted = [DrawEnv().reset(seed=seed)[0] for seed in (5, 6)]
        np.testing.assert_array_equal(envs.reset(options=options)[0], wanted)
        assert not np.isin(envs.reset()[0], wanted).any()


@both
def test_a_reset_with_a_seed_uses_up_that_of_the_constructor_though_it_fails(build):
    with build(SECOND_TRY_FNS, seed=5) as envs:
        with pytest.raises(EnvError, match="not yet"):
            envs.reset(seed=9)
        plain = DrawEnv()
        plain.reset(seed=9)
        np.testing.assert_array_equal(envs.reset()[0][0], plain.reset()[0])


class UnbuildableEnv(CountEnv):
    def __init__(self, path, **arguments):
        super().__init__(**arguments)
        if os.path.exists(path):
            raise OSError("cannot be built any more")


def test_an_env_that_cannot_be_rebuilt_says_why(tmp_path):
    mark = tmp_path / "mark"
    fns = [functools.partial(UnbuildableEnv, str(mark), uid=uid) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset()
        mark.touch()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"cannot be built any more.*3 times") as caught:
            envs.step([0, 0])
        assert isinstance(caught.value.__cause__, EnvError)
        mark.unlink()
        observations, _ = envs.reset()
        np.testing.assert_array_equal(observations[:, 2], [0, 0])
        envs.step([0, 0])


class MaskNamesEnv(CountEnv):
    def step(self, action):
        return *super().step(action)[:4], {"x": 1, "_x": 5, "_y": 2}


@both
def test_keys_that_are_named_like_masks(build):
    with build(count_fns(2, MaskNamesEnv)) as envs:
        envs.reset()
        for _ in range(3):
            infos = envs.step([0, 0])[4]
            np.testing.assert_array_equal(infos["x"], [1, 1])
            assert infos["_x"].dtype == np.bool_
            np.testing.assert_array_equal(infos["_y"], [2, 2])


class TwoUnderscoresEnv(CountEnv):
    def step(self, action):
        return *super().step(action)[:4], {"x": 5} if self.uid else {"__x": 1}


@both
def test_a_key_with_two_underscores_is_no_mask(build):
    expected = {"x": [0, 5], "_x": [False, True], "__x": [1, 0], "___x": [True, False]}
    with build(count_fns(2, TwoUnderscoresEnv)) as envs:
        envs.reset()
        for _ in range(3):
            assert {key: value.tolist() for key, value in envs.step([0, 0])[4].items()} == expected


@both
def test_dict_keys_with_dots(build):
    class Dots(CountEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(
                {"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}
            )
            self.action_space = spaces.Dict({})

        def _observation(self):
            return {"a.b": 1, "a": {"b": 2}}

    with build([Dots] * 2) as envs:
        observations, _ = envs.reset()
        np.testing.assert_array_equal(observations["a.b"], [1, 1])
        np.testing.assert_array_equal(envs.step({})[0]["a"]["b"], [2, 2])


class InterruptedEnv(CountEnv):
    def step(self, action):
        if self.uid == 1 and self.time == 0 and self.episode == 0:
            raise KeyboardInterrupt
        return *super().step(action)[:4], {"stale": 1}


def test_infos_of_an_interrupted_step_do_not_turn_up_later():
    with SyncVecEnv(count_fns(2, InterruptedEnv)) as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        assert "stale" not in envs.reset()[1]


def test_closing_from_another_thread():
    envs = SubprocVecEnv(count_fns(2, seconds=30.0), num_workers=2)
    envs.reset()
    threading.Timer(0.2, lambda: envs.close(terminate=True)).start()
    with pytest.raises((ClosedEnvironmentError, WorkerDied)):
        envs.step([0, 0])
    envs.close()


@both
def test_seeds_without_a_dimension(build):
    with build(count_fns(2)) as envs:
        envs.reset(seed=np.array(5))
        assert envs.np_random_seed == (5, 6)


SHARED_REWARD, SHARED_FLAG = np.zeros(1), np.zeros(1, np.bool_)


class SharedNumbersEnv(CountEnv):
    def step(self, action):
        observation, _, _, truncated, info = super().step(action)
        SHARED_REWARD[:] = self.uid
        SHARED_FLAG[:] = self.uid == 1
        return observation, SHARED_REWARD, SHARED_FLAG, truncated, info


@both
def test_envs_that_share_one_reward_and_flag(build):
    with build(count_fns(4, SharedNumbersEnv)) as envs:
        envs.reset()
        _, rewards, terminations, *_ = envs.step([0] * 4)
        np.testing.assert_array_equal(rewards, [0, 1, 2, 3])
        np.testing.assert_array_equal(terminations, [False, True, False, False])


@both
@pytest.mark.parametrize("value", [[300], np.array([-1]), np.array([256], np.uint16)])
def test_integers_that_do_not_fit_are_refused(build, value):
    class Overflowing(CountEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (1,), np.uint8)

        def _observation(self):
            return value if self.time else np.array([7])

    with build([Overflowing]) as envs:
        assert envs.reset()[0].tolist() == [[7]]
        with pytest.raises(EnvError, match=r"environment 0 .*do not fit into uint8"):
            envs.step([0])


class UnreturningEnv(CountEnv):
    """Offers itself to other workers and cannot be built there."""

    def __setstate__(self, state):
        raise ValueError("cannot come back")


def test_an_env_that_cannot_be_rebuilt_elsewhere_stays():
    fns = [functools.partial(UnreturningEnv, uid=uid, length=4, seconds=0.01 if uid < 2 else 0.0) for uid in range(4)]
    with SubprocVecEnv(fns, num_workers=2, balance=True) as envs:
        envs.reset()
        for _ in range(12):
            envs.step([0] * 4)
        assert envs.call("uid") == (0, 1, 2, 3)


@both
def test_states_are_all_taken_or_none(build):
    with build(count_fns(4)) as envs:
        envs.reset()
        states = envs.get_state()
        envs.step([0] * 4)
        with pytest.raises(EnvError) as caught:
            envs.set_state([states[0], b"bad", states[2], b"bad"])
        assert next(failure.env_index for failure in caught.value.failures) == 1
        assert "reset the failed ones" not in str(caught.value)
        np.testing.assert_array_equal(envs.step([0] * 4)[0][:, 2], [2] * 4)
        with pytest.raises(TypeError, match="set_state"):
            envs.set_state(None)


@both
def test_constructors_that_return_no_env(build):
    with pytest.raises(EnvError, match=r"environment 1 .*returned None, expected a gymnasium.Env"):
        build([CountEnv, lambda: None])


@pytest.mark.parametrize("name", ["hidden_env", "hidden_package.env"])
def test_modules_that_only_this_process_has(tmp_path, monkeypatch, name):
    import importlib.util
    import sys
    from types import ModuleType

    package = ModuleType("hidden_package")
    package.__path__ = [str(tmp_path)]  # as a test runner leaves it: in sys.modules, not to be found on sys.path
    monkeypatch.setitem(sys.modules, "hidden_package", package)
    path = tmp_path / f"{name.rpartition('.')[2]}.py"
    path.write_text(
        "from vecenv.testing import CountEnv\nNUMBER = 7\n"
        "class Env(CountEnv):\n    def number(self):\n        return NUMBER\n"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    for context in ("forkserver", "spawn"):
        with SubprocVecEnv([module.Env], context=context) as envs:
            assert envs.call("number") == (7,)


class StubbornError(Exception):
    @property
    def args(self):
        return ("mine",)

    def __setattr__(self, name, value):
        raise AttributeError("nothing can be set")


class RaisingEnv(CountEnv):
    def __init__(self, make_exception, **arguments):
        super().__init__(**arguments)
        self.make_exception = make_exception

    def step(self, action):
        raise self.make_exception()


@both
def test_exceptions_that_refuse_attributes(build):
    with build([functools.partial(RaisingEnv, lambda: StubbornError("mine"))]) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 0 .*StubbornError"):
            envs.step([0])


def test_an_interrupt_of_the_envs_own_does_not_end_the_worker():
    with SubprocVecEnv([CountEnv, functools.partial(RaisingEnv, KeyboardInterrupt)], num_workers=1) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 1 .*KeyboardInterrupt"):
            envs.step([0, 0])
        envs.reset()


def test_a_death_in_recv_stays_a_death():
    with SubprocVecEnv(count_fns(2, seconds=0.5), num_workers=2) as envs:
        envs.reset()
        envs.send([0, 0])
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        for call in (lambda: envs.recv(timeout=20), lambda: envs.step([0, 0]), envs.reset):
            with pytest.raises(WorkerDied):
                call() or envs.step([0, 0])
    assert str(EnvError("plain")) == "plain"
