"""Fixed layouts of spaces: which arrays hold a batch, how one env's value gets into its row, how rows come out.

A space has a fixed layout when every value of it is a nest of arrays whose shapes and dtypes the space alone tells:
Box, Discrete, MultiDiscrete, MultiBinary and Dict/Tuple of these. Batches are then nests of arrays with the structure
that Gymnasium's own batched spaces have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

Array = npt.NDArray[Any]
#: Makes the array of one leaf: `(name, shape of one value, dtype) -> array`, batch axes first.
Allocate = Callable[[str, tuple[int, ...], np.dtype[Any]], Array]


def has_fixed_layout(space: Space[Any]) -> bool:
    """Whether every value of the space is a nest of arrays of shapes and dtypes known ahead."""
    if isinstance(space, Dict):
        return all(has_fixed_layout(part) for part in space.spaces.values())
    if isinstance(space, Tuple):
        return all(has_fixed_layout(part) for part in space.spaces)
    return isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary))


def check_shared(space: Space[Any]) -> None:
    """Refuse what Gymnasium's `AsyncVectorEnv` refuses to hold in shared memory; the rest may travel as objects.

    Raises:
        TypeError: the space, or a part of it, is a Graph or a Sequence.
        ValueError: it is none of Gymnasium's spaces.
    """
    if isinstance(space, (Dict, Tuple, OneOf)):
        for part in space.spaces.values() if isinstance(space, Dict) else space.spaces:
            check_shared(part)
    elif not (has_fixed_layout(space) or isinstance(space, Text)):
        error = TypeError if isinstance(space, (Graph, Sequence)) else ValueError
        raise error(
            f"shared_memory=True: observations of {space} have no fixed layout; you can disable this feature with "
            "`shared_memory=False` however this is slower."
        )


@singledispatch
def allocate_batch(space: Space[Any], allocate: Allocate, name: str = "") -> Any:
    """A nest of arrays with the structure of the space, each made by `allocate`.

    Args:
        space: a space with a fixed layout.
        allocate: called once per leaf with a name unique in the nest, the shape of one value and its dtype.
        name: name of this part, for `allocate`.

    Raises:
        TypeError: the space has no fixed layout.
    """
    raise TypeError(f"{space} has no fixed layout")


@allocate_batch.register(Box)
@allocate_batch.register(Discrete)
@allocate_batch.register(MultiDiscrete)
@allocate_batch.register(MultiBinary)
def _(space: Space[Any], allocate: Allocate, name: str = "") -> Array:
    return allocate(name, tuple(space.shape or ()), np.dtype(space.dtype))


@allocate_batch.register(Dict)
def _(space: Dict, allocate: Allocate, name: str = "") -> dict[str, Any]:
    parts = enumerate(space.spaces.items())  # numbered: keys may hold dots, or be 1 and "1"
    return {key: allocate_batch(part, allocate, f"{name}.{index}") for index, (key, part) in parts}


@allocate_batch.register(Tuple)
def _(space: Tuple[Any], allocate: Allocate, name: str = "") -> tuple[Any, ...]:
    return tuple(allocate_batch(part, allocate, f"{name}.{i}") for i, part in enumerate(space.spaces))


def same_layout(one: Space[Any], two: Space[Any]) -> bool:
    """Whether values of both spaces are nests of the same structure, shapes and dtypes; bounds may differ."""
    if not (has_fixed_layout(one) and has_fixed_layout(two)):
        return one == two
    return _leaves(one) == _leaves(two)


def _leaves(space: Space[Any]) -> dict[str, tuple[Any, ...]]:
    leaves: dict[str, tuple[Any, ...]] = {}

    def note(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        leaves[name] = (shape, dtype)
        return None

    allocate_batch(space, note)
    return leaves


def map_arrays(batch: Any, function: Callable[[Array], Array]) -> Any:
    """Apply a function to every array of a nest and keep the structure."""
    if isinstance(batch, dict):
        return {key: map_arrays(part, function) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map_arrays(part, function) for part in batch)
    return function(batch)


def copy_arrays(target: Any, source: Any, rows: Any = ...) -> None:
    """Copy every array of a nest, or some rows of each, into the same place of another nest of that structure."""
    if isinstance(target, dict):
        for key, part in target.items():
            copy_arrays(part, source[key], rows)
    elif isinstance(target, tuple):
        for part, value in zip(target, source, strict=True):
            copy_arrays(part, value, rows)
    else:
        target[rows] = source[rows]


def row_of(batch: Any, row: int) -> Any:
    """One env's value out of a batch, as copies; scalars come as NumPy scalars."""
    if isinstance(batch, dict):
        return {key: row_of(part, row) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, row) for part in batch)
    value = batch[row]
    return value.copy() if isinstance(value, np.ndarray) else value


def write_value(space: Space[Any], batch: Any, row: int, value: Any) -> None:
    """Write one env's value into its row of a batch.

    Args:
        space: single space with a fixed layout.
        batch: nest of arrays made by `allocate_batch`, first axis rows.
        row: index in the batch.
        value: what the env returned; Dict values are addressed by the keys of the space, whatever their order.

    Raises:
        ValueError: the value has another shape or other keys than the space; the message names them and the part.
        TypeError: the value is of another kind than the space.
    """
    if isinstance(space, Dict):
        if not isinstance(value, dict):
            raise TypeError(f"expected a dict with the keys {list(space.spaces)}, got {type(value).__name__}")
        if len(value) != len(space.spaces) or any(key not in value for key in space.spaces):
            missing = [key for key in space.spaces if key not in value]
            unknown = [key for key in value if key not in space.spaces]
            raise ValueError(f"keys differ from the space's: missing {missing}, unknown {unknown}")
        _write_parts(space.spaces.items(), batch, row, value)
    elif isinstance(space, Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            raise ValueError(f"expected a tuple of {len(space.spaces)} values, got {value!r}")
        _write_parts(enumerate(space.spaces), batch, row, value)
    else:
        write_array(batch, row, value)


def _write_parts(parts: Iterable[tuple[Any, Space[Any]]], batch: Any, row: int, value: Any) -> None:
    for key, part in parts:
        try:
            write_value(part, batch[key], row, value[key])
        except (TypeError, ValueError) as error:
            raise _in_part(key, error) from error


def _in_part(key: Any, error: Exception) -> Exception:
    """The same error, with the part of the nest that it is about."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    text = str(error)
    return kind(f"[{key!r}]{text}" if text.startswith("[") else f"[{key!r}]: {text}")


def casts_safely(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may be written into another: of the same kind, or signed into unsigned."""
    return np.can_cast(given, wanted, "same_kind") or (given.kind == "i" and wanted.kind == "u")


def as_integers(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """The array in an integer dtype; None where a value does not fit into it."""
    converted = array.astype(dtype)
    return converted if np.array_equal(converted, array) else None


def write_array(batch: Array, row: int, value: Any) -> None:
    """Write a value into a row of one array; unlike plain assignment nothing is broadcast.

    Raises:
        ValueError: the value has another shape than the row.
        TypeError: its dtype is of another kind (float into int, say).
    """
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.shape != batch.shape[1:]:
        raise ValueError(f"expected shape {batch.shape[1:]}, got {array.shape}")
    if array.dtype != batch.dtype and not casts_safely(array.dtype, batch.dtype):
        raise TypeError(f"expected dtype {batch.dtype}, got {array.dtype}")
    if array.dtype != batch.dtype and batch.dtype.kind in "iu":
        converted = as_integers(array, batch.dtype)
        if converted is None:
            raise ValueError(f"values do not fit into {batch.dtype}: {array!r}")
        array = converted
    batch[row] = array
