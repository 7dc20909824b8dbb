"""What an engine gives in one step, and how its infos take Gymnasium's form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vecenv.infos import Infos, add_column

Array = npt.NDArray[Any]


class EngineBatch(NamedTuple):
    """One step of some envs, one row each, in arrays that nobody else holds.

    Attributes:
        observations: `[rows, ...]`, a nest of arrays for nested spaces.
        rewards: `[rows]`, unclipped.
        terminations: `[rows]` bool.
        truncations: `[rows]` bool.
        infos: arrays with one row per env, or nests of them, without masks.
        final_observations: like `observations`, where the step also reset; rows without an end may hold anything.
        final_infos: like `infos`, likewise.
    """

    observations: Any
    rewards: Array
    terminations: Array
    truncations: Array
    infos: dict[str, Any]
    final_observations: Any = None
    final_infos: dict[str, Any] | None = None


def masked_infos(raw: dict[str, Any], mask: Array) -> Infos:
    """Infos of an engine in Gymnasium's form: a mask for every key, rows outside it zero, ints as int64.

    Args:
        raw: arrays with one row per env, or nests of them; not needed any more afterwards.
        mask: `[rows]` bool.
    """
    infos: Infos = {}
    whole = np.count_nonzero(mask) == len(mask)
    for key, values in raw.items():
        if isinstance(values, dict):
            infos[key], infos[f"_{key}"] = masked_infos(values, mask), mask.copy()
            continue
        if values.dtype == np.int32:
            values = values.astype(np.int64)  # as Gymnasium makes of Python's ints
        if whole:
            infos[key], infos[f"_{key}"] = values, mask.copy()
        else:
            add_column(infos, key, values, mask)
    return infos


def only_rows(array: Array, mask: Array) -> Array:
    """The array with all other rows zeroed, in place."""
    array[~mask] = 0
    return array
