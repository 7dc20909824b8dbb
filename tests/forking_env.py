"""An environment that leaves a process behind, which could hide the end of its parent: what tests of that share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from vecenv.toy_envs import CountEnv


class ForkingEnv(CountEnv):
    """`CountEnv` whose reset forks a process where there is no file yet, and writes its number there.

    `natively`: past Python, as libraries do, so that the process keeps all descriptors.
    """

    def __init__(self, path: Path, natively: bool) -> None:
        super().__init__()
        self.path, self.natively = path, natively

    def reset(self, **arguments: Any) -> Any:
        if not self.path.exists():
            child = ctypes.PyDLL(None).fork() if self.natively else os.fork()
            if child == 0:
                time.sleep(100)
                os._exit(0)
            self.path.write_text(str(child))
        return super().reset(**arguments)


def has_sockets(path: Path) -> bool:
    """Whether the process that was left behind holds any, besides what it prints to."""
    folder = Path("/proc", path.read_text(), "fd")
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closing them
            if int(link.name) > 2 and os.readlink(link).startswith("socket:"):
                return True
    return False


def end_left_behind(path: Path) -> None:
    if path.exists():
        os.kill(int(path.read_text()), signal.SIGKILL)
