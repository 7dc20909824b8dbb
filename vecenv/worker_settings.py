"""What the subprocess back end can be told beyond the settings of every back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.arguments import check_positive_int, check_worker_failure
from vecenv.cores import usable_cores
from vecenv.info_arena import declared_signatures
from vecenv.pickling import dumps_function
from vecenv.protocol import WorkerConfig
from vecenv.worker_process import start_method_of


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of `SubprocVecEnv` alone.

    Attributes:
        num_workers: processes; each hosts a contiguous share of the envs, until balancing moves some. None: usable
            cores. Never more than envs.
        max_concurrency: upper bound on envs that run at the same time, which is the number of workers.
        start_method: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
        preload: modules to import once in the fork server before workers are forked.
        info_spec: info fields known ahead, name -> dtype or (dtype, shape); others are learnt when first seen.
        on_worker_failure: ``"raise"``: a dead worker raises `WorkerDied`. ``"restart"``: its envs are built anew and
            their episodes truncated, see `vecenv.recovery`.
        balance: whether envs move between workers, when their episode ends, by the measured time of their steps; envs
            whose state cannot be saved stay where they are.
        step_timeout: seconds after which a worker that has not finished a call is killed and handled as dead. With a
            new one in its place, the repeated call has them too; building the envs there has 60 s, or these if more.
    """

    num_workers: int | None = None
    max_concurrency: int | None = None
    start_method: str = "forkserver"
    preload: tuple[str, ...] = ()
    info_spec: Mapping[str, Any] | None = None
    on_worker_failure: str = "raise"
    step_timeout: float | None = None
    balance: bool = False

    @classmethod
    def split(cls, settings: dict[str, Any], context: Any) -> tuple[WorkerSettings, dict[str, Any]]:
        """Read these settings out of a dict and give the rest.

        Raises:
            UnknownSetting: a start method or failure policy that does not exist.
            TypeError, ValueError: a value that does not fit.
        """
        names = {field.name for field in fields(cls)} - {"start_method"}
        own = {name: value for name, value in settings.items() if name in names}
        rest = {name: value for name, value in settings.items() if name not in names}
        if "preload" in own:
            own["preload"] = _module_names(own["preload"])
        result = cls(start_method=start_method_of(context), **own)
        if result.num_workers is not None:
            check_positive_int("num_workers", result.num_workers)
        if result.max_concurrency is not None:
            _check_max_concurrency(result.max_concurrency)
        check_worker_failure(result.on_worker_failure)
        limit = result.step_timeout
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real) or not limit > 0):
            raise ValueError(f"step_timeout: expected a positive number of seconds or None, got {limit!r}")
        if not isinstance(result.balance, (bool, np.bool_)):
            raise TypeError(f"balance: expected True or False, got {result.balance!r}")
        declared_signatures(result.info_spec)
        return result, rest

    def workers_for(self, num_envs: int) -> int:
        """How many workers a number of envs gets."""
        workers = min(usable_cores() if self.num_workers is None else self.num_workers, num_envs)
        return workers if self.max_concurrency is None else min(workers, self.max_concurrency)


def _check_max_concurrency(limit: Any) -> None:
    """As Gymnasium does, which raises ValueError for what is no int too."""
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(limit)}.")
    if limit < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {limit}.")


def _module_names(preload: Any) -> tuple[str, ...]:
    """Names of modules; a single string would be taken for its letters."""
    if isinstance(preload, (str, bytes)) or not isinstance(preload, Iterable):
        raise TypeError(f"preload: expected a sequence of names of modules, got {preload!r}")
    names = tuple(preload)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"preload: expected names of modules, got {name!r}")
    return names


def shares(num_envs: int, num_workers: int) -> list[list[int]]:
    """Contiguous shares of env indices whose sizes differ by at most one."""
    bounds = [num_envs * worker // num_workers for worker in range(num_workers + 1)]
    return [list(range(bounds[worker], bounds[worker + 1])) for worker in range(num_workers)]


def pickled_functions(env_fns: Sequence[Callable[[], Any]]) -> list[bytes]:
    """The constructors, ready to be sent.

    Raises:
        TypeError: a constructor cannot be pickled; the message names it.
    """
    pickled: dict[int, bytes] = {}
    for index, function in enumerate(env_fns):
        if id(function) not in pickled:
            try:
                pickled[id(function)] = dumps_function(function)
            except Exception as error:
                raise TypeError(f"env_fns[{index}] cannot be sent to a worker process: {error}") from error
    return [pickled[id(function)] for function in env_fns]


def worker_config(
    pickled: Sequence[bytes],
    specs: tuple[bytes, ...],
    rows: Sequence[Sequence[int]],
    autoreset_mode: AutoresetMode,
    worker: int,
) -> WorkerConfig:
    """What a worker is told at its start, or at a restart after envs have moved.

    Args:
        pickled: the constructors of all envs.
        specs: what `vecenv.registered_ids.pickled_specs` gave.
        rows: indices of each worker's envs.
        autoreset_mode: what happens when an episode ends.
        worker: which worker it is.
    """
    own = tuple(rows[worker])
    return WorkerConfig(tuple(pickled[row] for row in own), own, worker, autoreset_mode, specs)
