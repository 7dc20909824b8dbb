"""Playing a population: whole episodes, nothing after their end, and the same result in whatever company."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import vecenv
from vecenv.agents.es_config import ESConfig
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.perturbation import draw_env_seeds, draw_noise
from vecenv.agents.population_evaluation import Broadcast, PairResult, PopulationEvaluator, unpack_results
from vecenv.agents.population_network import build_policy_network
from vecenv.agents.population_statistics import (
    ObservationMoments,
    ObservationStatistics,
    sends_statistics,
)
from vecenv.errors import VecEnvError

SEED = 11


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class SeededEnv(gym.Env[Any, Any]):
    """Its length and observations follow from the seed; whatever comes after the first episode would stand out."""

    def __init__(self, truncates: bool = False, ends: bool = True) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(2, start=4)
        self.truncates, self.ends, self.seeded = truncates, ends, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeded, self.time = seed is not None, 0
        self.length = 3 + int(self.np_random.integers(9))
        return self.observation(), {}

    def observation(self) -> Any:
        return self.np_random.normal(size=3) * [1.0, 0.1, 5.0] if self.seeded else np.full(3, 1e6)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action not in (4, 5):
            raise ValueError(f"no such action: {action}")
        self.time += 1
        end = self.ends and self.time >= self.length
        reward = float(action - 3) * self.time if self.seeded else 1e9
        return self.observation(), reward, end and not self.truncates, end and self.truncates, {}


def make_envs(num_envs: int, **kwargs: Any) -> vecenv.VecEnv:
    return vecenv.SyncVecEnv([lambda: SeededEnv(**kwargs)] * num_envs)


def middle_of(config: ESConfig) -> np.ndarray[Any, Any]:
    network = build_policy_network(
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64), gym.spaces.Discrete(2, start=4), config, SEED
    )
    vector: np.ndarray[Any, Any] = nn.utils.parameters_to_vector(network.parameters()).numpy()
    return vector


def evaluate(config: ESConfig, num_envs: int, pairs: list[int] | range, **kwargs: Any) -> list[PairResult]:
    statistics = np.array([0.5, 0.0, 1.0], np.float32), np.array([1.0, 2.0, 0.5], np.float32)
    mean, factor = statistics if config.normalise_observations else (None, None)
    envs = make_envs(num_envs, **kwargs)
    try:
        evaluator = PopulationEvaluator(envs, config, seed=SEED)
        return evaluator.evaluate(Broadcast(3, middle_of(config), mean, factor), pairs)
    finally:
        envs.close()


def play_alone(config: ESConfig, parameters: np.ndarray[Any, Any], env_seed: int) -> tuple[float, int]:
    """One member in one plain env with one plain network: the slow twin."""
    env = SeededEnv()
    network = build_policy_network(env.observation_space, env.action_space, config, SEED)
    nn.utils.vector_to_parameters(torch.from_numpy(parameters), network.parameters())
    observation, _ = env.reset(seed=env_seed)
    total, length, ended = 0.0, 0, False
    while not ended:
        outputs = network(torch.from_numpy(observation[None]))[0]
        observation, reward, terminated, truncated, _ = env.step(4 + int(outputs.argmax()))
        total, length, ended = total + reward, length + 1, terminated or truncated
    return total, length


@pytest.mark.parametrize("truncates", [False, True])
def test_every_member_plays_one_whole_episode(truncates: bool) -> None:
    config = ESConfig(num_pairs=6, noise_std=1.0, hidden_size=8)
    results = evaluate(config, 12, range(6), truncates=truncates)
    middle = middle_of(config)
    assert [result.pair for result in results] == list(range(6))
    for result in results:
        env_seed = draw_env_seeds(SEED, 3, result.pair)[0]
        noise = draw_noise(SEED, 3, result.pair, len(middle))
        for side, sign in enumerate((1, -1)):
            expected = play_alone(config, middle + sign * noise, env_seed)
            assert (result.returns[side], result.lengths[side]) == expected
    assert len({result.lengths[0] for result in results}) > 2
    assert any(result.returns[0] != result.returns[1] for result in results)


@pytest.mark.parametrize("normalise", [False, True])
def test_results_do_not_depend_on_rows_or_company(normalise: bool) -> None:
    config = ESConfig(num_pairs=7, noise_std=1.0, hidden_size=8, normalise_observations=normalise)
    together = [result.pack() for result in evaluate(config, 14, range(7))]
    for num_envs, pairs in ((2, range(7)), (6, range(7)), (20, range(7)), (8, [6, 0, 3, 5, 1])):
        alone = [result.pack() for result in evaluate(config, num_envs, pairs)]
        assert alone == [together[pair] for pair in pairs]


def test_statistics_are_of_the_observations_that_were_acted_on() -> None:
    config = ESConfig(num_pairs=5, noise_std=1.0, hidden_size=8, normalise_observations=True)
    reference = np.array([0.5, 0.0, 1.0])
    for result in evaluate(config, 10, range(5)):
        seen = []
        for length in result.lengths:
            env = SeededEnv()
            seen.append(env.reset(seed=draw_env_seeds(SEED, 3, result.pair)[0])[0])
            seen += [env.step(4)[0] for _ in range(length - 1)]
        assert result.moments is not None
        assert result.moments[0] + reference == pytest.approx(np.mean(seen, axis=0), rel=1e-5, abs=1e-6)
        assert result.moments[1] == pytest.approx(np.var(seen, axis=0), rel=1e-5)


def test_pairs_without_noise_play_the_middle_with_seeds_of_their_own() -> None:
    config = ESConfig(num_pairs=2, unperturbed_pairs=3, noise_std=1.0, hidden_size=8)
    results = evaluate(config, 10, range(5))
    for result in results[2:]:
        for side, env_seed in enumerate(draw_env_seeds(SEED, 3, result.pair)):
            expected = play_alone(config, middle_of(config), env_seed)
            assert (result.returns[side], result.lengths[side]) == expected


def test_long_episodes_are_cut() -> None:
    config = ESConfig(num_pairs=2, hidden_size=8, max_episode_steps=17)
    for result in evaluate(config, 4, range(2), ends=False):
        assert result.lengths == (17, 17)
        assert 17 * 18 / 2 <= result.returns[0] <= 17 * 18


def test_a_stop_is_heard_between_two_steps() -> None:
    config, asked = ESConfig(num_pairs=2, hidden_size=8), []

    def stop_requested() -> bool:
        asked.append(1)
        return len(asked) > 5

    envs = make_envs(4, ends=False)
    try:
        with pytest.raises(CollectionInterrupted):
            PopulationEvaluator(envs, config, seed=SEED).evaluate(
                Broadcast(0, middle_of(config), None, None), range(2), stop_requested
            )
    finally:
        envs.close()
    assert len(asked) == 6


class DyingEnv(SeededEnv):
    """Ends its process at the second step, once for every file in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def step(self, action: Any) -> Any:
        left = list(self.folder.iterdir())
        if self.time == 1 and left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_pairs_that_a_restart_cuts_off_are_played_anew_and_not_for_ever(deaths: int, tmp_path: Path) -> None:
    for number in range(deaths):
        (tmp_path / str(number)).touch()
    config = ESConfig(num_pairs=2, noise_std=1.0, hidden_size=8)
    env_fns = [functools.partial(DyingEnv, tmp_path)] * 4
    with vecenv.SubprocVecEnv(env_fns, num_workers=1, on_worker_failure="restart") as envs:
        evaluator = PopulationEvaluator(envs, config, seed=SEED)
        broadcast = Broadcast(3, middle_of(config), None, None)
        if deaths == 3:
            with pytest.raises(VecEnvError, match="each of 3 attempts to play pairs 0 to 1 was cut off"):
                evaluator.evaluate(broadcast, range(2))
        else:
            results = evaluator.evaluate(broadcast, range(2))
            assert [result.pack() for result in results] == [one.pack() for one in evaluate(config, 4, range(2))]
    assert not list(tmp_path.iterdir())


def test_an_odd_number_of_environments_is_refused() -> None:
    envs = make_envs(3)
    try:
        with pytest.raises(ValueError, match="even num_envs, got 3"):
            PopulationEvaluator(envs, ESConfig(hidden_size=8), seed=SEED)
    finally:
        envs.close()


def test_unclipped_returns_count_where_rewards_are_clipped() -> None:
    pytest.importorskip("ale_py")
    config = ESConfig(num_pairs=1, network="small-cnn", hidden_size=8, max_episode_steps=200)
    returns = {}
    for preset in ("ale", "envpool"):  # the first clips rewards, the second does not
        envs = vecenv.make_vec("QbertNoFrameskip-v4", 2, "sync", preprocess=preset)
        try:
            spaces = envs.single_observation_space, envs.single_action_space
            network = build_policy_network(*spaces, config, SEED)
            middle = nn.utils.parameters_to_vector(network.parameters()).numpy()
            results = PopulationEvaluator(envs, config, seed=0).evaluate(Broadcast(0, middle, None, None), [0])
            returns[preset] = results[0].returns
            assert envs.config is not None
            assert envs.config.clip_reward == (preset == "ale")
        finally:
            envs.close()
    assert max(returns["ale"]) >= 25  # Qbert's smallest reward is 25: clipped, 200 steps could hardly sum up to that


def test_results_survive_packing_and_stay_small() -> None:
    moments = np.arange(34, dtype=np.float32).reshape(2, 17)
    results = [PairResult(7, 2, (1.5, -2.25), (10, 999), None), PairResult(7, 3, (0.1, 1e300), (1, 2), moments)]
    data = b"".join(result.pack() for result in results)
    first, second = unpack_results(data)
    assert first == results[0]
    assert second[:4] == results[1][:4]
    assert np.array_equal(second.moments, moments)  # type: ignore[arg-type]
    assert [len(result.pack()) for result in results] == [36, 172]  # HalfCheetah has 17 features


@pytest.mark.parametrize("num_features", [1, 17, 20, 21, 27, 105, 348, 3000])
def test_statistics_cost_at_most_160_bytes_per_pair_and_every_pair_has_its_turn(num_features: int) -> None:
    generations, pairs = 2000, 60
    sent = np.array([[sends_statistics(g, p, num_features) for p in range(pairs)] for g in range(generations)])
    assert sent.any(axis=0).all()
    assert sent.mean() * 8 * num_features <= 160 * 1.1
    if num_features <= 20:
        assert sent.all()


def test_merged_statistics_equal_those_of_all_observations_together() -> None:
    generator = np.random.default_rng(0)
    parts = [generator.normal(3.0, 2.0, (size, 4)) * [1, 100, 0.01, 0] for size in (5, 1, 40, 300)]
    statistics = ObservationStatistics(4)
    for part in parts:
        moments = ObservationMoments(2, statistics.normalisation()[0])
        for row in part:
            moments.add(np.stack([row, np.full(4, 1e9)]), np.array([True, False]))
        difference, variance = moments.of_pair(0, len(part)).astype(np.float64)
        statistics.merge(len(part), statistics.normalisation()[0].astype(np.float64) + difference, variance)
    together = np.concatenate(parts)
    assert statistics.count == len(together)
    assert statistics.mean == pytest.approx(together.mean(axis=0), rel=1e-5, abs=1e-7)
    assert statistics.variance == pytest.approx(together.var(axis=0), rel=1e-4, abs=1e-9)
    mean, factor = statistics.normalisation()
    assert mean == pytest.approx(together.mean(axis=0), rel=1e-5, abs=1e-7)
    assert factor[:2] == pytest.approx(1 / together.std(axis=0)[:2], rel=1e-3)
    assert factor[3] == pytest.approx(100.0)  # a component that never varies is not blown up without bound


def test_statistics_go_on_from_their_state() -> None:
    statistics, other = ObservationStatistics(2), ObservationStatistics(2)
    statistics.merge(3, np.array([1.0, 2.0]), np.array([0.5, 0.25]))
    other.load_state_dict(statistics.state_dict())
    for one in (statistics, other):
        one.merge(5, np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    assert other.count == 8
    assert np.array_equal(other.mean, statistics.mean)
    assert np.array_equal(other.variance, statistics.variance)
