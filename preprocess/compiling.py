"""How kernels are compiled: no interpreter lock, cached on disk where that is possible, loaded from there quickly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy.ma  # noqa: F401 - Numba asks for it at the first call: loaded here, workers share it with the fork server
from numba import njit
from numba.core.runtime.nrt import rtsys


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function when its module is imported.

    Args:
        signature: Numba types of the result and the arguments.

    Returns:
        A decorator: `cached`, with the signature compiled or loaded.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = cached(function)
        if hasattr(compiled, "compile"):  # it is the function itself where NUMBA_DISABLE_JIT is set
            compiled.compile(signature)
            compiled.disable_compile()
        return compiled

    return decorate


def cached(function: Callable[..., Any]) -> Any:
    """Let Numba compile a function for the arguments that it is called with.

    Args:
        function: of numbers and arrays alone.

    Returns:
        Numba's dispatcher. What it compiles releases the interpreter lock and is stored in Numba's cache, or is
        compiled in every process where no cache folder can be written.
    """
    try:
        dispatcher = njit(nogil=True, cache=True)(function)
    except RuntimeError as error:
        # Neither the source's folder, nor the user's, nor NUMBA_CACHE_DIR is writable.
        if "cannot cache" not in str(error):
            raise
        return njit(nogil=True)(function)
    if hasattr(dispatcher, "_cache"):
        _load_without_registries(dispatcher._cache)
    return dispatcher


def _load_without_registries(cache: Any) -> None:
    """Let Numba load what is in its cache without what it needs to compile.

    Before it looks into the cache, Numba fills its context with all that it can compile: NumPy, lists, dictionaries and
    so on, 27 MB a process and three quarters of the time that our kernels take to load. Machine code needs the runtime
    alone. Numba calls this, and compiles, under one lock, so nobody else gets to see the context as it is in between;
    where something must be compiled, Numba fills it then.
    """
    load_overload = cache.load_overload

    def load(signature: Any, context: Any) -> Any:
        context.refresh = functools.partial(rtsys.initialize, context)
        try:
            return load_overload(signature, context)
        finally:
            vars(context).pop("refresh", None)

    cache.load_overload = load
