"""Plays whole episodes with a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vecenv import VecEnv

from .actions import EnvActions
from .env_checks import has_statistics, require_autoreset, require_statistics, require_told
from .inference import BatchedPolicy
from .learner import Episode, finished_episodes

MOST_ENVS = 16
"""Environments that episodes are played in where nobody says how many; more bring little to a few episodes."""


class PlayedEpisodes(NamedTuple):
    """What :func:`play_episodes` played."""

    episodes: list[Episode]
    """Whole ones, those of environment 0 first."""
    unfinished: int
    """Episodes that were asked for and had not ended when the step cap was reached."""


class EpisodePlayer:
    """A policy in a vector env, step by step."""

    def __init__(self, envs: VecEnv, policy: BatchedPolicy, seed: int | None) -> None:
        """Start episodes in ``envs``, made with ``statistics=True``.

        Raises:
            UnknownSetting: it was not, or does not reset by itself.
        """
        require_autoreset(envs)
        require_statistics(envs)
        self._envs = envs
        self._is_sure = has_statistics(envs)
        self._policy = policy
        self._to_env = EnvActions(envs.single_action_space)
        self._observations, _ = envs.reset(seed=seed)

    def step(self) -> dict[int, Episode]:
        """One step of all environments; the episodes that ended, by environment.

        Raises:
            UnknownSetting: infos do not tell of one that did.
        """
        actions = self._to_env(self._policy.act(self._observations).actions)
        self._observations, _, terminations, truncations, infos = self._envs.step(actions)
        if not self._is_sure:
            require_told(terminations | truncations, infos)
        episodes = finished_episodes(infos)
        return dict(zip(np.flatnonzero(infos["_episode"]).tolist(), episodes, strict=True)) if episodes else {}


def play_episodes(
    envs: VecEnv, policy: BatchedPolicy, num_episodes: int, seed: int | None = None, max_steps: int | None = None
) -> PlayedEpisodes:
    """Play ``num_episodes`` whole episodes.

    Every environment plays a share fixed beforehand. Taking whichever end first would favour short episodes.

    Args:
        envs: a vector env made with ``statistics=True``.
        policy: acts for all environments at once.
        num_episodes: at least 1.
        seed: of the environments.
        max_steps: steps per environment after which nothing is played any more; None: no limit.

    Raises:
        UnknownSetting: infos do not tell of episodes, or ``envs`` does not reset by itself.
    """
    shares = np.full(envs.num_envs, num_episodes // envs.num_envs)
    shares[: num_episodes % envs.num_envs] += 1
    played: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    player, steps = EpisodePlayer(envs, policy, seed), 0
    while (missing := _missing(played, shares.tolist())) and (max_steps is None or steps < max_steps):
        for env, episode in player.step().items():
            if len(played[env]) < shares[env]:
                played[env].append(episode)
        steps += 1
    return PlayedEpisodes([episode for episodes in played for episode in episodes], missing)


def _missing(played: Sequence[Sequence[Episode]], shares: Sequence[int]) -> int:
    return sum(share - len(episodes) for episodes, share in zip(played, shares, strict=True))
