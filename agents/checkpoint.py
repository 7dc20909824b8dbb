"""Checkpoint files: only tensors and plain Python values, written atomically, read without running any pickled code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import zipfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vecenv.errors import UnknownSetting
from vecenv.whole_file import whole_file

FORMAT = 3
"""Version of the layout; files of another version are refused."""


class CheckpointError(UnknownSetting):
    """The file is missing, damaged, or not a checkpoint of this version; the message names it."""


def to_plain(value: Any, where: str = "checkpoint") -> Any:
    """``value`` rebuilt from tensors, None, bool, int, float, str, bytes, lists, tuples and dicts alone.

    NumPy scalars become Python numbers and NumPy arrays tensors; dataclasses become dicts, enums their values, paths
    strings. Tensors are detached and moved to the CPU, and share memory with the original where they can.

    Raises:
        TypeError: for anything else; the message says where in ``value`` it was found.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Enum):
        return to_plain(value.value, where)
    if isinstance(value, np.generic):
        return to_plain(value.item(), where)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name), f"{where}.{field.name}") for field in fields}
    if isinstance(value, dict):
        return {_plain_key(key, where): to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(f"{where} is a {type(value).__name__}, which a checkpoint cannot hold")


def _plain_key(key: Any, where: str) -> Any:
    plain = to_plain(key, f"a key of {where}")
    if not isinstance(plain, (str, int)):
        raise TypeError(f"{where} has the key {key!r}; keys must be strings or whole numbers")
    return plain


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path``: whole or not at all, so that an interrupted write leaves the old file.

    Raises:
        TypeError: when ``content`` holds something that is neither a tensor nor plain.
    """
    plain = to_plain({"format": FORMAT, **content})
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        with _sums_written():
            torch.save(plain, file)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _sums_written() -> Iterator[None]:
    """Torch writes the sums that :func:`_check_sums` compares, whatever the program has set; older ones always do."""
    if not hasattr(torch.serialization, "set_crc32_options"):
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _reason(error: Exception) -> str:
    """What is wrong with a file, in a few words; torch's own go on for a page, with advice to load it unsafely."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds something other than tensors and plain values, or is no checkpoint at all"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check_sums(file: Path) -> None:
    """Compare the parts of a file with the sums that were written with them, which torch does not do.

    A file that is no archive at all is left to torch, whose words for it are better.

    Raises:
        CheckpointError: one of them is another one.
        zipfile.BadZipFile: what stands before a part, or the table of them, is damaged.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as parts:
        damaged = parts.testzip()
    if damaged is not None:
        raise CheckpointError(f"its part {damaged} is damaged")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, or the ``checkpoint.pt`` of a run directory; its tensors lie on the CPU.

    Raises:
        CheckpointError: when there is no such file, or it is not a checkpoint of this version.
    """
    file = path / "checkpoint.pt" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"there is no checkpoint at {file}")
    try:
        _check_sums(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        reason = _reason(error)
        raise CheckpointError(f"{file} is not a readable checkpoint ({reason})") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise CheckpointError(f"{file} is not a checkpoint of this package")
    if content["format"] != FORMAT:
        raise CheckpointError(f"{file} is a checkpoint of format {content['format']}; this version reads {FORMAT}")
    return content
