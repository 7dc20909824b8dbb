"""How kernels are compiled: explicit signatures, no interpreter lock, cached on disk where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function when its module is imported.

    Args:
        signature: Numba types of the result and the arguments.

    Returns:
        A decorator. The compiled function releases the interpreter lock and is stored in Numba's cache, or is compiled
        in every process where no cache folder can be written.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(signature, nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except RuntimeError as error:
            # Neither the source's folder, nor the user's, nor NUMBA_CACHE_DIR is writable.
            if "cannot cache" not in str(error):
                raise
            return njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return decorate
