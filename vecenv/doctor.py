"""``vecenv doctor``: facts about this machine, the installed packages and the back ends; nothing heavy is imported."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .cores import usable_cores


@dataclass(frozen=True)
class OptionalPackage:
    """A package that only some uses need.

    Attributes:
        distribution: its name as pip knows it.
        extra: the extra of this distribution that installs it.
    """

    distribution: str
    extra: str


CORE_PACKAGES = ("vecenv", "numpy", "gymnasium", "numba", "cloudpickle")
OPTIONAL_PACKAGES = {  # by import name
    "ale_py": OptionalPackage("ale-py", "atari"),
    "torch": OptionalPackage("torch", "agents"),
    "tensorboard": OptionalPackage("tensorboard", "agents"),
    "rich": OptionalPackage("rich", "agents"),
    "tyro": OptionalPackage("tyro", "agents"),
    "matplotlib": OptionalPackage("matplotlib", "agents"),
    "imageio": OptionalPackage("imageio", "agents"),
    "cv2": OptionalPackage("opencv-python-headless", "opencv"),
    "psutil": OptionalPackage("psutil", "bench"),
    "envpool": OptionalPackage("envpool", "envpool"),
    "mujoco": OptionalPackage("mujoco", "mujoco"),
    "stable_baselines3": OptionalPackage("stable-baselines3", "sb3"),
}


@dataclass(frozen=True)
class BackendStatus:
    """Whether a back end can be used here.

    Attributes:
        name: what to pass as ``backend=``.
        available: whether `vecenv.make_vec` accepts it on this machine.
        note: what it is, or why it cannot be used.
    """

    name: str
    available: bool
    note: str


def machine_facts() -> dict[str, str | int | float | None]:
    """What a figure measured here depends on: processor, cores, memory, operating system, Python."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Model name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    """Physical memory in GiB, None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def package_versions() -> dict[str, str | None]:
    """Installed versions by distribution name, None for what is not installed; nothing is imported."""
    names = [*CORE_PACKAGES, *(package.distribution for package in OPTIONAL_PACKAGES.values())]
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def backend_statuses() -> list[BackendStatus]:
    """The back ends of `vecenv.make_vec`, and whether each can be used on this machine."""
    windows = sys.platform == "win32"
    return [
        BackendStatus("sync", True, "all envs in this process, one after the other"),
        BackendStatus(
            "subproc",
            not windows,
            "needs POSIX shared memory and pipes; use backend='sync' on Windows"
            if windows
            else "worker processes that share one block of memory with this one",
        ),
    ]


def report() -> dict[str, object]:
    """All facts as plain values, for JSON files beside measurements."""
    return {
        "machine": machine_facts(),
        "packages": package_versions(),
        "backends": {status.name: status.available for status in backend_statuses()},
        "atari": find_spec("ale_py") is not None,
    }


def describe_machine() -> str:
    """The machine in one line."""
    facts = machine_facts()
    memory = "" if facts["memory_gib"] is None else f", {facts['memory_gib']} GiB memory"
    return (
        f"{facts['processor']}, {facts['usable_cores']} usable of {facts['cores']} cores{memory}, "
        f"{facts['system']}, Python {facts['python']}"
    )


def _report_lines() -> list[str]:
    """The report as text."""
    lines = ["machine"]
    lines += [f"  {name:<24} {'unknown' if value is None else value}" for name, value in machine_facts().items()]
    lines.append("packages")
    extras = {package.distribution: package.extra for package in OPTIONAL_PACKAGES.values()}
    for name, installed in package_versions().items():
        hint = f"not installed; run: pip install 'vecenv[{extras.get(name, 'all')}]'"
        lines.append(f"  {name:<24} {installed or hint}")
    lines.append("back ends")
    lines += [
        f"  {status.name:<24} {'yes' if status.available else 'no'}: {status.note}" for status in backend_statuses()
    ]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report.

    Args:
        argv: words after ``vecenv doctor``; None: those of this process.

    Returns:
        The exit code, 0.
    """
    parser = argparse.ArgumentParser(prog="vecenv doctor", description="Facts about this machine and installation.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    print(json.dumps(report(), indent=2) if arguments.json else "\n".join(_report_lines()))
    return 0
