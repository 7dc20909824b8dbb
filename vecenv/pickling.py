"""Pickles for other processes: by value where a name could not be found there."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import cloudpickle


def dumps(message: Any) -> bytes:
    """Pickle; lambdas, local functions and what lives in `__main__` go by value.

    Raises:
        pickle.PicklingError: the message is too deeply nested. Other errors are those of what refuses to be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError as error:
        raise pickle.PicklingError(f"too deeply nested: {error}") from error
    return data


def dumps_given(what: str, value: Any) -> bytes:
    """Pickle what the user gives to envs.

    Args:
        what: the argument or call, for the message.
        value: what it holds.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps(value)
    except Exception as error:  # whatever a class of the user's raises
        raise TypeError(f"{what}: cannot be sent to a worker process: {error}") from error


def dumps_options(options: Any) -> bytes | None:
    """Pickle the options of a reset, see `dumps_given`; where there are none, there is nothing to send."""
    return None if options is None else dumps_given("options", options)


def dumps_function(function: Any) -> bytes:
    """Pickle a constructor of envs for a worker, which imports what it can and gets the rest by value, see `by_value`.

    By value travel `__main__`, local classes and functions, and modules that only this process has.
    """
    with by_value():
        return dumps(function)


@contextlib.contextmanager
def by_value() -> Iterator[None]:
    """In here, `dumps` pickles by value what lies in modules that only this process has.

    Those are loaded by path, or by a test runner that leaves `sys.path` alone.
    """
    modules = [module for module in list(sys.modules.values()) if _only_here(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _only_here(module: Any) -> bool:
    """Whether a module is a file of the user's that a fresh import would not find."""
    name, file = getattr(module, "__name__", None), getattr(module, "__file__", None)
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or name == "__main__"
        or sys.modules.get(name) is not module
    ):
        return False
    if name.partition(".")[0] == "vecenv" or any(file.startswith(folder) for folder in _installed_folders()):
        return False
    spec = _found_anew(name)
    return spec is None or bool(spec.origin and os.path.realpath(spec.origin) != os.path.realpath(file))


def _found_anew(name: str) -> ModuleSpec | None:
    """What a fresh import of a module would find, where it would find its package too."""
    parent, _, _ = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and (path is None or _found_anew(parent) is None):
        return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # a finder of the user's, or none that can be asked
            spec = None
        if spec is not None:
            return spec
    return None


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths})
