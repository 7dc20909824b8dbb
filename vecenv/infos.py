"""Infos of many envs as one dict of arrays, by Gymnasium's rules, and the columns that carry them between processes.

A key `k` that any env reported gives `infos["k"]`, an array with one row per env, and `infos["_k"]`, the mask of the
envs that reported it. Where envs report different dtypes for one key in the same step the array takes the dtype that
holds all of them (Gymnasium would cast to the first one's); where they report different shapes or kinds it is an object
array.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Infos = dict[str, Any]
#: What makes two values share a column: key, dtype (or `int`, `float`, `bool` for Python's numbers), shape.
Signature = tuple[str, str, tuple[int, ...]]
#: Elements of an array that may have a column. A column of larger ones has no room in `vecenv.info_arena` anyway.
MOST_ELEMENTS = 4096

_OBJECT = np.dtype(object)
_SCALAR_DTYPES: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
}


def natural_dtype(value: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape that Gymnasium gives to the row of a value; object for what is no number and no array."""
    dtype = _SCALAR_DTYPES.get(type(value))
    if dtype is not None:
        return dtype, ()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    if isinstance(value, np.number):
        return value.dtype, ()
    return _OBJECT, ()


def add_info(infos: Infos, info: dict[str, Any], row: int, num_envs: int) -> None:
    """Add one env's info to the infos of the batch, in place.

    Args:
        infos: infos so far; arrays in it may be replaced by wider ones.
        info: what the env returned; numbers, arrays and containers are copied, other objects are kept as they are. A
            key `_k` beside a key `k`, of any env, is dropped: its name is taken by the mask.
        row: index of the env.
        num_envs: number of rows.
    """
    for key, value in info.items():
        if _names_a_mask(key, info) or (type(key) is str and key.startswith("_") and _is_value(key[1:], infos)):
            continue
        present = infos.get(key)
        if present is None and infos.pop(f"_{key}", None) is not None:  # so another env calls what is now the mask
            infos.pop(f"__{key}", None)
        mask = infos.get(f"_{key}")
        if mask is None:
            mask = np.zeros(num_envs, np.bool_)
        if key == "final_obs":
            infos[key] = _store_object(present, mask, row, value, num_envs)
        elif isinstance(value, dict) and (present is None or isinstance(present, dict)):
            nested = {} if present is None else present
            add_info(nested, value, row, num_envs)
            infos[key] = nested
        elif isinstance(value, dict) or isinstance(present, dict):
            infos[key] = _store_object(present, mask, row, value, num_envs)
        else:
            infos[key] = _store(present, mask, row, value, num_envs)
        mask[row] = True
        infos[f"_{key}"] = mask


def _names_a_mask(key: Any, names: Collection[Any]) -> bool:
    return type(key) is str and key.startswith("_") and key[1:] in names


def _is_value(key: str, infos: Infos) -> bool:
    """Whether a key of a batch holds values of envs, and is not the mask of another one."""
    return key in infos and not (key.startswith("_") and _is_value(key[1:], infos))


def names_any_mask(keys: Collection[Any]) -> bool:
    """Whether among some keys is a `_k` beside a `k`."""
    return any(_names_a_mask(key, keys) for key in keys)


def own_copy(value: Any) -> Any:
    """A copy of an array or container, which the env may change later; other objects as they are."""
    if isinstance(value, (np.ndarray, list, dict, set, tuple, bytearray)):
        try:
            return copy.deepcopy(value)
        except Exception:  # it holds something that cannot be copied
            return copy.copy(value)
    return value


def _store(array: Array | None, mask: Array, row: int, value: Any, num_envs: int) -> Array:
    dtype, shape = natural_dtype(value)
    if array is None:
        if dtype is _OBJECT:
            return _store_object(None, mask, row, value, num_envs)
        array = np.zeros((num_envs, *shape), dtype)
    elif dtype is _OBJECT or array.dtype == _OBJECT or shape != array.shape[1:]:
        return _store_object(array, mask, row, value, num_envs)
    elif dtype != array.dtype:
        try:
            array = array.astype(np.promote_types(dtype, array.dtype), copy=False)
        except TypeError:
            return _store_object(array, mask, row, value, num_envs)
    try:
        array[row] = value
    except OverflowError:  # an int beyond 64 bits
        return _store_object(array, mask, row, value, num_envs)
    return array


def _store_object(present: Any, mask: Array, row: int, value: Any, num_envs: int) -> Array:
    """Store a value in an object array; what was gathered in another form before is taken over row by row."""
    if isinstance(present, np.ndarray) and present.dtype == _OBJECT and present.ndim == 1:
        array = present
    else:
        array = np.full(num_envs, None, _OBJECT)
        for other in np.flatnonzero(mask):
            array[other] = info_of_row(present, int(other))
    array[row] = own_copy(value)
    return array


def info_of_row(batch: Any, row: int) -> Any:
    """One env's value back out of a batched info value (a nest of dicts with masks, or an array)."""
    if isinstance(batch, dict):
        return {
            key: info_of_row(value, row)
            for key, value in batch.items()
            if f"_{key}" in batch and bool(batch[f"_{key}"][row])
        }
    value = batch[row]
    return value.item() if isinstance(value, np.generic) else value


def add_column(infos: Infos, key: str, values: Array, mask: Array) -> None:
    """Add a whole column to the infos of the batch, in place.

    Args:
        infos: infos so far, without this key.
        key: the info key.
        values: `[num_envs, ...]`; rows outside the mask are ignored. Not kept: what is stored is a copy.
        mask: `[num_envs]` bool, not all False.
    """
    put_column(infos, key, values.copy(), mask.copy())


def put_column(infos: Infos, key: str, values: Array, mask: Array) -> None:
    """Like `add_column`, but the arrays themselves become part of the infos, and are zeroed outside the mask."""
    if np.count_nonzero(mask) < len(mask):
        values[~mask] = 0
    infos[key] = values
    infos[f"_{key}"] = mask


class InfoBatch:
    """Gathers infos of envs in the caller's own process.

    Args:
        num_envs: number of rows.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.infos: Infos = {}
        # Arrays of `infos` that take Python's numbers of one type as they are, by key.
        self._open: dict[Any, tuple[type, Array, Array]] = {}

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info."""
        known = self._open
        for key, value in info.items():
            column = known.get(key)
            if column is None or type(value) is not column[0]:
                self._record_all(row, info)  # what was stored already is stored again
                return
            try:
                column[1][row] = value
            except OverflowError:  # an int beyond 64 bits
                self._record_all(row, info)
                return
            column[2][row] = True

    def _record_all(self, row: int, info: dict[str, Any]) -> None:
        infos = self.infos
        add_info(infos, info, row, self._num_envs)
        for key, value in info.items():
            dtype = _SCALAR_DTYPES.get(type(value))
            stored = infos.get(key)
            self._open.pop(key, None)  # it may have become another array
            plain = dtype is not None and type(key) is str and not key.startswith("_")
            if plain and type(stored) is np.ndarray and stored.ndim == 1 and stored.dtype == dtype:
                self._open[key] = (type(value), stored, infos[f"_{key}"])

    def take(self) -> Infos:
        """Hand the infos out and begin anew."""
        infos, self.infos, self._open = self.infos, {}, {}
        return infos


class InfoColumns:
    """Gathers infos in a worker: known fields into columns of the shared block, the rest for the pipe.

    A number, bool or fixed-shape array that is seen for the first time is announced; as soon as the caller has
    answered with a column, the field costs two stores a step and no message.

    Attributes:
        announcements: signatures seen for the first time since `begin`.
        odd: infos by row that have no column (yet).
    """

    def __init__(self) -> None:
        self._columns: dict[Signature, tuple[Array, Array]] = {}
        self._scalar_columns: dict[tuple[str, type], tuple[Array, Array]] = {}
        self._masks: list[Array] = []
        self._announced: set[Signature] = set()
        self.announcements: list[Signature] = []
        self.odd: dict[int, dict[str, Any]] = {}

    def add_column(self, signature: Signature, values: Array, mask: Array) -> None:
        """Use a column from now on.

        Args:
            signature: what the column holds.
            values: `[num_envs, ...]`.
            mask: `[num_envs]` bool.
        """
        self._columns[signature] = (values, mask)
        self._masks.append(mask)
        for kind, code in _SCALAR_CODES.items():
            # a name that may be that of a mask is looked at each time
            if signature[1:] == (code, ()) and not signature[0].startswith("_"):
                self._scalar_columns[(signature[0], kind)] = (values, mask)

    def begin(self, rows: Any) -> None:
        """Forget the last step of some rows."""
        for mask in self._masks:
            mask[rows] = False
        self.announcements = []
        self.odd = {}

    def record(self, row: int, info: dict[str, Any]) -> None:
        """Take one env's info."""
        columns = self._scalar_columns
        for key, value in info.items():
            column = columns.get((key, type(value)))
            if column is not None:
                values, mask = column
                if not mask[row]:
                    try:
                        values[row] = value
                        mask[row] = True
                        continue
                    except OverflowError:  # an int beyond 64 bits
                        pass
            self._record_value(row, key, value, info)

    def _record_value(self, row: int, key: Any, value: Any, info: dict[str, Any]) -> None:
        """Take a value that is no plain number with a column that is free."""
        if _names_a_mask(key, info):
            return
        signature = signature_of(key, value)
        if signature is not None:
            column = self._columns.get(signature)
            if column is not None and not column[1][row]:
                column[0][row] = value
                column[1][row] = True
                return
            if signature not in self._announced:
                self._announced.add(signature)
                self.announcements.append(signature)
        self.odd.setdefault(row, {})[key] = own_copy(value)


#: Python's numbers have columns of their own, so that they come back as what they were.
_SCALAR_CODES: dict[type, str] = {bool: "bool", int: "int", float: "float"}
_CODE_DTYPES = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}
_INT64_LIMIT = 2**63


def dtype_of(signature: Signature) -> np.dtype[Any]:
    """Dtype of a column."""
    return _CODE_DTYPES.get(signature[1]) or np.dtype(signature[1])


def value_in(signature: Signature, values: Array, row: int) -> Any:
    """A row of a column as the env gave it: a Python number, a NumPy one or an array (a copy)."""
    value = values[row]
    if signature[1] in _CODE_DTYPES:
        return value.item()
    return value.copy() if isinstance(value, np.ndarray) else value


def signature_of(key: Any, value: Any) -> Signature | None:
    """What column a value belongs to; None: it cannot have one."""
    kind = type(value)
    code = _SCALAR_CODES.get(kind)
    if code is not None:
        if kind is int and not -_INT64_LIMIT <= value < _INT64_LIMIT:
            return None
        return (key, code, ()) if type(key) is str and key != "final_obs" else None
    if type(key) is not str or key == "final_obs" or not isinstance(value, (np.ndarray, np.number)):
        return None
    if isinstance(value, np.ndarray) and not value.ndim:
        return None  # a column would give a scalar back
    dtype = value.dtype
    if dtype.kind not in "biufc" or dtype.byteorder == ">" or value.size > MOST_ELEMENTS:
        return None
    return (key, dtype.str, value.shape)
