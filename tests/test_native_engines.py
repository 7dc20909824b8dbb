"""What holds for every engine that steps environments in threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from vecenv import make_vec

ENGINES = {"ale": ("ale_py", "PongNoFrameskip-v4"), "envpool": ("envpool", "CartPole-v1")}


def _own_errors(errors: str) -> str:
    """Without what ale_py's binding says at the end of an interpreter about an engine that a fork never let go."""
    before, _, _ = errors.partition("nanobind: leaked")
    return before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("ending", ["", "del envs", "envs.close()"])
@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_a_fork_refuses_instead_of_waiting_for_threads_that_it_does_not_have(backend: str, ending: str) -> None:
    package, env_id = ENGINES[backend]
    pytest.importorskip(package)
    script = (
        "import os, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "import gymnasium as gym, vecenv\n"
        f"envs = vecenv.make_vec({env_id!r}, 2, {backend!r})\nenvs.reset()\n"
        "child = os.fork()\n"
        "if child:\n    envs.step([0, 0])\n    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n    envs.step([0, 0])\n"
        f"except gym.error.ClosedEnvironmentError:\n    {ending or 'pass'}\n    sys.exit(7)\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, _own_errors(finished.stderr)) == (7, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_a_fork_with_an_engine_of_its_own_lets_the_other_one_be(backend: str) -> None:
    """Threads of its own take the places of those that were not copied, so that waiting for those would be wrong."""
    package, env_id = ENGINES[backend]
    pytest.importorskip(package)
    script = (
        "import os, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "import vecenv\n"
        f"make = lambda: vecenv.make_vec({env_id!r}, 2, {backend!r})\nenvs = make()\nenvs.reset()\n"
        "child = os.fork()\n"
        "if child:\n    envs.step([0, 0])\n    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "own = make()\nown.reset()\nown.step([0, 0])\nown.close()\nenvs.close()\ndel envs\nsys.exit(7)\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, _own_errors(finished.stderr)) == (7, "")


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads")
@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_threads_end_with_close_and_with_the_engine_that_another_one_replaces(backend: str) -> None:
    package, env_id = ENGINES[backend]
    pytest.importorskip(package)

    def at_most(threads: int) -> bool:
        end = time.monotonic() + 10
        while (over := len(os.listdir("/proc/self/task")) > threads) and time.monotonic() < end:
            time.sleep(0.01)
        return not over

    before = len(os.listdir("/proc/self/task"))
    envs = make_vec(env_id, 3, backend, backend_options={"num_threads": 3})
    envs.reset(seed=0)
    envs.step([0, 0, 0])
    running = len(os.listdir("/proc/self/task"))
    assert running > before
    envs.reset(seed=1)
    envs.step([0, 0, 0])
    assert at_most(running)
    envs.close()
    assert at_most(before)
