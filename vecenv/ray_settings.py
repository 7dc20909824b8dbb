"""What the Ray back end can be told beyond the settings of every back end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vecenv.arguments import check_positive_int, check_worker_failure
from vecenv.errors import UnknownSetting

#: Names of Ray's ways of choosing a node.
_STRATEGIES = ("DEFAULT", "SPREAD")


@dataclass(frozen=True)
class RaySettings:
    """Settings of `RayVecEnv` alone.

    Attributes:
        num_workers: actors; each hosts a contiguous share of the envs. None: as many as the cluster has free cores for.
            Never more than envs.
        address: ``"host:port"`` of a cluster to join, ``"auto"`` for the one that runs on this machine, ``"local"`` for
            one of our own. None: what the environment variable RAY_ADDRESS says; without it, one of our own.
        num_cpus: CPUs that Ray sets aside for every actor; a fraction lets actors share one.
        num_gpus: GPUs, likewise.
        resources: the cluster's own resources for every actor, name -> amount.
        memory: bytes that Ray sets aside for every actor.
        scheduling_strategy: ``"DEFAULT"`` fills nodes up, ``"SPREAD"`` spreads actors over nodes.
        runtime_env: files, variables and packages that actors need, as Ray describes them.
        object_store_memory: bytes of the object store of a cluster of our own.
        share_memory: whether rows of actors on the caller's machine stay in memory that both map. False: they are sent,
            as from another machine; the results are the same.
        on_worker_failure: ``"raise"``: a dead actor or node raises `WorkerDied`. ``"restart"``: its envs are built anew
            wherever there is room, and their episodes truncated, see `vecenv.recovery`.
        step_timeout: seconds after which an actor that has not finished a call is killed and handled as dead. With a
            new one in its place, the repeated call has them too; building the envs there has 60 s, or these if more.
        start_timeout: seconds that reaching the cluster, and starting all actors, may each take.
    """

    num_workers: int | None = None
    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    scheduling_strategy: str = "DEFAULT"
    runtime_env: Mapping[str, Any] | None = None
    object_store_memory: int | None = None
    share_memory: bool = True
    on_worker_failure: str = "raise"
    step_timeout: float | None = None
    start_timeout: float = 60.0

    @classmethod
    def split(cls, settings: dict[str, Any]) -> tuple[RaySettings, dict[str, Any]]:
        """Read these settings out of a dict and give the rest.

        Raises:
            UnknownSetting: a strategy or failure policy that does not exist.
            TypeError, ValueError: a value that does not fit.
        """
        names = {setting.name for setting in fields(cls)}
        result = cls(**{name: value for name, value in settings.items() if name in names})
        result._check()
        return result, {name: value for name, value in settings.items() if name not in names}

    def _check(self) -> None:
        for name in ("num_workers", "object_store_memory"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        for name in ("num_cpus", "num_gpus"):
            _check_amount(name, getattr(self, name))
        for name in ("step_timeout", "start_timeout", "memory"):
            if getattr(self, name) is not None:
                _check_amount(name, getattr(self, name), zero=False)
        if self.start_timeout is None:
            raise TypeError("start_timeout: expected a positive number, got None")
        if not isinstance(self.share_memory, bool):
            raise TypeError(f"share_memory: expected True or False, got {self.share_memory!r}")
        if not isinstance(self.resources, Mapping):
            raise TypeError(f"resources: expected a mapping from name to amount, got {self.resources!r}")
        for name, amount in self.resources.items():
            _check_amount(f"resources[{name!r}]", amount)
        if self.address is not None and not isinstance(self.address, str):
            raise TypeError(f"address: expected 'host:port', 'auto', 'local' or None, got {self.address!r}")
        check_worker_failure(self.on_worker_failure)
        if self.scheduling_strategy not in _STRATEGIES:
            raise UnknownSetting(
                f"scheduling_strategy={self.scheduling_strategy!r} does not exist; expected one of {_STRATEGIES}"
            )

    def demands(self, num_workers: int) -> dict[str, float]:
        """What a number of actors asks of the cluster, by Ray's names of resources."""
        each = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources, "memory": self.memory or 0.0}
        return {name: amount * num_workers for name, amount in each.items() if amount}

    def actor_options(self) -> dict[str, Any]:
        """Options of every actor, as Ray takes them.

        Actors are never restarted behind the vector env's back, and their calls, hundreds in a second, are not recorded
        for the dashboard, which would take processor time from the envs.
        """
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.resources) or None,
            "memory": self.memory,
            "scheduling_strategy": self.scheduling_strategy,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
        }
        return {name: value for name, value in options.items() if value is not None}


def _check_amount(name: str, value: Any, zero: bool = True) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name}: expected a {'number of at least 0' if zero else 'positive number'}, got {value!r}")
