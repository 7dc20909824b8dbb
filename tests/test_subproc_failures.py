"""What goes wrong in workers is named, survived where it can be, and leaves nothing behind."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gated_env import GatedEnv
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, WorkerDied
from vecenv.testing import CountEnv

#: Far above what any of this takes; only a hang comes near.
LONG = 30.0


def count_fns(count=4, **settings):
    return [functools.partial(CountEnv, uid=uid, **settings) for uid in range(count)]


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def is_running(pid):
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def command_of(pid):
    """Empty if the process ends meanwhile."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def wait_until_gone(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return
        time.sleep(0.02)
    raise AssertionError(f"still running after {seconds} s: {pids}")


class FailingEnv(CountEnv):
    """Raises what a factory makes, in the method that it is told."""

    def __init__(self, uid=0, where="step", make_exception=lambda: ValueError("boom")):
        super().__init__(uid)
        self.where, self.make_exception = where, make_exception
        if where == "construction":
            raise make_exception()

    def reset(self, **arguments):
        if self.where == "reset":
            raise self.make_exception()
        return super().reset(**arguments)

    def step(self, action):
        if self.where == "step":
            raise self.make_exception()
        return super().step(action)

    def close(self):
        if self.where == "close":
            raise self.make_exception()


class DemandingError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two


def unpicklable():
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()
    return error


@pytest.mark.parametrize("build", [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)])
@pytest.mark.parametrize("failing", [[2], [1, 2]])
def test_an_exception_names_its_env_and_spares_the_others(build, failing):
    fns = [functools.partial(CountEnv, uid=uid, fails_at=2 if uid in failing else None) for uid in range(4)]
    with build(fns) as envs:
        envs.reset()
        envs.step([0] * 4)
        with pytest.raises(ValueError, match=f"boom from env {failing[0]}") as caught:
            envs.step([0] * 4)
        error = caught.value
        assert isinstance(error, EnvError)
        assert error.env_index == failing[0]
        assert [failure.env_index for failure in error.failures] == failing
        assert type(error.__cause__) is ValueError
        assert "in step" in error.remote_traceback
        for index in failing:
            assert f"environment {index}" in str(error)
        assert type(pickle.loads(pickle.dumps(error))).__mro__[1] is EnvError
        with pytest.raises(gym.error.ResetNeeded, match="failed before"):
            envs.step([0] * 4)
        mask = np.zeros(4, np.bool_)
        mask[failing] = True
        observations, _ = envs.reset(options={"reset_mask": mask})
        expected = [[uid, uid in failing, 0 if uid in failing else 2] for uid in range(4)]
        np.testing.assert_array_equal(observations, expected)


@pytest.mark.parametrize("build", [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)])
@pytest.mark.parametrize("where", ["construction", "reset", "step"])
@pytest.mark.parametrize(
    ("make_exception", "kind"),
    [
        (lambda: KeyError("missing"), KeyError),
        (lambda: OSError(28, "no space"), OSError),
        (lambda: DemandingError(1, 2), Exception),
        (unpicklable, RuntimeError),
        (lambda: SystemExit(3), EnvError),
        (lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), EnvError),
        (lambda: StopIteration(1), EnvError),
    ],
)
def test_exceptions_of_every_sort(build, where, make_exception, kind):
    """Whatever the class, it is an EnvError with index and traceback, and of the original's class where possible."""
    fns = [CountEnv, functools.partial(FailingEnv, 1, where, make_exception)]

    def run():
        with build(fns) as envs:
            envs.reset()
            envs.step([0, 0])

    with pytest.raises(EnvError, match=f"environment 1 .* during `{where}`") as caught:
        run()
    assert isinstance(caught.value, kind)
    assert "make_exception()" in caught.value.remote_traceback
    assert caught.value.env_index == 1


def test_an_exception_in_close_does_not_stop_the_closing(capfd):
    envs = SubprocVecEnv([CountEnv, functools.partial(FailingEnv, 1, "close"), CountEnv], num_workers=1)
    pids = envs.worker_pids
    envs.reset()
    envs.close()
    wait_until_gone(pids)
    assert "boom" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("moment", ["idle", "step", "reset"])
def test_a_killed_worker_names_itself(number, moment):
    SubprocVecEnv(count_fns(1)).close()  # the fork server's socket stays
    before = open_descriptors()
    envs = SubprocVecEnv(count_fns(4, seconds=LONG if moment == "step" else 0.0), num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    if moment == "step":
        envs.step_async([0] * 4)
        time.sleep(0.1)
    os.kill(pids[1], number)
    start = time.monotonic()
    calls = {"step": envs.step_wait, "reset": envs.reset, "idle": lambda: envs.step([0] * 4)}
    if moment == "idle":
        envs.processes[1].join(10)
    with pytest.raises(WorkerDied, match=f"worker process {pids[1]} .environments 2, 3.*{number.name}") as caught:
        calls[moment]()
    assert time.monotonic() - start < 10
    assert caught.value.env_indices == (2, 3)
    assert caught.value.pid == pids[1]
    assert caught.value.exitcode == -number
    with pytest.raises(WorkerDied):
        envs.step([0] * 4)
    with pytest.raises(WorkerDied):
        envs.call("uid")
    envs.close(terminate=moment == "step")  # the other worker is in its step still
    envs.close()
    wait_until_gone(pids)
    assert open_descriptors() <= before + 1  # the block's, which stays mapped as long as `envs` is there


class ExitingEnv(CountEnv):
    def __init__(self, uid=0, where="step", how=lambda: os._exit(7)):
        super().__init__(uid)
        self.where, self.how = where, how
        if where == "construction":
            how()

    def reset(self, **arguments):
        if self.where == "reset":
            self.how()
        return super().reset(**arguments)

    def step(self, action):
        if self.where == "step":
            self.how()
        return super().step(action)


@pytest.mark.parametrize("where", ["construction", "reset", "step"])
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_a_worker_that_leaves_names_itself(where, context):
    children = {child.pid for child in psutil.Process().children(recursive=True)}

    def run():
        with SubprocVecEnv([CountEnv, functools.partial(ExitingEnv, 1, where)], num_workers=2, context=context) as envs:
            envs.reset()
            envs.step([0, 0])

    with pytest.raises(WorkerDied, match=r"environments 1.*exit code 7") as caught:
        run()
    assert caught.value.exitcode == 7
    wait_until_gone([caught.value.pid])
    new = {child.pid for child in psutil.Process().children(recursive=True)} - children
    left = [pid for pid in new if "fork_server" not in command_of(pid)]
    wait_until_gone(left)


def test_construction_that_fails_leaves_nothing(capfd):
    before = open_descriptors()

    def bad():
        raise ValueError("cannot build")

    for build in (lambda: [CountEnv, CountEnv, bad, CountEnv],):
        with pytest.raises(ValueError, match=r"environment 2 .*cannot build"):
            SubprocVecEnv(build(), num_workers=4)
    assert open_descriptors() <= before + 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_constructor_that_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"env_fns\[1\] cannot be sent"):
        SubprocVecEnv([CountEnv, lambda: lock and CountEnv()])


def test_timeouts_kill_nothing_and_lose_nothing(tmp_path):
    gate = tmp_path / "gate"
    fns = [functools.partial(GatedEnv, str(gate), uid=uid) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=2) as envs:
        envs.reset()
        envs.step_async([0, 0])
        for _ in range(2):
            with pytest.raises(multiprocessing.TimeoutError, match="stays pending"):
                envs.step_wait(timeout=0.05)
        with pytest.raises(AlreadyPendingCallError):
            envs.step_async([0, 0])
        with pytest.raises(AlreadyPendingCallError):
            envs.call("uid")
        with pytest.raises(AlreadyPendingCallError):
            envs.reset()
        gate.touch()
        observations, *_ = envs.step_wait(timeout=LONG)
        np.testing.assert_array_equal(observations, [[0, 0, 1], [1, 0, 1]])


def test_waiting_for_nothing_is_an_error():
    with SubprocVecEnv(count_fns(2)) as envs:
        for wait in (envs.step_wait, envs.reset_wait, envs.call_wait):
            with pytest.raises(NoAsyncCallError):
                wait(timeout=LONG)


@pytest.mark.parametrize("seconds", [0.3, 100.0])
def test_closing_during_a_step(seconds):
    envs = SubprocVecEnv(count_fns(2, seconds=seconds), num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    envs.step_async([0, 0])
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 20
    wait_until_gone(pids)


class LargeInfoEnv(CountEnv):
    def step(self, action):
        return *super().step(action)[:4], {"text": "x" * 20_000_000}


def test_closing_with_large_unread_infos():
    envs = SubprocVecEnv([LargeInfoEnv] * 2, num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    assert len(envs.step([0, 0])[4]["text"][1]) == 20_000_000
    envs.step_async([0, 0])
    time.sleep(0.3)
    envs.close()
    wait_until_gone(pids)


class LockInfoEnv(CountEnv):
    def step(self, action):
        return *super().step(action)[:4], {"lock": threading.Lock()}


def test_infos_that_cannot_be_sent_are_named():
    with SubprocVecEnv([CountEnv, LockInfoEnv, CountEnv], num_workers=1) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 1 .*pickle"):
            envs.step([0] * 3)


def test_deleting_ends_the_workers():
    envs = SubprocVecEnv(count_fns(2), num_workers=2)
    pids = envs.worker_pids
    del envs
    wait_until_gone(pids, 20)


def test_no_trace_in_shared_memory_or_temporary_files(tmp_path, monkeypatch):
    def shared():
        """Files of shared memory, by the names that ours, or those of Python, would have; others may come and go."""
        return {name for name in os.listdir("/dev/shm") if "vecenv" in name or name.startswith("psm_")}

    # A folder of our own, in this process and in the workers: others write to the common one meanwhile.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = shared()
    envs = SubprocVecEnv(count_fns(2), num_workers=2)
    envs.reset()
    assert shared() <= before
    assert not list(tmp_path.iterdir())
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    envs.close()
    assert shared() <= before
    assert not list(tmp_path.iterdir())


def test_the_fork_server_may_die():
    """Its workers go on; the next vector env starts another one."""
    from vecenv.fork_server import fork_server

    with SubprocVecEnv(count_fns(2), num_workers=2) as envs:
        envs.reset()
        server = fork_server()._process
        os.kill(server.pid, signal.SIGKILL)
        wait_until_gone([server.pid])
        envs.step([0, 0])
        with SubprocVecEnv(count_fns(2), num_workers=2) as others:
            others.reset()
            others.step([0, 0])
        assert fork_server()._process.pid != server.pid


def test_out_of_descriptors_is_an_error_and_leaves_nothing():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    SubprocVecEnv(count_fns(1)).close()
    before = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 12, hard))
    try:
        with pytest.raises((OSError, RuntimeError)):
            SubprocVecEnv(count_fns(32), num_workers=32)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_descriptors() <= before
    with SubprocVecEnv(count_fns(2)) as envs:
        envs.reset()


def test_too_large_a_block_is_refused():
    with pytest.raises(MemoryError, match="shared memory"):
        SubprocVecEnv(count_fns(4), num_workers=1, slots=10**10)
