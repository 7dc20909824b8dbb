"""Pickles for other processes: by value where a name could not be found there."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


def dumps(message: Any) -> bytes:
    """Pickle by the standard pickler, and by value (lambdas, local and `__main__` classes) where that one refuses."""
    try:
        data: bytes = cloudpickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except RecursionError as error:
        raise pickle.PicklingError(f"too deeply nested: {error}") from error
    return data
