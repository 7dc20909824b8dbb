"""Continuous actions: the Gaussian's numbers, what is stored and what the env gets."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents.actions import EnvActions
from vecenv.agents.config import PPOConfig
from vecenv.agents.distributions import DISTRIBUTIONS
from vecenv.agents.inference import ACTION_HEADS, BatchedPolicy
from vecenv.agents.networks import build_actor_critic
from vecenv.agents.ppo import PPO, env_settings

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class PointEnv(gymnasium.Env):
    """Pays minus the distance of a 1 x 2 action from (0.5, -0.25), executed as sent; records what it was sent."""

    observation_space = OBSERVATIONS
    action_space = gymnasium.spaces.Box(np.float32([[-1, -0.5]]), np.float32([[1, 0.5]]), dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sent = 0, getattr(self, "sent", [])
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        self.sent.append(action.copy())
        reward = -float(np.square(action[0] - [0.5, -0.25]).sum())
        return np.zeros(3, np.float32), reward, False, self.t == 10, {}


def test_gaussian_log_probs_and_entropy_are_those_of_independent_normals():
    outputs = torch.tensor([[0.5, -1.0, 0.0, math.log(2.0)]])  # means 0.5 and -1, deviations 1 and 2
    actions = torch.tensor([[1.5, -1.0]])  # one deviation away, none away
    log_probs, entropy = DISTRIBUTIONS["gaussian"].evaluate(outputs, actions)
    expected = -0.5 - math.log(2 * math.pi) - math.log(2.0)
    assert log_probs.item() == pytest.approx(expected, rel=1e-6)
    assert entropy.item() == pytest.approx(1.0 + math.log(2 * math.pi) + math.log(2.0), rel=1e-6)
    means, best = ACTION_HEADS["gaussian_mean"]()(outputs, torch.Generator())
    assert means.tolist() == [[0.5, -1.0]]
    assert best.item() == pytest.approx(expected + 0.5, rel=1e-6)


def test_gaussian_draws_have_the_means_and_deviations_and_their_own_log_probs():
    outputs = torch.tensor([[0.5, -1.0, math.log(0.5), math.log(2.0)]]).repeat(100_000, 1)
    actions, log_probs = ACTION_HEADS["gaussian"]()(outputs, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(actions.mean(0), [0.5, -1.0], atol=0.03)
    np.testing.assert_allclose(actions.std(0), [0.5, 2.0], rtol=0.02)
    torch.testing.assert_close(log_probs, DISTRIBUTIONS["gaussian"].evaluate(outputs, actions)[0], rtol=1e-4, atol=1e-4)


def test_a_new_gaussian_policy_starts_at_zero_with_deviation_one_whatever_the_state():
    network = build_actor_critic(OBSERVATIONS, PointEnv.action_space, PPOConfig(), seed=0)
    outputs, values = network(torch.randn(50, 3))
    assert outputs.shape == (50, 4)
    assert values.shape == (50,)
    assert outputs[:, :2].abs().max() < 0.1
    assert torch.equal(outputs[:, 2:], torch.zeros(50, 2))
    network.policy_head.log_std.data.fill_(-1.0)
    assert network(torch.randn(5, 3))[0][:, 2:].unique().tolist() == [-1.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_only_what_the_env_is_sent_is_clipped(dtype):
    space = gymnasium.spaces.Box(np.array([[-0.1, -np.inf]]), np.array([[0.1, 2.0]]), dtype=dtype)
    actions = np.array([[5.0, -7.0], [-5.0, 7.0], [0.05, 0.5]], np.float32)
    kept = actions.copy()
    sent = EnvActions(space)(actions)
    assert (sent.shape, sent.dtype) == ((3, 1, 2), dtype)
    np.testing.assert_allclose(sent[:, 0], [[0.1, -7.0], [-0.1, 2.0], [0.05, 0.5]], rtol=1e-6)
    assert all(space.contains(action) for action in sent)
    np.testing.assert_array_equal(actions, kept)


def test_discrete_actions_are_moved_to_the_spaces_start():
    assert EnvActions(gymnasium.spaces.Discrete(3, start=-1))(np.array([0, 2])).tolist() == [-1, 1]


def make_learner(config):
    envs = vecenv.make_vec(PointEnv, backend="sync", **env_settings(config))
    learner = PPO(envs, config, precision="float32")
    learner.reset(seed=0)
    return learner


def test_the_rollout_holds_unclipped_actions_with_their_log_probs():
    learner = make_learner(PPOConfig(num_envs=2, num_steps=20))
    learner.collector.collect()
    rollout = learner.rollout
    assert rollout.actions.shape == (20, 2, 2)
    assert np.abs(rollout.actions).max() > 1.0  # beyond the bounds
    sent = [np.concatenate(env.sent) for env in learner.envs.envs]
    for env in range(2):
        drawn = rollout.actions[:, env][rollout.valid[:, env]]
        np.testing.assert_allclose(sent[env], np.clip(drawn, [-1, -0.5], [1, 0.5]), rtol=1e-6)
    outputs, _ = learner.network(torch.zeros(40, 3))
    expected, _ = DISTRIBUTIONS["gaussian"].evaluate(outputs, torch.from_numpy(rollout.actions.reshape(40, 2)))
    np.testing.assert_allclose(rollout.log_probs.reshape(-1), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_it_learns_where_to_point_and_the_greedy_policy_is_its_mean():
    config = PPOConfig(num_envs=8, num_steps=66, num_epochs=10, minibatch_size=66, learning_rate=3e-3, gamma=0.0)
    learner = make_learner(config)
    for _ in range(25):
        report = learner.train_once()
    policy = BatchedPolicy(learner.network, head=learner.network.distribution.exploit)
    np.testing.assert_allclose(policy.act(np.zeros((1, 3), np.float32)).actions[0], [0.5, -0.25], atol=0.15)
    assert (learner.network.policy_head.log_std < 0).all()
    assert report.figures["entropy"] < math.log(2 * math.pi * math.e)  # of the first policy
