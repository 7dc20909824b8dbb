"""The built wheel, installed in a clean environment and used beside files that bear our folders' names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DECOY = "raise ImportError('a file of the user was imported in place of vecenv')\n"


def load_dist() -> ModuleType:
    """What `make dist` runs."""
    spec = spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dist = load_dist()


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy: a build folder left in the checkout could bring files that are gone."""
    folder = tmp_path_factory.mktemp("source")
    for name in dist.FOLDERS:
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
    assert dist.wheel_problems(wheel, ROOT) == []


def test_a_wheel_that_is_not_what_it_should_be_is_refused(wheel: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wrong, "w") as new:
        for name in old.namelist():
            if name != "vecenv/agents/ppo.py":
                new.writestr(name, old.read(name) + b" " * (name == "vecenv/cli.py"))
        new.writestr("tests/test_cli.py", "")
    assert dist.wheel_problems(wrong, ROOT) == [
        "wrong.whl lacks vecenv/agents/ppo.py",
        "wrong.whl holds tests/test_cli.py, which the sources do not",
    ]
    assert dist.wheel_differences(wheel, wrong) == ["tests/test_cli.py", "vecenv/agents/ppo.py", "vecenv/cli.py"]
    assert dist.wheel_differences(wheel, wheel) == []


def test_an_sdist_that_is_not_what_it_should_be_is_refused(tmp_path: Path) -> None:
    sdist = tmp_path / "x-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("PKG-INFO", "x.egg-info/SOURCES.txt", "README.md", "stale.py"):
            archive.addfile(tarfile.TarInfo(f"x-1/{name}"))
    assert dist.sdist_problems(sdist, {"README.md", "LICENSE", ".gitignore"}) == [
        "x-1.tar.gz lacks LICENSE",
        "x-1.tar.gz holds stale.py, which the sources do not",
    ]


def test_a_command_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(dist.ReleaseError, match="nothing works"):
        dist.run([sys.executable, "-c", "raise SystemExit('nothing works')"], tmp_path)


def smoke(environment: Path, decoys: Path, env_id: str) -> str:
    shutil.copy(ROOT / ".ci" / "smoke.py", decoys)
    finished = run([environment / "bin" / "python", "smoke.py", env_id], decoys)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout.strip()


def test_wheel_runs_beside_decoys(environment: Path, decoys: Path) -> None:
    assert smoke(environment, decoys, "CartPole-v1") == "stepped CartPole-v1 (4, 4) float32"


@pytest.mark.slow
def test_wheel_compiles_its_kernels(environment: Path, decoys: Path) -> None:
    assert smoke(environment, decoys, "PongNoFrameskip-v4") == "stepped PongNoFrameskip-v4 (4, 4, 84, 84) uint8"


def test_installed_command_runs_beside_decoys(environment: Path, decoys: Path) -> None:
    command = environment / "bin" / "vecenv"
    overview = run([command, "--help"], decoys)
    assert overview.returncode == 0, overview.stderr
    assert "train" in overview.stdout
    for words in (
        ["bench", "throughput", "--help"],
        ["demo", "--help"],
        ["doctor", "--no-run"],
        ["train", "ppo", "--help"],
    ):
        finished = run([command, *words], decoys)
        assert finished.returncode == 0, (words, finished.stderr)
