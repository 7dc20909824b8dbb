"""Build a release of the last commit into ``dist/``, and try it: ``make dist``.

1. The files of the commit are laid out in a temporary folder, so that nothing untracked or stale gets in.
2. An sdist is built from them, a wheel from the sdist, and a wheel from the files; both wheels must hold the same.
3. Sdist and wheel must hold what the commit holds, no more and no less; ``twine check --strict`` reads their metadata.
4. The wheel is installed in a fresh virtual environment with the pinned versions, and used from a folder elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "vecenv": "vecenv",
    "preprocess": "vecenv/preprocess",
    "agents": "vecenv/agents",
    "benchmarks": "vecenv/benchmarks",
}
# What the commit has and an sdist does not: git's own settings mean nothing there.
NOT_IN_SDIST = {".gitignore"}
SMOKE_ENVS = ("CartPole-v1", "PongNoFrameskip-v4")
TIMEOUT = 900.0  # seconds for one command; the slowest downloads the requirements


class ReleaseError(Exception):
    """The release is not what it should be; the message says how."""


def run(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        environment: variables beside those of this process, of which Python's own are left out.

    Raises:
        ReleaseError: it failed; the message holds what it printed.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    finished = subprocess.run(
        words, cwd=folder, env=variables | (environment or {}), capture_output=True, text=True, timeout=TIMEOUT
    )
    if finished.returncode:
        raise ReleaseError(f"{' '.join(words)}\n{finished.stdout}{finished.stderr}")
    return finished.stdout


def export_commit(folder: Path) -> set[str]:
    """Lay out the files of the last commit.

    Args:
        folder: an empty folder.

    Returns:
        Their paths.
    """
    archive = folder.with_suffix(".tar")
    run(["git", "archive", "--output", archive, "HEAD"], ROOT)
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
        return {member.name for member in members if member.isfile()}


def wheel_problems(wheel: Path, source: Path) -> list[str]:
    """What a wheel lacks, or has too much, against the source folders that it was built from."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{target}/{path.name}" for folder, target in FOLDERS.items() for path in (source / folder).glob("*.py")
    } | {"vecenv/py.typed"}
    return _differences(wheel.name, names, expected)


def sdist_problems(sdist: Path, files: set[str]) -> list[str]:
    """What an sdist lacks, or has too much, against the files of the commit."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    names = {name for name in names if name != "PKG-INFO" and ".egg-info/" not in name}
    return _differences(sdist.name, names, files - NOT_IN_SDIST)


def _differences(archive: str, names: set[str], expected: set[str]) -> list[str]:
    return [f"{archive} lacks {name}" for name in sorted(expected - names)] + [
        f"{archive} holds {name}, which the sources do not" for name in sorted(names - expected)
    ]


def wheel_differences(one: Path, other: Path) -> list[str]:
    """The files that are not the same in two wheels; times and order within the archives do not count."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = set(first.namelist()), set(second.namelist())
        both = sorted(names[0] & names[1])
        return sorted(names[0] ^ names[1]) + [name for name in both if first.read(name) != second.read(name)]


def build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build an sdist and, from it, a wheel; check both.

    Args:
        source: the files of the commit, see `export_commit`.
        folder: where they go.

    Returns:
        The paths of sdist and wheel.

    Raises:
        ReleaseError: a build failed, or the wheel from the sdist is not the wheel from the sources.
    """
    direct = source.with_name("direct")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    run([*command, folder, source], source)
    run([*command, direct, "--wheel", source], source)
    (sdist,), (wheel,), (other,) = folder.glob("*.tar.gz"), folder.glob("*.whl"), direct.glob("*.whl")
    if differences := wheel_differences(wheel, other):
        raise ReleaseError(f"built from the sdist, the wheel differs in {', '.join(differences)}")
    return sdist, wheel


def try_wheel(wheel: Path, source: Path, folder: Path) -> str:
    """Install a wheel in a fresh virtual environment and use it.

    Args:
        wheel: the wheel.
        source: the files of the commit, for the pinned versions.
        folder: an empty folder outside the checkout, to work in.

    Returns:
        What the commands printed.

    Raises:
        ReleaseError: one of them failed.
    """
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    python, command = environment / "bin" / "python", environment / "bin" / "vecenv"
    pins = ["-c", source / "constraints.txt"]
    run([python, "-m", "pip", "install", "--disable-pip-version-check", *pins, f"{wheel}[atari]"], folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(source / ".ci" / "smoke.py", elsewhere)
    said = [
        run(words, elsewhere)
        for words in (
            [command, "--version"],
            [command, "--help"],
            [python, "smoke.py", *SMOKE_ENVS],
            [command, "doctor"],  # after the smoke run has compiled the kernels; its status tells of trouble
        )
    ]
    return said[0] + said[2] + "vecenv doctor found no trouble\n"


def main() -> int:
    """Build, check, try; the exit code."""
    if not (ROOT / ".git").exists():
        print("make dist: a release is built from a git commit, and this is no git checkout", file=sys.stderr)
        return 1
    if left_out := run(["git", "status", "--porcelain"], ROOT):
        print(f"Not committed, so not in the release:\n{left_out}")
    dist = ROOT / "dist"
    try:
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            source, built, trial = work / "source", work / "built", work / "trial"
            trial.mkdir()
            files = export_commit(source)
            sdist, wheel = build(source, built)
            if problems := wheel_problems(wheel, source) + sdist_problems(sdist, files):
                raise ReleaseError("\n".join(problems))
            print(run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], work), end="")
            print(try_wheel(wheel, source, trial), end="")
            shutil.rmtree(dist, ignore_errors=True)  # an older release would be uploaded with it
            dist.mkdir()
            for path in (sdist, wheel):
                shutil.copy(path, dist)
                print(f"dist/{path.name}: {path.stat().st_size / 1000:.0f} kB")
    except (ReleaseError, subprocess.TimeoutExpired) as error:
        print(f"make dist: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
