"""The engine `ray` of evolution strategies: actors on this machine or on a cluster play the pairs.

The parameters of a generation are put into Ray's object store once; every machine fetches them once and its actors read
them there. What comes back per pair is what a process sends: 36 bytes, and moments of observations where those are
normalised, 160 bytes per pair at most on average over many.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vecenv.errors import WorkerDied
from vecenv.ray_cluster import RayConnection
from vecenv.ray_group import ActorGroup, shut_down_at_the_end
from vecenv.ray_settings import RaySettings

from .es_config import ESConfig
from .population_dealing import DealingEngine, Work
from .population_engine import EngineRequest
from .population_evaluation import Broadcast
from .population_player import packed_setup, read_answer
from .ray_population_actor import PopulationActor

MOST_REPLACEMENTS = 3
"""How often an actor is replaced that has reported nothing in between."""
END_SECONDS = 2.0
"""What idle actors get for closing their environments."""


@dataclass
class RayWorker:
    """One actor, seen from the one that asks.

    Attributes:
        index: of the actor in the group.
        pid: process id on its machine.
        machine: where it runs.
        work: what it plays.
        answer: reference of what it will answer.
        replacements: how often it has been replaced since it last reported something.
    """

    index: int
    pid: int = 0
    machine: str = ""
    work: Work | None = None
    answer: Any = None
    replacements: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"worker process {self.pid} on {self.machine}"


@dataclass(frozen=True)
class Replacement:
    """An actor that Ray was asked for in the place of a dead one.

    Attributes:
        worker: what it will be.
        introduction: reference of what `HostedActor.introduce` gives.
        deadline: on the monotonic clock; there is no room for it if it is not ready by then.
    """

    worker: RayWorker
    introduction: Any
    deadline: float


class RayEngine(DealingEngine[RayWorker]):
    """Deals the pairs of a generation to Ray actors.

    A dead actor's pairs are played by others at once; a new actor takes its place where the cluster has room for one,
    in a while, without anybody waiting for it. Without any actor that lives, `WorkerDied` is raised.
    """

    def __init__(self, request: EngineRequest) -> None:
        """Reach the cluster, start the actors and wait until all have built their environments.

        Raises:
            NotImplementedError: for a device that is not the CPU.
            UnknownSetting: how to build environments is not known.
            TypeError: what builds them cannot be sent.
            MissingExtra: Ray is not installed.
            RayUnreachable: the cluster does not answer.
            NotEnoughResources: the cluster has less than the actors ask for.
            WorkerRefused: a node has another version of this package.
            EnvError: building environments failed.
            WorkerDied: an actor ended.
            WorkersNotReady: an actor did not get ready in time.
        """
        config = request.config
        if request.device != "cpu":
            raise NotImplementedError(f"engine ray plays on CPUs only: device must be cpu, got {request.device!r}")
        self._setup = packed_setup(request)  # refused before a cluster is started
        settings, _ = RaySettings.split(
            {"address": config.ray_address, "num_cpus": config.ray_cpus, "start_timeout": config.start_timeout}
        )
        connection = RayConnection(config.ray_address, timeout=config.start_timeout)
        try:
            num_workers = _num_workers(config, connection)
            super().__init__(config, num_workers)
            members: list[list[int]] = [[] for _ in range(num_workers)]
            self._group = ActorGroup(members, settings, connection, PopulationActor, "ray_cpus")
        except BaseException:
            connection.release()
            raise
        self._replacements: dict[Any, Replacement] = {}
        self._broadcast: Any = None
        self._finalizer = shut_down_at_the_end(self, self._group)
        try:
            self._group.start()
            self._workers = [RayWorker(index, host.pid, host.machine) for index, host in enumerate(self._group.hosts)]
            self._build(time.monotonic() + config.start_timeout)
        except BaseException:
            self._finalizer()
            raise

    @property
    def machines(self) -> list[str]:
        """Names of the machines that the living actors run on."""
        return [worker.machine for worker in self._workers]

    def close(self) -> None:
        """End the actors and, where it was started for them, the cluster, in bounded time; may be called again."""
        self._finalizer.detach()
        is_busy = any(worker.work is not None for worker in self._workers)  # would look up after whole episodes only
        self._workers, self._replacements, self._broadcast = [], {}, None
        self._group.shut_down(0.0 if is_busy else END_SECONDS)

    def _build(self, deadline: float) -> None:
        asked = {self._ask_to_build(worker): worker for worker in self._workers}
        while asked:
            references = {reference: worker.index for reference, worker in asked.items()}
            ready = self._group.wait(references, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._not_ready(list(asked.values()))
            for reference in ready:
                worker = asked.pop(reference)
                answer = self._group.fetch(worker.index, reference, "construction")
                if answer is None:
                    raise self._death(worker, [], "construction")
                read_answer(answer)

    def _ask_to_build(self, worker: RayWorker) -> Any:
        return self._group.ask(worker.index, "build", self._setup, 2 * self._at_once)

    def _take_broadcast(self, broadcast: Broadcast) -> None:
        import ray

        self._broadcast = ray.put(broadcast)

    def _play(self, worker: RayWorker, work: Work) -> None:
        worker.answer = self._group.ask(worker.index, "play", self._broadcast, work.pairs)

    def _answers(self, seconds: float) -> Iterator[tuple[RayWorker, bytes | None]]:
        busy = {worker.answer: worker for worker in self._workers if worker.work is not None}
        references = {reference: worker.index for reference, worker in busy.items()}
        references |= {reference: replacement.worker.index for reference, replacement in self._replacements.items()}
        for reference in self._group.wait(references, seconds):
            if reference in self._replacements:
                self._add_replacement(self._replacements.pop(reference), reference)
                continue
            worker = busy[reference]
            worker.answer = None
            try:
                answer = self._group.fetch(worker.index, reference, "evaluate")
            except Exception:
                worker.work = None  # there is nothing more to come
                raise
            if answer is not None:
                worker.replacements = 0
            yield worker, answer
        self._give_up_late_replacements()

    def _death(self, worker: RayWorker, members: list[int], doing: str) -> WorkerDied:
        self._group.note_death(worker.index, doing)
        advice = f"It ran on {worker.machine}; no worker is left to play its pairs"
        return WorkerDied(members, worker.pid, None, doing, advice)

    # -- replacements ------------------------------------------------------------------------------------------------

    def _replace(self, worker: RayWorker) -> None:
        if worker.replacements >= MOST_REPLACEMENTS:
            return
        introduction = self._group.start_another(worker.index)
        another = RayWorker(worker.index, replacements=worker.replacements + 1)
        deadline = time.monotonic() + self._config.start_timeout
        self._replacements[self._ask_to_build(another)] = Replacement(another, introduction, deadline)

    def _add_replacement(self, replacement: Replacement, built: Any) -> None:
        """Take in an actor that has been started in the place of a dead one; one that is no good is told of once."""
        worker = replacement.worker
        try:
            host = self._group.introduced(worker.index, replacement.introduction, time.monotonic() + 1.0)
            answer = self._group.fetch(worker.index, built, "construction")
            if answer is None:
                self._give_up(worker, "another in its place died too while it built its environments")
                return
            read_answer(answer)
        except Exception as error:  # the others play on
            self._give_up(worker, str(error))
            return
        self._group.hosts[worker.index] = host
        self._workers.append(RayWorker(worker.index, host.pid, host.machine, replacements=worker.replacements))

    def _give_up_late_replacements(self) -> None:
        now = time.monotonic()
        for reference, replacement in list(self._replacements.items()):
            if replacement.deadline < now:
                del self._replacements[reference]
                self._give_up(replacement.worker, f"there was no room for it within {self._config.start_timeout:g} s")

    def _give_up(self, worker: RayWorker, reason: str) -> None:
        self._group.note_death(worker.index, "construction")
        warnings.warn(
            f"a worker that died is not replaced: {reason}; {len(self._workers)} go on", RuntimeWarning, stacklevel=5
        )


def _num_workers(config: ESConfig, connection: RayConnection) -> int:
    """How many actors there will be."""
    if config.workers:
        return min(config.workers, config.played_pairs)
    return max(1, min(config.played_pairs, int(connection.free().get("CPU", 0.0) / config.ray_cpus + 1e-6)))
