"""Whether a file can be written, asked before the work whose result it is to hold."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import UnknownSetting


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that could not be written; nothing is made yet, folders neither.

    Args:
        path: the file; folders above it may be missing.
        option: where its name comes from, such as ``"--json"``.

    Raises:
        UnknownSetting: it is a folder, stands below a file, or is somewhere that is not ours to write.
    """
    if path.is_dir():
        raise UnknownSetting(f"{option}: {path} is a folder, not a file")
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise UnknownSetting(f"{option}: {nearest} is a file, not a folder")
    if not os.access(nearest, os.W_OK):
        raise UnknownSetting(f"{option}: no permission to write to {nearest}")
