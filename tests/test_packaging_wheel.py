"""The built wheel, installed in a clean environment and used beside files that bear our folders' names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "vecenv": "vecenv",
    "preprocess": "vecenv/preprocess",
    "agents": "vecenv/agents",
    "benchmarks": "vecenv/benchmarks",
}
DECOY = "raise ImportError('a file of the user was imported in place of vecenv')\n"

# Unguarded on purpose, and run from the folder with the decoys: workers must not pick them up either.
SCRIPT = """
import sys
import numpy as np
import vecenv, vecenv.preprocess, vecenv.agents, vecenv.benchmarks
assert vecenv.__file__.startswith(sys.prefix), vecenv.__file__
with vecenv.make_vec("CartPole-v1", 4, "subproc", num_workers=2) as envs:
    observations, infos = envs.reset(seed=0)
    for _ in range(20):
        observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    assert observations.shape == (4, 4) and np.isfinite(observations).all()
print("stepped")
"""


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy: a build folder left in the checkout could bring files that are gone."""
    folder = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        "dist",
    ]
    built = run(command, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; the requirements are borrowed by path, so no network is needed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel]
    installed = run(command, folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    # A path added this way does not have its own .pth files read, so an editable vecenv there stays out of sight.
    borrowed = {
        str(Path(spec.origin).parent.parent) for name in ("numpy", "numba") if (spec := find_spec(name)) and spec.origin
    }
    (site_packages / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return folder


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    for name in ("preprocess", "agents", "benchmarks"):
        (tmp_path / f"{name}.py").write_text(DECOY)
    return tmp_path


def test_wheel_holds_every_source_file_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        f"{target}/{path.name}" for folder, target in FOLDERS.items() for path in (ROOT / folder).glob("*.py")
    } | {"vecenv/py.typed"}
    assert names == expected


def test_wheel_runs_beside_decoys(environment: Path, decoys: Path) -> None:
    (decoys / "script.py").write_text(SCRIPT)
    finished = run([environment / "bin" / "python", "script.py"], decoys)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.strip() == "stepped"


@pytest.mark.slow
def test_wheel_compiles_its_kernels(environment: Path, decoys: Path) -> None:
    (decoys / "script.py").write_text(
        SCRIPT.replace('"CartPole-v1"', '"PongNoFrameskip-v4"').replace("(4, 4)", "(4, 4, 84, 84)")
    )
    finished = run([environment / "bin" / "python", "script.py"], decoys)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.strip() == "stepped"


def test_installed_command_runs_beside_decoys(environment: Path, decoys: Path) -> None:
    command = environment / "bin" / "vecenv"
    overview = run([command, "--help"], decoys)
    assert overview.returncode == 0, overview.stderr
    assert "train" in overview.stdout
    for words in (["bench", "throughput", "--help"], ["demo", "--help"], ["doctor"], ["train", "ppo", "--help"]):
        finished = run([command, *words], decoys)
        assert finished.returncode == 0, (words, finished.stderr)
