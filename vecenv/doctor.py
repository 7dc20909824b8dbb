"""``vecenv doctor``: facts about this machine, the installed packages and the back ends, and what is wrong with them.

Nothing heavy is imported: what has to run for an answer runs in processes of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .capabilities import markdown_table
from .cores import affinity_cores, control_group_quota, usable_cores
from .doctor_checks import failing_workers, gpu_note, gpus, numba_cache, outdated_packages
from .engines import ENGINES
from .errors import MissingExtra
from .memory import memory_limits, memory_per_env, total_memory


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
    "pygame": OptionalPackage("pygame", "agents"),
    "cv2": OptionalPackage("opencv-python-headless", "opencv"),
    "psutil": OptionalPackage("psutil", "bench"),
    "envpool": OptionalPackage("envpool", "envpool"),
    "mujoco": OptionalPackage("mujoco", "mujoco"),
    "stable_baselines3": OptionalPackage("stable-baselines3", "sb3"),
    "tianshou": OptionalPackage("tianshou", "tianshou"),
    "ray": OptionalPackage("ray", "ray"),
}
#: Engine -> import name of what it steps envs with, and what it is.
_ENGINE_FACTS = {
    "compiled": ("numba", "classic control and envs that you register, as kernels over whole batches"),
    "envpool": ("envpool", "EnvPool's threads; Atari, classic control, MuJoCo"),
    "ale": ("ale_py", "ale-py's threads; Atari"),
    "ray": ("ray", "actors, on one machine or several"),
}
#: Adapter -> import name of the package it is for, and what it is.
_ADAPTERS = {
    "gymnasium": ("gymnasium", 'gymnasium.make("vecenv:vecenv/Pong-v5"), and make_vec'),
    "stable-baselines3": ("stable_baselines3", "vector envs for its trainers"),
    "tianshou": ("tianshou", "vector envs for its trainers"),
}
#: What RLlib needs beside Ray and is looked for, by import name, and the distribution.
_RLLIB_PACKAGES = {"torch": "torch", "tree": "dm-tree", "lz4": "lz4", "ormsgpack": "ormsgpack", "pyarrow": "pyarrow"}
_SYSTEMS = {
    "linux": "tested: all back ends",
    "darwin": "worker processes take a portable path that has not been tried on a Mac; report what fails",
    "win32": "no worker processes: subproc is refused; sync, compiled and ale have not been tried on Windows",
}


def missing_extra(error: ModuleNotFoundError, extra: str = "") -> MissingExtra | None:
    """What to raise in place of a failed import; None where the module is none of the optional packages.

    Args:
        error: what the import raised.
        extra: the extra of what was to be imported, "" for none.
    """
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL_PACKAGES:
        return None
    package = OPTIONAL_PACKAGES[name]
    # rich comes with two extras, and the demonstration has one that holds all it needs
    named = extra if extra == "demo" or name == "rich" else package.extra
    return MissingExtra(package.distribution, named or package.extra)


@dataclass(frozen=True)
class BackendStatus:
    """Whether a back end, or an adapter, can be used here.

    Attributes:
        name: what to pass as ``backend=``, or what is adapted to.
        available: whether it works on this machine as it is installed.
        note: what it is, or why it cannot be used.
    """

    name: str
    available: bool
    note: str


def machine_facts() -> dict[str, str | int | float | None]:
    """What a figure measured here depends on: processor, cores, memory, operating system, Python."""
    memory = total_memory()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_gib": None if memory is None else round(memory / 2**30, 1),
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
    statuses = [
        BackendStatus("sync", True, "all envs in this process, one after the other"),
        BackendStatus(
            "subproc",
            not windows,
            "needs POSIX shared memory and pipes; use backend='sync' on Windows"
            if windows
            else "worker processes that share one block of memory with this one",
        ),
    ]
    for name in ENGINES:
        package, text = _ENGINE_FACTS[name]
        statuses.append(_status(name, package, text))
    return statuses


def adapter_statuses() -> list[BackendStatus]:
    """Trainers and libraries that vector envs can be handed to, and whether each can be used here."""
    return [*(_status(name, package, text) for name, (package, text) in _ADAPTERS.items()), _rllib_status()]


def _rllib_status() -> BackendStatus:
    """RLlib is a part of Ray, and there as soon as the packages are that Ray alone does without."""
    for package, distribution in {"ray": "ray", **_RLLIB_PACKAGES}.items():
        if find_spec(package) is None:
            return BackendStatus("rllib", False, str(MissingExtra(distribution, "rllib")))
    return BackendStatus("rllib", True, "envs for its EnvRunners: vecenv.ray_rllib.make_env")


def _status(name: str, package: str, text: str) -> BackendStatus:
    if find_spec(package) is not None:
        return BackendStatus(name, True, text)
    optional = OPTIONAL_PACKAGES.get(package, OptionalPackage(package, "all"))
    return BackendStatus(name, False, str(MissingExtra(optional.distribution, optional.extra)))


def report() -> dict[str, Any]:
    """All facts as plain values, for JSON files beside measurements; nothing is run for them."""
    return {
        "machine": machine_facts(),
        "packages": package_versions(),
        "backends": {status.name: status.available for status in backend_statuses()},
        "adapters": {status.name: status.available for status in adapter_statuses()},
        "atari": find_spec("ale_py") is not None,
    }


def diagnose(env_ids: Sequence[str], *, run: bool = True) -> dict[str, Any]:
    """The report, and what takes a moment: limits, caches, and envs that are really built.

    Args:
        env_ids: envs whose memory is measured.
        run: whether envs are built, in processes of their own; False: nothing is run.

    Returns:
        Plain values. ``trouble`` lists, in sentences, what keeps vecenv from working as it should.
    """
    trouble = list(outdated_packages())
    memory: dict[str, int | None] = {}
    if run:
        for env_id in env_ids:
            try:
                memory[env_id] = memory_per_env(env_id)
            except RuntimeError as error:
                trouble.append(f"an env cannot be built or stepped: {error}")
        failure = None if sys.platform == "win32" else failing_workers()
        if failure is not None:
            trouble.append(f"worker processes do not work here: {failure}")
    cache = numba_cache()
    trouble += [f"kernels of {name}: {state}" for name, state in cache.items() if state.startswith(("off", "no"))]
    return {
        **report(),
        "system": _SYSTEMS.get(sys.platform, "not tried; what works on Linux may work here"),
        "cores": {"affinity": affinity_cores(), "control_group_quota": control_group_quota(), "usable": usable_cores()},
        "memory": memory_limits(),
        "memory_per_env": memory,
        "kernels": cache,
        "gpu": gpu_note(gpus()),
        "trouble": trouble,
    }


def describe_machine(facts: Mapping[str, Any] | None = None) -> str:
    """A machine in one line.

    Args:
        facts: as `machine_facts` gave them; None: this machine, now.
    """
    facts = machine_facts() if facts is None else facts
    memory = "" if facts["memory_gib"] is None else f", {facts['memory_gib']} GiB memory"
    return (
        f"{facts['processor']}, {facts['usable_cores']} usable of {facts['cores']} cores{memory}, "
        f"{facts['system']}, Python {facts['python']}"
    )


def _lines(facts: dict[str, Any]) -> list[str]:
    """The diagnosis as text."""
    cores, memory = facts["cores"], facts["memory"]
    quota = "no limit" if cores["control_group_quota"] is None else f"{cores['control_group_quota']:g} cores"
    machine = {name: value for name, value in facts["machine"].items() if name != "memory_gib"}
    lines = ["machine", *_rows(machine)]
    lines += _rows({"support": facts["system"], "affinity": f"{cores['affinity']} cores", "control group": quota})
    lines += ["memory", *_rows({name: _size(memory[name]) for name in ("total", "available")})]
    limit = "no limit" if memory["control_group"] is None else _size(memory["control_group"])
    lines += _rows({"control group": limit, "free in /dev/shm": _size(memory["shared_memory"])})
    lines += _rows({"open files": memory["open_files"]})
    lines += _rows({f"per {env_id}": _size(size) for env_id, size in facts["memory_per_env"].items()})
    lines.append("packages")
    extras = {package.distribution: package.extra for package in OPTIONAL_PACKAGES.values()}
    for name, installed in facts["packages"].items():
        hint = f"not installed; run: pip install 'vecenv[{extras.get(name, 'all')}]'"
        lines += _rows({name: installed or hint})
    for title, statuses in (("back ends", backend_statuses()), ("adapters", adapter_statuses())):
        lines.append(title)
        lines += _rows({status.name: f"{'yes' if status.available else 'no'}: {status.note}" for status in statuses})
    lines += ["kernels", *_rows(facts["kernels"]), "gpu", f"  {facts['gpu']}"]
    return [*lines, "trouble", *(f"  {sentence}" for sentence in facts["trouble"] or ["none"])]


def _rows(values: Mapping[str, object]) -> list[str]:
    return [f"  {name:<32} {'unknown' if value is None else value}" for name, value in values.items()]


def _size(number: int | None) -> str | None:
    """A number of bytes in the unit that suits it."""
    if number is None:
        return None
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 2**10:.1f} KiB"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the diagnosis, or the table of capabilities.

    Args:
        argv: words after ``vecenv doctor``; None: those of this process.

    Returns:
        The exit code: 0, or 1 where there is trouble.
    """
    parser = argparse.ArgumentParser(
        prog="vecenv doctor", description="Facts about this machine and installation, and what is wrong with them."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = (
        "env to build, to see whether it works and what memory it takes; can be given more than once "
        "(default CartPole-v1, and Pong where ale-py is installed)"
    )
    parser.add_argument("--env", action="append", metavar="ID", help=text)
    parser.add_argument("--no-run", action="store_true", help="facts only: build no env to see whether it works")
    parser.add_argument("--capabilities", action="store_true", help="print what each back end can do, as Markdown")
    arguments = parser.parse_args(argv)
    if arguments.capabilities:
        print(markdown_table())
        return 0
    atari = ["PongNoFrameskip-v4"] if find_spec("ale_py") is not None else []
    facts = diagnose(arguments.env or ["CartPole-v1", *atari], run=not arguments.no_run)
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(_lines(facts)))
    return 1 if facts["trouble"] else 0
