"""Info columns in the shared block, seen from the caller: allocated when a field is announced, collected every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.infos import Infos, Signature, add_column
from vecenv.protocol import BlockPlan, column_arrays

Array = npt.NDArray[Any]
Column = tuple[Signature, int, int]

#: Room for columns, per env; fields that find none stay messages.
ARENA_BYTES_PER_ENV = 4096
_ALIGNMENT = 64


class InfoArena:
    """The part of the block that holds info columns.

    Args:
        memory: `[bytes] uint8`.
        num_envs: number of rows.
        declared: fields known ahead: name -> dtype, or (dtype, shape).

    Raises:
        TypeError: a declaration that is no dtype or (dtype, shape).
    """

    def __init__(self, memory: Array, num_envs: int, declared: Mapping[str, Any] | None = None) -> None:
        self._memory = memory
        self._num_envs = num_envs
        self._used = 0
        self._columns: list[Column] = []
        self._views: list[tuple[str, Array, Array]] = []
        list(self.added([_declared_signature(name, what) for name, what in (declared or {}).items()]))

    def added(self, signatures: Sequence[Signature]) -> Iterator[Column]:
        """Give new fields a column each, while there is room.

        Yields:
            Signature and the offsets of values and mask in the arena, in bytes.
        """
        known = {signature for signature, _, _ in self._columns}
        for signature in signatures:
            key, dtype, shape = signature
            nbytes = self._num_envs * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            mask_offset = self._used + _rounded(nbytes)
            end = mask_offset + _rounded(self._num_envs)
            if signature in known or end > len(self._memory):
                continue
            column = (signature, self._used, mask_offset)
            self._used = end
            known.add(signature)
            self._columns.append(column)
            self._views.append((key, *column_arrays(self._memory, *column, self._num_envs)))
            yield column

    def added_to(self, plan: BlockPlan) -> BlockPlan:
        """The plan for a worker that starts now."""
        return replace(plan, columns=tuple(self._columns))

    def collect(self, infos: Infos) -> None:
        """Add what stands in the columns to the infos of a whole step."""
        for key, values, mask in self._views:
            add_column(infos, key, values, mask)

    def row(self, row: int) -> dict[str, Any]:
        """What stands in the columns for one row, as copies."""
        info: dict[str, Any] = {}
        for key, values, mask in self._views:
            if mask[row]:
                value = values[row]
                info[key] = value.copy() if value.ndim else _as_python(value)
        return info

    def clear(self, rows: list[int]) -> None:
        """Forget the rows of a worker that has died."""
        for _, _, mask in self._views:
            mask[rows] = False


def _as_python(value: Any) -> Any:
    """Bools come back as Python's, whose array has dtype bool; a NumPy bool would be an object."""
    return bool(value) if value.dtype == np.bool_ else value


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _declared_signature(name: str, what: Any) -> Signature:
    dtype, shape = what if isinstance(what, tuple) else (what, ())
    try:
        return (name, np.dtype(dtype).str, tuple(int(size) for size in shape))
    except TypeError as error:
        raise TypeError(f"info_spec[{name!r}]: expected a dtype or (dtype, shape), got {what!r}") from error
