"""Plays the policy in a vector env for T steps and writes down what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from vecenv import VecEnv, true_next_obs

from .actions import EnvActions
from .env_checks import require_autoreset
from .inference import BatchedPolicy
from .learner import CollectionInterrupted, Episode, finished_episodes
from .rollout_buffer import RolloutBuffer


class RolloutCollector:
    """Fills :class:`RolloutBuffer` s whose observations are the vector env's own slots.

    In next-step autoreset the step after an end executes no action: its row is a filler, marked ``valid = False``,
    neither trained on nor counted. In same-step autoreset every row is valid, and the true last observation of a
    truncated episode comes from ``infos["final_obs"]``.
    """

    def __init__(self, envs: VecEnv, policy: BatchedPolicy, num_steps: int, num_rollouts: int = 1) -> None:
        """Collect from ``envs``, made with ``copy=False, slots=num_rollouts * T + 1, statistics=True``.

        Args:
            envs: stays the caller's.
            policy: acts.
            num_steps: T.
            num_rollouts: how many rollouts stay whole: with 2, the last one does while the next is collected.

        Raises:
            UnknownSetting: when the env does not reset by itself.
            ValueError: another number of slots.
        """
        self.autoreset_mode = require_autoreset(envs)
        self.envs = envs
        self.policy = policy
        num_slots = envs.observation_slots.shape[0]
        if num_slots != num_rollouts * num_steps + 1:
            raise ValueError(f"envs needs {num_rollouts * num_steps + 1} observation slots, got {num_slots}")
        self._to_env = EnvActions(envs.single_action_space)
        self._rollouts = [
            RolloutBuffer(envs.observation_slots, num_steps, self._to_env.stored_shape, self._to_env.stored_dtype)
            for _ in range(num_rollouts)
        ]
        self.rollout = self._rollouts[0]
        self._observations: NDArray[Any] | None = None
        self.is_filler = np.zeros(envs.num_envs, np.bool_)
        self.episode_rows: list[int] = []
        """Row t in which each of the episodes ended that :meth:`collect` returned last."""

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all environments."""
        self._observations, _ = self.envs.reset(seed=seed)
        self.is_filler[:] = False

    def go_on(self) -> None:
        """Take up environments in the middle of their episodes, after `set_state`; ``is_filler`` must be restored."""
        self._observations = self.envs.observations

    def collect(self, stop_requested: Callable[[], bool] = lambda: False) -> list[Episode]:
        """Take T steps; returns the episodes that ended.

        Raises:
            RuntimeError: before :meth:`reset`.
            CollectionInterrupted: when ``stop_requested`` says so between two steps; the rollout is then incomplete.
        """
        if self._observations is None:
            raise RuntimeError("collect was called before reset")
        self._rollouts.append(self._rollouts.pop(0))
        self.rollout = self._rollouts[-1]
        rollout, same_step = self.rollout, self.autoreset_mode is AutoresetMode.SAME_STEP
        rollout.start = self.envs.slot
        episodes: list[Episode] = []
        self.episode_rows = []
        final_values: list[tuple[int, NDArray[np.int64], NDArray[np.float32]]] = []
        for t in range(rollout.num_steps):
            if stop_requested():
                raise CollectionInterrupted
            output = self.policy.act(self._observations)
            rollout.actions[t], rollout.log_probs[t], rollout.values[t] = output
            np.logical_not(self.is_filler, out=rollout.valid[t])
            step = self.envs.step(self._to_env(output.actions))
            self._observations, rewards, terminations, truncations, infos = step
            rollout.rewards[t], rollout.terminations[t], rollout.truncations[t] = rewards, terminations, truncations
            if same_step:
                if "_final_obs" in infos:
                    final_values.append((t, *self._values_of_final_observations(infos)))
            else:
                np.logical_or(terminations, truncations, out=self.is_filler)
            episodes.extend(finished_episodes(infos))
            self.episode_rows.extend([t] * (len(episodes) - len(self.episode_rows)))
        rollout.next_values[:-1] = rollout.values[1:]
        rollout.next_values[-1] = self.policy.values(self._observations)
        for t, envs, values in final_values:
            rollout.next_values[t, envs] = values
        return episodes

    def _values_of_final_observations(self, infos: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Envs whose episode ended in same-step autoreset, and the values of their true last observations."""
        envs = np.flatnonzero(infos["_final_obs"])
        return envs, self.policy.values(true_next_obs(self._observations, infos, self.autoreset_mode)[envs])
