"""What users' processes and environments do around the workers, and odd things that they send each other."""

from __future__ import annotations

import ast
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from secretive_env import LoadsOnlyIn, SecretiveEnv

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, UnknownSetting, WorkerDied, fork_server
from vecenv.channel import framed
from vecenv.pickling import dumps
from vecenv.protocol import RESET_ROW
from vecenv.testing import CountEnv, assert_same

BUILDS = [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)]
start_methods = pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])


def count_fns(count=2, env_class=CountEnv, **settings):
    return [functools.partial(env_class, uid=uid, **settings) for uid in range(count)]


class PidEnv(CountEnv):
    @property
    def pid(self):
        return os.getpid()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_start_does_not_spoil_the_next_one(interruption, monkeypatch):
    """A reply that nobody had read was taken for the reply to the next request. The workers of others live on."""
    read = fork_server._read_exactly

    def interrupted(connection, count):
        monkeypatch.setattr(fork_server, "_read_exactly", read)
        raise interruption

    with SubprocVecEnv(count_fns(1)) as others:
        monkeypatch.setattr(fork_server, "_read_exactly", interrupted)
        with pytest.raises(interruption):
            fork_server.fork_server().exit_code(others.worker_pids[0])
        monkeypatch.setattr(fork_server, "_read_exactly", interrupted)
        with pytest.raises(interruption):  # the second: what the user's alarm raises
            SubprocVecEnv(count_fns(2), num_workers=2)
        with SubprocVecEnv(count_fns(2, PidEnv), num_workers=2) as envs:
            assert envs.get_attr("pid") == envs.worker_pids
            envs.reset()
            os.kill(envs.worker_pids[1], signal.SIGKILL)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                envs.step([0, 0])
        if interruption is KeyboardInterrupt:
            time.sleep(fork_server._GRACE_SECONDS + 0.2)  # when a fork server ends, so do its workers, after this time
        assert others.reset()[0].tolist() == [[0, 0, 0]]


@start_methods
def test_a_default_timeout_of_sockets_does_not_concern_the_workers(context, monkeypatch):
    monkeypatch.setattr(fork_server, "fork_server", functools.cache(fork_server.ForkServer))
    monkeypatch.setattr("vecenv.worker_process.fork_server", fork_server.fork_server)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)
    try:
        with SubprocVecEnv(count_fns(2), num_workers=2, context=context) as envs:
            envs.reset()
            assert envs.step([0, 0])[0].tolist() == [[0, 0, 1], [1, 0, 1]]
    finally:
        socket.setdefaulttimeout(before)


class FolderEnv(CountEnv):
    """Holds a temporary folder that only the end of the process clears away, as it is part of a cycle."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.folder = tempfile.TemporaryDirectory(prefix="vecenv-test-")
        self.folder_name, self.itself = self.folder.name, self


@start_methods
def test_finalizers_of_envs_run_at_the_end_of_the_worker(context):
    with SubprocVecEnv([FolderEnv], context=context) as envs:
        (folder,) = envs.get_attr("folder_name")
        assert Path(folder).is_dir()
    assert not Path(folder).exists()


class GrandchildEnv(CountEnv):
    """A child process opens files; its own child finds them open."""

    def reset(self, **arguments):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(12)]
            grandchild = os.fork()
            if grandchild == 0:
                os.write(writer, repr([number for number in opened if not _is_open(number)]).encode())
                os._exit(0)
            os.waitpid(grandchild, 0)
            os._exit(0)
        os.waitpid(child, 0)
        self.missing = ast.literal_eval(os.read(reader, 1000).decode())
        return super().reset(**arguments)


def _is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@start_methods
def test_files_of_processes_that_envs_start_stay_open(context):
    with SubprocVecEnv([GrandchildEnv], context=context) as envs:
        envs.reset()
        assert envs.get_attr("missing") == ([],)


class ThreadEnv(CountEnv):
    """Leaves a thread behind that an interpreter waits for."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        threading.Thread(target=time.sleep, args=(30,)).start()


@start_methods
def test_threads_that_envs_leave_behind_hold_nothing_up(context):
    envs = SubprocVecEnv([ThreadEnv], context=context)
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 8
    assert envs.processes[0].exitcode == 0


class CarelessEnv(ThreadEnv):
    """Closes what is not its own, over which the worker stumbles."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        os.closerange(3, 200)


@start_methods
def test_an_error_of_a_worker_itself_is_shown_and_ends_it(context, capfd):
    with pytest.raises(WorkerDied, match="exit code 1"):
        SubprocVecEnv([CarelessEnv], context=context)
    assert "Bad file descriptor" in capfd.readouterr().err


def test_a_worker_that_we_have_killed_was_not_killed_by_others():
    with SubprocVecEnv([functools.partial(CountEnv, seconds=30)], step_timeout=1.5) as envs:
        envs.reset()
        with pytest.raises(WorkerDied, match=r"longer than step_timeout.*SIGKILL\. "):
            envs.step([0])


def test_what_cannot_be_loaded_by_the_caller_is_the_failure_of_its_env():
    """The message was lost, and the call stayed pending for ever."""
    with SubprocVecEnv(count_fns(4, SecretiveEnv, length=9), num_workers=2) as envs:
        envs.reset()
        envs.step([0] * 4)
        with pytest.raises(EnvError, match="loaded elsewhere") as caught:
            envs.step([0] * 4)
        assert [failure.env_index for failure in caught.value.failures] == [1]
        assert caught.value.worker_pid == envs.worker_pids[0]
        envs.reset(options={"reset_mask": np.array([False, True, False, False])})
        assert envs.step([0] * 4)[0][:, 2].tolist() == [3, 1, 3, 3]
        with pytest.raises(EnvError, match=r"call\('secret'\)"):
            envs.call("secret")
        assert len(envs.get_attr("uid")) == 4


def test_what_cannot_be_loaded_by_the_caller_fails_rows_sent_alone():
    with SubprocVecEnv(count_fns(2, SecretiveEnv, length=9), num_workers=1, batch_size=1) as envs:
        envs.reset()
        envs.send([0], [1])
        envs.recv(timeout=20)
        envs.send([0], [1])
        with pytest.raises(EnvError, match=r"environment 1 .*loaded elsewhere"):
            envs.recv(timeout=20)
        envs.send([0], [0])
        assert envs.recv(timeout=20)[0][0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda envs, value: envs.set_attr("level", value),
        lambda envs, value: envs.call("set_wrapper_attr", "level", value),
        lambda envs, value: envs.reset(options={"level": value}),
        lambda envs, value: (envs.send_reset(options={"level": value}), envs.recv(timeout=20)),
    ],
)
def test_what_cannot_be_loaded_by_a_worker_does_not_end_it(ask):
    with SubprocVecEnv(count_fns(2), num_workers=2) as envs:
        envs.reset()
        with pytest.raises(EnvError, match="loaded elsewhere"):
            ask(envs, LoadsOnlyIn(os.getpid()))
        assert envs.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("seconds", [float("inf"), 1e9, np.float32(60)])
def test_long_limits_are_limits(seconds):
    with SubprocVecEnv(count_fns(2, seconds=0.01), num_workers=2, batch_size=1, step_timeout=seconds) as envs:
        envs.reset()
        envs.step_async([0, 0])
        assert envs.step_wait(timeout=seconds)[0][:, 2].tolist() == [1, 1]
        envs.send([0], [1])
        assert envs.recv(timeout=seconds)[4]["env_id"].tolist() == [1]
        assert not envs.processes[0].join(0.0)
    assert envs.processes[0].join(seconds)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"step_timeout": float("nan")}, ValueError, "step_timeout.*nan"),
        ({"context": 5}, UnknownSetting, "context=5"),
        ({"info_spec": "time"}, TypeError, "info_spec: expected a mapping"),
        ({"info_spec": {"time": "nonsense"}}, TypeError, "info_spec.'time'"),
        ({"info_spec": {"time": (float, (-1,))}}, TypeError, "info_spec.'time'"),
        ({"info_spec": {"name": object}}, ValueError, "no column holds"),
        ({"info_spec": {"name": "U5"}}, ValueError, "no column holds"),
        ({"info_spec": {"map": (np.float32, (80, 80))}}, ValueError, "no column holds"),
        ({"info_spec": {"final_obs": float}}, ValueError, "no column holds"),
    ],
)
def test_settings_are_refused_before_anything_starts(settings, error, text, monkeypatch):
    monkeypatch.setattr("vecenv.subproc_backend.WorkerGroup", None)
    with pytest.raises(error, match=text):
        SubprocVecEnv(count_fns(2), **settings)


@pytest.mark.parametrize("what", [float, "float64", np.dtype("float64"), np.float64, np.bool_, (bool, ()), (int, 3)])
def test_declared_infos(what):
    from vecenv.info_arena import declared_signatures

    assert len(declared_signatures({"time": what})) == 1


class MaskNamesEnv(CountEnv):
    """One env reports what is called as the mask of what another one reports."""

    def step(self, action):
        observation, *rest, _ = super().step(action)
        infos = [{"x": float(self.time)}, {"_x": 5.5}, {"__x": 7}, {"_x": "text"}, {"x": "text"}, {}]
        return observation, *rest, infos[(self.uid + self.time) % len(infos)]


def test_masks_are_masks_whatever_other_envs_report():
    results = []
    for build in BUILDS:
        with build(count_fns(3, MaskNamesEnv, length=99)) as envs:
            envs.reset()
            results.append([envs.step([0, 0, 0])[4] for _ in range(12)])
    for ours, others in zip(*results, strict=True):
        assert_same(ours, others)
        if "x" in ours:
            assert ours["_x"].dtype == np.bool_
            assert ours["_x"].tolist() == [value not in (None, 0) for value in ours["x"].tolist()]


def test_arguments_that_cannot_be_sent_are_named():
    with SubprocVecEnv(count_fns(2), num_workers=2) as envs:
        envs.reset()
        for call, what in [
            (lambda lock: envs.reset(options={"lock": lock}), "options"),
            (lambda lock: envs.send_reset(options={"lock": lock}), "options"),
            (lambda lock: envs.set_attr("lock", lock), r"set_attr\('lock'\)"),
            (lambda lock: envs.call("set_wrapper_attr", "lock", lock), r"call\('set_wrapper_attr'\)"),
        ]:
            with pytest.raises(TypeError, match=f"^{what}: cannot be sent"):
                call(threading.Lock())
        assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("together", [False, True])
def test_a_worker_is_closed_while_a_row_waits_for_its_words(together):
    """The message was taken for one of many, or lay in the channel behind another; `close` then took ten seconds."""
    envs = SubprocVecEnv(count_fns(2), num_workers=1, batch_size=1)
    channel, control = envs._group._channels[0], envs._control
    control.kinds[0], control.requested[0] = RESET_ROW, 1
    control.row_requests[0] += 1
    envs._group.wake(0)
    time.sleep(0.2)  # it waits for the words of the reset
    if together:
        words = [framed(dumps(("row_resets", {0: (None, None)}))), framed(dumps(("close",)))]
        channel._socket.sendall(b"".join(words))
        channel.send_now = lambda data: None
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 6
    assert envs.processes[0].exitcode == 0


SCRIPT = """
import atexit, functools

def too_late():
    try:
        envs.step([0])
    except Exception as error:
        print(type(error).__name__, flush=True)
    envs.close()

atexit.register(too_late)
from vecenv import SubprocVecEnv
from vecenv.testing import CountEnv

for context in ("forkserver", "fork"):
    envs = SubprocVecEnv([CountEnv], context=context)
    envs.reset()
"""


def test_exits_with_every_warning_an_error():
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (finished.stdout, finished.stderr, finished.returncode) == ("ClosedEnvironmentError\n", "", 0)
