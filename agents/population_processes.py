"""Processes that play pairs of a population, each with environments and batched inference of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

from vecenv.cores import usable_cores
from vecenv.errors import WorkerDied
from vecenv.pickling import dumps

from .child_process import ChildProcess, read_children
from .population_dealing import DealingEngine, Work
from .population_engine import EngineRequest
from .population_evaluation import Broadcast
from .population_player import packed_setup, read_answer

END_SECONDS = 2.0
"""What workers get for an end of their own once their channel is closed."""
_MAIN = "vecenv.agents.population_worker:worker_main"


class PopulationWorker(ChildProcess):
    """One process, seen from the one that asks."""

    def __init__(self, setup: bytes, num_envs: int) -> None:
        """Start it; it builds its environments while others start.

        Args:
            setup: pickled `PlayerSetup`.
            num_envs: how many environments.
        """
        self.work: Work | None = None
        self.is_ready = False
        self.call = 0
        """Number of the call whose parameters it has."""
        super().__init__(_MAIN)
        self.send_bytes(setup)
        self.send_bytes(dumps(num_envs))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def name(self) -> str:
        """For messages."""
        return f"worker process {self.pid}"


class ProcessEngine(DealingEngine[PopulationWorker]):
    """Deals the pairs of a generation to worker processes."""

    def __init__(self, request: EngineRequest) -> None:
        """Start the workers and wait until all have built their environments.

        Raises:
            UnknownSetting: how to build environments is not known.
            TypeError: what builds them cannot be sent.
            EnvError: building one failed.
            WorkerDied: a worker ended.
            WorkersNotReady: a worker did not get ready in time.
        """
        config = request.config
        num_workers = min(config.workers or usable_cores(), config.played_pairs)
        super().__init__(config, num_workers)
        self._generation = b""
        setup = packed_setup(request)
        try:
            for _ in range(num_workers):
                self._workers.append(PopulationWorker(setup, 2 * self._at_once))
            self._wait_until_ready(time.monotonic() + config.start_timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, in bounded time; may be called again."""
        workers, self._workers = self._workers, []
        deadline = time.monotonic() + END_SECONDS
        for worker in workers:
            if worker.work is not None or not worker.is_ready:  # it would not look at its channel for long
                worker.process.kill()
            worker.let_go()
        for worker in workers:
            worker.end(deadline)

    def _wait_until_ready(self, deadline: float) -> None:
        while late := [worker for worker in self._workers if not worker.is_ready]:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise self._not_ready(late)
            for worker, messages in read_children(late, seconds):
                if messages is None:
                    raise self._death(worker, [], "construction")
                for data in messages:
                    read_answer(data)
                    worker.is_ready = True

    def _take_broadcast(self, broadcast: Broadcast) -> None:
        self._generation = dumps(("generation", broadcast))

    def _play(self, worker: PopulationWorker, work: Work) -> None:
        # Only an idle worker reads: parameters that one which hangs would never take might fill its channel.
        try:
            if worker.call != work.call:
                worker.call = work.call
                worker.send_bytes(self._generation)
            worker.send_bytes(dumps(("play", work.pairs)))
        except BaseException:
            worker.process.kill()  # with half a message, it would wait for the rest of it, and we for its answer
            raise

    def _answers(self, seconds: float) -> Iterator[tuple[PopulationWorker, bytes | None]]:
        for worker, messages in read_children(self._workers, seconds):
            if messages is None:
                yield worker, None
                continue
            for data in messages:
                yield worker, data

    def _death(self, worker: PopulationWorker, members: list[int], doing: str) -> WorkerDied:
        code = worker.end(time.monotonic() + 1.0)
        return WorkerDied(members, worker.pid, code, doing, "no worker is left to play its pairs")
