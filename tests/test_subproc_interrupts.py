"""A Ctrl-C while workers are waited for or replaced: nothing is lost, hung upon or taken for part of the next call."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import socket
import sys

import numpy as np
import pytest

import vecenv.channel
import vecenv.inboxes
import vecenv.slice_replies
from vecenv import SubprocVecEnv, SyncVecEnv
from vecenv.channel import Channel, framed
from vecenv.inboxes import Inboxes
from vecenv.recovery import derived_seed
from vecenv.slice_replies import dumps_by_row
from vecenv.testing import CountEnv, InfoEnv, assert_same


def count_fns(count=4, env_class=CountEnv, **settings):
    return [functools.partial(env_class, uid=uid, length=20, **settings) for uid in range(count)]


# -- reading ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupted_at(number, *modules):
    """Raise KeyboardInterrupt before one of the instructions of some modules, as a signal handler may."""
    files, instructions, before = {module.__file__ for module in modules}, itertools.count(), sys.gettrace()

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(instructions) == number:
            raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # for Python 3.12, which looks whether any frame has it in `settrace`
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_no_message_is_lost_or_doubled_at_any_instruction(monkeypatch):
    monkeypatch.setattr(vecenv.channel, "_CHUNK", 64)  # the messages come in several parts
    sent = [("results", {row: "x" * 50 * row}) for row in range(3)]
    data = b"".join(framed(dumps_by_row(message)) for message in sent)
    for number in itertools.count():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            channel, inboxes, interrupted = Channel(ours), Inboxes(1), False
            try:
                with interrupted_at(number, vecenv.channel, vecenv.inboxes, vecenv.slice_replies):
                    inboxes.read(0, channel, 1)
            except KeyboardInterrupt:
                interrupted = True
            inboxes.read(0, channel, 1)
            assert inboxes.take() == [sent], number
        if not interrupted:
            break
    assert number > 100


def interrupt_unpickling(monkeypatch):
    """Let the next message of a worker be interrupted while it is unpickled."""
    load = vecenv.inboxes.loads_by_row

    def interrupted(*arguments):
        monkeypatch.setattr(vecenv.inboxes, "loads_by_row", load)
        raise KeyboardInterrupt

    monkeypatch.setattr(vecenv.inboxes, "loads_by_row", interrupted)


def test_a_call_that_is_interrupted_while_it_is_read_can_be_waited_for(monkeypatch):
    """It stayed pending for ever: the message was lost, and the answer had told of it."""
    ours = SubprocVecEnv(count_fns(env_class=InfoEnv), num_workers=2)
    with ours, SyncVecEnv(count_fns(env_class=InfoEnv)) as reference:
        interrupt_unpickling(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            ours.reset(seed=1)
        assert_same(ours.reset_wait(timeout=20), reference.reset(seed=1))
        interrupt_unpickling(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            ours.step([0] * 4)
        assert_same(ours.step_wait(timeout=20), reference.step([0] * 4))
        assert_same(ours.step([0] * 4), reference.step([0] * 4))


def test_rows_that_are_interrupted_while_they_are_read_can_be_received(monkeypatch):
    with SubprocVecEnv(count_fns(), num_workers=2) as envs:
        envs.reset(seed=1)
        envs.send_reset(options={"level": 7})
        interrupt_unpickling(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            envs.recv(timeout=20)
        infos = envs.recv(timeout=20)[4]
        assert infos["options"].tolist() == ["{'level': 7}"] * 4


def test_messages_of_a_call_that_was_interrupted_at_its_end_do_not_count_for_the_next(monkeypatch):
    with SubprocVecEnv(count_fns(env_class=InfoEnv), num_workers=1) as envs:
        envs.reset(seed=1)
        inboxes = envs._group.inboxes
        take = inboxes.take

        def interrupted():
            if inboxes.count(0):
                monkeypatch.undo()
                raise KeyboardInterrupt
            return take()

        monkeypatch.setattr(inboxes, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0] * 4)
        observations, _, _, _, infos = envs.step([0] * 4)
        np.testing.assert_array_equal(observations[:, 2], [2] * 4)
        assert infos["text"].tolist() == ["step 2"] * 4


# -- replacing --------------------------------------------------------------------------------------------------------


def kill(envs, worker):
    envs.processes[worker].kill()
    envs.processes[worker].join(10)


def interrupt(patched, envs, name, doing):
    """Let a method of the group be interrupted, where what is done with one worker alone has that name (None: any)."""
    function = getattr(envs._group, name)

    def interrupted(*arguments, **keywords):
        if doing is None or (doing in arguments and "answered" not in keywords):
            raise KeyboardInterrupt
        return function(*arguments, **keywords)

    patched.setattr(envs._group, name, interrupted)


@pytest.mark.parametrize(
    ("name", "doing"),
    [("_launch", None), ("send", "construction"), ("first_message", None), ("wait", "construction"), ("wait", "step")],
)
def test_a_step_that_is_interrupted_while_a_worker_is_replaced_leaves_that_to_the_next(name, doing, monkeypatch):
    """The new worker was half done, and the next step waited for it for ever; or it answered late, for the next one."""
    with SubprocVecEnv(count_fns(), num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        before = envs.step([0] * 4)[0]
        kill(envs, 1)
        for _ in range(4):  # three deaths would be too many
            with monkeypatch.context() as patched:
                interrupt(patched, envs, name, doing)
                with pytest.raises(KeyboardInterrupt):
                    envs.step([0] * 4)
        envs.step_async([0] * 4)
        observations, _, _, truncations, infos = envs.step_wait(timeout=30)
        assert truncations.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True]
        np.testing.assert_array_equal(observations[2:], before[2:])
        np.testing.assert_array_equal(envs.step([0] * 4)[0][:, 2], [7, 7, 0, 0])
        assert envs.np_random_seed[2:] == (derived_seed(1, 2, 1), derived_seed(1, 3, 1))  # it has died once


@pytest.mark.parametrize(
    ("name", "doing"), [("_launch", None), ("first_message", None), ("wait", "construction"), ("send", "send")]
)
def test_rows_that_are_interrupted_while_a_worker_is_replaced_can_be_received(name, doing, monkeypatch):
    with SubprocVecEnv(count_fns(), num_workers=2, batch_size=2, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        kill(envs, 1)
        envs.send_reset(options={"reset_mask": np.array([False, False, True, True]), "level": 7})
        for _ in range(4):
            with monkeypatch.context() as patched:
                interrupt(patched, envs, name, doing)
                with pytest.raises(KeyboardInterrupt):
                    envs.recv(timeout=30)
        observations, _, _, truncations, infos = envs.recv(timeout=30)
        np.testing.assert_array_equal(observations, [[2, 0, 0], [3, 0, 0]])
        assert not truncations.any()
        assert infos["options"].tolist() == ["{'level': 7}"] * 2


def test_an_env_that_changes_its_worker_arrives_there_before_an_interrupt(monkeypatch):
    """It was in two workers, or the late answer of one was taken for that to the step."""
    fns = [functools.partial(CountEnv, uid=uid, length=2) for uid in range(4)]
    with SubprocVecEnv(fns, num_workers=2, balance=True) as ours, SyncVecEnv(fns) as reference:
        assert_same(ours.reset(seed=1), reference.reset(seed=1))
        for _ in range(2):
            assert_same(ours.step([0] * 4), reference.step([0] * 4))
        ours._control.step_seconds[:] = [0.02, 0.001, 0.001, 0.001]
        wait = ours._group.wait

        def interrupted(*arguments):
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
            return wait(*arguments)

        monkeypatch.setattr(ours._group, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.step([0] * 4)
        assert ours._group.rows == [[0], [1, 2, 3]]
        for _ in range(5):
            assert_same(ours.step([0] * 4), reference.step([0] * 4))
