"""Is everything still alive, and does anything grow? Workers, memory and returns per environment, for the display."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vecenv import VecEnv
from vecenv.signals import uses_linux_means

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Health:
    """A snapshot.

    Attributes:
        workers: processes on this machine that play, of the vector env and of the learner.
        alive: how many of them run; None where that cannot be known, on systems other than Linux without psutil.
        worker_mib: resident memory of all of them together; None as of ``alive``.
        main_mib: resident memory of this process; None as of ``alive``.
        device_mib: memory that tensors take on the GPU, None without one.
        returns: `[num_envs] float64`, return of each environment's last episode, NaN before the first.
        elsewhere: workers on other machines, which are not looked at.
    """

    workers: int
    alive: int | None
    worker_mib: float | None
    main_mib: float | None
    device_mib: float | None
    returns: np.ndarray[Any, np.dtype[np.float64]]
    elsewhere: int = 0

    @property
    def has_losses(self) -> bool:
        """Whether a worker is known to have ended."""
        return self.alive is not None and self.alive < self.workers

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.workers or 'no'} worker{_s(self.workers)}{' here' if self.elsewhere else ''}"]
        if self.workers and self.alive is not None:
            parts = [f"workers {self.alive} of {self.workers} alive"]
        if self.workers and self.worker_mib is not None:
            parts[0] += f", {self.worker_mib:,.0f} MiB"
        if self.elsewhere:
            parts.append(f"{self.elsewhere} worker{_s(self.elsewhere)} on other machines")
        if self.main_mib is not None:
            parts.append(f"this process {self.main_mib:,.0f} MiB")
        if self.device_mib is not None:
            parts.append(f"device {self.device_mib:,.0f} MiB")
        ended = self.returns[~np.isnan(self.returns)]
        if len(ended):
            low, middle, high = np.min(ended), np.median(ended), np.max(ended)
            parts.append(f"last return per environment {low:.1f} | {middle:.1f} | {high:.1f} (lowest, median, highest)")
        return "; ".join(parts)


def take_health(envs: VecEnv, device: str, learner: object = None) -> Health:
    """Look at the workers, at this process and at ``device``; takes well under a millisecond per worker.

    Args:
        envs: its ``worker_pids`` are looked at, if it has some, and its returns.
        device: of the networks.
        learner: its ``worker_pids`` are looked at too, if it has some.
    """
    pids, elsewhere = list[int](), 0
    for host in (envs, learner):
        here, others = _workers_of(host)
        pids, elsewhere = pids + here, elsewhere + others
    alive: int | None = None
    worker_mib: float | None = None
    main_mib: float | None = None
    resident = _way_to_look()
    if resident is not None:
        main_mib = resident(os.getpid())
        sizes = [size for pid in pids if (size := resident(pid)) is not None]
        alive, worker_mib = len(sizes), sum(sizes)
    is_cuda = torch.device(device).type == "cuda"
    device_mib = torch.cuda.memory_allocated(device) / MEBIBYTE if is_cuda else None
    returns = envs.episode_statistics().last_returns
    return Health(len(pids), alive, worker_mib, main_mib, device_mib, returns, elsewhere)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _workers_of(host: object) -> tuple[list[int], int]:
    """Process ids of the workers on this machine, where they mean something, and how many there are on others."""
    pids, machines = list(getattr(host, "worker_pids", ())), getattr(host, "worker_machines", None)
    if machines is None:
        return pids, 0
    own = [pid for pid, machine in zip(pids, machines, strict=True) if machine == platform.node()]
    return own, len(pids) - len(own)


def _way_to_look() -> Callable[[int], float | None] | None:
    """What gives the resident MiB of a process, or None where it has ended; None: there is no way to know."""
    if uses_linux_means():
        return _resident_on_linux
    return None if importlib.util.find_spec("psutil") is None else _resident_by_psutil


def _resident_on_linux(pid: int) -> float | None:
    folder = Path(f"/proc/{pid}")
    try:
        state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]  # after the name, which may be anything
        pages = int((folder / "statm").read_bytes().split()[1])
    except OSError:
        return None
    return None if state in (b"Z", b"X") else pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def _resident_by_psutil(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.memory_info().rss / MEBIBYTE
    except psutil.Error:
        return None
