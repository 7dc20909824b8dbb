"""What holds for every engine that steps environments in threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENGINES = {"ale": ("ale_py", "PongNoFrameskip-v4"), "envpool": ("envpool", "CartPole-v1")}


def _own_errors(errors: str) -> str:
    """Without what ale_py's binding says at the end of an interpreter about an engine that a fork never let go."""
    before, _, _ = errors.partition("nanobind: leaked")
    return before


#: The parent goes on with its engine, and ends as its child did; what follows is the child's.
FORK = """
child = os.fork()
if child:
    envs.step([0, 0])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _finished(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


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
        f"{FORK}"
        "try:\n    envs.step([0, 0])\n"
        f"except gym.error.ClosedEnvironmentError:\n    {ending or 'pass'}\n    sys.exit(7)\n"
    )
    finished = _finished(script)
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
        f"{FORK}"
        "own = make()\nown.reset()\nown.step([0, 0])\nown.close()\nenvs.close()\ndel envs\nsys.exit(7)\n"
    )
    finished = _finished(script)
    assert (finished.returncode, _own_errors(finished.stderr)) == (7, "")


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads")
@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_threads_end_with_close_and_with_the_engine_that_another_one_replaces(backend: str) -> None:
    package, env_id = ENGINES[backend]
    pytest.importorskip(package)

    script = (
        "import os, sys, time, vecenv\n"
        "def count():\n    return len(os.listdir('/proc/self/task'))\n"
        "def at_most(threads):\n"
        "    end = time.monotonic() + 10\n"
        "    while (over := count() > threads) and time.monotonic() < end:\n        time.sleep(0.01)\n"
        "    return not over\n"
        "before = count()\n"
        f"envs = vecenv.make_vec({env_id!r}, 3, {backend!r}, backend_options={{'num_threads': 3}})\n"
        "envs.reset(seed=0)\nenvs.step([0, 0, 0])\n"
        "running = count()\n"
        "assert running > before\n"
        "envs.reset(seed=1)\nenvs.step([0, 0, 0])\n"
        "assert at_most(running), f'{count()} threads, {running} before the second engine'\n"
        "envs.close()\n"
        "assert at_most(before), f'{count()} threads, {before} before the first engine'\n"
        "sys.exit(7)\n"
    )
    finished = _finished(script)
    assert finished.returncode == 7, finished.stderr
