"""Processes that play pairs of a population, each with environments and batched inference of its own.

Only keys and scores come back: a worker draws the noise itself. Whole pairs are dealt, so a worker that dies takes no
result with it that another could not play again, to the last bit.
"""

from __future__ import annotations

import pickle
import select
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from vecenv.cores import usable_cores
from vecenv.errors import WorkerDied, describe_exit
from vecenv.pickling import dumps_function

from .child_process import ChildProcess
from .learner import CollectionInterrupted
from .population_engine import EngineRequest, require_env_maker
from .population_evaluation import Broadcast, PairResult, unpack_results
from .population_worker import WorkerSetup

LOOK_SECONDS = 0.1
"""How often a wait looks whether a stop was asked for."""
END_SECONDS = 2.0
"""What workers get for an end of their own once their channel is closed."""
_MAIN = "vecenv.agents.population_worker:worker_main"


class PopulationWorker(ChildProcess):
    """One process, seen from the one that asks."""

    def __init__(self, setup: bytes) -> None:
        """Start it; it builds its environments while others start.

        Args:
            setup: pickled `WorkerSetup`.
        """
        self.work: tuple[int, list[int]] | None = None
        """Number of the call and pairs that it plays at present."""
        super().__init__(_MAIN)
        self.send_bytes(setup)

    def send(self, *message: Any) -> None:
        """Send a message; one to a worker that is gone is lost, which the next read will tell."""
        try:
            self.channel.send(message)
        except OSError:
            return

    def send_bytes(self, data: bytes) -> None:
        """Send a message that is pickled already; see :meth:`send`."""
        try:
            self.channel.send_bytes(data)
        except OSError:
            return

    def play(self, number: int, pairs: list[int]) -> None:
        """Let it play some pairs."""
        self.work = (number, pairs)
        self.send("play", self.work)


class ProcessEngine:
    """Deals the pairs of a generation to worker processes."""

    def __init__(self, request: EngineRequest) -> None:
        """Start the workers and wait until all have built their environments.

        Raises:
            UnknownSetting: how to build environments is not known.
            EnvError: building one failed.
            WorkerDied: a worker ended.
        """
        config = request.config
        make_envs = require_env_maker(request)
        self._pairs = list(range(config.played_pairs))
        num_workers = min(config.workers or usable_cores(), len(self._pairs))
        share = -(-len(self._pairs) // num_workers)
        self._at_once = min(config.pairs_at_once or share, share)
        self._calls = 0
        self.bytes_received = 0
        """Payload of all results so far."""
        setup = dumps_function(
            WorkerSetup(make_envs, 2 * self._at_once, config, seed=request.seed, device=request.device)
        )
        self._workers: list[PopulationWorker] = []
        try:
            for _ in range(num_workers):
                self._workers.append(PopulationWorker(setup))
            for worker in self._workers:
                self._wait_until_ready(worker)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.process.pid for worker in self._workers]

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Play every pair of one generation; see :class:`~vecenv.agents.population_engine.PopulationEngine`.

        Pairs of a worker that dies are played by the others, with a warning.
        """
        self._calls += 1
        waiting = deque(
            self._pairs[start : start + self._at_once] for start in range(0, len(self._pairs), self._at_once)
        )
        results: dict[int, PairResult] = {}
        for worker in self._workers:
            worker.send("generation", broadcast)
        while len(results) < len(self._pairs):
            for worker in self._workers:
                if worker.work is None and waiting:
                    worker.play(self._calls, waiting.popleft())
            for worker in self._readable():
                try:
                    data = worker.channel.read_available()
                except EOFError:
                    waiting.extendleft([worker.work[1]] if worker.work and worker.work[0] == self._calls else [])
                    self._bury(worker)
                    continue
                for message in data:
                    word, content = pickle.loads(message)
                    self._take(worker, word, content, results)
            if stop_requested():
                raise CollectionInterrupted
        return [results[pair] for pair in self._pairs]

    def close(self) -> None:
        """End the workers, in bounded time; may be called again."""
        workers, self._workers = self._workers, []
        deadline = time.monotonic() + END_SECONDS
        for worker in workers:
            if worker.work is not None:  # it would look at its channel only after whole episodes
                worker.process.kill()
            worker.let_go()
        for worker in workers:
            worker.end(deadline)

    def _wait_until_ready(self, worker: PopulationWorker) -> None:
        try:
            word, content = worker.channel.receive()
        except (EOFError, OSError):
            raise self._death(worker, "construction") from None
        if word == "failed":
            raise content

    def _readable(self) -> list[PopulationWorker]:
        """Workers with something to read, after waiting for it a moment."""
        poller = select.poll()
        by_descriptor = {worker.channel.fileno(): worker for worker in self._workers}
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        return [by_descriptor[descriptor] for descriptor, _ in poller.poll(LOOK_SECONDS * 1000)]

    def _take(self, worker: PopulationWorker, word: str, content: Any, results: dict[int, PairResult]) -> None:
        """Take one message of a worker."""
        if word == "failed":
            raise content
        number, packed = content
        worker.work = None
        if number == self._calls:  # otherwise of a call that was given up
            self.bytes_received += len(packed)
            results.update((result.pair, result) for result in unpack_results(packed))

    def _bury(self, worker: PopulationWorker) -> None:
        """Go on without a worker that has died.

        Raises:
            WorkerDied: it was the last one.
        """
        error = self._death(worker, "evaluate")
        self._workers.remove(worker)
        if not self._workers:
            raise error
        left = len(self._workers)
        warnings.warn(
            f"worker process {error.pid} died ({describe_exit(error.exitcode)}); the {left} other "
            f"worker{'s' if left > 1 else ''} play its pairs from now on",
            RuntimeWarning,
            stacklevel=4,
        )

    def _death(self, worker: PopulationWorker, doing: str) -> WorkerDied:
        """What to say of a worker that has ended; its members are named as environments."""
        pairs = worker.work[1] if worker.work is not None else []
        members = [2 * pair + side for pair in pairs for side in (0, 1)]
        code = worker.end(time.monotonic() + 1.0)
        return WorkerDied(members, worker.process.pid, code, doing, "no worker is left to play its pairs")
