"""Files that are written whole or not at all, and what killed processes have left unfinished of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file under another name beside its own, which it gets at the end of the block.

    Where the block raises, what it has written is removed, and what was at ``path`` before stays. Only a process that
    is killed leaves something behind, see `remove_unfinished`.

    Args:
        path: of the file; its folder exists.

    Yields:
        Where to write instead.
    """
    unfinished = path.with_name(_unfinished_name(path.name, str(os.getpid())))
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what killed processes have left of a `whole_file`; no other process may be writing one meanwhile.

    Args:
        folder: of the file.
        name: of the file, or a pattern as `Path.glob` takes it.
    """
    for unfinished in folder.glob(_unfinished_name(name, "[0-9]*")):
        unfinished.unlink(missing_ok=True)


def _unfinished_name(name: str, process: str) -> str:
    return f".{name}.{process}"
