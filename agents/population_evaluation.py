"""Plays the members of a population, each a whole episode, and says how they fared."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vecenv import VecEnv
from vecenv.errors import VecEnvError

from .actions import EnvActions
from .env_checks import require_autoreset
from .es_config import ESConfig
from .inference import BatchedPolicy
from .learner import CollectionInterrupted
from .perturbation import draw_env_seeds, draw_noise
from .population_network import StackedNetwork, action_head, build_policy_network
from .population_statistics import ObservationMoments, sends_statistics

ATTEMPTS = 3
"""How often pairs are played whose episodes are cut off because a worker of the vector env dies and is replaced."""


class Broadcast(NamedTuple):
    """What everybody who plays needs to know, once per generation; read-only."""

    generation: int
    """Number of updates before this one."""
    parameters: NDArray[np.float32]
    """[P] float32, the middle of the population."""
    observation_mean: NDArray[np.float32] | None
    """[D] float32, subtracted from observations; None for nothing."""
    observation_factor: NDArray[np.float32] | None
    """[D] float32, one over the standard deviation; None where observations are not normalised."""


class PairResult(NamedTuple):
    """How one pair fared: all that crosses a process border, 36 bytes and the statistics of observations, if any."""

    generation: int
    """With ``pair`` the key of the noise, for whoever knows the seed of the run."""
    pair: int
    """Index of the pair in its generation."""
    returns: tuple[float, float]
    """Unclipped returns of the member that added the noise and of the one that subtracted it."""
    lengths: tuple[int, int]
    """Env steps of both episodes."""
    moments: NDArray[np.float32] | None
    """[2, D] float32, what :meth:`ObservationMoments.of_pair` gives; None where they are not used."""

    def pack(self) -> bytes:
        """As bytes; several results may stand one behind the other."""
        num_features = 0 if self.moments is None else self.moments.shape[1]
        head = _HEAD.pack(self.generation, self.pair, *self.returns, *self.lengths, num_features)
        return head if self.moments is None else head + self.moments.astype("<f4").tobytes()


_HEAD = struct.Struct("<iiddiii")


def unpack_results(data: bytes) -> list[PairResult]:
    """Results that :meth:`PairResult.pack` wrote one behind the other."""
    results, place = [], 0
    while place < len(data):
        generation, pair, first, second, first_length, second_length, num_features = _HEAD.unpack_from(data, place)
        place += _HEAD.size
        moments = None
        if num_features:
            numbers = np.frombuffer(data, "<f4", 2 * num_features, place)
            moments = numbers.reshape(2, num_features).astype(np.float32)
            place += numbers.nbytes
        results.append(PairResult(generation, pair, (first, second), (first_length, second_length), moments))
    return results


class PopulationEvaluator:
    """Plays pairs in one vector env: row 2k is the member that adds the noise of a pair, row 2k + 1 the other.

    Every member plays one whole episode; rows that are through are stepped on, but neither counted nor looked at. What
    a member does depends on the seed of the run, its generation and its pair alone: not on its row, the other rows, or
    the number of rows.
    """

    def __init__(self, envs: VecEnv, config: ESConfig, *, seed: int, device: str = "cpu") -> None:
        """Play in ``envs``, two for each pair that is played at once, made with autoreset.

        Args:
            envs: stays the caller's to close.
            config: hyper-parameters.
            seed: of the run.
            device: where the networks lie.

        Raises:
            NotImplementedError: for spaces that have no network or action head.
            UnknownSetting: the env does not reset by itself.
            ValueError: for an odd number of environments, or a network that does not fit the observations.
        """
        require_autoreset(envs)
        if envs.num_envs % 2:
            raise ValueError(f"a population is played in pairs: envs needs an even num_envs, got {envs.num_envs}")
        self.envs = envs
        self.config = config
        self.pairs_at_once = envs.num_envs // 2
        self._seed = seed
        network = build_policy_network(envs.single_observation_space, envs.single_action_space, config, seed)
        self._network = StackedNetwork(network.to(device), envs.num_envs)
        self._policy = BatchedPolicy(
            self._network,
            head=action_head(envs.single_action_space, device),
            device=device,
        )
        self._to_env = EnvActions(envs.single_action_space)

    def evaluate(
        self, broadcast: Broadcast, pairs: Sequence[int], stop_requested: Callable[[], bool] = lambda: False
    ) -> list[PairResult]:
        """Play ``pairs``; those from ``num_pairs`` on play without noise.

        Returns:
            One result per pair, in the given order.

        Raises:
            CollectionInterrupted: ``stop_requested`` said so between two steps.
            VecEnvError: workers of the vector env die again and again.
        """
        results: list[PairResult] = []
        for start in range(0, len(pairs), self.pairs_at_once):
            results += self._play_whole(broadcast, pairs[start : start + self.pairs_at_once], stop_requested)
        return results

    def _play_whole(
        self, broadcast: Broadcast, pairs: Sequence[int], stop_requested: Callable[[], bool]
    ) -> list[PairResult]:
        """Play pairs that all fit into the rows, anew where an episode was cut off: half a return would mislead."""
        for _ in range(ATTEMPTS):
            results = self._play(broadcast, pairs, stop_requested)
            if results is not None:
                return results
        raise VecEnvError(
            f"generation {broadcast.generation}: each of {ATTEMPTS} attempts to play pairs {pairs[0]} to {pairs[-1]} "
            "was cut off by a worker of the vector env that died and was replaced; see what ends it, such as want of "
            "memory"
        )

    def _play(
        self, broadcast: Broadcast, pairs: Sequence[int], stop_requested: Callable[[], bool]
    ) -> list[PairResult] | None:
        """Play pairs that all fit into the rows; None: a restart of the vector env has cut an episode off."""
        self._load(broadcast, pairs)
        active = np.zeros(self.envs.num_envs, np.bool_)
        active[: 2 * len(pairs)] = True
        moments = None
        if self.config.normalise_observations and broadcast.observation_mean is not None:
            moments = ObservationMoments(self.envs.num_envs, broadcast.observation_mean)
        observations, _ = self.envs.reset(seed=self._env_seeds(broadcast.generation, pairs))
        returns, lengths = np.zeros(self.envs.num_envs), np.zeros(self.envs.num_envs, np.int64)
        played_before = self.envs.episode_statistics().episode_counts
        steps, limit = 0, self.config.max_episode_steps
        while np.count_nonzero(active):  # a tenth of the time of any()
            if stop_requested():
                raise CollectionInterrupted
            if moments is not None:
                moments.add(observations, active)
            actions = self._to_env(self._policy.act(observations).actions)
            observations, _, terminations, truncations, infos = self.envs.step(actions)
            cut_off = infos.get("_worker_restarted")
            if cut_off is not None and (cut_off & active).any():
                return None
            steps += 1
            ended = active if steps == limit else (terminations | truncations) & active
            if np.count_nonzero(ended):
                statistics = self.envs.episode_statistics()
                # An end that is not the whole game's, such as a lost life or the cut, leaves its return running.
                is_whole = statistics.episode_counts > played_before
                totals = np.where(is_whole, statistics.last_returns, statistics.returns)
                returns[ended], lengths[ended] = totals[ended], steps
                active = active & ~ended
        return [
            self._result(broadcast.generation, pair, 2 * place, returns, lengths, moments)
            for place, pair in enumerate(pairs)
        ]

    def _load(self, broadcast: Broadcast, pairs: Sequence[int]) -> None:
        """Give every row its weights, and all of them the statistics of observations."""
        if broadcast.observation_mean is not None:
            self._network.scaling.set(broadcast.observation_mean, broadcast.observation_factor)
        middle, num_parameters = broadcast.parameters, len(broadcast.parameters)
        for place, pair in enumerate(pairs):
            members = (middle.copy(),) * 2  # torch takes no array that may not be written
            if pair < self.config.num_pairs:
                noise = draw_noise(self._seed, broadcast.generation, pair, num_parameters)
                noise *= np.float32(self.config.noise_std)
                members = (middle + noise, middle - noise)
            for side, parameters in enumerate(members):
                self._network.load(2 * place + side, torch.from_numpy(parameters).to(self._network.device))

    def _env_seeds(self, generation: int, pairs: Sequence[int]) -> list[int]:
        """One seed per environment; rows without a pair get any."""
        seeds = [0] * self.envs.num_envs
        for place, pair in enumerate(pairs):
            first, second = draw_env_seeds(self._seed, generation, pair)
            seeds[2 * place] = first
            seeds[2 * place + 1] = first if pair < self.config.num_pairs else second
        return seeds

    def _result(
        self,
        generation: int,
        pair: int,
        row: int,
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
        moments: ObservationMoments | None,
    ) -> PairResult:
        own_lengths = (int(lengths[row]), int(lengths[row + 1]))
        sent = None
        if moments is not None and sends_statistics(generation, pair, moments.num_features):
            sent = moments.of_pair(row, sum(own_lengths))
        return PairResult(generation, pair, (float(returns[row]), float(returns[row + 1])), own_lengths, sent)
