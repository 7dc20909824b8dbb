"""Writes what environments did into their streams of the replay, from whichever process plays them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from vecenv import true_next_obs
from vecenv.base import StepResult

from . import replay_kernels
from .replay_memory import ReplayMemory


def rows_per_step(stack_size: int) -> int:
    """The most rows that one step adds to a stream: a last observation and a first one, each with all its frames."""
    return 2 * stack_size


class ReplayWriter:
    """Writer of the streams ``first .. first + N - 1``; nobody else writes those.

    Attributes:
        written: [N] int64, rows that each stream has had.
    """

    def __init__(self, memory: ReplayMemory, first: int, num_streams: int, autoreset_mode: AutoresetMode) -> None:
        """Write for a vector env of `num_streams` environments.

        Args:
            memory: the replay.
            first: stream of the first environment.
            num_streams: N.
            autoreset_mode: of the vector env.
        """
        own = slice(first, first + num_streams)
        self._spec = memory.spec
        self._frames, self._kinds = memory.frames[own], memory.kinds[own]
        self._actions, self._rewards = memory.actions[own], memory.rewards[own]
        self._autoreset_mode = autoreset_mode
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self.written = np.zeros(num_streams, np.int64)

    def begin(self, observations: NDArray[Any], selected: NDArray[np.bool_] | None = None) -> None:
        """Begin an episode in every stream; those still under way end as if truncated.

        Args:
            observations: [N, ...].
            selected: [N] bool, streams in which one begins; None: all.
        """
        stacks = self._spec.as_stacks(observations)
        every = np.ones(len(stacks), np.bool_) if selected is None else selected
        replay_kernels.begin_episodes(self._frames, self._kinds, self.written, stacks, every)

    def record(self, actions: NDArray[np.int64], is_filler: NDArray[np.bool_], result: StepResult) -> None:
        """Record one step of every environment.

        Args:
            actions: [N] int64, counted from 0.
            is_filler: [N] bool, environments that reset in place of executing their action.
            result: what `step` returned.
        """
        observations, rewards, terminations, truncations, infos = result
        stacks = self._spec.as_stacks(observations)
        next_observations = true_next_obs(observations, infos, self._autoreset_mode)
        next_stacks = stacks if next_observations is observations else self._spec.as_stacks(next_observations)
        replay_kernels.record_step(
            self._frames,
            self._kinds,
            self._actions,
            self._rewards,
            self.written,
            is_filler,
            actions,
            rewards,
            terminations,
            truncations,
            next_stacks,
            stacks,
            self._same_step,
        )
