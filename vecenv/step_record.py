"""What the envs of a slice gave in one step, before it is written to the arrays of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.errors import EnvFailure


class StepRecord:
    """What the envs of a slice gave in one step, gathered before it is written to arrays at once.

    Attributes:
        whole: whether all envs were stepped (into the next slot) or some alone (in their slot).
        rewards: one per env, in the order of stepping.
        raw_rewards: likewise, the same list where envs do not tell them apart.
        ends: (row, terminated, truncated) of the few rows where either is set.
        episodes: rows whose episode (whole game) ended.
        resets: rows that were only reset.
        lost: rows whose episode a restart of the worker has cut off.
        failures: of envs that raised.
    """

    __slots__ = ("ends", "episodes", "failures", "lost", "raw_rewards", "resets", "rewards", "whole")

    def __init__(self, count: int, separate_raw_rewards: bool, whole: bool) -> None:
        self.whole = whole
        self.rewards: list[Any] = [0.0] * count
        self.raw_rewards: list[Any] = [0.0] * count if separate_raw_rewards else self.rewards
        self.ends: list[tuple[int, Any, Any]] = []
        self.episodes: list[int] = []
        self.resets: list[int] = []
        self.lost: list[int] = []
        self.failures: list[EnvFailure] = []


def numbers(values: list[Any]) -> tuple[npt.NDArray[np.float64], list[int]]:
    """One number per env; rewards of shape (1,) count as numbers, on every step alike.

    Returns:
        The numbers, 0 where a value is no single number, and the places of those values.
    """
    try:
        plain = np.array(values)  # without a dtype: None and text would quietly become numbers
        if plain.ndim == 1 and plain.dtype.kind in "biuf":
            return plain.astype(np.float64, copy=False), []
    except (TypeError, ValueError):
        pass
    array, wrong = np.zeros(len(values), np.float64), []
    for place, value in enumerate(values):
        single = np.asarray(value)
        if single.size != 1 or single.dtype.kind not in "biuf":
            wrong.append(place)
        else:
            array[place] = single.reshape(())[()]
    return array, wrong
