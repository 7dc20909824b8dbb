"""Deals the pairs of a generation to workers of whatever kind, and goes on without those that die or are late.

Only keys and scores come back: a worker draws the noise itself. Whole pairs are dealt, so a worker that dies takes no
result with it that another could not play again, to the last bit.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from gymnasium.error import ClosedEnvironmentError

from vecenv.errors import WorkerDied, WorkersUnavailable, describe_exit

from .es_config import ESConfig
from .learner import CollectionInterrupted
from .population_evaluation import Broadcast, PairResult, unpack_results
from .population_player import read_answer

LOOK_SECONDS = 0.1
"""How often a wait looks whether a stop was asked for."""


class WorkersNotReady(WorkersUnavailable, TimeoutError):
    """Workers have not built their environments in the time that they were given."""


class Work(NamedTuple):
    """What a worker plays at present."""

    call: int
    """Number of the call of `DealingEngine.evaluate` that it is for."""
    pairs: list[int]
    """Indices of the pairs."""

    @property
    def members(self) -> list[int]:
        """Indices of the members of these pairs in the population."""
        return [2 * pair + side for pair in self.pairs for side in (0, 1)]


class DealtWorker(Protocol):
    """A worker, seen from the one that deals."""

    work: Work | None
    """None while it is idle."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""


class Deal:
    """The pairs of one generation: dealt, reported, and dealt again where a worker died."""

    def __init__(self, config: ESConfig, at_once: int) -> None:
        """Nothing dealt yet.

        Args:
            config: says how many pairs there are, and what share of them is waited for.
            at_once: pairs that one worker gets at a time.
        """
        pairs = list(range(config.played_pairs))
        self._waiting = deque(pairs[start : start + at_once] for start in range(0, len(pairs), at_once))
        self._results: dict[int, PairResult] = {}
        self._num_pairs = config.num_pairs
        self._needed = _share_of(config.num_pairs, config.report_share)
        self._needed_unperturbed = _share_of(config.unperturbed_pairs, config.report_share)

    @property
    def is_enough(self) -> bool:
        """Whether as many pairs have reported as are waited for, of those with noise and of those without."""
        perturbed = sum(pair < self._num_pairs for pair in self._results)
        return perturbed >= self._needed and len(self._results) - perturbed >= self._needed_unperturbed

    def next(self) -> list[int] | None:
        """Pairs that nobody plays yet."""
        return self._waiting.popleft() if self._waiting else None

    def give_back(self, pairs: list[int]) -> None:
        """Let somebody else play pairs whose worker has died."""
        self._waiting.appendleft(pairs)

    def take(self, packed: bytes) -> None:
        """Take what a worker reported."""
        self._results.update((result.pair, result) for result in unpack_results(packed))

    def results(self) -> list[PairResult]:
        """What has been reported, in the order of the pairs."""
        return [self._results[pair] for pair in sorted(self._results)]


def _share_of(count: int, share: float) -> int:
    """``share`` of ``count``, rounded up; one at least where there is one. 0.1 of 30 is 3 in spite of its digits."""
    return min(count, max(1, math.ceil(share * count - 1e-9)))


Worker = TypeVar("Worker", bound=DealtWorker)


class DealingEngine(ABC, Generic[Worker]):
    """A `PopulationEngine` whose workers play side by side; says nothing of what a worker is.

    Attributes:
        bytes_received: payload of all results so far.
    """

    def __init__(self, config: ESConfig, num_workers: int) -> None:
        """Plan the shares; workers come from the class that knows what they are.

        Args:
            config: hyper-parameters.
            num_workers: how many there will be at first.
        """
        self._config = config
        share = -(-config.played_pairs // num_workers)
        self._at_once = min(config.pairs_at_once or share, share)
        self._workers: list[Worker] = []
        self._last_death: WorkerDied | None = None
        self._calls = 0
        self.bytes_received = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live, each on its own machine."""
        return [worker.pid for worker in self._workers]

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Play one generation; see :class:`~vecenv.agents.population_engine.PopulationEngine`.

        Pairs of a worker that dies are played by the others, with a warning. With a ``report_share`` below 1, results
        are missing of pairs that were not through when that share was; their workers go on, and what they report is
        then looked at no more, except for a warning where it is an error.
        """
        self._require_workers()
        self._calls += 1
        deal = Deal(self._config, self._at_once)
        self._take_broadcast(broadcast)
        while not deal.is_enough:
            for worker in self._workers:
                if worker.work is None and (pairs := deal.next()) is not None:
                    worker.work = Work(self._calls, pairs)
                    self._play(worker, worker.work)
            for worker, answer in self._answers(LOOK_SECONDS):
                work, worker.work = worker.work, None
                is_current = work is not None and work.call == self._calls  # otherwise given up, or cut off
                if answer is None:
                    if work is not None and is_current:
                        deal.give_back(work.pairs)
                    self._remove_dead(worker, work)
                    self._replace(worker)
                elif is_current:
                    packed = read_answer(answer)
                    self.bytes_received += len(packed)
                    deal.take(packed)
                else:
                    _drop(worker, answer)
            if stop_requested():
                raise CollectionInterrupted
        return deal.results()

    def _require_workers(self) -> None:
        """Refuse to wait for answers that nobody can give."""
        if self._workers:
            return
        if self._last_death is not None:
            raise copy.copy(self._last_death)
        raise ClosedEnvironmentError("`evaluate` was called after `close`")

    def _remove_dead(self, worker: Worker, work: Work | None) -> None:
        """Go on without a worker that has died.

        Raises:
            WorkerDied: it was the last one.
        """
        error = self._death(worker, [] if work is None else work.members, "evaluate")
        self._workers.remove(worker)
        if not self._workers:
            self._last_death = copy.copy(error)  # without a traceback, which would keep this engine alive
            raise error
        left = len(self._workers)
        warnings.warn(
            f"{worker.name} died ({describe_exit(error.exitcode)}); the {left} other worker{'s' if left > 1 else ''} "
            "play its pairs from now on",
            RuntimeWarning,
            stacklevel=4,
        )

    def _replace(self, worker: Worker) -> None:
        """Ask for another worker in the place of a dead one, where that is possible; nobody waits for it."""

    def _not_ready(self, workers: Sequence[Worker]) -> WorkersNotReady:
        """What to raise of workers that are late in building their environments."""
        names = ", ".join(worker.name for worker in workers)
        return WorkersNotReady(
            f"{names} {'has' if len(workers) == 1 else 'have'} not built the environments within "
            f"{self._config.start_timeout:g} s; something in them hangs, or give them more with start_timeout"
        )

    @abstractmethod
    def _take_broadcast(self, broadcast: Broadcast) -> None:
        """Make the parameters of a generation ready for whoever plays in it."""

    @abstractmethod
    def _play(self, worker: Worker, work: Work) -> None:
        """Let an idle worker play; where it is gone already, `_answers` tells."""

    @abstractmethod
    def _answers(self, seconds: float) -> Iterator[tuple[Worker, bytes | None]]:
        """What workers have answered, after waiting for it so long at most, for `read_answer`; None: it has died."""

    @abstractmethod
    def _death(self, worker: Worker, members: list[int], doing: str) -> WorkerDied:
        """What to say of a worker that has ended; its members are named as environments."""

    @abstractmethod
    def close(self) -> None:
        """End the workers, in bounded time; may be called again."""


def _drop(worker: DealtWorker, answer: bytes) -> None:
    """Look at no more of an answer than whether it tells of an error."""
    try:
        read_answer(answer)
    except Exception as error:
        warnings.warn(
            f"{worker.name} failed in pairs that this run no longer waits for: {error}", RuntimeWarning, stacklevel=4
        )
