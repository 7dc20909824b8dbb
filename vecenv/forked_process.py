"""How a process that works for the user's process begins, where it was forked, and how it ends in any case."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import NoReturn


def begin_process() -> None:
    """In a fork: forget what the parent registered for its own exit, and its child processes."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes._children.clear()
    utilities = sys.modules.get("multiprocessing.util")
    if utilities is not None:
        utilities._finalizer_registry.clear()
        atexit.register(utilities._exit_function)


def end_process(code: int) -> NoReturn:
    """Run what was registered since the fork for the end of the process, flush what was printed, and end."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a closed or broken stream has nothing to lose
            stream.flush()
    os._exit(code)


def run_to_end(main: Callable[[], None]) -> NoReturn:
    """Run what a process is for and end it, whatever comes of that and whatever threads are left.

    An error is shown as the interpreter shows one that nobody catches.
    """
    code = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        end_process(code)
