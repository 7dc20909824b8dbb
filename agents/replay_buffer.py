"""The replay as the learner sees it: which rows may be sampled, and batches of n-step transitions from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenv.errors import UnknownSetting

from . import replay_kernels
from .prioritized_replay import Priorities
from .replay_memory import ReplayMemory, ReplaySpec
from .replay_writer import rows_per_step

_CHANGES = 4096
"""Rows that one call of the kernel may report as changed; it is called again where there are more."""


class Transitions(NamedTuple):
    """A batch of n-step transitions; the arrays are overwritten by the second next one."""

    observations: NDArray[Any]
    """[B, *observation_shape] in the env's dtype."""
    actions: NDArray[np.int64]
    """[B] int64, counted from 0."""
    returns: NDArray[np.float32]
    """[B] float32, discounted rewards of the n steps, or of those up to the episode's end."""
    discounts: NDArray[np.float32]
    """[B] float32, what the value of the next observation counts: gamma ** n, or 0 after a termination."""
    next_observations: NDArray[Any]
    """[B, *observation_shape], n steps later, or the episode's true last observation."""
    weights: NDArray[np.float32]
    """[B] float32, importance weights; 1 where sampling is uniform."""
    places: NDArray[np.int64]
    """[B] int64, which rows these are."""


class ReplayBuffer:
    """Samples from streams of rows that one or more `ReplayWriter` write.

    Attributes:
        memory: the rows.
        written: [E] int64, rows of every stream that this side knows of.
        priorities: None where sampling is uniform.
    """

    def __init__(
        self,
        memory: ReplayMemory,
        num_steps: int,
        gamma: float,
        *,
        steps_ahead: int = 1,
        priorities: Priorities | None = None,
        new_array: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.zeros,
        seed: int = 0,
    ) -> None:
        """Nothing is written yet.

        Args:
            memory: the rows.
            num_steps: n of n-step returns.
            gamma: discount per step.
            steps_ahead: steps that a writer may take beyond what :meth:`publish` was told.
            priorities: for prioritized sampling.
            new_array: (shape, dtype) -> memory for a batch, such as page-locked memory.
            seed: of the draws.

        Raises:
            UnknownSetting: a stream is too short to hold a transition.
        """
        self.memory = memory
        self.spec: ReplaySpec = memory.spec
        self.priorities = priorities
        self._new_array = new_array
        self._num_steps, self._gamma = num_steps, gamma
        self._margin = rows_per_step(self.spec.stack_size) * (steps_ahead + 1)
        shortest = self._margin + self.spec.stack_size * (num_steps + 2) + 1
        if self.spec.num_slots < shortest:
            raise UnknownSetting(
                f"replay_capacity gives each of {self.spec.num_streams} environments {self.spec.num_slots} rows; with "
                f"{num_steps}-step returns and stacks of {self.spec.stack_size} each needs at least {shortest}"
            )
        streams = self.spec.num_streams
        self.written = np.zeros(streams, np.int64)
        self._ready, self._expired, self._sizes = (np.zeros(streams, np.int64) for _ in range(3))
        self._changes = np.empty(_CHANGES, np.int64)
        self._random = np.array([np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]], np.uint64)
        self._batches: list[tuple[Any, ...]] = []

    @property
    def size(self) -> int:
        """Transitions that may be sampled."""
        return int(self._sizes.sum())

    def publish(self, written: NDArray[np.int64], first: int = 0) -> None:
        """Take note of new rows.

        Args:
            written: [N] int64, rows that streams from `first` on have had.
            first: the first of these streams.
        """
        self.written[first : first + len(written)] = written
        while True:
            count = replay_kernels.advance_streams(
                self.memory.kinds,
                self.written,
                self._ready,
                self._expired,
                self._sizes,
                self._num_steps,
                self.spec.stack_size,
                self._margin,
                self._changes,
            )
            if self.priorities is not None and count:
                self.priorities.apply(self._changes[:count])
            if count < _CHANGES:
                return

    def sample(self, count: int, beta: float = 1.0) -> Transitions:
        """Draw transitions with replacement.

        Args:
            count: B.
            beta: see `Priorities.draw`.

        Raises:
            RuntimeError: there is nothing to draw from.
        """
        places, weights = self._draw(count, beta)
        if not self._batches or len(self._batches[0][-1]) != count:
            self._batches = [self._new_batch(count) for _ in range(2)]
        self._batches.reverse()
        observations, stacks, next_observations, next_stacks, returns, discounts, actions = self._batches[0]
        memory = self.memory
        replay_kernels.gather_rows(
            memory.frames,
            memory.kinds,
            memory.actions,
            memory.rewards,
            places,
            self._num_steps,
            self._gamma,
            stacks,
            next_stacks,
            actions,
            returns,
            discounts,
        )
        return Transitions(observations, actions, returns, discounts, next_observations, weights, places)

    def _draw(self, count: int, beta: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if self.priorities is not None:
            numbers = np.empty(count, np.float64)
            replay_kernels.fill_random(self._random, numbers)
            return self.priorities.draw(numbers, self.size, beta)
        places = np.empty(count, np.int64)
        if not replay_kernels.draw_uniform(self.memory.kinds, self._ready, self._expired, self._random, places):
            raise RuntimeError("no row of the replay may be drawn yet")
        return places, np.ones(count, np.float32)

    def _new_batch(self, count: int) -> tuple[Any, ...]:
        shape = (count, *self.spec.observation_shape)
        now, after = (self._new_array(shape, np.dtype(self.spec.dtype)) for _ in range(2))
        floats = [self._new_array((count,), np.dtype(np.float32)) for _ in range(2)]
        actions = self._new_array((count,), np.dtype(np.int64))
        return now, self.spec.as_stacks(now), after, self.spec.as_stacks(after), *floats, actions

    def state_dict(self, with_rows: bool) -> dict[str, Any]:
        """Plain values to go on from, but the rows themselves.

        Args:
            with_rows: whether the rows are saved elsewhere; else only the generator's state is worth keeping.
        """
        state: dict[str, Any] = {"random": int(self._random[0])}
        if with_rows:
            state["written"], state["expired"] = self.written.copy(), self._expired.copy()
            state["priorities"] = None if self.priorities is None else self.priorities.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; rows are loaded beforehand where it names them."""
        self._random[0] = state["random"]
        if "written" not in state:
            return
        written = np.asarray(state["written"])
        # Which rows may be sampled follows from the rows and from the settings, which may have changed since. Rows
        # below `expired` may be newer ones, of a writer that was ahead. Where a state does not say, none is used that
        # this replay would have let go.
        oldest = written + self._margin - self.spec.num_slots + self.spec.stack_size - 1
        self._ready[:] = self._expired[:] = np.maximum(0, np.asarray(state.get("expired", oldest)))
        self._sizes[:] = 0
        self._reopen_newest(written)
        self.publish(written)
        if self.priorities is not None and state["priorities"] is not None:
            self.priorities.load_state_dict(state["priorities"])

    def _reopen_newest(self, written: NDArray[np.int64]) -> None:
        """Take back the action in the newest row of a stream: a writer that was ahead had it, but was not heard."""
        streams = np.flatnonzero(written)
        newest = streams, (written[streams] - 1) % self.spec.num_slots
        kinds = self.memory.kinds[newest]
        has_step = (kinds == replay_kernels.STEP) | (kinds == replay_kernels.TERMINAL)
        self.memory.kinds[newest] = np.where(has_step, replay_kernels.OPEN, kinds)
