"""What holds for every engine that steps environments in threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENGINES = {"ale": ("ale_py", "PongNoFrameskip-v4"), "envpool": ("envpool", "CartPole-v1")}


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
    assert (finished.returncode, finished.stderr) == (7, "")
