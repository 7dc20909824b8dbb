"""A Ctrl-C while workers are waited for or replaced: nothing is lost, hung upon or taken for part of the next call."""

from __future__ import annotations

import contextlib
import functools
import itertools
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
