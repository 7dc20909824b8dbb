"""Exceptions of envs on their way to the caller: described where they happen, carried between processes."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import replace

from vecenv.errors import EnvFailure
from vecenv.pickling import dumps


class SliceFailed(Exception):
    """Some envs of the slice raised; the others finished the call.

    Args:
        failures: one per failing env.
    """

    def __init__(self, failures: list[EnvFailure]) -> None:
        super().__init__(f"{len(failures)} environments failed")
        self.failures = failures


def env_failure(env_index: int, exception: BaseException) -> EnvFailure:
    """Describe whatever an env raised, from inside the handler that caught it.

    Raises:
        KeyboardInterrupt: it is the user's and passes through.
    """
    interruptible = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # in a worker it can only be the env's own
    if isinstance(exception, KeyboardInterrupt) and interruptible:
        raise exception
    try:
        message = str(exception)
    except Exception as error:  # __str__ is the user's code too
        message = f"<its message cannot be printed: {error!r}>"
    name = type(exception).__name__
    text = "".join(traceback.format_exception(exception))
    kept = exception if isinstance(exception, Exception) else None
    return EnvFailure(env_index, os.getpid(), kept, name, message, text)


def pack_failures(failures: Sequence[EnvFailure]) -> list[tuple[EnvFailure, bytes | None]]:
    """Make failures fit for the pipe: exceptions that cannot be pickled stay behind, their text travels."""
    packed = []
    for failure in failures:
        data = None
        if failure.exception is not None:
            try:
                data = dumps(failure.exception)
                pickle.loads(data)
            except Exception:  # what cannot be pickled is still told as text
                data = None
        packed.append((replace(failure, exception=None), data))
    return packed


def unpack_failures(packed: Sequence[tuple[EnvFailure, bytes | None]]) -> list[EnvFailure]:
    """The failures with their exceptions, where those could be carried."""
    failures = []
    for failure, data in packed:
        exception = None
        if data is not None:
            try:
                exception = pickle.loads(data)
            except Exception:  # its class may be one that only the other process can import
                exception = None
        failures.append(replace(failure, exception=exception))
    return failures
