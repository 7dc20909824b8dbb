"""Infos of a batch taken apart again: one dict per environment, for interfaces that want them so."""

from __future__ import annotations

from typing import Any

import numpy as np

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
