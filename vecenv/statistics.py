"""Episode statistics: returns of unclipped rewards and lengths in steps, over whole games."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class EpisodeStatistics:
    """A snapshot of what the vector env counts for every environment; the arrays are the caller's own copies.

    Attributes:
        returns: `[num_envs] float64` sum of unclipped rewards of the running episode.
        lengths: `[num_envs] int64` steps of the running episode.
        episode_counts: `[num_envs] int64` episodes ended since construction.
        last_returns: `[num_envs] float64` return of the last ended episode, NaN before the first.
        last_lengths: `[num_envs] int64` its length in steps, 0 before the first.
        last_seconds: `[num_envs] float64` its duration in seconds, NaN before the first.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    episode_counts: npt.NDArray[np.int64]
    last_returns: npt.NDArray[np.float64]
    last_lengths: npt.NDArray[np.int64]
    last_seconds: npt.NDArray[np.float64]

    @classmethod
    def of(cls, arrays: Any, rows: Any = slice(None)) -> EpisodeStatistics:
        """A snapshot of the arrays of a batch, or of some of its rows."""
        counts = arrays.episode_counts[rows].copy()
        never = counts == 0
        return cls(
            returns=arrays.returns[rows].copy(),
            lengths=arrays.lengths[rows].copy(),
            episode_counts=counts,
            last_returns=np.where(never, np.nan, arrays.last_returns[rows]),
            last_lengths=arrays.last_lengths[rows].copy(),
            last_seconds=np.where(never, np.nan, arrays.last_seconds[rows]),
        )


def begin_episodes(arrays: Any, rows: Any) -> None:
    """Begin the count of rows anew.

    Args:
        arrays: of a batch.
        rows: a row, or an index of several.
    """
    arrays.returns[rows], arrays.lengths[rows], arrays.started[rows] = 0.0, 0, time.monotonic()


def end_episodes(arrays: Any, rows: Any) -> None:
    """Note that the episodes (whole games) of rows ended in this step, and begin their next count.

    Args:
        arrays: of a batch.
        rows: a row, or an index of several, each at most once.
    """
    arrays.episode_ended[rows] = True
    arrays.episode_counts[rows] += 1
    arrays.last_returns[rows] = arrays.returns[rows]
    arrays.last_lengths[rows] = arrays.lengths[rows]
    arrays.last_seconds[rows] = time.monotonic() - arrays.started[rows]
    begin_episodes(arrays, rows)


def add_episode_infos(infos: dict[str, Any], ended: npt.NDArray[np.bool_], last: EpisodeStatistics) -> None:
    """Write ``infos["episode"]`` and its mask for the rows whose episode ended, as Gymnasium's recorder does.

    Args:
        infos: infos of the step, changed in place. Rows where an env reported `episode` itself are left alone.
        ended: `[num_envs]` bool.
        last: statistics after the step.
    """
    if "episode" in infos or not ended.any():
        return
    infos["episode"] = {
        "r": np.where(ended, last.last_returns, 0.0),
        "l": np.where(ended, last.last_lengths, 0),
        "t": np.where(ended, last.last_seconds, 0.0),
    }
    infos["_episode"] = ended.copy()
