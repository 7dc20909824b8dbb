"""Workers that die or take too long, and what `on_worker_failure="restart"` does about them.

A dead worker is replaced by a new process that builds the same envs. In the step in which this happens (or the next one
that an env takes part in) every env of that worker returns its last known observation, reward 0, ``truncated=True`` and
``infos["worker_restarted"]``, and no `episode` entry. Then the autoreset mode does what it does after any truncation,
with a seed derived from `SeedSequence((seed, env index, restart count))`, so that a run with the same deaths gives the
same results. A worker that dies three times without finishing a step is given up until the user resets.

With `step_timeout` the repeated call has the limit to itself, and building envs anew a generous one of its own.
Where a Ctrl-C interrupts all this, the worker is as dead as it was, and the next call begins anew with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vecenv.errors import EnvError, WorkerDied, env_error
from vecenv.pickling import dumps
from vecenv.protocol import BlockPlan, WorkerConfig
from vecenv.worker_group import WorkerGroup
from vecenv.worker_settings import WorkerSettings

#: Deaths of one worker without a finished step in between that end the attempts.
STRIKES = 3
#: Least limit on building the envs of a replacement, in seconds: it imports their packages too, which steps never do.
BUILD_SECONDS = 60.0


class Workers(Protocol):
    """Workers as far as their deaths are concerned.

    Attributes:
        rows: indices of each worker's envs.
        deaths: workers that ended unasked, with the error that tells of it.
    """

    rows: list[list[int]]
    deaths: dict[int, WorkerDied]


class FailureSettings(Protocol):
    """The policy and the time limit; see `WorkerSettings`."""

    @property
    def on_worker_failure(self) -> str:
        """``"raise"`` or ``"restart"``."""

    @property
    def step_timeout(self) -> float | None:
        """Seconds."""


class Replacements:
    """Counts the deaths of workers, and has dead ones replaced while there is a point in that.

    Args:
        workers: the workers.
        settings: tells the policy and the time limit.

    Attributes:
        causes: by worker, why its envs could not be built again.
        on_trial: by worker that was replaced, its rows that have not been stepped since.
    """

    def __init__(self, workers: Workers, settings: FailureSettings) -> None:
        self._workers = workers
        self._settings = settings
        self._strikes = [0] * len(workers.rows)
        self._restarts = [0] * len(workers.rows)
        self._started = 0.0
        self.causes: dict[int, EnvError] = {}
        self.on_trial: dict[int, set[int]] = {}

    @property
    def restarts(self) -> bool:
        """Whether dead workers are replaced."""
        return self._settings.on_worker_failure == "restart"

    def start_clock(self) -> None:
        """Note that a call begins now."""
        if self._settings.step_timeout is not None:
            self._started = time.monotonic()

    def time_left(self) -> float | None:
        """Seconds that the running call may still take; None: any."""
        limit = self._settings.step_timeout
        return None if limit is None else max(0.0, self._started + limit - time.monotonic())

    @property
    def build_limit(self) -> float | None:
        """Seconds that a replacement may take to build its envs; None: any."""
        limit = self._settings.step_timeout
        return None if limit is None else max(limit, BUILD_SECONDS)

    def note_finished_step(self, only_reset: npt.NDArray[np.bool_], restarted: Sequence[int]) -> None:
        """Count a finished step in favour of the workers that really stepped an env.

        Args:
            only_reset: `[num_envs]` bool, envs whose episode had ended, so that the step was their reset.
            restarted: envs whose worker was replaced in this call.
        """
        for worker, rows in enumerate(self._workers.rows):
            if self._strikes[worker] and not set(rows) & set(restarted) and not only_reset[rows].all():
                self._acquit(worker)

    def note_finished_rows(self, rows: Sequence[int]) -> None:
        """Count steps of single rows in favour of their workers: of one that has stepped all its envs.

        Fewer would not do. An env that kills its worker must not be saved by another one that is stepped before it.

        Args:
            rows: rows that were really stepped, neither only reset nor cut off.
        """
        for worker in list(self.on_trial):
            self.on_trial[worker].difference_update(rows)
            if self.on_trial[worker].isdisjoint(self._workers.rows[worker]):
                self._acquit(worker)

    def _acquit(self, worker: int) -> None:
        self._strikes[worker] = 0
        self.on_trial.pop(worker, None)

    def forgive(self) -> None:
        """The user resets: a worker that was given up is tried again."""
        self._strikes = [0] * len(self._strikes)
        self.on_trial = {}

    def replace_all(
        self, seeds: Sequence[int | None], start_again: Callable[[int, tuple[int | None, ...]], bool]
    ) -> list[int]:
        """Replace every dead worker.

        Args:
            seeds: what each env was seeded with, None where it was not.
            start_again: given a worker and the seeds for its envs, puts a new one into its place; False: it died too,
                and its death is noted.

        Returns:
            The workers that were replaced.

        Raises:
            WorkerDied: one died too often.
        """
        replaced = []
        while self._workers.deaths:
            worker, death = next(iter(self._workers.deaths.items()))
            self._strikes[worker] += 1
            self._restarts[worker] += 1
            if self._strikes[worker] >= STRIKES:
                cause = self.causes.pop(worker, None)
                why = "" if cause is None else f" ({cause.failures[0].type_name}: {cause.failures[0].message})"
                doing = f"{death.doing}{why}, {STRIKES} times in a row"
                advice = "Call reset() to try again"
                raise WorkerDied(death.env_indices, death.pid, death.exitcode, doing, advice) from cause
            count = self._restarts[worker]
            self.on_trial[worker] = set(self._workers.rows[worker])
            derived = tuple(derived_seed(seeds[row], row, count) for row in self._workers.rows[worker])
            try:
                started = start_again(worker, derived)
            except WorkerDied:
                raise
            except BaseException:  # Ctrl-C, say
                self._workers.deaths[worker] = death
                self.take_back(worker)
                raise
            if started and worker not in replaced:
                replaced.append(worker)
        return replaced

    def take_back(self, worker: int) -> None:
        """Forget that a worker was replaced since that was interrupted: the same death must not count twice."""
        self._strikes[worker] -= 1
        self._restarts[worker] -= 1


class Recovery(Replacements):
    """Replaces dead workers of the `subproc` back end.

    Args:
        group: the workers.
        config_of: what a worker is told at its start.
        settings: tells the policy and the time limit.
    """

    def __init__(self, group: WorkerGroup, config_of: Callable[[int], WorkerConfig], settings: WorkerSettings) -> None:
        super().__init__(group, settings)
        self._group = group
        self._config_of = config_of

    def kill_unanswered(self) -> None:
        """End the workers that have not answered; they are handled as dead."""
        for worker in self._group.unanswered():
            self._group.processes[worker].kill()

    def start_again(
        self,
        worker: int,
        seeds: tuple[int | None, ...],
        plan: BlockPlan,
        objects: dict[int, Any] | None,
        ask: Callable[[], None] = lambda: None,
    ) -> bool:
        """Put a new process that has built the envs into the place of a dead worker; for `replace_all`.

        Args:
            worker: which.
            seeds: for its envs.
            plan: of the shared block.
            objects: last known observations, where those are objects.
            ask: asks the new process for what the dead one left undone.

        Returns:
            Whether it is there; False: it died too, and its death is noted.
        """
        rows = self._group.rows[worker]
        last = None if objects is None else {row: objects[row] for row in rows if row in objects}
        config = replace(self._config_of(worker), restart_seeds=seeds, last_observations=last)
        try:
            if not self._build_again(worker, config, plan):
                return False
            ask()
            return True
        except BaseException:  # half done, it would be waited for for ever
            self._group.discard(worker)
            raise

    def _build_again(self, worker: int, config: WorkerConfig, plan: BlockPlan) -> bool:
        self._group.replace(worker, config, self.build_limit)
        try:
            kind, value = self._group.first_message(worker, self.build_limit)
        except WorkerDied:
            self._group.inboxes.clear(worker)  # it may have told of its envs at the last moment
            return False
        if kind == "failed":
            self.causes[worker] = env_error(value, "construction")
            self._group.processes[worker].join(1.0)
            self._group.note_death(worker, "construction")
            return False
        self._group.send(worker, dumps(plan), "construction", self.build_limit)
        if not self._group.wait("construction", self.build_limit, [worker]):
            self._group.end_late(worker, "construction")
        return worker not in self._group.deaths


def derived_seed(seed: int | None, env_index: int, restart_count: int) -> int | None:
    """Seed of an env after a restart; None where it was not seeded before."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, env_index, restart_count)).generate_state(1)[0])
