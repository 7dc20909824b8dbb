"""How workers start: the traps of fork servers, start methods, unguarded scripts, and what happens when scripts end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from vecenv import SubprocVecEnv, make_vec, worker_process
from vecenv.fork_server import ForkServer
from vecenv.testing import CountEnv

METHODS = ("forkserver", "spawn", "fork")

#: Seconds that a script may take, far above what one needs: it starts several interpreters. Only a hang comes near.
LONG = 150


def run_script(code, folder, *, name="script.py", **environment):
    path = Path(folder) / name
    path.write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environment},
    )


class GlobalStateEnv(CountEnv):
    """Tells things about the process that it lives in."""

    def __init__(self):
        super().__init__()
        import random

        self.drawn = (random.random(), float(np.random.random()))  # noqa: NPY002 - the global one is meant
        self.threads = os.environ.get("OMP_NUM_THREADS")
        self.path = list(sys.path)
        self.parent = os.getppid()
        self.folder = os.getcwd()
        self.variable = os.environ.get("VECENV_TEST_VARIABLE")

    def imported(self, name):
        return name in sys.modules

    def thread_count(self):
        return len(os.listdir("/proc/self/task"))


def state_envs(context, count=3, **arguments):
    return SubprocVecEnv([GlobalStateEnv] * count, num_workers=count, context=context, **arguments)


@pytest.mark.parametrize("context", METHODS)
def test_workers_differ_in_their_global_generators(context):
    """Trap: forked with NumPy preloaded, every worker would begin with the server's state."""
    with state_envs(context) as envs:
        drawn = envs.get_attr("drawn")
    assert len({one for one, _ in drawn}) == 3
    assert len({two for _, two in drawn}) == 3


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_thread_variables_are_set_before_libraries_load(context, monkeypatch):
    """Trap: set in the worker they would come too late. The user's own process is left alone."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with state_envs(context) as envs:
        assert envs.get_attr("threads") == ("1",) * 3
        assert max(envs.call("thread_count")) <= 2
    assert "OMP_NUM_THREADS" not in os.environ


def test_preloading_works_and_never_brings_torch():
    """Trap: a fork server that is given `sys_path` ignores it, so that preloads silently fail."""
    with state_envs("forkserver", preload=("vecenv.infos", "colorsys")) as envs:
        assert envs.call("imported", "colorsys") == (True,) * 3
        assert envs.call("imported", "torch") == (False,) * 3


def test_preload_sees_the_users_path(tmp_path):
    (tmp_path / "only_here.py").write_text("X = 1\n")
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        class Env(CountEnv):
            def loaded(self):
                return "only_here" in sys.modules
        envs = SubprocVecEnv([Env], preload=("only_here",))
        print(envs.call("loaded"))
    """
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = run_script(code, folder)
    assert done.stdout.strip() == "(True,)", done.stderr


def test_the_standard_fork_server_is_left_alone():
    """Trap: the global fork server belongs to everyone."""
    from multiprocessing import forkserver

    before = forkserver._forkserver._forkserver_pid
    with state_envs("forkserver"):
        pass
    assert forkserver._forkserver._forkserver_pid == before


@pytest.mark.parametrize("context", METHODS)
def test_workers_end_when_the_users_process_is_killed(context, tmp_path):
    """Trap: a worker's parent is the fork server, so neither getppid nor a parent-death signal sees it."""
    code = f"""
        import time
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        envs = SubprocVecEnv([lambda: CountEnv(seconds=1000)] * 2, num_workers=2, context={context!r})
        idle = SubprocVecEnv([CountEnv], context={context!r})
        envs.reset()
        idle.reset()
        envs.step_async([0, 0])
        print(*envs.worker_pids, *idle.worker_pids, flush=True)
        time.sleep(1000)
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    servers = [child.pid for child in psutil.Process(process.pid).children()]
    assert len(pids) == 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    process.kill()
    process.wait(timeout=10)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(psutil.pid_exists, [*pids, *servers])):
        time.sleep(0.05)
    assert not [pid for pid in [*pids, *servers] if psutil.pid_exists(pid)]
    process.stdout.close()


@pytest.mark.skipif("VECENV_PORTABLE" in os.environ, reason="without SIGIO a thread must get its turn to see the end")
def test_a_native_loop_ends_with_the_users_process(tmp_path):
    """Even code that never gives the interpreter a chance to look is ended."""
    code = """
        import time, re
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        class Env(CountEnv):
            def step(self, action):
                re.match(r"(a+)+$", "a" * 60 + "b")
        envs = SubprocVecEnv([Env], context="spawn")
        envs.reset()
        envs.step_async([0])
        print(*envs.worker_pids, flush=True)
        time.sleep(1000)
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    process.kill()
    process.wait(timeout=10)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and psutil.pid_exists(pid):
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
    process.stdout.close()


def test_surroundings_are_the_users_at_construction(tmp_path, monkeypatch):
    with state_envs("forkserver", 1):
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VECENV_TEST_VARIABLE", "here")
    monkeypatch.syspath_prepend(str(tmp_path))
    for context in METHODS:
        with state_envs(context, 1) as envs:
            assert envs.get_attr("folder") == (str(tmp_path),)
            assert envs.get_attr("variable") == ("here",)
            assert str(tmp_path) in envs.get_attr("path")[0]


UNGUARDED = """
    import sys
    import gymnasium as gym
    from vecenv import SubprocVecEnv, make_vec

    class Mine(gym.Env):
        observation_space = gym.spaces.Discrete(3)
        action_space = gym.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return 1, {}
        def step(self, action):
            return offset, 1.0, False, False, {}

    offset = 2
    gym.register("Mine-v0", entry_point=Mine)
    envs = make_vec("Mine-v0", 3, "subproc", num_workers=2, backend_options={"context": METHOD})
    envs.reset()
    print(envs.step([0, 1, 0])[0].tolist())
    other = SubprocVecEnv([lambda: Mine()] * 2, context=METHOD)
    other.reset()
    print(other.step([0, 1])[0].tolist())
    print("end")
"""


@pytest.mark.parametrize("context", METHODS)
def test_unguarded_scripts_work(context, tmp_path):
    """No main guard, classes and ids that exist in the script alone, no close at the end."""
    done = run_script(UNGUARDED.replace("METHOD", repr(context)), tmp_path)
    assert done.stdout.split("\n") == ["[2, 2, 2]", "[2, 2]", "end", ""], done.stderr
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("context", METHODS)
def test_commands_given_as_text_work(context, tmp_path):
    code = (
        "from vecenv import SubprocVecEnv; from vecenv.testing import CountEnv; "
        f"e = SubprocVecEnv([lambda: CountEnv(7)], context={context!r}); print(e.reset()[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.stdout == "[[7.0, 0.0, 0.0]]\n", done.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise KeyError('mine')", 1),
        ("pass", 0),
        ("del envs", 0),
        ("envs.step_async([0, 0])", 0),
        ("sys.exit(5)", 5),
        ("os._exit(6)", 6),
        ("sys.exit(7) if os.fork() else sys.exit(0)", 7),
    ],
)
def test_scripts_end_with_their_own_code(ending, code, tmp_path):
    script = f"""
        import os, sys
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        envs = SubprocVecEnv([CountEnv] * 2, num_workers=2)
        envs.reset()
        envs.step([0, 0])
        print(*envs.worker_pids, flush=True)
        {ending}
    """
    done = run_script(script, tmp_path)
    assert done.returncode == code, done.stderr
    if "KeyError" in ending:
        assert done.stderr.count("Traceback") == 1
    else:
        assert done.stderr == ""
    pids = [int(word) for word in done.stdout.split()[:2]]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(psutil.pid_exists, pids)):
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def test_a_fork_of_the_user_leaves_the_workers_alone(tmp_path):
    script = """
        import os
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        envs = SubprocVecEnv([CountEnv] * 2, num_workers=2)
        envs.reset()
        pid = os.fork()
        if pid == 0:
            envs.close()
            del envs
            raise SystemExit(0)
        os.waitpid(pid, 0)
        print(envs.step([0, 0])[0].tolist())
    """
    done = run_script(script, tmp_path)
    assert done.stdout == "[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]\n", done.stderr


def test_interrupting_prints_one_traceback(tmp_path):
    script = """
        from vecenv import SubprocVecEnv
        from vecenv.testing import CountEnv
        envs = SubprocVecEnv([lambda: CountEnv(seconds=0.2)] * 4, num_workers=4)
        envs.reset()
        print(*envs.worker_pids, flush=True)
        while True:
            envs.step([0] * 4)
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    process = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.count("Traceback") == 1, errors
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT or process.returncode == 130
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(psutil.pid_exists, pids)):
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_an_interrupt_while_a_process_starts_is_left_to_the_user(context, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self.send_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    server = ForkServer()
    monkeypatch.setattr(worker_process, "fork_server", lambda: server)
    with SubprocVecEnv([CountEnv], context=context) as envs:
        envs.reset()
        status = Path(f"/proc/{envs.processes[0].pid}/status").read_text() if sys.platform == "linux" else ""
        held_back = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk")]
        assert not any(mask & 1 << signal.SIGINT - 1 for mask in held_back)  # an env may want the signal


def test_threads_in_the_users_process_do_not_matter():
    """Numeric threads that already run would break a fork; forkserver and spawn do not care."""
    torch = pytest.importorskip("torch")
    torch.ones(600, 600) @ torch.ones(600, 600)
    for context in ("forkserver", "spawn"):
        with SubprocVecEnv([functools.partial(CountEnv, length=50)] * 2, context=context) as envs:
            envs.reset()
            for _ in range(100):
                envs.step([0, 0])


def test_idle_workers_use_no_time():
    with SubprocVecEnv([CountEnv] * 2, num_workers=2) as envs:
        envs.reset()
        processes = [psutil.Process(pid) for pid in envs.worker_pids]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(1.0)
        after = [sum(process.cpu_times()[:2]) for process in processes]
    assert max(np.subtract(after, before)) < 0.2


def test_portable_path(tmp_path):
    """What macOS uses, on Linux by a switch: socket pairs and an unlinked temporary file."""
    script = """
        from vecenv import make_vec
        for context in ("forkserver", "spawn"):
            with make_vec("CartPole-v1", 4, "subproc", num_workers=2, backend_options={"context": context}) as envs:
                envs.reset(seed=0)
                for _ in range(50):
                    observations, *_ = envs.step([0, 1, 0, 1])
                print(observations.shape)
    """
    done = run_script(script, tmp_path, VECENV_PORTABLE="1")
    assert done.stdout == "(4, 4)\n(4, 4)\n", done.stderr


@pytest.mark.parametrize("context", METHODS)
def test_start_methods_give_the_same_results(context):
    with make_vec("CartPole-v1", 3, "subproc", backend_options={"context": context}) as envs:
        envs.reset(seed=1)
        for _ in range(30):
            observations, *_ = envs.step([0, 1, 0])
    with make_vec("CartPole-v1", 3, "sync") as envs:
        envs.reset(seed=1)
        for _ in range(30):
            expected, *_ = envs.step([0, 1, 0])
    np.testing.assert_array_equal(observations, expected)


@pytest.mark.parametrize("context", METHODS)
def test_a_folder_that_is_gone(context, tmp_path):
    code = (
        "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); from vecenv import SubprocVecEnv; "
        "from vecenv.testing import CountEnv; os.rmdir(d); "
        f"e = SubprocVecEnv([CountEnv], context={context!r}); print(e.reset()[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.stdout == "(1, 3)\n", done.stderr


def test_no_complaints_in_development_mode(tmp_path):
    code = (
        "from vecenv import SubprocVecEnv; from vecenv.testing import CountEnv; "
        "e = SubprocVecEnv([CountEnv]); e.reset()"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG
    )
    assert "unclosed" not in done.stderr, done.stderr


def test_an_unknown_exit_status_is_called_unknown(tmp_path):
    script = """
        import os, signal, time
        from vecenv import SubprocVecEnv, WorkerDied
        from vecenv.testing import CountEnv
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        envs = SubprocVecEnv([CountEnv], context="spawn")
        envs.reset()
        os.kill(envs.worker_pids[0], 9)
        time.sleep(0.2)
        try:
            envs.step([0])
        except WorkerDied as error:
            print(error.exitcode, "unknown" in str(error))
    """
    assert run_script(script, tmp_path).stdout == "None True\n"
