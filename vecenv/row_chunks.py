"""How many rows that are sent alone a worker steps before it reports them: cheap ones together, which costs less."""

from __future__ import annotations

from collections.abc import Sequence

#: What is reported together takes about this long at most, in seconds; it is how late a finished row may be told of.
_MOST_SECONDS = 1e-3


class RowChunks:
    """Decides by what earlier steps of the rows took."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def first_of(self, waiting: Sequence[int]) -> list[int]:
        """The first of some waiting rows, and those after it that fit into the same report."""
        left = _MOST_SECONDS
        chunk: list[int] = []
        for row in waiting:
            left -= self._seconds.get(row, _MOST_SECONDS)
            if chunk and left < 0:
                break
            chunk.append(row)
        return chunk

    def note(self, rows: Sequence[int], seconds: float) -> None:
        """Take down how long rows took together."""
        share = seconds / len(rows)
        for row in rows:
            self._seconds[row] = share
