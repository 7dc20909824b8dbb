"""Actions of a batch: checked before anything is sent, written into the block, handed to the envs row by row."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import iterate

from vecenv.spaces import as_integers, casts_safely, map_arrays, row_of

Array = npt.NDArray[Any]


def write_actions(
    space: Space[Any],
    target: Any,
    actions: Any,
    ignored: npt.NDArray[np.bool_] | None,
    rows: list[int] | None = None,
) -> bool:
    """Check a batch of actions and write it into the block.

    Args:
        space: single action space with a fixed layout.
        target: nest of `[num_envs, ...]` arrays.
        actions: what the user gave; nothing is written where any part of it is wrong.
        ignored: `[num_envs]` bool, rows whose action has no effect (the step only resets them); not range-checked.
        rows: rows that the actions are for; None: all.

    Returns:
        Whether a float action is wider than its space: the envs then get it as it came, unrounded.

    Raises:
        TypeError: a scalar, an object that is no array, or a dtype of another kind.
        ValueError: wrong length, shape, keys or range; the message names the environment.
    """
    if rows is None and _write_plain_discrete(space, target, actions):
        return False
    prepared: list[tuple[Array, Array]] = []
    if rows is not None and ignored is not None:
        ignored = ignored[rows]
    wide = _prepare(_Part(space, target, actions, "actions"), ignored, rows, prepared)
    for array, checked in prepared:
        array[slice(None) if rows is None else rows] = checked
    return wide


def _write_plain_discrete(space: Space[Any], target: Any, actions: Any) -> bool:
    """The everyday case at once: a right batch for a Discrete space. False: not that case, or something is wrong."""
    if type(space) is not spaces.Discrete or type(actions) is not np.ndarray:
        return False
    if actions.dtype != np.int64 or actions.dtype != target.dtype or actions.shape != target.shape:
        return False
    # one comparison finds both ends: what lies below the start wraps around to huge
    counted = (actions - space.start if space.start else actions).view(np.uint64)
    if np.count_nonzero(counted >= space.n):
        return False
    target[:] = actions
    return True


class _Part(NamedTuple):
    """One part of a nest of actions: its space, where it goes, what was given, how messages call it."""

    space: Any
    target: Any
    actions: Any
    name: str


def _prepare(part: _Part, ignored: Array | None, rows: list[int] | None, prepared: list[tuple[Array, Array]]) -> bool:
    space, target, actions, name = part
    if isinstance(space, spaces.Dict):
        if not isinstance(actions, dict) or set(actions) != set(space.spaces):
            got = sorted(actions) if isinstance(actions, dict) else type(actions).__name__
            raise ValueError(f"{name}: expected a dict of batches with the keys {sorted(space.spaces)}, got {got}")
        parts = [_Part(inner, target[key], actions[key], f"{name}[{key!r}]") for key, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(actions, (tuple, list)) or len(actions) != len(space.spaces):
            raise ValueError(f"{name}: expected a tuple of {len(space.spaces)} batches, got {actions!r}")
        parts = [
            _Part(inner, target[index], actions[index], f"{name}[{index}]") for index, inner in enumerate(space.spaces)
        ]
    else:
        array = _as_array(part, target.shape[0] if rows is None else len(rows))
        _check_range(space, array, ignored, name, rows)
        prepared.append((target, array))
        return bool(array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(space.dtype).itemsize)
    wide = [_prepare(inner, ignored, rows, prepared) for inner in parts]  # every part is checked
    return any(wide)


def _as_array(part: _Part, num_envs: int) -> Array:
    space, target, actions, name = part
    shape = target.shape[1:]
    dtype = np.dtype(space.dtype)
    try:
        array = actions if type(actions) is np.ndarray else np.asarray(actions)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected {num_envs} actions of shape {shape}, got {actions!r}: {error}") from error
    if array.ndim == 0:
        raise TypeError(f"{name}: expected a sequence of {num_envs} actions, got {actions!r}")
    if array.shape == (num_envs,) and shape and math.prod(shape) == 1:
        array = array.reshape(num_envs, *shape)  # one number per env, where an action is one number
    if array.shape != (num_envs, *shape):
        if len(array) != num_envs:
            raise ValueError(f"{name}: expected {num_envs} actions, one per environment, got {len(array)}")
        raise ValueError(f"{name}: expected shape {(num_envs, *shape)}, got {array.shape}")
    if array.dtype == dtype:
        return array
    safe = casts_safely(array.dtype, dtype)
    if not safe and dtype.kind == "f" and array.dtype.kind in "iu" and not isinstance(actions, np.ndarray):
        safe = True  # a list of ints for a float space: no dtype was chosen
    if not safe:
        raise TypeError(f"{name}: expected dtype {dtype}, got {array.dtype}, which does not cast safely")
    if dtype.kind in "iu":
        converted = as_integers(array, dtype)
        if converted is None:
            raise ValueError(f"{name}: values do not fit into {dtype}")
        return converted
    return array


def _check_range(space: Space[Any], array: Array, ignored: Array | None, name: str, rows: list[int] | None) -> None:
    low: Any
    count: Any
    if isinstance(space, spaces.Discrete):
        low, count = space.start, space.n
    elif isinstance(space, spaces.MultiDiscrete):
        low, count = space.start, space.nvec
    else:
        return
    wrong = (array < low) | (array >= low + count)
    if wrong.ndim > 1:
        wrong = wrong.reshape(len(wrong), -1).any(axis=1)
    if ignored is not None:
        wrong &= ~ignored
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        index = row if rows is None else rows[row]
        raise ValueError(f"{name}: action {array[row]!r} of environment {index} is not in {space}")


def read_actions(space: Space[Any], actions: Any, count: int) -> list[Any]:
    """One action per env out of a batch whose space has no fixed layout.

    Args:
        space: the batched action space.
        actions: what the user gave.
        count: how many there must be.

    Raises:
        TypeError: no batch.
        ValueError: another number of actions.
    """
    try:
        objects = list(iterate(space, actions))
    except (TypeError, CustomSpaceError) as error:
        raise TypeError(f"actions: expected a batch of {count} actions, got {actions!r}: {error}") from error
    if len(objects) != count:
        raise ValueError(f"actions: expected {count} actions, one per environment, got {len(objects)}")
    return objects


def split_actions(space: Space[Any], batch: Any, wide: bool, rows: Any, count: int) -> list[Any]:
    """One action per env out of the block, as copies in the dtype of the space (or wider, as the user gave it).

    Args:
        space: single action space with a fixed layout.
        batch: nest of `[num_envs, ...]` arrays.
        wide: what `write_actions` returned.
        rows: index of the envs.
        count: number of them.
    """
    if type(space) is spaces.Discrete and batch.dtype == space.dtype:  # at once, as this is part of every step
        return list(batch[rows])
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        own = map_arrays(batch, lambda array: array[rows].copy())
        own = own if wide else _narrowed(space, own)
        return [row_of(own, row) for row in range(count)]
    own = batch[rows]
    if not wide and batch.dtype != space.dtype:
        own = own.astype(space.dtype)
    # rows of a one-dimensional array come out as scalars, which are copies already
    return list(own if own.ndim == 1 else own.copy())


def _narrowed(space: Space[Any], batch: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _narrowed(part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_narrowed(part, value) for part, value in zip(space.spaces, batch, strict=True))
    return batch.astype(space.dtype)
