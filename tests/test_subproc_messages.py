"""Messages to workers: only those concerned get one, and one that comes between fast steps is taken at once."""

from __future__ import annotations

import functools
import os
import signal

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils.env_checker import data_equivalence

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, WorkerDied
from vecenv.testing import CountEnv

FNS = [functools.partial(CountEnv, uid=uid, length=20) for uid in range(4)]


def sent(envs):
    return envs._control.messages_sent.tolist()


@pytest.mark.parametrize("settings", [{}, {"copy": False}, {"shared_memory": False}])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_masked_reset_leaves_workers_alone_that_it_does_not_concern(mode, settings):
    ours = SubprocVecEnv(FNS, num_workers=2, autoreset_mode=mode, **settings)
    with ours, SyncVecEnv(FNS, autoreset_mode=mode) as reference:
        assert data_equivalence(ours.reset(seed=3), reference.reset(seed=3))
        for number, mask in enumerate([[True, False, False, False], [False, False, True, True], [True] * 4]):
            for _ in range(3):
                assert data_equivalence(ours.step([0] * 4), reference.step([0] * 4))
            before, concerned = sent(ours), [any(mask[:2]), any(mask[2:])]
            options = {"reset_mask": np.array(mask), "number": number}
            assert data_equivalence(ours.reset(options=options), reference.reset(options=options))
            assert [now - then for now, then in zip(sent(ours), before, strict=True)] == concerned


def test_a_worker_that_died_idle_is_replaced_by_a_reset_that_does_not_concern_it():
    with SubprocVecEnv(FNS, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        last = envs.step([0] * 4)[0]
        envs.processes[1].kill()
        envs.processes[1].join(10)
        observations, _ = envs.reset(seed=5, options={"reset_mask": np.array([True, False, False, False])})
        np.testing.assert_array_equal(observations[1:], last[1:])
        truncations, infos = envs.step([0] * 4)[3:]
        if not truncations.any():  # the reset was over before the death was heard of
            truncations, infos = envs.step([0] * 4)[3:]
        assert truncations.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True]


def test_calls_between_fast_steps_are_answered_in_order():
    with SubprocVecEnv(FNS, num_workers=2, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for number in range(50):
            for _ in range(3):
                envs.step([0] * 4)
            envs.set_attr("mark", [(number, row) for row in range(4)])
            assert envs.get_attr("mark") == tuple((number, row) for row in range(4))


class OnlyHere:
    """What the process of `pid` can unpickle and others cannot."""

    def __init__(self, pid):
        self.pid = pid
        if os.getpid() != pid:
            raise ValueError("not in this process")

    def __reduce__(self):
        return OnlyHere, (self.pid,)


def test_options_that_do_not_load_leave_the_other_rows_their_observations():
    with SubprocVecEnv(FNS[:2], num_workers=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        last = envs.step([0, 0])[0]
        with pytest.raises(EnvError, match="not in this process") as caught:
            envs.reset(options={"reset_mask": np.array([True, False]), "x": OnlyHere(os.getpid())})
        assert [failure.env_index for failure in caught.value.failures] == [0]
        np.testing.assert_array_equal(envs.observations[1], last[1])


def test_a_masked_reset_that_is_interrupted_while_it_is_sent_can_be_waited_for(monkeypatch):
    """Nobody had answered for the worker that it does not concern."""
    with SubprocVecEnv(FNS, num_workers=2) as envs:
        envs.reset(seed=0)
        last, send = envs.step([0] * 4)[0], envs._group.send

        def interrupted(*arguments):
            send(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(envs._group, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.reset_async(options={"reset_mask": np.array([True, False, False, False])})
        monkeypatch.undo()
        observations, _ = envs.reset_wait(timeout=20)
        assert observations[0].tolist() == [0, 1, 0]
        np.testing.assert_array_equal(observations[1:], last[1:])


def test_calls_after_an_interrupted_close_say_that_the_workers_are_ended(monkeypatch):
    def interrupted(timeout):
        raise KeyboardInterrupt

    envs = SubprocVecEnv(FNS[:1])
    monkeypatch.setattr(envs._group, "_ask_to_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    with pytest.raises(ClosedEnvironmentError, match="after the workers had been ended"):
        envs.reset()
    envs.close()


class EndingEnv(CountEnv):
    """Raises, or ends its process, where that is asked for."""

    def reset(self, *, seed=None, options=None):
        if options:
            self.end(options["uid"])
        return super().reset(seed=seed)

    def end(self, uid):
        if uid == self.uid:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("another one is to end")


@pytest.mark.parametrize("doing", ["call", "reset"])
def test_messages_of_a_call_in_which_a_worker_died_are_not_taken_for_those_of_the_next(doing):
    fns = [functools.partial(EndingEnv, uid=uid) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        if doing == "call":
            with pytest.raises(WorkerDied):
                envs.call("end", 1)
            assert envs.step([0, 0])[0][0].tolist() == [0, 0, 1]
        else:
            with pytest.raises(WorkerDied, match="3 times in a row"):
                envs.reset(options={"uid": 1})
            assert envs.reset()[0][0].tolist() == [0, 1, 0]
