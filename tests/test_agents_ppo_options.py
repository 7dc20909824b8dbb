"""PPO's switches: schedules, learning rates that follow the KL divergence, two halves, collecting while learning."""

from __future__ import annotations

import dataclasses
import re
import threading
import types

import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents.checkpoint import load_checkpoint, save_checkpoint
from vecenv.agents.config import PPO_PRESETS, PPOConfig
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.ppo import PPO, env_settings
from vecenv.agents.schedules import LearningRate, linear
from vecenv.capabilities import REFUSED, capabilities
from vecenv.errors import UnknownSetting
from vecenv.toy_envs import CountEnv

LENGTHS = (4, 2, 5, 3)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class RecordingEnv(CountEnv):
    """`CountEnv` with another length for every uid; keeps the actions that were executed."""

    def __init__(self, uid=0):
        super().__init__(uid, LENGTHS[uid])
        self.executed = []

    def step(self, action):
        self.executed.append(int(action))
        return super().step(action)


CONFIG = PPOConfig(num_envs=4, num_steps=7, num_epochs=2, minibatch_size=14, total_steps=1000)


def make_learner(config=CONFIG, seed=0, backend="sync", **settings):
    envs = vecenv.make_vec(
        RecordingEnv,
        backend=backend,
        per_env_kwargs=[{"uid": uid} for uid in range(4)],
        **env_settings(config),
        **settings,
    )
    learner = PPO(envs, config, seed=seed, precision="float32")
    learner.reset(seed=seed)
    return learner


def weights(learner):
    return torch.cat([parameter.detach().flatten() for parameter in learner.network.parameters()])


def changed(**values):
    return dataclasses.replace(CONFIG, **values)


# -- schedules -------------------------------------------------------------------------------------------------------


def test_a_line_over_env_steps():
    assert [linear(4.0, 1.0, steps, 300) for steps in (0, 100, 300, 900)] == [4.0, 3.0, 1.0, 1.0]
    assert linear(1.0, 0.0, 5, 1) == 0.0


@pytest.mark.parametrize(("scaling", "rate"), [("none", 1e-3), ("linear", 8e-3), ("linear-0.8", 6.4e-3)])
def test_learning_rate_scaling(scaling, rate):
    config = PPOConfig(num_envs=8, learning_rate=1e-3, final_learning_rate=1e-4, lr_scaling=scaling, total_steps=1000)
    assert LearningRate(config).at(0) == pytest.approx(rate)
    assert LearningRate(config).at(500) == pytest.approx(rate * 0.55)
    assert LearningRate(config).at(2000) == pytest.approx(rate * 0.1)
    assert config.learning_rate == 1e-3  # what the user set stays what it was


def test_a_schedule_does_not_depend_on_the_number_of_envs():
    rates = [LearningRate(PPOConfig(num_envs=n, total_steps=800)).at(400) for n in (1, 3, 8)]
    assert len(set(rates)) == 1


def test_the_rate_follows_the_kl_divergence_within_bounds():
    rate = LearningRate(PPOConfig(lr_schedule="kl", kl_target=0.01, learning_rate=1e-3))
    for kl, expected in ((0.01, 1e-3), (0.021, 1e-3 / 1.5), (0.019, 1e-3 / 1.5), (0.004, 1e-3), (0.006, 1e-3)):
        rate.follow(kl)
        assert rate.at(10**9) == pytest.approx(expected)
    for _ in range(50):
        rate.follow(1.0)
    assert rate.at(0) == pytest.approx(1e-5)
    for _ in range(50):
        rate.follow(0.0)
    assert rate.at(0) == pytest.approx(1e-1)
    fixed = LearningRate(PPOConfig())
    fixed.follow(1.0)
    assert fixed.at(0) == PPOConfig().learning_rate


def test_the_adapted_rate_is_saved():
    learner = make_learner(changed(lr_schedule="kl", kl_target=1e-9))
    first = learner.train_once().figures["learning_rate"]
    second = learner.train_once().figures["learning_rate"]
    assert second == pytest.approx(first / 1.5)
    resumed = make_learner(learner.config, seed=3)
    resumed.load_state_dict(learner.state_dict())
    assert resumed.train_once().figures["learning_rate"] == pytest.approx(first / 1.5**2)


def test_clip_range_and_entropy_weight_fall_with_env_steps():
    learner = make_learner(
        changed(
            clip_range=0.4, final_clip_range=0.2, entropy_coefficient=0.0, final_entropy_coefficient=1.0, total_steps=46
        )
    )
    learner.train_once()
    assert learner.env_steps == 23  # 28 rows without 5 resets
    assert (learner.update._clip_range, learner.update._entropy_coefficient) == (0.4, 0.0)
    learner.train_once()
    assert learner.update._clip_range == pytest.approx(0.3)
    assert learner.update._entropy_coefficient == pytest.approx(0.5)


def test_an_update_stops_before_the_minibatch_that_moved_too_far():
    free, stopped = (make_learner(changed(learning_rate=0.05, kl_limit=limit)) for limit in (None, 1e-7))
    assert free.train_once().figures["gradient_steps"] == 2 * 2
    report = stopped.train_once()
    assert report.figures["gradient_steps"] == 1  # the first gradient is taken where nothing has moved yet
    assert report.figures["approximate_kl"] > 0


# -- two halves ------------------------------------------------------------------------------------------------------


def check_rollout(learner, trained):
    """Every valid row leads to the next step of the same episode of its own env, with the action it executed."""
    rollout = learner.rollout
    observations = torch.stack([rollout.observations[rollout.slot(t)] for t in range(rollout.num_steps + 1)]).numpy()
    executed = learner.envs.get_attr("executed")
    for t, env in np.argwhere(rollout.valid):
        uid, episode, step = observations[t, env]
        np.testing.assert_array_equal(observations[t + 1, env], [uid, episode, step + 1])
        assert uid == env
        assert rollout.rewards[t, env] == step + 1
        assert rollout.terminations[t, env] == (step + 1 == LENGTHS[env])
        assert executed[env][trained[env]] == rollout.actions[t, env]
        trained[env] += 1
    output = learner.collector.policy.values(observations.reshape(-1, 3)).reshape(-1, 4)
    np.testing.assert_allclose(rollout.values, output[:-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rollout.next_values, output[1:], rtol=1e-5, atol=1e-5)
    return executed


@pytest.mark.parametrize(
    "backend", ["sync", "subproc", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_two_halves_collect_what_one_batch_would(backend, request):
    settings = {}
    if backend == "ray":
        pytest.importorskip("ray")
        request.getfixturevalue("one_ray_cluster")
        settings = {"num_workers": 2, "backend_options": {"num_cpus": 0.2}}
    learner = make_learner(changed(overlap=True), backend=backend, **settings)
    trained, episodes = [0] * 4, []
    for _ in range(4):
        episodes += learner.collector.collect()
        executed = check_rollout(learner, trained)
    assert trained == [len(actions) for actions in executed]
    assert sorted({episode.length for episode in episodes}) == [2, 3, 4, 5]
    assert len(episodes) == sum(28 // (n + 1) + (28 % (n + 1) == n) for n in LENGTHS)
    learner.train_once()
    learner.envs.close()


@pytest.mark.timeout(120, method="thread")
def test_two_halves_of_envpool_step_as_its_whole_batches_do():
    pytest.importorskip("envpool")
    config = changed(overlap=True)
    with (
        vecenv.make_vec("CartPole-v1", backend="envpool", num_workers=1, **env_settings(config)) as envs,
        vecenv.make_vec("CartPole-v1", 4, "envpool", num_workers=1) as whole,
    ):
        learner = PPO(envs, config, precision="float32")
        learner.reset(seed=3)
        observations, _ = whole.reset(seed=3)
        rollout, ends = learner.rollout, 0
        for _ in range(8):
            learner.collector.collect()
            for t in range(rollout.num_steps):
                np.testing.assert_array_equal(rollout.observations[rollout.slot(t)].numpy(), observations)
                observations, rewards, terminations, _, _ = whole.step(rollout.actions[t])
                np.testing.assert_array_equal(rollout.rewards[t], rewards)
                np.testing.assert_array_equal(rollout.terminations[t], terminations)
                ends += int(terminations.sum())
        assert ends > 0


def test_the_back_ends_that_overlap_are_named():
    envs = vecenv.make_vec("CartPole-v1", 4, "compiled", copy=False, statistics=True)
    with pytest.raises(UnknownSetting, match="overlap needs a back end that steps part") as refusal:
        PPO(envs, changed(overlap=True))
    named = re.split(", | or ", str(refusal.value).partition(": ")[2])
    assert named == [name for name, cells in capabilities().items() if cells["batch_size"] != REFUSED]
    envs.close()


def test_a_rank_with_outstanding_rows_tells_the_others_that_it_has_no_states(monkeypatch):
    """As where a worker has died in the middle of a step of one half: the others would wait for this rank."""
    learner = make_learner(changed(overlap=True))
    learner.envs.send([0, 0], [0, 2])
    two = types.SimpleNamespace(size=2, rank=1, gather=lambda mine: [([], ""), mine])
    monkeypatch.setattr(learner, "_world", two)
    with pytest.raises(NotImplementedError, match="AlreadyPendingCallError on rank 1: `get_state` was called while"):
        learner.env_states()
    learner.envs.close()


def test_one_half_is_decided_for_while_the_other_steps():
    learner = make_learner(changed(overlap=True))
    events, envs, policy = [], learner.envs, learner.collector.policy
    send, recv, act = envs.send, envs.recv, policy.act
    envs.send = lambda actions, ids: (events.append(("send", ids[0])), send(actions, ids))[1]
    envs.recv = lambda: (events.append(("recv",)), recv())[1]
    policy.act = lambda observations: (events.append(("act", len(observations))), act(observations))[1]
    learner.collector.collect()
    one_step = [("act", 2), ("recv",), ("send", 1), ("act", 2), ("recv",), ("send", 0)]
    assert events == [("act", 2), ("send", 0), *one_step * 6, *one_step[:3], ("recv",)]


def test_an_interrupted_overlapped_rollout_leaves_nothing_outstanding():
    learner = make_learner(changed(overlap=True))
    answers = iter([False, False, True])
    with pytest.raises(CollectionInterrupted):
        learner.train_once(lambda: next(answers))
    state, env_states = learner.state_dict(), learner.env_states()
    resumed = make_learner(learner.config, seed=7)
    resumed.load_state_dict(state)
    resumed.set_env_states(env_states)
    for each in (learner, resumed):
        each.train_once()
    assert torch.equal(weights(learner), weights(resumed))


def test_what_does_not_combine_is_refused():
    with pytest.raises(UnknownSetting, match="num_envs must be even, got 3"):
        PPOConfig(num_envs=3, overlap=True)
    with pytest.raises(UnknownSetting, match="overlap and async_collect do not combine"):
        PPOConfig(overlap=True, async_collect=True)
    with pytest.raises(UnknownSetting, match="overlap needs autoreset_mode NextStep, got SameStep"):
        make_learner(changed(overlap=True), autoreset_mode="SameStep")
    envs = vecenv.make_vec(RecordingEnv, backend="sync", **env_settings(CONFIG))
    with pytest.raises(ValueError, match="15 observation slots, got 8"):
        PPO(envs, changed(async_collect=True))


# -- collecting while learning ---------------------------------------------------------------------------------------


def test_the_next_rollout_is_collected_by_the_policy_as_it_was():
    learner = make_learner(changed(async_collect=True))
    trained, seen = [0] * 4, []
    for number in range(5):
        report = learner.train_once()
        assert report.figures["staleness"] == (0 if number == 0 else 1)
        assert (report.figures["policy_loss"] is None) == (number == 0)
        learner._end_update()
        seen.append(learner.rollout.log_probs.copy())
        rollout = learner.rollout
        for t, env in np.argwhere(rollout.valid):
            assert learner.envs.get_attr("executed")[env][trained[env]] == rollout.actions[t, env]
            trained[env] += 1
    assert not torch.equal(
        weights(learner), torch.cat([w.flatten() for w in learner.collector.policy.weights().values()])
    )
    learner.close()


def slow_twin(config, updates):
    """The same algorithm without threads: rollout k+1 is collected before the update on rollout k is made."""
    learner = make_learner(config)
    policy, update, waiting = learner.collector.policy, learner.update, None
    for _ in range(updates):
        steps = learner.env_steps
        learner.collector.collect()
        learner.env_steps += int(learner.rollout.valid.sum())
        if waiting is not None:
            update.learn(*waiting)
        policy.refresh()
        waiting = learner.rollout, steps
    update.learn(*waiting)
    return learner


def test_threads_change_nothing():
    config = changed(async_collect=True, training_threads=2)
    learner = make_learner(config)
    for _ in range(4):
        learner.train_once()
    learner.state_dict()  # waits for the last update
    assert torch.equal(weights(learner), weights(slow_twin(config, 4)))
    learner.close()


def test_the_importance_ratio_is_that_of_the_acting_policy():
    config = changed(async_collect=True, num_epochs=1, minibatch_size=1000, learning_rate=0.01)
    learner = make_learner(config)
    learner.train_once()
    learner.train_once()  # collected by version 0, learnt from by version 1
    learner._end_update()
    rollout, valid = learner.rollout, learner.rollout.valid
    expected = make_learner(config)  # version 0
    observations = torch.stack([rollout.observations[rollout.slot(t)] for t in range(7)])[valid]
    outputs, _ = expected.network(observations)
    log_probs = torch.log_softmax(outputs, -1).gather(-1, torch.from_numpy(rollout.actions[valid])[:, None])[:, 0]
    np.testing.assert_allclose(rollout.log_probs[valid], log_probs.detach().numpy(), rtol=1e-4)
    assert learner._last_figures["approximate_kl"] > 1e-6  # the ratio of the first gradient is not 1
    learner.close()


def test_learning_and_collecting_run_side_by_side():
    learner = make_learner(changed(async_collect=True))
    learner.train_once()
    learner._end_update()
    collecting, learning = threading.Event(), threading.Event()
    collect, learn = learner.collector.collect, learner.update.learn

    def watched_collect(stop):
        collecting.set()
        assert learning.wait(30)
        return collect(stop)

    def watched_learn(*arguments):
        learning.set()
        assert collecting.wait(30)
        return learn(*arguments)

    learner.update.learn, learner.collector.collect = watched_learn, collect
    learner.train_once()  # begins an update, which waits for the next collection
    learner.collector.collect = watched_collect
    learner.train_once()
    learner._end_update()
    learner.close()


def test_an_error_while_learning_reaches_the_caller():
    learner = make_learner(changed(async_collect=True))

    def fail(*arguments):
        raise FloatingPointError("planted")

    learner.update.learn = fail
    learner.train_once()
    with pytest.raises(FloatingPointError, match="planted"):
        learner.train_once()
    learner.close()


@pytest.mark.parametrize("switches", [{}, {"async_collect": True}, {"overlap": True}, {"normalise_rewards": True,
    "normalise_observations": True, "lr_schedule": "kl", "async_collect": True}])  # fmt: skip
def test_every_switch_resumes_bit_for_bit_with_its_envs(switches, tmp_path):
    config = changed(**switches)
    straight = make_learner(config)
    straight.prepare()
    for _ in range(5):
        straight.train_once()
    straight.state_dict()
    first = make_learner(config)
    first.prepare()
    for _ in range(3):
        first.train_once()
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict()})
    env_states = first.env_states()
    resumed = make_learner(config, seed=99)
    resumed.load_state_dict(load_checkpoint(tmp_path)["learner"])
    resumed.set_env_states(env_states)
    reports = [resumed.train_once() for _ in range(2)]
    assert reports[0].figures["policy_loss"] is not None
    resumed.state_dict()
    assert torch.equal(weights(resumed), weights(straight))
    assert resumed.env_steps == straight.env_steps
    for learner in (straight, first, resumed):
        learner.close()


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("value_coefficient", -0.1, "at least 0"),
        ("entropy_coefficient", float("nan"), "at least 0"),
        ("final_learning_rate", -1e-9, "at least 0"),
        ("learning_rate", float("inf"), "above 0"),
        ("learning_rate", "fast", "above 0"),
        ("kl_limit", 0.0, "above 0"),
        ("kl_target", None, "above 0"),
        ("final_clip_range", -1, "above 0"),
        ("gamma", True, "between 0 and 1"),
        ("training_threads", -1, "at least 0"),
        ("num_epochs", 0, "at least 1"),
        ("lr_scaling", "sqrt", "one of none, linear, linear-0.8"),
        ("lr_schedule", "cosine", "one of linear, kl"),
    ],
)
def test_settings_are_checked(name, value, rule):
    with pytest.raises(UnknownSetting, match=f"{name} must .*{rule}, got {value!r}"):
        PPOConfig(**{name: value})


def test_presets_are_valid():
    assert {"classic-control", "atari", "mujoco"} <= set(PPO_PRESETS)
