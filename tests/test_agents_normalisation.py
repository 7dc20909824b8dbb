"""Running statistics against NumPy over everything at once; what they do to observations, rewards and playing."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents.checkpoint import load_checkpoint, save_checkpoint
from vecenv.agents.config import PPOConfig
from vecenv.agents.normalisation import LIMIT, ObservationNormaliser, RewardNormaliser
from vecenv.agents.ppo import PPO, env_settings, evaluation_policy
from vecenv.errors import UnknownSetting

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class DriftEnv(gymnasium.Env):
    """Large observations around 1000 and rewards of 50 per step; 5 steps per episode."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}

    def observation(self):
        return np.array([1000.0 + self.t, self.np_random.normal(0, 0.01)])

    def step(self, action):
        self.t += 1
        return self.observation(), 50.0 * int(action), self.t == 5, False, {}


def test_observation_statistics_are_those_of_all_rows_together():
    rng = np.random.default_rng(0)
    normaliser = ObservationNormaliser((3,))
    parts = [rng.normal([5.0, 1e6, -0.1], [2.0, 1.0, 1e-3], (rows, 3)) for rows in (1, 10, 500)]
    for part in parts:
        normaliser.update(torch.from_numpy(part))
    normaliser.update(torch.empty(0, 3))
    rows = np.concatenate(parts)
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.variance, rows.var(0), rtol=1e-6)
    assert normaliser.count == 511
    seen = normaliser(torch.from_numpy(rows.astype(np.float32))).numpy()
    np.testing.assert_allclose(seen.mean(0)[[0, 2]], 0.0, atol=1e-3)
    np.testing.assert_allclose(seen.std(0)[0], 1.0, rtol=1e-3)
    assert normaliser(torch.full((1, 3), 1e9)).max() == LIMIT


def test_a_constant_number_becomes_zero():
    normaliser = ObservationNormaliser((1,))
    normaliser.update(torch.full((10, 1), 7.0))
    assert normaliser(torch.full((2, 1), 7.0)).tolist() == [[0.0], [0.0]]


def test_rewards_are_divided_by_the_deviation_of_discounted_returns():
    # One env, gamma 0.5: returns 4, 2 + 2 = 4, (end) then a filler row, then 8.
    normaliser = RewardNormaliser(1, 0.5)
    rewards = np.array([[4.0], [2.0], [99.0], [8.0]], np.float32)
    ended = np.array([[False], [True], [False], [False]])
    valid = np.array([[True], [True], [False], [True]])
    normaliser.normalise(rewards, ended, valid)
    deviation = np.std([4.0, 4.0, 8.0])
    np.testing.assert_allclose(rewards[valid], np.array([4.0, 2.0, 8.0]) / deviation, rtol=1e-6)
    # It goes on from a return of 8: 0.5 * 8 + 2 = 6, and statistics take in what was there.
    again = RewardNormaliser(1, 0.5)
    again.load_state_dict(normaliser.state_dict())
    rewards = np.array([[2.0]], np.float32)
    again.normalise(rewards, np.array([[False]]), np.array([[True]]))
    assert rewards.item() == pytest.approx(2.0 / np.std([4.0, 4.0, 8.0, 6.0]), rel=1e-6)
    other = RewardNormaliser(2, 0.5)
    other.load_state_dict(normaliser.state_dict())
    assert other.scale == normaliser.scale
    assert other.state_dict()["returns"] == [0.0, 0.0]


CONFIG = PPOConfig(
    num_envs=4, num_steps=12, num_epochs=2, minibatch_size=24, normalise_observations=True, normalise_rewards=True
)


def make_learner(config=CONFIG, seed=0):
    envs = vecenv.make_vec(DriftEnv, backend="sync", **env_settings(config))
    learner = PPO(envs, config, seed=seed, precision="float32")
    learner.reset(seed=seed)
    return learner


def test_acting_and_learning_see_the_same_statistics():
    learner = make_learner()
    assert learner.env_steps == 0
    learner.prepare()
    assert learner.env_steps == learner.network.normaliser.count == 4 * 10  # filler rows do not count
    assert learner.network.normaliser.mean[0] == pytest.approx(1002.0)
    one_step = PPOConfig(**{**CONFIG.__dict__, "num_epochs": 1, "minibatch_size": 1000})
    learner = make_learner(one_step)
    learner.prepare()
    for rollout in range(3):
        report = learner.train_once()
        assert report.figures["approximate_kl"] == pytest.approx(0.0, abs=1e-6)  # the only minibatch: ratios are 1
        assert learner.network.normaliser.count == 40 * (rollout + 2)
    assert all(episode.total_reward in range(0, 251, 50) for episode in report.episodes)  # reported as they were
    assert learner.rollout.rewards.max() < 10.0


def test_statistics_are_saved_and_frozen_for_playing(tmp_path):
    learner = make_learner()
    learner.prepare()
    learner.train_once()
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": learner.state_dict()})
    state = load_checkpoint(tmp_path)["learner"]
    resumed = make_learner(seed=5)
    resumed.load_state_dict(state)
    for name, tensor in learner.network.normaliser.state_dict().items():
        assert torch.equal(resumed.network.normaliser.state_dict()[name], tensor)
        assert tensor.dtype == (torch.float32 if name in ("shift", "scale") else torch.float64)
    assert resumed.update._rewards.state_dict() == learner.update._rewards.state_dict()
    policy = evaluation_policy(learner.envs, CONFIG, state, sample=False, seed=0, device="cpu")
    observations = np.array([[1002.0, 0.0], [1004.0, 0.01]])
    before = policy.values(observations)
    policy.act(np.full((50, 2), 1e6))
    np.testing.assert_array_equal(policy.values(observations), before)
    np.testing.assert_allclose(before, learner.collector.policy.values(observations), rtol=1e-6)


def test_images_have_their_own_way():
    with pytest.raises(UnknownSetting, match="subtract_mean_image"):
        PPOConfig(network="small-cnn", normalise_observations=True)


@pytest.mark.slow
def test_pendulum_gets_better():
    config = PPOConfig(
        num_envs=8, num_steps=100, num_epochs=10, minibatch_size=100, learning_rate=1e-3, gamma=0.95,
        total_steps=120_000, normalise_observations=True, normalise_rewards=True,
    )  # fmt: skip
    envs = vecenv.make_vec("Pendulum-v1", backend="sync", **env_settings(config))
    learner = PPO(envs, config, seed=0, precision="float32")
    learner.reset(seed=0)
    episodes = learner.prepare()
    first = np.mean([episode.total_reward for episode in episodes + learner.train_once().episodes or [(-1200.0, 0)]])
    while learner.env_steps < config.total_steps:
        episodes += learner.train_once().episodes
    envs.close()
    assert np.mean([episode.total_reward for episode in episodes[-50:]]) > -500 > first
