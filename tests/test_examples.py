"""Every script in examples/ runs to its end in its short form, from another folder, as a user starts it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
#: Script -> the packages that it needs and what its last line says.
SCRIPTS: dict[str, tuple[tuple[str, ...], str]] = {
    "async_send_recv.py": ((), r"steps of each env: \[\d+(, \d+){7}\]"),
    "own_backend.py": ((), r"4\d checks of the contract hold"),
    "own_env.py": ((), r"\d+ episodes, mean return -?\d+\.\d\d, tops \(-2\.0, .*2\.0\)"),
    "sb3_ppo.py": (("stable_baselines3", "torch"), r"mean return of the last \d+ episodes: \d+\.\d"),
    "tianshou_dqn.py": (("tianshou", "torch"), r"best mean return \d+\.\d after 320 steps"),
}
#: Run below, or by the tests of what they show.
ELSEWHERE = {"compiled_env.py", "ppo_single_file.py", "rllib_cartpole.py"}


def run(script: str, folder: Path, *arguments: str) -> list[str]:
    """Lines that a script prints; fails with its stderr where it fails."""
    command = [sys.executable, str(EXAMPLES / script), "--short", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip().splitlines()


def test_every_script_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs(script: str, tmp_path: Path) -> None:
    needed, last_line = SCRIPTS[script]
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert re.fullmatch(last_line, run(script, tmp_path)[-1])
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_single_file_ppo_learns_the_same_on_gymnasiums_vector_env(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ours, theirs = (run("ppo_single_file.py", tmp_path, "--vector", vector) for vector in ("vecenv", "gymnasium"))
    assert len(ours) == 8
    assert re.fullmatch(r"step +4096  mean return +\d+\.\d  \(.* steps/s\)", ours[-1])
    assert [line.partition("(")[0] for line in ours] == [line.partition("(")[0] for line in theirs]
