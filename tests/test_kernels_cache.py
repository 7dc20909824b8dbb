"""The compiled kernels on disk: edits are seen, a folder that cannot be written is no error, many may start at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vecenv.preprocess

pytestmark = pytest.mark.timeout(600)

PACKAGE = Path(vecenv.preprocess.__path__[0])

RESIZE = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from copied import kernels
from copied.area_weights import area_weights
frames = np.zeros((2, 84, 84), np.uint8)
out = np.empty((1, 84, 84), np.uint8)
pairs = np.arange(65536, dtype=np.uint16)
screens = np.full((2, 210, 160), 40, np.uint8)
memory = np.zeros((3, 210, 160), np.uint8)
mixed = np.empty(0, np.uint8)
alike = np.zeros(210, np.uint8)
weights = area_weights((210, 160), (84, 84))
kernels.observe_screens(screens, memory, alike, pairs, mixed, *weights, frames, 0, True, out)
print(out[0, 40, 40], sum(getattr(kernels.observe_screens.stats, "cache_hits").values()))
"""


def copy_package(folder: Path) -> Path:
    package = folder / "copied"
    package.mkdir()
    for name in ("__init__", "kernels", "area_weights", "compiling"):
        shutil.copy(PACKAGE / f"{name}.py", package / f"{name}.py")
    return package


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.Popen(
        [sys.executable, "-c", RESIZE.format(folder=str(folder))],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, int]:
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    pixel, hits = output.split()
    return int(pixel), int(hits)


def test_editing_a_helper_changes_the_fused_kernel(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    assert finish(start(tmp_path)) == (40, 0)
    assert finish(start(tmp_path)) == (40, 1)  # the second process compiles nothing
    source = package / "kernels.py"
    before = source.read_text()
    edited = before.replace("out[index] = np.uint8(quotient)", "out[index] = np.uint8(quotient + 3)")
    assert edited != before
    source.write_text(edited)
    assert finish(start(tmp_path))[0] == 43


def test_kernels_are_loaded_without_what_only_compiling_needs(tmp_path: Path) -> None:
    copy_package(tmp_path)
    finish(start(tmp_path))
    script = RESIZE.format(folder=str(tmp_path)) + textwrap.dedent(
        """
        assert "numba.np.linalg" not in sys.modules
        import numba

        @numba.njit
        def compiled_later(screen, changed, weights, out):
            kernels.resize_area_rows(screen, changed, weights, out)
            return {1: np.sort(np.array([3.0, 2.0]))[0]}[1]

        resized = np.zeros((84, 84), np.uint8)
        print(compiled_later(np.full((210, 160), 7, np.uint8), np.ones(210, np.uint8), weights, resized), resized[9, 9])
        """
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert finished.stdout.split() == ["40", "1", "2.0", "7"], finished.stderr


def test_kernels_work_where_no_cache_folder_can_be_written(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    # Folders that cannot be made, even by root: their parents are files.
    (package / "__pycache__").write_text("")
    blocked = tmp_path / "file"
    blocked.write_text("")
    environment = {
        "NUMBA_CACHE_DIR": str(blocked / "cache"),
        "HOME": str(blocked),
        "XDG_CACHE_HOME": str(blocked / "c"),
    }
    assert finish(start(tmp_path, **environment)) == (40, 0)


@pytest.mark.slow
def test_many_processes_may_start_with_a_cold_cache(tmp_path: Path) -> None:
    copy_package(tmp_path)
    processes = [start(tmp_path) for _ in range(6)]
    assert [finish(process)[0] for process in processes] == [40] * 6
