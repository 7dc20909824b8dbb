"""Info columns in the shared block, seen from the caller: allocated when a field is announced, collected every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.buffers import aligned
from vecenv.infos import (
    MOST_ELEMENTS,
    Infos,
    Signature,
    add_column,
    add_info,
    dtype_of,
    names_any_mask,
    put_column,
    signature_of,
    value_in,
)
from vecenv.protocol import BlockPlan, column_arrays

Array = npt.NDArray[Any]
Column = tuple[Signature, int, int]

#: Room for columns, per env; fields that find none stay messages.
ARENA_BYTES_PER_ENV = 4096


class InfoArena:
    """The part of the block that holds info columns.

    Args:
        memory: `[bytes] uint8`.
        num_envs: number of rows.
        declared: fields known ahead, see `declared_signatures`.
    """

    def __init__(self, memory: Array, num_envs: int, declared: Mapping[str, Any] | None = None) -> None:
        self._memory = memory
        self._num_envs = num_envs
        self._used = 0
        self._columns: list[Column] = []
        self._views: list[tuple[Signature, Array, Array]] = []
        self._underscored = False
        list(self.added(declared_signatures(declared)))

    def added(self, signatures: Sequence[Signature]) -> Iterator[Column]:
        """Give new fields a column each, while there is room.

        Yields:
            Signature and the offsets of values and mask in the arena, in bytes.
        """
        known = {signature for signature, _, _ in self._columns}
        for signature in signatures:
            nbytes = self._num_envs * dtype_of(signature).itemsize * int(np.prod(signature[2], dtype=np.int64))
            mask_offset = self._used + aligned(nbytes)
            end = mask_offset + aligned(self._num_envs)
            if signature in known or end > len(self._memory):
                continue
            column = (signature, self._used, mask_offset)
            self._used = end
            known.add(signature)
            self._columns.append(column)
            self._underscored |= signature[0].startswith("_")
            self._views.append((signature, *column_arrays(self._memory, *column, self._num_envs)))
            yield column

    def added_to(self, plan: BlockPlan) -> BlockPlan:
        """The plan for a worker that starts now."""
        return replace(plan, columns=tuple(self._columns))

    def collect(self, odd: dict[int, dict[str, Any]]) -> Infos:
        """The infos of a whole step.

        Args:
            odd: infos by row that came as messages; taken over.

        Raises:
            RowInfoError: an info that cannot be batched.
        """
        infos: Infos = {}
        odd_keys = {key for info in odd.values() for key in info}
        used = [column for column in self._views if np.count_nonzero(column[2])]  # much faster than any()
        keys = [signature[0] for signature, _, _ in used]
        tangled = (odd_keys or self._underscored) and names_any_mask({*keys, *odd_keys})
        for signature, values, mask in used:
            key = signature[0]
            if key not in odd_keys and keys.count(key) == 1 and not tangled:
                add_column(infos, key, values, mask)
                continue
            # Kinds differ between envs: merged in env order, as in one process.
            for row in np.flatnonzero(mask).tolist():
                odd.setdefault(row, {})[key] = value_in(signature, values, row)
        causes: dict[int, Exception] = {}
        for row in sorted(odd):
            try:
                add_info(infos, odd[row], row, self._num_envs)
            except Exception as error:  # values are the user's, and so is what they raise
                causes[row] = error
        if causes:
            raise RowInfoError(causes)
        return infos

    def row(self, row: int) -> dict[str, Any]:
        """What stands in the columns for one row, as copies."""
        return {signature[0]: value_in(signature, values, row) for signature, values, mask in self._views if mask[row]}

    def rows(self, rows: list[int]) -> Infos | None:
        """What stands in the columns for some rows, batched in their order; None: two columns go by one name."""
        infos: Infos = {}
        for (key, _, _), values, mask in self._views:
            present = mask[rows]
            if np.count_nonzero(present):
                if key in infos or f"_{key}" in infos:  # the second: it is the name of a mask, too
                    return None
                put_column(infos, key, values[rows], present)  # a list of rows picks copies
        return infos

    def clear(self, rows: list[int]) -> None:
        """Forget rows of a worker that has died, or that a masked reset leaves alone."""
        for _, _, mask in self._views:
            mask[rows] = False


class RowInfoError(Exception):
    """Infos of some envs cannot be batched.

    Args:
        causes: why, by env.
    """

    def __init__(self, causes: dict[int, Exception]) -> None:
        super().__init__(causes)
        self.causes = causes


def declared_signatures(declared: Mapping[str, Any] | None) -> list[Signature]:
    """Signatures of fields that are known ahead.

    Args:
        declared: name -> dtype, or (dtype, shape); ``int``, ``float`` and ``bool`` mean Python's numbers.

    Raises:
        TypeError: no mapping, or a declaration that is no dtype or (dtype, shape).
        ValueError: no column can hold the field.
    """
    if not isinstance(declared, Mapping | None):
        raise TypeError(f"info_spec: expected a mapping of names to dtypes or (dtype, shape), got {declared!r}")
    signatures = []
    for name, what in (declared or {}).items():
        dtype, shape = what if isinstance(what, tuple) and len(what) == 2 else (what, ())
        try:
            value = what() if any(what is kind for kind in (int, float, bool)) else np.zeros(shape, dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(f"info_spec[{name!r}]: expected a dtype or (dtype, shape), got {what!r}") from error
        if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biufc":
            value = bool(value) if value.dtype.kind == "b" else value[()]  # as envs give them
        signature = signature_of(name, value)
        if signature is None:
            raise ValueError(
                f"info_spec[{name!r}]: no column holds {what!r}; names are text and not 'final_obs', dtypes numbers "
                f"or bool in this machine's byte order, arrays have at most {MOST_ELEMENTS} elements"
            )
        signatures.append(signature)
    return signatures
