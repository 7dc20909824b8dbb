"""`balance=True`: envs move between workers by the time of their steps, and the results stay the same."""

from __future__ import annotations

import functools
import os
import signal
import time

import numpy as np
import pytest
from gymnasium.utils import EzPickle

from vecenv import SubprocVecEnv, SyncVecEnv, make_vec
from vecenv.balance import Balancer
from vecenv.recovery import derived_seed
from vecenv.testing import CountEnv, DrawEnv, assert_same


class FakeGroup:
    def __init__(self, rows):
        self.rows = rows


def test_the_best_move_is_chosen():
    seconds = np.array([10.0, 1, 1, 1, 1, 1, 1, 1])
    balancer = Balancer(FakeGroup([[0, 1, 2, 3], [4, 5, 6, 7]]), seconds)
    assert balancer.move([0]) is None, "moving the slow one gains nothing"
    row, source, target = balancer.move([0, 1, 2, 5])
    assert (source, target) == (0, 1)
    assert row in (1, 2)
    balancer.refuse(1)
    balancer.refuse(2)
    assert balancer.move([1, 2]) is None
    assert balancer.move([]) is None
    assert Balancer(FakeGroup([[0], [1, 2]]), seconds).move([0]) is None, "the last env of a worker stays"
    even = Balancer(FakeGroup([[0, 1], [2, 3]]), np.ones(4))
    assert even.move([0, 1, 2, 3]) is None


class RandomEnv(CountEnv):
    """Its observations come from its own generator, which must move along."""

    def _observation(self):
        return np.array([self.uid, self.time, self.np_random.integers(1000)], np.float32)

    def home(self):
        return os.getpid()


def uneven_fns(env_class=RandomEnv, count=8):
    return [
        functools.partial(env_class, uid=uid, length=3 + uid % 3, seconds=0.02 if uid == 0 else 0.001)
        for uid in range(count)
    ]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_envs_leave_the_busy_worker_and_results_stay(mode):
    settings = {"autoreset_mode": mode, "statistics": True}
    fns = [functools.partial(RandomEnv, uid=uid, length=3 + uid % 3) for uid in range(8)]
    with (
        SubprocVecEnv(fns, num_workers=2, balance=True, **settings) as envs,
        SyncVecEnv(fns, **settings) as reference,
    ):
        homes = [envs.call("home")]
        assert_same(envs.reset(seed=1), reference.reset(seed=1))
        for step in range(60):
            # Told instead of measured, so that the moves do not depend on what else the machine does.
            envs._control.step_seconds[:] = [0.02] + [0.001] * 7
            one, two = envs.step([0] * 8), reference.step([0] * 8)
            for result in (one, two):
                if "episode" in result[4]:
                    result[4]["episode"].pop("t")
            assert_same(one, two, f"step {step}")
            homes.append(envs.call("home"))
        moved = [row for row in range(8) if any(home[row] != homes[0][row] for home in homes)]
        assert moved == [1, 2, 3]
        assert homes[-1].count(homes[-1][0]) == 1, "the slow one has its worker to itself"
        assert envs.call("uid") == tuple(range(8))
        envs.set_attr("length", list(range(50, 58)))
        assert envs.get_attr("length") == tuple(range(50, 58))
        states = envs.get_state()
        expected = [envs.step([0] * 8)[0] for _ in range(3)]
        envs.set_state(states)
        np.testing.assert_array_equal([envs.step([0] * 8)[0] for _ in range(3)], expected)


def test_workers_measure_the_steps_of_each_env():
    """The bounds hold on any machine: a sleep never ends early, and a worker steps its envs one after the other."""
    steps, slept = 20, np.array([0.02] + [0.001] * 7)
    fns = [functools.partial(CountEnv, uid=uid, length=99, seconds=slept[uid]) for uid in range(8)]
    with SubprocVecEnv(fns, num_workers=2, balance=True) as envs:
        envs.reset(seed=1)
        start = time.perf_counter()
        for _ in range(steps):
            envs.step([0] * 8)
        passed = time.perf_counter() - start
        measured = envs._control.step_seconds.copy()
    assert (measured >= slept * (1 - 0.9**steps)).all()
    for own in (measured[:4], measured[4:]):  # each step counts with at most a tenth of its time
        assert own.sum() <= 0.1 * passed


class StayingEnv(RandomEnv, EzPickle):
    def __init__(self, **arguments):
        EzPickle.__init__(self, **arguments)
        RandomEnv.__init__(self, **arguments)


def test_envs_whose_state_cannot_be_saved_stay():
    with SubprocVecEnv(uneven_fns(StayingEnv), num_workers=2, balance=True) as envs:
        first = envs.call("home")
        envs.reset(seed=1)
        for _ in range(40):
            envs.step([0] * 8)
        assert envs.call("home") == first


def test_moves_and_restarts_go_together():
    with SubprocVecEnv(uneven_fns(), num_workers=2, balance=True, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        for _ in range(40):
            envs.step([0] * 8)
        homes = envs.call("home")
        victim = envs.worker_pids[1]
        os.kill(victim, signal.SIGKILL)
        envs.processes[1].join(10)
        infos = envs.step([0] * 8)[4]
        assert infos["worker_restarted"].tolist() == [home == victim for home in homes]
        envs.step([0] * 8)
        assert envs.call("uid") == tuple(range(8))


def kill(envs, worker):
    os.kill(envs.worker_pids[worker], signal.SIGKILL)
    envs.processes[worker].join(10)


def test_an_env_that_moves_between_a_restart_and_its_reset_keeps_its_seed():
    with SubprocVecEnv([DrawEnv] * 4, num_workers=2, balance=True, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        kill(envs, 1)
        assert envs.step([0] * 4)[3].tolist() == [False, False, True, True]
        envs._control.step_seconds[:] = [0.001, 0.001, 0.02, 0.001]
        observations = envs.step([0] * 4)[0]
        assert envs._group.rows == [[0, 1, 3], [2]]
        expected = [DrawEnv().reset(seed=derived_seed(1, row, 1))[0] for row in (2, 3)]
        np.testing.assert_array_equal(observations[2:], expected)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_an_env_that_moves_before_its_restart_was_told_of_tells_it_there(shared_memory):
    """It was stepped without ever having been reset."""
    fns = [functools.partial(CountEnv, uid=uid, length=2) for uid in range(4)]
    settings = {"balance": True, "on_worker_failure": "restart", "shared_memory": shared_memory}
    with SubprocVecEnv(fns, num_workers=2, **settings) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            envs.step([0] * 4)
        kill(envs, 1)
        envs.reset(options={"reset_mask": np.array([True, False, True, False])})
        envs._control.step_seconds[:] = [0.001, 0.001, 0.02, 0.001]
        observations, _, _, truncations, infos = envs.step([0] * 4)
        assert envs._group.rows == [[0, 1, 3], [2]]
        np.testing.assert_array_equal(observations, [[0, 1, 1], [1, 1, 0], [2, 0, 1], [3, 0, 2]])
        assert truncations.tolist() == infos["worker_restarted"].tolist() == [False, False, False, True]
        np.testing.assert_array_equal(envs.step([0] * 4)[0][3], [3, 0, 0])


def test_through_make_vec():
    with make_vec("CartPole-v1", 4, "subproc", num_workers=2, backend_options={"balance": True}) as envs:
        assert envs._balancer is not None
        envs.reset(seed=0)
        for _ in range(100):
            envs.step([0, 1, 0, 1])
