"""What the envs of a slice gave in one step, before it is written to the arrays of the batch."""

from __future__ import annotations

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.batch import BatchArrays
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


class OwnColumns:
    """The columns of a batch that every step of a slice writes, as views of the slice's rows: made once, used often.

    Args:
        arrays: of the whole batch.
        own: the rows.
    """

    __slots__ = ("_flags", "_lengths", "_one_step", "_returns", "_rewards")

    def __init__(self, arrays: BatchArrays, own: slice) -> None:
        self._rewards = arrays.rewards[own]
        self._flags = (arrays.terminations[own], arrays.truncations[own], arrays.episode_ended[own])
        self._returns, self._lengths = arrays.returns[own], arrays.lengths[own]
        self._one_step = np.ones_like(self._lengths)  # adding an array is twice as fast as adding a number

    def count(self, rewards: npt.NDArray[np.float64], raw_rewards: npt.NDArray[np.float64]) -> None:
        """Write a step in which nothing ended.

        Args:
            rewards: `[own rows]`.
            raw_rewards: likewise, unclipped.
        """
        self._rewards[:] = rewards
        for flags in self._flags:
            flags[:] = False
        np.add(self._returns, raw_rewards, self._returns)
        np.add(self._lengths, self._one_step, self._lengths)


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
        if isinstance(value, (Real, Decimal)):  # Fraction, or an int beyond 64 bits
            try:
                value = float(value)
            except OverflowError:
                value = None
        single = np.asarray(value)
        if single.size != 1 or single.dtype.kind not in "biuf":
            wrong.append(place)
        else:
            array[place] = single.reshape(())[()]
    return array, wrong
