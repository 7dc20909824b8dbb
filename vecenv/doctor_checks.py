"""What ``vecenv doctor`` looks into beyond bare facts: versions required, kernels cached, GPU, and whether envs run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

#: Modules whose functions Numba compiles and caches.
KERNEL_MODULES = ("vecenv.preprocess.kernels", "vecenv.preprocess.image_kernels", "vecenv.compiled_kernels")
#: Extras for work on vecenv itself. Fresh virtual environments bring an old setuptools, which troubles no user.
_TOOL_EXTRAS = ("dev", "docs")
_CHECK_SECONDS = 60.0
_SUBPROC_SCRIPT = """
import vecenv
if __name__ == "__main__":
    with vecenv.make_vec("CartPole-v1", 2, "subproc", num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])
"""


def outdated_packages() -> Iterator[str]:
    """One sentence for every package that is missing, though always needed, or older than what is required."""
    try:
        lines = requires("vecenv") or []
    except PackageNotFoundError:
        yield "vecenv itself is not installed: run pip install in its folder"
        return
    for line in dict.fromkeys(lines):
        requirement, _, marker = line.partition(";")
        match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?", requirement)
        if match is None or "[" in requirement:
            continue
        name, least = match[1], match[2] or ""
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if extra is not None and extra[1] in _TOOL_EXTRAS:
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            if extra is None:
                yield f"{name} is not installed; run: pip install vecenv"
            continue
        if _numbers(installed) < _numbers(least):
            named = f"vecenv[{extra[1]}]" if extra else "vecenv"
            yield f"{name} {installed} is older than the {least} that {named} needs; run: pip install -U {name}"


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def numba_cache() -> dict[str, str]:
    """Where compiled kernels are kept, and for each module of them whether they are; Numba is not imported."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return {"state": "off: NUMBA_DISABLE_JIT is set, kernels run as slow Python"}
    states = {}
    for name in KERNEL_MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        folder = _cache_folder(source)
        if folder is None:
            states[name] = "no folder can be written: compiled anew in every process; set NUMBA_CACHE_DIR"
            continue
        tag = f"py{sys.version_info.major}{sys.version_info.minor}"
        indexes = [path for path in folder.glob(f"**/{source.stem}.*.nbi") if tag in path.name]
        fresh = any(path.stat().st_mtime >= source.stat().st_mtime for path in indexes)
        states[name] = f"{'compiled' if fresh else 'compiled at first use'}, in {folder}"
    return states


def _cache_folder(source: Path) -> Path | None:
    """The folder that Numba will choose: the one named, the one beside the source, the user's; None: none works."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    for folder in (Path(named) if named else None, source.parent / "__pycache__", user):
        if folder is not None and _can_write(folder):
            return folder
    return None


def _can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself."""
    while not folder.exists():
        if folder == folder.parent:
            return False
        folder = folder.parent
    return os.access(folder, os.W_OK)


def gpus() -> list[str]:
    """Names of NVIDIA GPUs; empty where there are none or no driver. PyTorch is not imported."""
    try:
        files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        models = [line for file in files for line in file.read_text().splitlines() if line.startswith("Model:")]
    except OSError:
        models = []
    if models:
        return [line.partition(":")[2].strip() for line in models]
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in finished.stdout.splitlines() if line.strip()]


def gpu_note(names: list[str]) -> str:
    """What the agents can do with the GPUs that there are."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    if not names:
        return "none found; the agents use the CPU"
    found = ", ".join(names)
    if not torch:
        return f"{found}; PyTorch is not installed"
    if "+cpu" in torch:
        return f"{found}; PyTorch {torch} is a build for the CPU and cannot use it"
    return f"{found}; PyTorch {torch}"


def failing_workers() -> str | None:
    """Build and step two envs in worker processes, in a process of its own; what went wrong, None for nothing."""
    from vecenv.fork_server import python_command

    command = python_command(_SUBPROC_SCRIPT)
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        return f"worker processes did not answer within {_CHECK_SECONDS:.0f} s"
    if finished.returncode == 0:
        return None
    return (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
