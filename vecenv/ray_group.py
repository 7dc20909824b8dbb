"""Ray actors as a group: started in bounded time, asked, waited for, their deaths noted, ended for certain."""

from __future__ import annotations

import atexit
import math
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import vecenv
from vecenv.errors import LATE, WorkerDied, WorkersUnavailable
from vecenv.protocol import WorkerConfig
from vecenv.ray_actor import HostedActor
from vecenv.ray_cluster import NotEnoughResources, RayConnection
from vecenv.ray_settings import RaySettings
from vecenv.ray_step_runs import StepRun, wait_for_answers
from vecenv.ray_worker import SliceActor

_CLOSE_SECONDS = 10.0
#: Seconds that Ray gets to tell of a death, while there is nothing else to do.
_DEATH_TOLD_SECONDS = 0.01
#: What is asked for too much, by the name of the setting that a user knows it by.
_ADVICE_ON_SIZE = "use fewer workers, or set aside less for each with {}, which may be a fraction"


class WorkerRefused(WorkersUnavailable):
    """An actor runs another version of this package, or cannot import it."""


@dataclass(frozen=True)
class Host:
    """Where an actor runs."""

    pid: int
    machine: str


class ActorGroup:
    """The actors of one vector env, or others that are used like them.

    Args:
        rows: indices of each actor's envs, for the errors that tell of its death.
        settings: what to ask Ray for.
        connection: this group's hold on the cluster; released by `shut_down`.
        kind: class of the actors.
        share: how a user says what Ray sets aside for each actor.

    Attributes:
        rows: see above.
        deaths: actors that ended unasked, with the error that tells of it.
        hosts: where each actor runs.
        runs: of actors that can be asked for steps without a call each.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        settings: RaySettings,
        connection: RayConnection,
        kind: type[HostedActor] = SliceActor,
        share: str = "backend_options=dict(num_cpus=...)",
    ) -> None:
        self.rows = [list(own) for own in rows]
        self.deaths: dict[int, WorkerDied] = {}
        self.hosts: list[Host] = []
        self.runs: dict[int, StepRun] = {}
        self._settings = settings
        self._connection = connection
        self._kind = kind
        self._advice = _ADVICE_ON_SIZE.format(share)
        self._actors: list[Any] = []
        self._owner = os.getpid()
        self._closed = False

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all actors.

        Raises:
            NotEnoughResources: the cluster has less than they ask for, or does not give it in time.
            WorkerRefused: an actor runs another version of this package.
            WorkerDied: an actor ended.
        """
        self._connection.check_demand(self._settings.demands(len(self.rows)), self._advice)
        self._actors = [self._new_actor() for _ in self.rows]
        deadline = time.monotonic() + self._settings.start_timeout
        asked = [actor.introduce.remote() for actor in self._actors]
        self.hosts = [self.introduced(worker, reference, deadline) for worker, reference in enumerate(asked)]

    def _new_actor(self) -> Any:
        import ray

        return ray.remote(self._kind).options(**self._settings.actor_options()).remote()

    def introduced(self, worker: int, reference: Any, deadline: float) -> Host:
        """Wait until an actor runs, and refuse one of another version.

        Args:
            worker: which one.
            reference: of what its `HostedActor.introduce` gives.
            deadline: on the monotonic clock.

        Raises:
            NotEnoughResources, WorkerRefused, WorkerDied: see `start`.
        """
        import ray

        ready, _ = ray.wait([reference], timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            demand = ", ".join(f"{amount:g} of {name!r}" for name, amount in self._settings.demands(1).items())
            raise NotEnoughResources(
                f"worker {worker} was not started within {self._settings.start_timeout:g} s; it waits for {demand}, "
                f"which others hold. Free in the cluster: {self._connection.free()}. To go on: {self._advice}"
            )
        try:
            pid, machine, version = ray.get(reference)
        except Exception as error:
            if isinstance(error, ray.exceptions.ActorDiedError) and "import" not in str(error):
                raise WorkerDied(self.rows[worker], 0, None, "construction") from error
            raise WorkerRefused(
                f"worker {worker} cannot be started; every node of the Ray cluster needs vecenv {vecenv.__version__}: "
                f"{error}"
            ) from error
        if version != vecenv.__version__:
            raise WorkerRefused(
                f"worker {worker} on {machine} has vecenv {version}, this process has {vecenv.__version__}; install "
                "the same version on every node of the Ray cluster"
            )
        return Host(pid, machine)

    def replace(self, worker: int, config: WorkerConfig) -> Any:
        """Put a new actor in the place of one that has died, and have it build its envs.

        Returns:
            The reference of what `SliceActor.build` gives.

        Raises:
            NotEnoughResources: there is no room for it in the cluster.
            WorkerDied: it ended at once.
        """
        reference = self.start_another(worker)
        deadline = time.monotonic() + self._settings.start_timeout
        self.hosts[worker] = self.introduced(worker, reference, deadline)
        return self.ask(worker, "build", config)

    def start_another(self, worker: int) -> Any:
        """Ask Ray for a new actor in the place of one that has died, without waiting for it.

        Returns:
            The reference of what its `HostedActor.introduce` gives, for `introduced`.
        """
        self.deaths.pop(worker)
        self.runs.pop(worker, None)
        self._kill(worker)
        self._actors[worker] = self._new_actor()
        return self.ask(worker, "introduce")

    # -- calls -------------------------------------------------------------------------------------------------------

    def ask(self, worker: int, method: str, *arguments: Any) -> Any:
        """Have an actor run one of its methods, after what it was asked before; gives the reference."""
        if worker in self.runs:
            self.runs[worker].leave()
        return self._call(worker, method, *arguments)

    def _call(self, worker: int, method: str, *arguments: Any) -> Any:
        return getattr(self._actors[worker], method).remote(*arguments)

    def run_of(self, worker: int) -> Any:
        """Have an actor that has a place in `runs` be in a run of steps; gives the reference of that call."""
        return self.runs[worker].begin(lambda run: self._call(worker, "run_steps", run))

    def in_runs(self, references: Mapping[Any, int]) -> bool:
        """Whether references are those of runs, which `wait` and `fetch` take for the last step in each of them."""
        return bool(references) and all(self._is_run(worker, reference) for reference, worker in references.items())

    def _is_run(self, worker: int, reference: Any) -> bool:
        return worker in self.runs and self.runs[worker].reference is reference

    def wait(self, references: Mapping[Any, int], timeout: float | None) -> list[Any]:
        """Wait until at least one of some references is ready (or its actor is dead).

        Args:
            references: with the actors that they were asked of.
            timeout: seconds; None: without limit.

        Returns:
            Those that are ready, none when the time is over.
        """
        import ray

        if self.in_runs(references):
            return self._wait_for_steps(references, timeout)
        ready, waiting = ray.wait(list(references), timeout=timeout)
        if ready and waiting:
            more, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
            ready += more
        return list(ready)

    def _wait_for_steps(self, references: Mapping[Any, int], timeout: float | None) -> list[Any]:
        """As `wait`, for steps in runs."""
        import ray

        deadline = math.inf if timeout is None else time.monotonic() + timeout
        runs = {worker: self.runs[worker] for worker in references.values()}
        while True:
            left = max(0.0, deadline - time.monotonic())
            answered, look = wait_for_answers(runs, left)
            ready = [reference for reference, worker in references.items() if worker in answered]
            if look and not ready:  # a call that is finished, though not for an answer, tells of a death
                ready, _ = ray.wait(list(references), timeout=min(left, _DEATH_TOLD_SECONDS))
            if ready or not left:
                return ready

    def fetch_all(self, references: Sequence[Any], timeout: float) -> list[Any] | None:
        """What references stand for, at the cost of one request; None: something is not there in time, or is amiss."""
        import ray

        try:
            values: list[Any] = ray.get(list(references), timeout=timeout)
        except ray.exceptions.RayError:  # out of time among them
            return None
        return values

    def fetch(self, worker: int, reference: Any, doing: str, timeout: float | None = None) -> Any:
        """What a reference stands for; None: the actor has died, which is noted in `deaths`.

        Args:
            worker: the actor that was asked.
            reference: of what it gives.
            doing: name of the call, for errors.
            timeout: seconds, after which the actor is killed and counts as dead; None: without limit.

        Raises:
            MemoryError: the object store of the cluster cannot hold it.
        """
        import ray

        run = self.runs[worker] if self._is_run(worker, reference) else None
        if run is not None:
            if run.is_answered and not run.tells:
                return b""
            run.leave()
        try:
            result = ray.get(reference, timeout=timeout)
            if run is None or run.is_answered:
                return result
            self.note_death(worker, doing)  # an env has closed the descriptors of its process
        except ray.exceptions.GetTimeoutError:
            self.note_death(worker, f"{doing} {LATE}")
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, ray.exceptions.NodeDiedError):
            self.note_death(worker, doing)
        except ray.exceptions.ObjectLostError:  # its node died after the call was finished
            self.note_death(worker, doing)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise MemoryError(
                f"the object store of the Ray cluster cannot hold the observations of environments "
                f"{self.rows[worker]}: {error}; use more workers with fewer envs each, or a larger object store"
            ) from error
        return None

    def note_death(self, worker: int, doing: str) -> None:
        """Note in `deaths` that an actor has ended, and make sure of it; a second call does nothing."""
        if worker not in self.deaths:
            self._kill(worker)
            self.deaths[worker] = WorkerDied(self.rows[worker], self.hosts[worker].pid, None, doing)

    @property
    def belongs_here(self) -> bool:
        """Whether this process started the actors (a fork of it did not)."""
        return self._owner == os.getpid()

    # -- end ---------------------------------------------------------------------------------------------------------

    def _kill(self, worker: int) -> None:
        import ray

        ray.kill(self._actors[worker], no_restart=True)

    def shut_down(self, timeout: float) -> list[str]:
        """End all actors and let go of the cluster, in bounded time; a second call does nothing.

        Args:
            timeout: seconds that envs may take to close; 0: end the actors at once.

        Returns:
            Tracebacks of envs that raised when they were closed.
        """
        if self._closed or not self.belongs_here:
            return []
        self._closed = True
        raised: list[str] = []
        try:
            if self._actors and self._connection.stands:
                if timeout > 0 and self.hosts:
                    raised = self._close_envs(timeout)
                for worker in range(len(self._actors)):
                    self._kill(worker)
                self._actors = []
            self.runs.clear()
        finally:
            self._connection.release()
        return raised

    def _close_envs(self, timeout: float) -> list[str]:
        import ray

        asked = [self.ask(worker, "close") for worker in range(len(self._actors)) if worker not in self.deaths]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout) if asked else ([], [])
        raised: list[str] = []
        for reference in done:
            try:
                raised += ray.get(reference)
            except Exception:  # it died, or never had envs: there is nothing more to close
                continue
        return raised


def shut_down_at_the_end(owner: Any, group: ActorGroup) -> weakref.finalize[Any, Any]:
    """Have a group end with its owner, or with the interpreter, where nobody closes it."""
    finalizer = weakref.finalize(owner, ActorGroup.shut_down, group, 5.0)
    # Finalizers run after Ray's own end if they were first used before Ray was imported: then no env could be closed.
    # What is registered now runs before it.
    finalizer.atexit = False
    atexit.register(finalizer)
    return finalizer
