"""The rows of a replay in a file beside the checkpoint, which names it and knows its checksum."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenv.errors import UnknownSetting
from vecenv.whole_file import whole_file

from .replay_memory import ReplayMemory
from .run_directory import REPLAY_NAME

_CHUNK = 1 << 20
"""Bytes that are copied, written and summed at a time."""


def unused_path(folder: Path, env_steps: int) -> Path:
    """Where the rows after so many env steps may be written.

    Never where there are some already: another checkpoint may name those, also one of the same env steps, and would be
    worth nothing if this process were killed before its own one is in place.
    """
    names = itertools.chain([str(env_steps)], (f"{env_steps}-{number}" for number in itertools.count(1)))
    paths = (folder / REPLAY_NAME.format(name) for name in names)
    return next(path for path in paths if not path.exists())


def save_rows(memory: ReplayMemory, written: NDArray[np.int64], path: Path) -> dict[str, Any]:
    """Write all rows to ``path``, whole or not at all.

    The file has the layout of the memory, so that it can be mapped; parts that were never written take no space.
    Writing goes through the file and not through a mapping, where a full disk would kill the process.

    Args:
        memory: the rows.
        written: [E] int64, rows that every stream has had.
        path: of the file; replaced where there is one.

    Returns:
        What :func:`load_rows` needs: ``name`` and ``checksum``.

    Raises:
        OSError: the file cannot be written.
    """
    checksum = 0
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.truncate(memory.spec.nbytes)
        for offset, part in _parts(memory, written):
            file.seek(offset)
            data = part.data.cast("B")
            for start in range(0, len(data), _CHUNK):
                chunk = bytes(data[start : start + _CHUNK])  # actors go on writing into rows that have expired
                file.write(chunk)
                checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    return {"name": path.name, "checksum": checksum}


def load_rows(memory: ReplayMemory, written: NDArray[np.int64], path: Path, record: dict[str, Any]) -> None:
    """Read the rows back; arguments as for :func:`save_rows`, ``record`` is what it returned.

    Raises:
        UnknownSetting: there is no such file, it is of another size or number of streams, or not the one saved.
    """
    if len(written) != memory.spec.num_streams:
        raise UnknownSetting(
            f"the replay in {path} is of {len(written)} environments, and num_envs is {memory.spec.num_streams} now: a "
            "run goes on with as many as its replay has streams"
        )
    try:
        size = path.stat().st_size
        if size != memory.spec.nbytes:
            raise UnknownSetting(f"the replay in {path} has {size} bytes; these settings need {memory.spec.nbytes}")
        saved = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise UnknownSetting(f"the replay of this checkpoint cannot be read: {error}") from error
    checksum = 0
    for offset, part in _parts(memory, written):
        data = saved[offset : offset + part.nbytes]
        checksum = zlib.crc32(data.data, checksum)
        part.view(np.uint8).reshape(-1)[:] = data
    if checksum != record["checksum"]:
        raise UnknownSetting(f"the replay in {path} is not the one that this checkpoint was saved with")


def _parts(memory: ReplayMemory, written: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Offset in the block and view of every part that holds rows: that of each stream in each array."""
    layout = memory.spec.layout()
    for name, array in memory.arrays.items():
        for stream, count in enumerate(np.minimum(written, memory.spec.num_slots).tolist()):
            if count and array.size:  # observations may hold no number at all
                yield layout.arrays[name].offset + stream * array[stream].nbytes, array[stream, :count]
