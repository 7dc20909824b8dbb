"""PPO: its objective against a slow twin, its counters and schedule, resuming, and that it learns."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents import ppo
from vecenv.agents.checkpoint import load_checkpoint, save_checkpoint
from vecenv.agents.config import PPOConfig
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.parallel_gradients import ParallelGradients
from vecenv.agents.ppo import PPO
from vecenv.agents.rollout_buffer import Minibatch, TrainingBatch
from vecenv.agents.stopping import EpisodeWindow

LENGTH = 7
"""Steps per episode of CorridorEnv; with the filler row, 8 rows."""


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class CorridorEnv(gymnasium.Env):
    """Nothing is random: action 1 moves right and pays the position; every episode takes LENGTH steps."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.position += int(action)
        observation = np.array([self.position, self.t], np.float32)
        return observation, float(self.position), False, self.t == LENGTH, {}


CONFIG = PPOConfig(num_envs=4, num_steps=2 * (LENGTH + 1), num_epochs=3, minibatch_size=20, total_steps=1000)


def make_learner(config=CONFIG, seed=0, env=CorridorEnv, **settings):
    envs = vecenv.make_vec(
        env, config.num_envs, "sync", copy=False, slots=config.num_steps + 1, statistics=True, **settings
    )
    learner = PPO(envs, config, seed=seed, precision="float32")
    learner.collector.reset(seed=seed)
    return learner


def weights(learner):
    return torch.cat([parameter.detach().flatten() for parameter in learner.network.parameters()])


def test_env_steps_count_real_steps_only():
    learner = make_learner()
    learner.train_once()
    assert learner.env_steps == CONFIG.num_envs * 2 * LENGTH
    learner = make_learner(autoreset_mode="SameStep")
    learner.train_once()
    assert learner.env_steps == CONFIG.num_envs * CONFIG.num_steps


def test_learning_rate_falls_linearly_with_env_steps():
    learner = make_learner()
    rates = [learner.train_once().figures["learning_rate"] for _ in range(20)]
    per_rollout = CONFIG.num_envs * 2 * LENGTH / CONFIG.total_steps
    expected = [CONFIG.learning_rate * max(0.0, 1 - per_rollout * k) for k in range(20)]
    np.testing.assert_allclose(rates, expected)
    assert learner.update.optimizer.param_groups[0]["lr"] == rates[-1] == 0.0


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_share_a_gradient_step(num_threads):
    learner = make_learner()
    learner.collector.collect()
    learner.rollout.compute_advantages(0.9, 0.9)
    minibatch = TrainingBatch(learner.rollout, torch.device("cpu")).select(torch.arange(32))
    expected_figures = learner.update.compute_gradients(minibatch, False)
    expected = [parameter.grad.clone() for parameter in learner.network.parameters()]
    parallel = ParallelGradients(learner.network, num_threads)
    for _ in range(2):  # gradients do not pile up
        figures = parallel.compute(lambda network, rows: learner.update._loss(network, rows, False), minibatch)
    torch.testing.assert_close(figures, expected_figures)
    for parameter, gradient in zip(learner.network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    learner.update.optimizer.step()  # changed weights reach every thread
    changed = [parameter.detach() for parameter in learner.network.parameters()]
    for network in parallel._replicas:
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), changed, strict=True))
    one_row = TrainingBatch(learner.rollout, torch.device("cpu")).select(torch.arange(1))
    assert torch.isfinite(
        parallel.compute(lambda network, rows: learner.update._loss(network, rows, False), one_row)
    ).all()
    parallel.close()


def test_an_error_in_a_gradient_thread_reaches_the_caller():
    learner = make_learner()
    learner.collector.collect()
    minibatch = TrainingBatch(learner.rollout, torch.device("cpu")).select(torch.arange(32))
    parallel = ParallelGradients(learner.network, 2)

    def fail_elsewhere(network, rows):
        if network is not learner.network:
            raise ValueError("planted")
        return learner.update._loss(network, rows, False)

    with pytest.raises(ValueError, match="planted"):
        parallel.compute(fail_elsewhere, minibatch)
    parallel.close()


@pytest.mark.parametrize(("num_envs", "num_steps", "total_steps"), [(1, 2, 1), (3, 5, 40), (8, 2, 100)])
def test_odd_sizes_train(num_envs, num_steps, total_steps):
    config = PPOConfig(num_envs=num_envs, num_steps=num_steps, total_steps=total_steps, num_epochs=2)
    learner = make_learner(config)
    updates = 0
    while learner.env_steps < total_steps:
        learner.train_once()
        updates += 1
    assert updates >= total_steps // (num_envs * num_steps)
    assert torch.isfinite(weights(learner)).all()


def test_objective_is_the_papers():
    learner = make_learner()
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(50, 2)).astype(np.float32)
    actions, old = rng.integers(0, 2, 50), rng.normal(-0.7, 0.4, 50).astype(np.float32)
    advantages, returns = rng.normal(size=(2, 50)).astype(np.float32)
    minibatch = Minibatch(*map(torch.from_numpy, (observations, actions, old, advantages, returns)))
    policy_loss, value_loss, entropy, kl, clipped = learner.update.compute_gradients(minibatch, False).tolist()
    logits, values = (output.detach().numpy() for output in learner.network(minibatch.observations))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gains, outside, divergences = [], 0, []
    for row in range(50):  # Schulman et al. (2017), equation 7
        ratio = probabilities[row, actions[row]] / np.exp(old[row])
        gains.append(min(ratio * advantages[row], np.clip(ratio, 0.8, 1.2) * advantages[row]))
        outside += not 0.8 <= ratio <= 1.2
        divergences.append(ratio - 1 - np.log(ratio))
    assert policy_loss == pytest.approx(-np.mean(gains), rel=1e-4)
    assert value_loss == pytest.approx(0.5 * np.mean((values - returns) ** 2), rel=1e-4)
    assert entropy == pytest.approx(-np.mean((probabilities * np.log(probabilities)).sum(1)), rel=1e-4)
    assert kl == pytest.approx(np.mean(divergences), rel=1e-4)
    assert clipped == pytest.approx(outside / 50)
    assert 0 < outside < 50


def test_resuming_continues_bit_for_bit(tmp_path):
    straight = make_learner()
    for _ in range(4):
        straight.train_once()
    first = make_learner()
    for _ in range(2):
        first.train_once()
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict()})
    # Each rollout ends where episodes end, so environments that start anew stand where the old ones stood.
    resumed = make_learner(seed=123)
    resumed.load_state_dict(load_checkpoint(tmp_path)["learner"])
    assert not torch.equal(weights(resumed), weights(straight))
    for _ in range(2):
        resumed.train_once()
    assert torch.equal(weights(resumed), weights(straight))
    assert resumed.env_steps == straight.env_steps
    assert resumed.train_once().figures["learning_rate"] == straight.train_once().figures["learning_rate"]


@pytest.mark.parametrize("forgotten", ["optimizer", "shuffle_generator", "action_generator", "env_steps"])
def test_each_restored_part_matters(forgotten):
    straight, resumed = make_learner(), make_learner(seed=123)
    fresh = make_learner(seed=123).state_dict()
    straight.train_once()
    resumed.load_state_dict({**straight.state_dict(), forgotten: fresh[forgotten]})
    straight.train_once()
    resumed.train_once()
    assert not torch.equal(weights(resumed), weights(straight))


def test_same_seed_same_weights():
    first, again, other = make_learner(seed=1), make_learner(seed=1), make_learner(seed=2)
    for learner in (first, again, other):
        learner.train_once()
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_an_interrupted_rollout_changes_nothing():
    learner = make_learner()
    before = weights(learner)
    with pytest.raises(CollectionInterrupted):
        learner.train_once(lambda: True)
    assert torch.equal(weights(learner), before)
    assert learner.env_steps == 0


def test_a_loss_that_is_not_finite_is_an_error():
    class NanEnv(CorridorEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float("nan"), *rest

    with pytest.raises(FloatingPointError, match="no longer finite"):
        make_learner(env=NanEnv).train_once()


def test_slots_that_do_not_fit_are_refused():
    envs = vecenv.make_vec(CorridorEnv, CONFIG.num_envs, "sync", copy=False, slots=3, statistics=True)
    with pytest.raises(ValueError, match="17 observation slots, got 3"):
        PPO(envs, CONFIG)


class PixelCorridorEnv(CorridorEnv):
    """The corridor as images: a bright column at the position."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def image(self):
        image = np.full((4, 84, 84), 87, np.uint8)
        image[:, :, 10 * self.position : 10 * self.position + 8] = 236
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.image(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self.image(), *rest


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_images_get_their_mean_and_train_in_both_precisions(precision):
    config = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, minibatch_size=16, network="small-cnn")
    learner = make_learner(config, env=PixelCorridorEnv)
    learner._requested_precision = precision
    episodes = learner.prepare()
    assert len(episodes) == 4  # counted, though not trained on
    assert learner.env_steps == 2 * 2 * LENGTH
    mean = learner.network.trunk.mean_image
    assert mean[:, :, 80:].unique().item() == 87
    assert mean[0, 0, 0] > 87
    before, report = weights(learner), learner.train_once()
    assert not torch.equal(weights(learner), before)
    assert learner.precision == {"acting": precision, "training": precision}
    assert learner.collector.policy.precision == precision
    # The first minibatch is the only one: its ratios differ from 1 by nothing but rounding.
    assert report.figures["approximate_kl"] < 0.01


def test_auto_falls_back_to_float32_when_actions_drift_apart(monkeypatch):
    config = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, minibatch_size=16, network="small-cnn")
    learner = make_learner(config, env=PixelCorridorEnv)
    learner._requested_precision = "auto"
    monkeypatch.setattr(ppo, "choose_acting_precision", lambda *arguments: "bfloat16")
    learner.prepare()
    monkeypatch.setattr(ppo, "greedy_agreement", lambda *arguments: 0.9991)
    learner.recheck_precision()
    assert learner.collector.policy.precision == "bfloat16"
    monkeypatch.setattr(ppo, "greedy_agreement", lambda *arguments: 0.9989)
    learner.recheck_precision()
    assert learner.collector.policy.precision == learner.precision["acting"] == "float32"


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_cartpole_learns(mode):
    config = PPOConfig(total_steps=40_000)
    learner = make_learner(config, seed=1, env=functools.partial(gymnasium.make, "CartPole-v1"), autoreset_mode=mode)
    window = EpisodeWindow()
    while learner.env_steps < config.total_steps and not window.reaches(200.0):
        window.add(learner.train_once().episodes)
    assert window.reaches(200.0)  # random play gets 22
