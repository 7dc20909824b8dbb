"""Is everything still alive, and does anything grow? Workers, memory and returns per environment, for the display."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vecenv import VecEnv

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Health:
    """A snapshot.

    Attributes:
        workers: processes of the vector env.
        alive: how many of them run.
        worker_mib: resident memory of all of them together, None without psutil.
        main_mib: resident memory of this process, None without psutil.
        device_mib: memory that tensors take on the GPU, None without one.
        returns: `[num_envs] float64`, return of each environment's last episode, NaN before the first.
    """

    workers: int
    alive: int
    worker_mib: float | None
    main_mib: float | None
    device_mib: float | None
    returns: np.ndarray[Any, np.dtype[np.float64]]

    def __str__(self) -> str:
        """One line."""
        parts = [f"workers {self.alive} of {self.workers} alive" if self.workers else "no workers"]
        if self.workers and self.worker_mib is not None:
            parts[0] += f", {self.worker_mib:,.0f} MiB"
        if self.main_mib is not None:
            parts.append(f"this process {self.main_mib:,.0f} MiB")
        if self.device_mib is not None:
            parts.append(f"device {self.device_mib:,.0f} MiB")
        ended = self.returns[~np.isnan(self.returns)]
        if len(ended):
            low, middle, high = np.min(ended), np.median(ended), np.max(ended)
            parts.append(f"last return per environment {low:.1f} | {middle:.1f} | {high:.1f} (lowest, median, highest)")
        return "; ".join(parts)


def take_health(envs: VecEnv, device: str) -> Health:
    """Look at the workers of ``envs``, at this process and at ``device``; takes well under a millisecond per worker."""
    pids = tuple(getattr(envs, "worker_pids", ()))
    alive, worker_mib, main_mib = len(pids), None, None
    if importlib.util.find_spec("psutil") is not None:
        import psutil

        main_mib = psutil.Process().memory_info().rss / MEBIBYTE
        sizes = [size for pid in pids if (size := _resident(pid)) is not None]
        alive, worker_mib = len(sizes), sum(sizes)
    is_cuda = torch.device(device).type == "cuda"
    device_mib = torch.cuda.memory_allocated(device) / MEBIBYTE if is_cuda else None
    return Health(len(pids), alive, worker_mib, main_mib, device_mib, envs.episode_statistics().last_returns)


def _resident(pid: int) -> float | None:
    """Resident MiB of a process, None where it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.memory_info().rss / MEBIBYTE
    except psutil.Error:
        return None
