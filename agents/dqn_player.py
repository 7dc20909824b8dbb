"""Plays a policy in a vector env and writes what happens into the replay; in the learner's process or in another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from vecenv import VecEnv
from vecenv.send_recv import SendRecvVecEnv

from .actions import EnvActions
from .env_checks import require_autoreset
from .inference import BatchedPolicy, EpsilonGreedy
from .learner import Episode, finished_episodes
from .replay_writer import ReplayWriter


class PlayedSteps(NamedTuple):
    """What one step of all environments was."""

    env_steps: int
    """Environments that executed their action."""
    episodes: list[Episode]
    """Episodes that ended."""


class ReplayPlayer:
    """Steps a vector env once per :meth:`begin_step` and :meth:`end_step`; in between it may run by itself.

    Attributes:
        policy: acts; may be exchanged between two steps.
        is_filler: [N] bool, environments that will reset in place of executing their next action.
    """

    def __init__(self, envs: VecEnv, policy: BatchedPolicy, head: EpsilonGreedy, writer: ReplayWriter) -> None:
        """Play in ``envs``.

        Args:
            envs: made with ``copy=False, slots=2, statistics=True``.
            policy: acts with ``head``.
            head: gets its epsilon before every step.
            writer: of as many streams as there are environments.

        Raises:
            UnknownSetting: the env does not reset by itself.
        """
        self._mode = require_autoreset(envs)
        self.envs, self.policy, self.head, self.writer = envs, policy, head, writer
        self.is_filler = np.zeros(envs.num_envs, np.bool_)
        self._env_actions = EnvActions(envs.single_action_space)
        # Back ends that step by themselves do so from `begin_step` on, others within `end_step`.
        self._sender = envs if isinstance(envs, SendRecvVecEnv) and envs.batch_size == envs.num_envs else None
        self._observations: NDArray[Any] | None = None
        self._actions = np.zeros(envs.num_envs, np.int64)

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments."""
        self._observations, _ = self.envs.reset(seed=seed)
        self.is_filler[:] = False
        self.writer.begin(self._observations)

    def go_on(self, is_filler: NDArray[np.bool_], rows_are_there: bool) -> None:
        """Take up environments in the middle of their episodes, after `set_state`.

        Args:
            is_filler: [N] bool, see the attribute.
            rows_are_there: whether the replay holds what was played before; else streams begin with the present
                observations.
        """
        self._observations = self.envs.observations
        self.is_filler[:] = is_filler
        if not rows_are_there:
            self.writer.begin(self._observations, ~self.is_filler)

    def begin_step(self, epsilon: float) -> None:
        """Choose actions and start the step.

        Raises:
            RuntimeError: before :meth:`reset`.
        """
        if self._observations is None:
            raise RuntimeError("a step was taken before reset")
        self.head.epsilon = epsilon
        self._actions = self.policy.act(self._observations).actions
        if self._sender is not None:
            self._sender.send(self._env_actions(self._actions))

    def end_step(self) -> PlayedSteps:
        """Wait for the step and write it into the replay."""
        if self._sender is not None:
            result = self._sender.recv()
        else:
            result = self.envs.step(self._env_actions(self._actions))
        self.writer.record(self._actions, self.is_filler, result)
        env_steps = len(self.is_filler) - int(self.is_filler.sum())
        if self._mode is AutoresetMode.NEXT_STEP:
            np.logical_or(result[2], result[3], out=self.is_filler)
        self._observations = result[0]
        return PlayedSteps(env_steps, finished_episodes(result[4]))
