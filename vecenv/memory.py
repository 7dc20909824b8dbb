"""How much memory there is, and how much of it an environment takes."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from vecenv.buffers import available_memory

#: Share of the memory that is to stay free beside the environments.
FREE_SHARE = 0.2
_MEASURE_SECONDS = 60.0


def memory_limits() -> dict[str, int | None]:
    """Bytes by name, None for what the system does not tell.

    Returns:
        ``total`` memory of the machine; ``available`` now, to the machine and the control group; ``control_group``
        limit; free ``shared_memory`` in ``/dev/shm``, which others use and blocks of this package do not; number of
        ``open_files`` that a process may have.
    """
    return {
        "total": total_memory(),
        "available": available_memory(),
        "control_group": _control_group_limit(),
        "shared_memory": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
        "open_files": _open_files_limit(),
    }


def total_memory() -> int | None:
    """Physical memory in bytes, None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _control_group_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):
            continue
        return limit if limit < 2**60 else None  # version 1 writes a huge number for none
    return None


def _open_files_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def private_bytes() -> int | None:
    """Memory in bytes that this process does not share with others; None where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def memory_per_env(env_id: str) -> int | None:
    """Bytes that each further environment takes, measured in a process of its own.

    Args:
        env_id: id as for `make_vec`.

    Returns:
        Growth of private memory per environment, its rows of the batch included; None where the system does not tell.

    Raises:
        RuntimeError: the environment cannot be built or stepped; the message is the last line of the other process.
    """
    from vecenv.fork_server import python_command

    command = python_command(f"from vecenv.memory import print_growth; print_growth({env_id!r})")
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_MEASURE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{env_id}: not built within {_MEASURE_SECONDS:.0f} s") from None
    if finished.returncode != 0:
        raise RuntimeError(f"{env_id}: {(finished.stderr.strip().splitlines() or ['no message'])[-1]}")
    growth: int | None = json.loads(finished.stdout.strip().splitlines()[-1])
    return growth


def print_growth(env_id: str) -> None:
    """Print, as JSON, what `memory_per_env` returns; run by the process that it starts."""
    from vecenv.factory import make_vec

    def build(num_envs: int) -> object:
        envs = make_vec(env_id, num_envs, "sync", copy=False)
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(envs.action_space.sample())
        return envs

    kept = [build(1)]  # code, kernels and whatever else comes once
    seconds = []
    for _ in range(3):  # the fastest counts: a pause of the machine would leave too few to measure
        start = time.perf_counter()
        kept.append(build(1))
        seconds.append(time.perf_counter() - start)
    num_envs = min(256, max(4, int(1.0 / min(seconds))))
    gc.collect()
    before = private_bytes()
    kept.append(build(num_envs))
    after = private_bytes()
    print(json.dumps(None if before is None or after is None else max(0, after - before) // num_envs))


def largest_num_envs(bytes_per_env: int) -> int | None:
    """How many environments fit in the memory that is available while `FREE_SHARE` of all memory stays free.

    Args:
        bytes_per_env: as `memory_per_env` measures it.

    Returns:
        The number, at least 0; None where the system does not tell or an environment takes nothing measurable.
    """
    available, limits = available_memory(), [total_memory(), _control_group_limit()]
    total = min((limit for limit in limits if limit is not None), default=None)
    if available is None or total is None or bytes_per_env <= 0:
        return None
    return max(0, int((available - FREE_SHARE * total) // bytes_per_env))
