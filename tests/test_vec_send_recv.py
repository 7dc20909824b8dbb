"""`send` and `recv`: part of the environments at a time, in the order in which they finish."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gated_env import GatedEnv
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, WorkerDied, make_vec
from vecenv.testing import CountEnv, assert_same
from vecenv.toy_envs import EchoEnv

BUILDS = [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2), functools.partial(SubprocVecEnv, num_workers=4)]


def count_fns(count=4, **settings):
    return [functools.partial(CountEnv, uid=uid, length=3 + uid, **settings) for uid in range(count)]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("start", ["reset", "send_reset"])
def test_every_env_goes_its_own_way(build, mode, start):
    """Each env's rows, put together by env_id, are what a synchronous run gives."""
    with (
        build(count_fns(), batch_size=2, autoreset_mode=mode, statistics=True) as envs,
        SyncVecEnv(count_fns(), autoreset_mode=mode, statistics=True) as reference,
    ):
        expected = [[] for _ in range(4)]
        _observations, _ = reference.reset()
        for _ in range(14):
            result = reference.step([0] * 4)
            for row in range(4):
                expected[row].append(row_of(result, row))
        seen = [[] for _ in range(4)]
        if start == "reset":
            envs.reset()
            envs.send([0] * 4, np.arange(4))
        else:
            envs.send_reset()
        while min(map(len, seen)) < 10:
            result = envs.recv(timeout=30)
            infos = result[4]
            ids = infos.pop("env_id")
            assert infos.pop("_env_id").all()
            assert len(ids) == 2
            assert result[0].shape == (2, 3)
            np.testing.assert_array_equal(result[0][:, 0], ids)
            for place, row in enumerate(ids):
                seen[row].append(row_of(result, place))
            envs.send([0, 0], ids)
        for row in range(4):
            got = seen[row] if start == "reset" else seen[row][1:]
            for step, (left, right) in enumerate(zip(got, expected[row], strict=False)):
                assert_same(left, right, f"env {row} step {step}")


def row_of(result, place):
    observations, rewards, terminations, truncations, infos = result
    info = {
        key: value[place]
        for key, value in infos.items()
        if not isinstance(value, dict) and f"_{key}" in infos and infos[f"_{key}"][place]
    }
    if "_episode" in infos and infos["_episode"][place]:
        info["episode"] = (infos["episode"]["r"][place], infos["episode"]["l"][place])
    return observations[place].copy(), rewards[place], terminations[place], truncations[place], info


def test_slow_envs_do_not_hold_up_the_others():
    """The slow one takes longer than any `recv` waits."""
    fns = [functools.partial(CountEnv, uid=uid, length=1000, seconds=100.0 if uid == 0 else 0.0) for uid in range(4)]
    with SubprocVecEnv(fns, num_workers=4, batch_size=3) as envs:
        envs.reset()
        envs.send([0] * 4, range(4))
        for _ in range(3):
            ids = envs.recv(timeout=30)[4]["env_id"]
            assert sorted(ids) == [1, 2, 3]
            envs.send([0] * 3)  # to those received last
        envs.close(terminate=True)  # without asking, which the slow one would not hear


def test_rows_come_in_the_order_of_finishing(tmp_path):
    gates = [tmp_path / "0", tmp_path / "1"]
    fns = [functools.partial(GatedEnv, str(gate), uid=uid) for uid, gate in enumerate(gates)]
    with SubprocVecEnv([*fns, functools.partial(CountEnv, uid=2)], num_workers=3, batch_size=2) as envs:
        envs.reset()
        envs.send([0] * 3, [0, 1, 2])
        # This waits as `recv` does, and takes nothing.
        assert envs._row_wait.wait([2], 1, "recv", 30.0) == [2]
        gates[1].touch()
        assert envs._row_wait.wait([1], 1, "recv", 30.0) == [1]
        assert envs.recv(timeout=30)[4]["env_id"].tolist() == [2, 1]
        gates[0].touch()


@pytest.mark.parametrize("build", BUILDS)
def test_whole_batches(build):
    """With batch_size == num_envs, send and recv are the two halves of step, in env order."""
    with build(count_fns()) as envs, SyncVecEnv(count_fns()) as reference:
        envs.reset()
        reference.reset()
        for _ in range(6):
            envs.send([0] * 4)
            result = envs.recv(timeout=30)
            assert result[4].pop("env_id").tolist() == [0, 1, 2, 3]
            result[4].pop("_env_id")
            assert_same(result, reference.step([0] * 4))


@pytest.mark.parametrize("build", BUILDS)
def test_order_of_calls(build):
    with build(count_fns(), batch_size=2) as envs:
        envs.reset()
        with pytest.raises(NoAsyncCallError, match="2 outstanding"):
            envs.recv(timeout=30)
        envs.send([0], [3])
        with pytest.raises(NoAsyncCallError, match="there are 1"):
            envs.recv(timeout=30)
        with pytest.raises(AlreadyPendingCallError, match=r"environments \[3\]"):
            envs.send([0, 0], [2, 3])
        with pytest.raises(AlreadyPendingCallError, match="outstanding"):
            envs.step([0] * 4)
        envs.send([1], [0])
        assert sorted(envs.recv(timeout=30)[4]["env_id"].tolist()) == [0, 3]
        with pytest.raises(NoAsyncCallError):
            envs.recv(timeout=30)
        observations, *_ = envs.step([0] * 4)
        np.testing.assert_array_equal(observations[:, 2], [2, 1, 1, 2])
        envs.send([0, 0], [1, 2])
        observations, _ = envs.reset()  # drops what is outstanding
        np.testing.assert_array_equal(observations[:, 1:], [[1, 0]] * 4)
        with pytest.raises(NoAsyncCallError):
            envs.recv(timeout=30)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("actions", "env_ids", "error", "text"),
    [
        ([0], [4], ValueError, "0 to 3"),
        ([0], [-1], ValueError, "0 to 3"),
        ([0, 0], [1, 1], ValueError, "at most once"),
        ([0], [], ValueError, "at least one"),
        ([0], [1.0], TypeError, "indices"),
        ([0], 1, TypeError, "sequence"),
        ([0], [0, 1], ValueError, "expected 2 actions"),
        ([0, 5], [0, 3], ValueError, "environment 3"),
    ],
)
def test_refused_before_anything_is_sent(build, actions, env_ids, error, text):
    with build(count_fns(), batch_size=1) as envs:
        envs.reset()
        with pytest.raises(error, match=text):
            envs.send(actions, env_ids)
        with pytest.raises(NoAsyncCallError):
            envs.recv(timeout=30)


@pytest.mark.parametrize("build", BUILDS)
def test_failures_of_single_rows(build):
    fns = [functools.partial(CountEnv, uid=uid, fails_at=2 if uid == 1 else None) for uid in range(4)]
    with build(fns, batch_size=1) as envs:
        envs.reset()
        seen = []
        envs.send([0] * 4, range(4))
        for _ in range(4):
            envs.recv(timeout=30)
        envs.send([0] * 4, range(4))
        for _ in range(4):
            try:
                seen.extend(envs.recv(timeout=30)[4]["env_id"].tolist())
            except EnvError as error:
                seen.append(f"{error.env_index} failed as {isinstance(error, ValueError)}")
        assert sorted(map(str, seen)) == ["0", "1 failed as True", "2", "3"]
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\]"):
            envs.send([0], [1])
        envs.send_reset(options={"reset_mask": np.array([False, True, False, False])})
        observations, *_ = envs.recv(timeout=30)
        np.testing.assert_array_equal(observations, [[1, 1, 0]])


@pytest.mark.parametrize("build", BUILDS)
def test_a_failure_of_a_whole_batch_is_raised_by_recv(build):
    """As `send` starts a step and does not wait for its end; an action that is wrong is refused by `send` itself."""
    with build([CountEnv, functools.partial(CountEnv, fails_at=2), CountEnv, CountEnv]) as envs:
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="actions"):
            envs.send([0, 0, 0, 7])
        envs.send([0] * 4)
        envs.recv(timeout=30)
        envs.send([0] * 4)
        with pytest.raises(AlreadyPendingCallError):
            envs.step([0] * 4)
        with pytest.raises(EnvError, match="boom from env 0") as caught:
            envs.recv(timeout=30)
        assert isinstance(caught.value, ValueError)
        assert [failure.env_index for failure in caught.value.failures] == [1]
        with pytest.raises(NoAsyncCallError):
            envs.recv(timeout=30)
        with pytest.raises(gym.error.ResetNeeded):
            envs.send([0] * 4)
        envs.reset()
        envs.send([0] * 4)
        np.testing.assert_array_equal(envs.recv(timeout=30)[1], [1, 1, 1, 1])


class LateEnv(CountEnv):
    """Raises, at its second step, what `recv` raises when its time is over."""

    def step(self, action):
        result = super().step(action)
        if self.time == 2:
            raise multiprocessing.TimeoutError("a simulator did not answer")
        return result


@pytest.mark.parametrize("build", BUILDS)
def test_a_timeout_that_an_env_raises_is_a_failure_and_leaves_nothing_pending(build):
    with build([CountEnv, LateEnv, CountEnv, CountEnv]) as envs:
        envs.reset()
        envs.send([0] * 4)
        envs.recv(timeout=30)
        envs.send([0] * 4)
        with pytest.raises(EnvError, match="did not answer"):
            envs.recv(timeout=30)
        with pytest.raises(NoAsyncCallError):
            envs.recv(timeout=30)
        envs.reset()
        assert envs.step([0] * 4)[1].tolist() == [1] * 4


@pytest.mark.parametrize("build", BUILDS)
def test_a_failure_takes_nothing_from_the_rows_it_would_have_been_received_with(build):
    fns = [functools.partial(CountEnv, uid=uid, fails_at=2 if uid == 2 else None) for uid in range(4)]
    with build(fns, batch_size=4) as envs:
        envs.reset()
        envs.step([0] * 4)
        envs.send([0] * 3, [3, 2, 1])
        envs.send([0], [0])
        with pytest.raises(EnvError, match="boom from env 2"):
            envs.recv(timeout=30)
        envs.send_reset(options={"reset_mask": np.array([False, False, True, False])})
        observations, *_, infos = envs.recv(timeout=30)
        np.testing.assert_array_equal(observations, [[0, 0, 2], [1, 0, 2], [2, 1, 0], [3, 0, 2]])
        np.testing.assert_array_equal(infos["time"], [2, 2, 0, 2])
        assert infos["_time"].all()


def only(*rows, count=4):
    """Options of a reset of these envs alone."""
    return {"reset_mask": np.isin(np.arange(count), rows)}


@pytest.mark.parametrize("build", BUILDS)
def test_a_masked_reset_does_not_hide_the_failure_of_a_row_that_it_drops(build):
    fns = [functools.partial(CountEnv, uid=uid, fails_at=1 if uid == 1 else None) for uid in range(4)]
    with build(fns, batch_size=1) as envs:
        envs.reset()
        envs.send([0, 0], [1, 2])
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\] failed before; select") as caught:
            envs.reset(options=only(0))
        assert isinstance(caught.value.__cause__, EnvError)
        assert "boom from env 1" in str(caught.value.__cause__)
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\] failed before"):
            envs.send([0], [1])
        observations, _ = envs.reset(options=only(0, 1))
        np.testing.assert_array_equal(observations, [[0, 1, 0], [1, 1, 0], [2, 0, 1], [3, 0, 0]])


@pytest.mark.parametrize("build", BUILDS)
def test_a_masked_reset_does_not_forget_that_an_episode_has_ended_in_a_row_that_it_drops(build):
    fns = [functools.partial(CountEnv, uid=uid, length=1 if uid == 1 else 9) for uid in range(4)]
    with build(fns, batch_size=1, autoreset_mode="Disabled") as envs:
        envs.reset()
        envs.send([0, 0], [1, 2])
        envs.reset(options=only(0))
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\] have ended"):
            envs.send([0], [1])
        envs.reset(options=only(1))
        np.testing.assert_array_equal(envs.step([0] * 4)[0][:, 1:], [[1, 1], [1, 1], [0, 2], [0, 1]])
    with build(fns, batch_size=1) as envs:
        envs.reset()
        envs.send([0, 0], [1, 2])
        envs.reset(options=only(0))
        observations, *_ = envs.step([0, 77, 0, 0])  # an action that only begins the next episode may be anything
        np.testing.assert_array_equal(observations[:, 1:], [[1, 1], [1, 0], [0, 2], [0, 1]])


@pytest.mark.parametrize("num_workers", [2, 4])
def test_options_that_cannot_be_sent_are_refused_before_anything_is_dropped(num_workers):
    with SubprocVecEnv(count_fns(), num_workers=num_workers, batch_size=2) as envs:
        envs.reset()
        envs.send([0, 0], [1, 3])
        for options in ({"lock": threading.Lock()}, {"lock": threading.Lock(), **only(0)}):
            with pytest.raises(TypeError, match="options: cannot be sent"):
                envs.reset(options=options)
        assert sorted(envs.recv(timeout=30)[4]["env_id"].tolist()) == [1, 3]


@pytest.mark.parametrize("pending", ["step", "reset", "call"])
def test_nothing_is_sent_while_an_asynchronous_call_is_pending(pending):
    """A whole batch used to be taken: its actions lay in the block before a worker had read those of the step."""
    arguments = {"step": ([1, 1],), "reset": (5,), "call": ("last_action",)}[pending]
    with SubprocVecEnv([EchoEnv] * 2, num_workers=2) as envs:
        envs.reset()
        envs.step([0, 0])
        getattr(envs, f"{pending}_async")(*arguments)
        held = envs._arrays.actions.copy()
        for send in (lambda: envs.send([0, 0]), lambda: envs.send([0], [1]), envs.send_reset):
            with pytest.raises(AlreadyPendingCallError, match=f"`{pending}`"):
                send()
        np.testing.assert_array_equal(envs._arrays.actions, held)
        getattr(envs, f"{pending}_wait")(timeout=30)
        assert envs.call("last_action") == ((1, 1) if pending == "step" else (0, 0))


def test_timeouts_lose_nothing(tmp_path):
    gate = tmp_path / "gate"
    fns = [functools.partial(GatedEnv, str(gate), uid=uid) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=2, batch_size=1) as envs:
        envs.reset()
        envs.send([0, 0], [0, 1])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(timeout=0.05)
        gate.touch()
        ids = [int(envs.recv(timeout=30)[4]["env_id"][0]) for _ in range(2)]
        assert sorted(ids) == [0, 1]


def test_a_killed_worker_is_named():
    with SubprocVecEnv(count_fns(4, seconds=0.3), num_workers=2, batch_size=2) as envs:
        envs.reset()
        envs.send([0] * 4, range(4))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="environments 0, 1"):
            envs.recv(timeout=30)


def test_seeds_of_send_reset():
    with make_vec("CartPole-v1", 4, "subproc", batch_size=2) as envs, make_vec("CartPole-v1", 4, "sync") as reference:
        expected, _ = reference.reset(seed=3)
        envs.async_reset(seed=3)
        for _ in range(2):
            observations, *_, infos = envs.recv(timeout=30)
            np.testing.assert_array_equal(observations, expected[infos["env_id"]])


@pytest.mark.parametrize("start", ["reset", "send_reset"])
def test_the_seed_of_the_constructor_is_what_restarts_derive_theirs_from(start):
    """`send_reset` used it and forgot it: what followed a restart was another run every time."""
    first = []
    for begin in ("reset", start):
        options = {"on_worker_failure": "restart"}
        with make_vec("CartPole-v1", 2, "subproc", num_workers=1, seed=5, backend_options=options) as envs:
            if begin == "reset":
                envs.reset()
            else:
                envs.send_reset()
                envs.recv(timeout=30)
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.processes[0].join(10)
            assert envs.step([0, 0])[3].all()
            first.append(envs.step([0, 0])[0])
    np.testing.assert_array_equal(first[0], first[1])


def test_a_send_reset_that_fails_does_not_use_up_the_seed_of_the_constructor():
    with make_vec("CartPole-v1", 2, "subproc", seed=5) as envs, make_vec("CartPole-v1", 2, "sync") as reference:
        with pytest.raises(TypeError, match="pickle"):
            envs.send_reset(options={"lock": threading.Lock()})
        np.testing.assert_array_equal(envs.reset()[0], reference.reset(seed=5)[0])


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_nested_observations(backend):
    class Nested(CountEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = gym.spaces.Dict({"x": self.observation_space, "t": gym.spaces.Text(3)})
            self.action_space = gym.spaces.Text(2)

        def _observation(self):
            return {"x": super()._observation(), "t": f"t{self.time}"}

    with make_vec(Nested, 3, backend, batch_size=2) as envs:
        envs.reset()
        envs.send(("a", "b", "c"), [0, 1, 2])
        observations, *_ = envs.recv(timeout=30)
        assert observations["x"].shape == (2, 3)
        assert observations["t"] == ("t1", "t1")
        envs.send(("d", "e"))
        envs.recv(timeout=30)


class SlowResetEnv(CountEnv):
    """`CountEnv` whose resets, but for the first, take half a second."""

    def reset(self, *, seed=None, options=None):
        if self.episode >= 0:
            time.sleep(0.5)
        return super().reset(seed=seed, options=options)


def test_a_row_that_is_reset_is_told_of_before_the_next_one():
    with SubprocVecEnv([functools.partial(SlowResetEnv, length=6)] * 4, num_workers=1, batch_size=1) as envs:
        envs.reset()
        for _ in range(6):  # cheap steps, which are reported together in the end
            envs.send([0] * 4, range(4))
            for _ in range(4):
                envs.recv()
        envs.send([0] * 4, range(4))
        assert envs.recv()[4]["env_id"].tolist() == [0]
        assert envs._control.completed[3] != envs._control.requested[3]
        assert [envs.recv()[4]["env_id"][0] for _ in range(3)] == [1, 2, 3]
