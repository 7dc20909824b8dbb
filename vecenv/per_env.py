"""Between batches and one item per environment, for interfaces that want them so."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.infos import Infos, info_of_row


def split_infos(infos: Infos, num_envs: int) -> list[dict[str, Any]]:
    """One info dict per row; numbers come as Python's own.

    Args:
        infos: dict of arrays with masks, as vector envs return it; not changed.
        num_envs: number of rows.

    Returns:
        Dicts of their own. Arrays in them are views of the batch, which the vector env has given away.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:  # it is a mask itself
            continue
        if isinstance(values, dict):
            for row in np.flatnonzero(mask).tolist():
                rows[row][key] = info_of_row(values, row)
            continue
        items = values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
        if mask.all():
            for info, item in zip(rows, items, strict=True):
                info[key] = item
        else:
            for row in np.flatnonzero(mask).tolist():
                rows[row][key] = items[row]
    return rows


def batch_of_actions(space: spaces.Space[Any], actions: Any) -> Any:
    """What a vector env takes, out of one action per env.

    Args:
        space: single action space.
        actions: array `[num_envs, ...]`, or a sequence of actions.
    """
    if isinstance(space, spaces.Dict):
        return {key: batch_of_actions(part, [action[key] for action in actions]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            batch_of_actions(part, [action[place] for action in actions]) for place, part in enumerate(space.spaces)
        )
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):  # policies give floats for both
        return actions
    array = np.asarray(actions)
    if array.dtype.kind not in "biuf" or np.can_cast(array.dtype, space.dtype, "same_kind"):
        return array
    with np.errstate(invalid="ignore"):  # of what is no number
        converted = array.astype(space.dtype)
    return converted if np.array_equal(converted, array) else array
