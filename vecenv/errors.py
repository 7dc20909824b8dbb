"""Errors that name what was called, where it failed, what was expected and what came."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.error import ResetNeeded

#: Stands in `WorkerDied.doing` where we have killed the worker ourselves.
LATE = "(longer than step_timeout)"
#: Likewise, where a call was interrupted that it would have answered too late.
INTERRUPTED = "(interrupted)"


class VecEnvError(RuntimeError):
    """Base of the errors that a vector env raises about its own running."""


class UnknownSetting(ValueError):
    """A name (env id, back end, preset, field) that does not exist; the message lists what does."""


class MissingExtra(ImportError):
    """An optional package is needed and not installed.

    Args:
        what: name of the missing package as pip knows it.
        extra: the extra of this distribution that installs it.
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} is not installed; run: pip install 'vecenv[{extra}]'")

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Rebuild from the two arguments: the message alone does not construct the class."""
        return (type(self), (self.what, self.extra))


class WorkersUnavailable(VecEnvError):
    """Workers cannot be had where they were asked for: no machine, no room, not in time, not of this version."""


class EpisodeEnded(ResetNeeded, AssertionError):
    """An env whose episode has ended was stepped with autoreset disabled; Gymnasium asserts that this is not so."""


class WorkerDied(VecEnvError):
    """A worker process ended without being asked to.

    Attributes:
        env_indices: indices of the environments that the worker hosted.
        pid: process id of the worker.
        exitcode: exit status; negative: minus the number of the signal; None: unknown.
        doing: name of the call during which it was noticed.
        advice: what can be done now.
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int,
        exitcode: int | None,
        doing: str,
        advice: str = "close() still works; build the vector env anew to go on",
    ) -> None:
        self.env_indices = tuple(env_indices)
        self.pid = pid
        self.exitcode = exitcode
        self.doing = doing
        self.advice = advice
        super().__init__(
            f"worker process {pid} (environments {describe_indices(self.env_indices)}) died during `{doing}`: "
            f"{describe_exit(exitcode, reason_known=LATE in doing or INTERRUPTED in doing)}. {advice}."
        )

    def __reduce__(self) -> tuple[type[WorkerDied], tuple[Any, ...]]:
        """Rebuild from the arguments: the message alone does not construct the class."""
        return (type(self), (self.env_indices, self.pid, self.exitcode, self.doing, self.advice))


class EnvError(VecEnvError):
    """An environment raised an exception.

    What is raised is also an instance of the exception's own class wherever Python can build such a class, so that
    ``except ValueError`` and ``except EnvError`` both catch it. The original is its ``__cause__``.

    Attributes:
        env_index: index of the (first) failing environment.
        failures: every environment that failed in the same call.
        worker_pid: process id where it happened (the caller's own for the `sync` back end).
        remote_traceback: the traceback as text.
        doing: name of the call.
    """

    env_index: int
    failures: tuple[EnvFailure, ...]
    worker_pid: int
    remote_traceback: str
    doing: str = "step"
    _message: str = ""

    def __str__(self) -> str:
        """The message; classes such as KeyError would print its repr instead."""
        return self._message or super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the failures: the class itself is made on the fly and cannot be imported."""
        return (env_error, (self.failures, self.doing))


@dataclass(frozen=True)
class EnvFailure:
    """One environment's exception, as it travels from a worker to the caller.

    Attributes:
        env_index: index of the environment in the vector env.
        worker_pid: process id where it happened.
        exception: the exception, or None where it could not be pickled.
        type_name: name of its class.
        message: ``str`` of it.
        traceback: formatted traceback.
    """

    env_index: int
    worker_pid: int
    exception: BaseException | None
    type_name: str
    message: str
    traceback: str


def env_error(failures: Sequence[EnvFailure], doing: str) -> EnvError:
    """Build the error to raise for the environments that failed during one call.

    Args:
        failures: at least one failure; the first gives class and cause.
        doing: name of the call, such as ``"step"``.

    Returns:
        An `EnvError` that is also an instance of the original's class where that is possible.
    """
    failures = tuple(failures)
    first = failures[0]
    others = ""
    if len(failures) > 1:
        named = "; ".join(f"environment {f.env_index}: {f.type_name}: {f.message}" for f in failures[1:])
        others = f"\nIn the same call also failed: {named}"
    advice = "\nThe other environments finished the call; reset the failed ones to go on."
    message = (
        f"environment {first.env_index} (process {first.worker_pid}) raised {first.type_name} during `{doing}`: "
        f"{first.message}{others}{advice if doing in ('reset', 'step', 'recv') else ''}\n\n{first.traceback}"
    )
    facts = {
        "_message": message,
        "env_index": first.env_index,
        "failures": failures,
        "worker_pid": first.worker_pid,
        "remote_traceback": first.traceback,
        "doing": doing,
    }
    error = _instance_of_both(first.exception, message, facts)
    error.__cause__ = first.exception
    return error


def _instance_of_both(original: BaseException | None, message: str, facts: dict[str, Any]) -> EnvError:
    """An EnvError that also is an instance of ``type(original)``, or a plain one where no such class can be."""
    if original is not None and not isinstance(original, EnvError):
        try:
            both: Any = type("EnvError", (EnvError, type(original)), {"__module__": __name__})
            error: EnvError = type(original).__new__(both)
            error.__dict__.update({**original.__dict__, **facts})
            error.args = (message,)
            if str(error) == message:
                return error
        except Exception:  # a class that refuses bases, arguments or attributes is the user's; the plain error serves
            pass
    error = EnvError(message)
    error.__dict__.update(facts)
    return error


def describe_indices(indices: Sequence[int]) -> str:
    """Write indices briefly: ``3``, ``4-7`` or ``1, 5, 9``."""
    indices = list(indices)
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]}-{indices[-1]}"
    return ", ".join(map(str, indices))


def describe_exit(exitcode: int | None, reason_known: bool = False) -> str:
    """Say how a process ended, with a likely reason where there is one and none is known."""
    if exitcode is None:
        return "its exit status is unknown"
    if exitcode >= 0:
        return f"it left with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hint = {
        "SIGKILL": " (killed from outside; often the kernel, for want of memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (an abort in native code)",
    }.get(name, "")
    return f"it was ended by {name}{'' if reason_known else hint}"
