"""Collects from two halves of the environments in turn: one half steps while the policy decides for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from vecenv import VecEnv
from vecenv.errors import UnknownSetting
from vecenv.send_recv import SendRecvVecEnv

from .actions import EnvActions
from .inference import BatchedPolicy
from .learner import CollectionInterrupted, Episode, finished_episodes
from .rollout_buffer import RolloutBuffer


class OverlappedCollector:
    """Fills a :class:`RolloutBuffer` with storage of its own, since halves are at different times in the ring.

    The halves are the even and the odd environments: each worker, which hosts a run of neighbours, has work in both.
    Only one half is outstanding at a time, so the two always have taken the same number of steps between rollouts.
    """

    def __init__(self, envs: VecEnv, policy: BatchedPolicy, num_steps: int) -> None:
        """Collect from ``envs``, made with ``statistics=True`` and a batch size of half the environments.

        Raises:
            UnknownSetting: the env cannot step a part of itself, or resets in another mode than NextStep.
            ValueError: another batch size.
        """
        if not isinstance(envs, SendRecvVecEnv):
            raise UnknownSetting(
                "overlap needs a back end that steps part of its environments: sync, subproc, envpool or ray"
            )
        if envs.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise UnknownSetting(f"overlap needs autoreset_mode NextStep, got {envs.autoreset_mode.value}")
        if 2 * envs.batch_size != envs.num_envs:
            raise ValueError(f"overlap needs batch_size={envs.num_envs / 2:g}, half of num_envs, got {envs.batch_size}")
        self.envs = envs
        self.policy = policy
        self._to_env = EnvActions(envs.single_action_space)
        self._halves = [np.arange(first, envs.num_envs, 2) for first in (0, 1)]
        ring = envs.observation_slots
        self._storage: NDArray[Any] = np.zeros((num_steps + 1, *ring.shape[1:]), ring.dtype)
        self.rollout = RolloutBuffer(self._storage, num_steps, self._to_env.stored_shape, self._to_env.stored_dtype)
        self.is_filler = np.zeros(envs.num_envs, np.bool_)
        self.episode_rows: list[int] = []
        """Row t in which each of the episodes ended that :meth:`collect` returned last."""
        self._is_reset = False

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all environments."""
        self._storage[-1], _ = self.envs.reset(seed=seed)
        self.is_filler[:] = False
        self._is_reset = True

    def go_on(self) -> None:
        """Take up environments in the middle of their episodes, after `set_state`; ``is_filler`` must be restored."""
        self._storage[-1] = self.envs.observations
        self._is_reset = True

    def collect(self, stop_requested: Callable[[], bool] = lambda: False) -> list[Episode]:
        """Take T steps; returns the episodes that ended.

        Raises:
            RuntimeError: before :meth:`reset`.
            CollectionInterrupted: when ``stop_requested`` says so between two steps; the rollout is then incomplete.
        """
        if not self._is_reset:
            raise RuntimeError("collect was called before reset")
        rollout, (first, second) = self.rollout, self._halves
        self._storage[0] = self._storage[-1]
        episodes: list[Episode] = []
        self.episode_rows = []
        first_actions = self._act(0, first)
        for t in range(rollout.num_steps):
            if stop_requested():
                self._storage[-1] = self._storage[t]
                raise CollectionInterrupted
            self.envs.send(first_actions, first)
            second_actions = self._act(t, second)
            episodes += self._receive(t)
            self.envs.send(second_actions, second)
            if t + 1 < rollout.num_steps:
                first_actions = self._act(t + 1, first)
            episodes += self._receive(t)
            self.episode_rows.extend([t] * (len(episodes) - len(self.episode_rows)))
        rollout.next_values[:-1] = rollout.values[1:]
        rollout.next_values[-1] = self.policy.values(self._storage[-1])
        return episodes

    def _act(self, t: int, half: NDArray[np.int64]) -> NDArray[Any]:
        """Decide for one half and write it down; returns what the envs are sent."""
        output = self.policy.act(self._storage[t, half])
        rollout = self.rollout
        rollout.actions[t, half], rollout.log_probs[t, half], rollout.values[t, half] = output
        rollout.valid[t, half] = ~self.is_filler[half]
        return self._to_env(output.actions)

    def _receive(self, t: int) -> list[Episode]:
        """Wait for the half that is stepping and write down what happened, in whichever order its envs finished."""
        observations, rewards, terminations, truncations, infos = self.envs.recv()
        env_ids, rollout = infos["env_id"], self.rollout
        self._storage[t + 1, env_ids] = observations
        rollout.rewards[t, env_ids] = rewards
        rollout.terminations[t, env_ids], rollout.truncations[t, env_ids] = terminations, truncations
        self.is_filler[env_ids] = terminations | truncations
        return finished_episodes(infos)
