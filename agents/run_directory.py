"""The folder of one run: settings, metrics, checkpoint, summary and curve."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from vecenv.errors import UnknownSetting
from vecenv.whole_file import remove_unfinished, whole_file

PACKAGES = ("vecenv", "numpy", "gymnasium", "numba", "torch", "ale-py")
REPLAY_NAME = "replay-{}.bin"
"""Of the file with the rows of DQN's replay, by the env steps at which it was written, and a number if need be."""


class RunDirectory:
    """``runs/<env>-<algorithm>-<time>/`` with the names of the files in it."""

    def __init__(self, path: str | Path) -> None:
        """Use ``path``; it is made, with its parents, where it does not exist."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.pt"
        self.best = path / "best.pt"
        self.summary = path / "summary.json"
        self.curve = path / "curve.png"

    @classmethod
    def create(cls, env_id: str, algorithm: str, root: Path = Path("runs")) -> RunDirectory:
        """A new folder under ``root``, named by environment, algorithm and time.

        Raises:
            OSError: it cannot be made.
        """
        name = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', env_id)}-{algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
        for number in range(1000):
            path = root / (name if number == 0 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:  # another run began in the same second
                continue
            return cls(path)
        raise FileExistsError(f"{root / name} and a thousand more exist already")

    @staticmethod
    def check_is_free(path: Path, resumed: Path | None, advice: str) -> None:
        """Refuse to write over the files of another run.

        Args:
            path: the folder to write to.
            resumed: folder of the run that goes on, if one does.
            advice: how to go on with the run in ``path``.

        Raises:
            UnknownSetting: a run has left its files in ``path``, and is not the one that goes on; or another training
                is writing to it.
        """
        is_used = any((path / name).exists() for name in ("checkpoint.pt", "metrics.csv"))
        if is_used and (resumed is None or resumed.resolve() != path.resolve()):
            raise UnknownSetting(f"{path} already holds a run: {advice}, or name another folder")
        if path.is_dir():
            with RunDirectory(path)._kept_from_others():
                pass

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the folder from other trainings, of this process too, until this one is through or its process gone.

        What an earlier one could not finish to write, because it was killed, is removed. Where folders cannot be locked
        (some network drives; not POSIX) nobody is kept out.

        Raises:
            UnknownSetting: another training is writing to it.
        """
        with self._kept_from_others():
            written = (self.config, self.metrics, self.checkpoint, self.best, self.summary)
            for name in (*(path.name for path in written), REPLAY_NAME.format("*")):
                remove_unfinished(self.path, name)
            yield

    @contextlib.contextmanager
    def _kept_from_others(self) -> Iterator[None]:
        """Lock the folder, see `held`."""
        with contextlib.ExitStack() as stack:
            try:
                import fcntl

                descriptor = os.open(self.path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnknownSetting(
                    f"{self.path} is being written by another training: wait for its end, or name another folder"
                ) from None
            except (ImportError, OSError):
                pass  # folders cannot be locked here
            yield

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Write ``content`` to ``path``, whole or not at all."""
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None for those that are not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
