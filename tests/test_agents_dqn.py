"""DQN: counters, schedules, resuming to the last bit, what is refused, and that it learns."""

from __future__ import annotations

import dataclasses
from collections import deque

import gymnasium
import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents.checkpoint import load_checkpoint, save_checkpoint
from vecenv.agents.dqn import DQN, env_settings, evaluation_policy
from vecenv.agents.dqn_config import DQN_PRESETS, DQNConfig
from vecenv.agents.inference import EpsilonGreedy
from vecenv.agents.learner import CollectionInterrupted
from vecenv.errors import UnknownSetting
from vecenv.toy_envs import CountEnv

SMALL = DQNConfig(
    num_envs=4,
    total_steps=4_000,
    replay_capacity=2_000,
    learning_starts=200,
    minibatch_size=16,
    steps_per_update=8.0,
    target_update_steps=100,
    hidden_size=16,
    learning_rate=1e-3,
    final_learning_rate=None,
    double=False,
    num_return_steps=1,
    epsilon_steps=1_000,
    report_steps=200,
)
EVERYTHING = dataclasses.replace(
    SMALL,
    double=True,
    dueling=True,
    num_return_steps=3,
    prioritized=True,
    noisy=True,
    categorical=True,
    value_min=0.0,
    value_max=50.0,
    final_learning_rate=0.0,
    steps_per_update=16.0,
    overlap=False,
)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def make_learner(config=SMALL, env="CartPole-v1", seed=0, start=True, precision="float32", **settings):
    envs = vecenv.make_vec(env, backend="sync", **env_settings(config), **settings)
    learner = DQN(envs, config, seed=seed, precision=precision)
    if start:
        learner.reset(seed)
    return learner


def weights(learner):
    return torch.cat([tensor.flatten() for tensor in learner.learning.network.state_dict().values()])


def train_until(learner, env_steps):
    reports = []
    while learner.env_steps < env_steps:
        reports.append(learner.train_once())
    return reports


# -- exploration ------------------------------------------------------------------------------------------------------


def test_every_environment_has_a_coin_of_its_own():
    head, generator = EpsilonGreedy(0.3), torch.Generator().manual_seed(0)
    values = torch.zeros(1000, 5)
    values[:, 2] = 1.0
    rounds = torch.stack([head(values, generator)[0] for _ in range(20)])
    explored = (rounds != 2).float()
    assert explored.mean() == pytest.approx(0.3 * 4 / 5, abs=0.02)
    assert explored.mean(dim=1).std() < 0.03  # one coin for all would make each round all or nothing
    assert set(rounds.unique().tolist()) == {0, 1, 2, 3, 4}
    actions, log_probs = head(values, generator)
    np.testing.assert_allclose(log_probs.exp(), np.where(actions == 2, 0.76, 0.06), rtol=1e-5)
    assert (EpsilonGreedy(0.0)(values, generator)[0] == 2).all()


def test_epsilon_falls_with_env_steps_and_noise_replaces_it():
    baseline = DQN_PRESETS["ladder-baseline"]
    expected = {0: 1.0, 50_000: 0.51, 100_000: 0.02, 10**6: 0.02}
    for env_steps, epsilon in expected.items():
        assert baseline.epsilon_at(env_steps) == pytest.approx(epsilon)
        assert dataclasses.replace(baseline, noisy=True).epsilon_at(env_steps) == 0.0


def test_the_ladders_baseline_is_the_documents():
    baseline = DQN_PRESETS["ladder-baseline"]
    assert (baseline.replay_capacity, baseline.learning_starts) == (100_000, 10_000)
    assert (baseline.epsilon_start, baseline.epsilon_end, baseline.epsilon_steps) == (1.0, 0.02, 100_000)
    assert (baseline.target_update_steps, baseline.gamma, baseline.learning_rate) == (1_000, 0.99, 1e-4)
    assert (baseline.minibatch_size, baseline.steps_per_update, baseline.num_envs) == (32, 1.0, 1)
    assert baseline.network == "nature-cnn"
    for switch in ("double", "dueling", "prioritized", "noisy", "categorical"):
        assert getattr(baseline, switch) is False
    assert baseline.num_return_steps == 1


# -- counters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("overlap", [True, False])
def test_gradient_steps_and_targets_follow_env_steps_whatever_the_number_of_envs(num_envs, overlap, monkeypatch):
    config = dataclasses.replace(SMALL, num_envs=num_envs, overlap=overlap)
    learner = make_learner(config)
    targets = []
    original = learner.learning.update_target
    monkeypatch.setattr(learner.learning, "update_target", lambda: (targets.append(learner.env_steps), original()))
    train_until(learner, 1_200)
    behind = num_envs if overlap else 0
    expected = (learner.env_steps - behind - config.learning_starts) / config.steps_per_update
    assert learner.learning.updates == pytest.approx(expected, abs=1)
    times = targets[1:]  # the first one is the beginning of learning
    assert len(times) == pytest.approx((1_200 - config.learning_starts) / config.target_update_steps, abs=2)
    assert all(late % 100 < num_envs for late in times[1:])


def test_several_gradient_steps_per_env_step():
    learner = make_learner(dataclasses.replace(SMALL, steps_per_update=0.5, num_envs=1))
    train_until(learner, 300)
    assert learner.learning.updates == pytest.approx(2 * (learner.env_steps - 200), abs=2)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_env_steps_and_rows_are_real_steps_only(mode):
    learner = make_learner(env=lambda: CountEnv(1, 4, truncates=True), autoreset_mode=mode)
    report = train_until(learner, 400)[-1]
    assert report.figures["replay_size"] == pytest.approx(learner.env_steps, abs=4)
    batch = learner.replay.sample(500)
    _, episode, time = batch.observations.T
    np.testing.assert_array_equal(batch.next_observations[:, 1], episode)
    np.testing.assert_array_equal(batch.next_observations[:, 2], time + 1)
    np.testing.assert_array_equal(batch.returns, time + 1)
    assert (batch.discounts == np.float32(0.99)).all()  # truncated, never terminated


def test_reports_have_the_same_figures_from_the_first_to_the_last():
    learner = make_learner()
    reports = train_until(learner, 1_500)
    assert len({tuple(report.figures) for report in reports}) == 1
    first, last = reports[0].figures, reports[-1].figures
    assert last["updates"] == learner.learning.updates
    assert first["epsilon"] > last["epsilon"] == pytest.approx(SMALL.epsilon_at(learner.env_steps))
    assert 0 < last["replay_size"] <= SMALL.replay_capacity
    for name in ("loss", "smoothed_loss", "action_value", "smoothed_return", "smoothed_steps_per_second"):
        assert np.isfinite(last[name])
    lengths = sum(episode.length for report in reports for episode in report.episodes)
    assert learner.env_steps - 4 * 200 < lengths <= learner.env_steps


def test_a_stop_ends_the_call_early_and_loses_nothing():
    learner = make_learner()
    with pytest.raises(CollectionInterrupted):
        learner.train_once(lambda: True)
    assert learner.env_steps == 0
    report = learner.train_once(lambda: learner.env_steps >= 100)
    assert learner.env_steps == pytest.approx(100, abs=4)
    assert report.episodes


def test_slow_steps_are_reported_by_the_clock(monkeypatch):
    monkeypatch.setattr("vecenv.agents.dqn.REPORT_SECONDS", 0.0)
    learner = make_learner()
    learner.train_once()
    assert learner.env_steps == SMALL.num_envs
    learner.train_once()
    assert learner.env_steps == 2 * SMALL.num_envs


@pytest.mark.parametrize("total_steps", [1, 7])
def test_few_total_steps_end(total_steps):
    learner = make_learner(dataclasses.replace(SMALL, total_steps=total_steps, epsilon_steps=1, num_envs=1))
    train_until(learner, total_steps)
    assert learner.env_steps == total_steps


def test_a_loss_that_is_not_finite_stops():
    learner = make_learner(dataclasses.replace(SMALL, learning_rate=1e30, max_grad_norm=None))
    with pytest.raises(FloatingPointError, match="learning-rate"):
        train_until(learner, 4_000)


def test_actions_that_do_not_start_at_0():
    class Shifted(CountEnv):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.Discrete(3, start=5)

        def step(self, action):
            assert action in (5, 6, 7)
            return super().step(action)

    learner = make_learner(env=Shifted)
    train_until(learner, 300)
    assert set(learner.replay.sample(200).actions.tolist()) == {0, 1, 2}


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, EVERYTHING])
def test_two_halves_are_the_whole_to_the_last_bit(config, tmp_path):
    whole = make_learner(config)
    expected = train_until(whole, 4_000)
    first = make_learner(config)
    train_until(first, 2_000)
    first.save_files(tmp_path)
    states = first.env_states()
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict()})
    first.close()
    second = make_learner(config, seed=9, start=False)
    second.load_state_dict(load_checkpoint(tmp_path)["learner"], tmp_path)
    assert second.starts_anew() is None
    second.set_env_states(states)
    assert second.env_steps == first.env_steps
    reports = train_until(second, 4_000)
    assert torch.equal(weights(second), weights(whole))
    assert reports[-1].episodes == expected[-1].episodes
    same = {name for name in reports[-1].figures if name != "smoothed_steps_per_second"}
    assert all(reports[-1].figures[name] == expected[-1].figures[name] for name in same)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (SMALL, {"num_return_steps": 5}),
        (SMALL, {"prioritized": True}),
        (EVERYTHING, {"num_return_steps": 1}),
        (EVERYTHING, {"prioritized": False}),
    ],
)
def test_a_replay_goes_on_with_other_settings_as_if_it_had_been_played_with_them(before, changes, tmp_path):
    first = make_learner(before)
    train_until(first, 1_000)
    first.save_files(tmp_path)
    state = first.state_dict()
    second = make_learner(dataclasses.replace(before, **changes), start=False)
    second.load_state_dict(state, tmp_path)
    expected = make_learner(second.config, start=False).replay
    for name, array in first.replay.memory.arrays.items():
        expected.memory.arrays[name][:] = array
    expected.publish(first.replay.written)
    replay = second.replay
    assert replay.size == expected.size > 0
    for name in ("_ready", "_expired", "_sizes"):
        np.testing.assert_array_equal(getattr(replay, name), getattr(expected, name))
    if replay.priorities is not None:
        leaves = replay.priorities._leaves
        np.testing.assert_array_equal(leaves > 0.0, expected.priorities._leaves > 0.0)
        if first.replay.priorities is not None:
            kept = (leaves > 0.0) & (first.replay.priorities._leaves > 0.0)
            np.testing.assert_array_equal(leaves[kept], first.replay.priorities._leaves[kept])
    second.set_env_states(first.env_states())
    train_until(second, 1_200)
    assert second.learning.updates > first.learning.updates


def test_step_size_and_epsilon_of_adam_are_those_of_the_settings_also_after_a_resume(tmp_path):
    first = make_learner(dataclasses.replace(SMALL, final_learning_rate=None))
    train_until(first, 500)
    changed = dataclasses.replace(first.config, learning_rate=0.25, adam_epsilon=0.125)
    second = make_learner(changed, start=False)
    second.load_state_dict(first.state_dict())
    assert second.learning.learning_rate == 0.25
    assert second.learning.optimizer.param_groups[0]["eps"] == 0.125


@pytest.mark.parametrize(
    ("before", "after"),
    [({"steps_per_update": 4.0}, {"steps_per_update": 16.0}), ({"steps_per_update": 16.0}, {"steps_per_update": 4.0}),
     ({"learning_starts": 100}, {"learning_starts": 600}), ({"target_update_steps": 50}, {"target_update_steps": 300})],
)  # fmt: skip
def test_gradient_steps_and_targets_are_counted_by_changed_settings_from_the_resume_on(
    before, after, tmp_path, monkeypatch
):
    first = make_learner(dataclasses.replace(SMALL, **before))
    train_until(first, 1_000)
    first.save_files(tmp_path)
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict()})
    learner = first
    for _ in range(2):  # the second time nothing is changed any more
        config = dataclasses.replace(learner.config, **after)
        second = make_learner(config, start=False)
        second.load_state_dict(load_checkpoint(tmp_path)["learner"], tmp_path)
        second.set_env_states(learner.env_states())
        targets = []
        monkeypatch.setattr(
            second.learning, "update_target", lambda seen=targets, now=second: seen.append(now.env_steps)
        )
        begun_at, updates = second.env_steps, second.learning.updates
        train_until(second, begun_at + 320)
        due = (second.env_steps - begun_at) / config.steps_per_update
        assert second.learning.updates - updates == pytest.approx(due, abs=3)
        period = config.target_update_steps
        assert len(targets) == pytest.approx(320 / period, abs=1)
        assert all(late % period < 2 * config.num_envs for late in targets)
        second.save_files(tmp_path)
        save_checkpoint(tmp_path / "checkpoint.pt", {"learner": second.state_dict()})
        learner = second


def test_a_replay_of_another_number_of_environments_is_refused_by_name(tmp_path):
    first = make_learner()
    train_until(first, 500)
    first.save_files(tmp_path)
    for num_envs in (SMALL.num_envs // 2, SMALL.num_envs * 2):
        other = make_learner(dataclasses.replace(SMALL, num_envs=num_envs), start=False)
        with pytest.raises(UnknownSetting, match=f"of {SMALL.num_envs} environments, and num_envs is {num_envs} now"):
            other.load_state_dict(first.state_dict(), tmp_path)


class NotANumber(gymnasium.Wrapper):
    """CartPole whose rewards are not numbers."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, float("nan"), terminated, truncated, info


@pytest.mark.parametrize("prioritized", [False, True])
def test_rewards_that_are_not_numbers_end_with_the_loss_by_name(prioritized):
    learner = make_learner(dataclasses.replace(SMALL, prioritized=prioritized), env=NotANumber)
    with pytest.raises(FloatingPointError, match="the loss is no longer finite"):
        train_until(learner, 1_000)


def test_pong_goes_on_to_the_last_bit(tmp_path):
    config = dataclasses.replace(
        SMALL, network="small-cnn", num_envs=2, learning_starts=40, report_steps=20, num_return_steps=3, double=True
    )
    whole = make_learner(config, env="PongNoFrameskip-v4")
    train_until(whole, 160)
    first = make_learner(config, env="PongNoFrameskip-v4")
    train_until(first, 80)
    first.save_files(tmp_path)
    second = make_learner(config, env="PongNoFrameskip-v4", seed=4, start=False)
    second.load_state_dict(first.state_dict(), tmp_path)
    second.set_env_states(first.env_states())
    train_until(second, 160)
    assert second.learning.updates == whole.learning.updates > first.learning.updates > 0
    assert torch.equal(weights(second), weights(whole))


def test_a_resume_without_the_replay_fills_a_new_one_and_says_so(tmp_path):
    config = dataclasses.replace(SMALL, save_replay=False)
    first = make_learner(config)
    train_until(first, 1_000)
    first.save_files(tmp_path)
    assert not list(tmp_path.iterdir())
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict()})
    for with_states in (True, False):
        second = make_learner(config, start=False)
        second.load_state_dict(load_checkpoint(tmp_path)["learner"], tmp_path)
        assert "replay starts anew" in second.starts_anew()
        if with_states:
            second.set_env_states(first.env_states())
        else:
            second.reset(5)
        assert torch.equal(weights(second), weights(first))
        train_until(second, 1_500)
        assert 450 < second.replay.size <= 1 + second.env_steps - first.env_steps
        assert second.learning.updates > first.learning.updates


def test_only_the_newest_replay_file_stays_and_a_wrong_one_is_refused(tmp_path):
    learner = make_learner()
    for env_steps in (500, 1_000):
        train_until(learner, env_steps)
        learner.save_files(tmp_path)
        state = learner.state_dict()
        learner.remove_old_files(tmp_path)
    [file] = tmp_path.glob("*")
    assert file.name == state["replay_file"]["name"] == f"replay-{learner.env_steps}.bin"
    with file.open("r+b") as content:
        content.seek(40)
        content.write(b"\xff" * 8)
    with pytest.raises(UnknownSetting, match="not the one"):
        make_learner(start=False).load_state_dict(state, tmp_path)
    file.write_bytes(b"short")
    with pytest.raises(UnknownSetting, match="5 bytes"):
        make_learner(start=False).load_state_dict(state, tmp_path)
    file.unlink()
    with pytest.raises(UnknownSetting, match="cannot be read"):
        make_learner(start=False).load_state_dict(state, tmp_path)


def test_a_checkpoint_keeps_its_replay_until_the_next_one_is_in_place(tmp_path):
    learner = make_learner()
    train_until(learner, 500)
    learner.save_files(tmp_path)
    state, size = learner.state_dict(), learner.replay.size
    learner.remove_old_files(tmp_path)
    learner.reset(1)  # other rows after the same env steps, as where actors run ahead
    learner.save_files(tmp_path)  # and the process is killed before it has written the checkpoint
    again = make_learner(start=False)
    again.load_state_dict(state, tmp_path)
    assert again.replay.size == size
    second = learner.state_dict()
    learner.remove_old_files(tmp_path)
    [file] = tmp_path.glob("*")
    assert file.name == second["replay_file"]["name"] != state["replay_file"]["name"]
    make_learner(start=False).load_state_dict(second, tmp_path)


def test_a_large_replay_is_only_saved_on_request():
    learner = make_learner(start=False)
    assert learner.keeps_replay
    assert make_learner(dataclasses.replace(SMALL, save_replay=False), start=False).keeps_replay is False
    large = dataclasses.replace(SMALL, replay_capacity=100_000_000)
    assert make_learner(large, start=False).keeps_replay is False
    assert make_learner(dataclasses.replace(large, save_replay=True), start=False).keeps_replay


def test_saving_and_loading_changes_no_hyper_parameter():
    learner = make_learner(dataclasses.replace(SMALL, final_learning_rate=0.0))
    for number in range(1, 6):
        train_until(learner, number * 300)
        state = learner.state_dict()
        learner = make_learner(learner.config, start=False)
        learner.load_state_dict(state)
        learner.reset(number)
    assert learner.learning.learning_rate == pytest.approx(1e-3 * (1 - learner.env_steps / 4_000), rel=0.02)
    assert learner.learning.updates == pytest.approx((learner.env_steps - 200) / 8, abs=2)


def test_evaluation_acts_greedily_with_the_trained_weights():
    learner = make_learner(EVERYTHING)
    train_until(learner, 1_000)
    state = learner.state_dict()
    policy = evaluation_policy(learner.envs, EVERYTHING, state, sample=False, seed=0, device="cpu")
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    actions = [policy.act(observations).actions for _ in range(3)]
    np.testing.assert_array_equal(actions[0], actions[1])
    for layer in learner.learning.network.noisy_layers():
        layer.remove_noise()
    values, _ = learner.learning.network(torch.from_numpy(observations))
    np.testing.assert_array_equal(actions[0], values.argmax(dim=1))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total_steps": 0}, "total_steps must be a whole number of at least 1"),
        ({"minibatch_size": 3_000}, "minibatch_size 3000 is larger than the replay"),
        ({"learning_starts": 3_000}, "learning_starts 3000 is more than the replay holds"),
        ({"epsilon_steps": 0}, "epsilon_steps"),
        ({"epsilon_end": 1.5}, "epsilon_end must lie between 0 and 1"),
        ({"steps_per_update": 0}, "steps_per_update must be above 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"network": "transformer"}, "network must be one of"),
        ({"categorical": True, "num_atoms": 1}, "num_atoms"),
        ({"categorical": True, "value_min": 3.0, "value_max": 3.0}, "value_min"),
        ({"num_actors": 3}, "multiple of num_actors"),
        ({"stack_size": 0}, "stack_size"),
        ({"gamma": float("nan")}, "gamma"),
    ],
)
def test_settings_that_cannot_train_are_refused_by_name(changes, words):
    with pytest.raises(UnknownSetting, match=words):
        dataclasses.replace(SMALL, **changes)


def test_spaces_that_do_not_fit_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="DQN acts in Discrete action spaces only, got Box"):
        make_learner(env="Pendulum-v1")
    with pytest.raises(NotImplementedError, match="reads Box observations only"):
        make_learner(env="FrozenLake-v1")
    with pytest.raises(ValueError, match="needs uint8 images"):
        make_learner(dataclasses.replace(SMALL, network="small-cnn"))
    with pytest.raises(UnknownSetting, match="at least"):
        make_learner(dataclasses.replace(SMALL, replay_capacity=20, minibatch_size=4, learning_starts=4))
    with pytest.raises(UnknownSetting, match="Disabled"):
        make_learner(autoreset_mode="Disabled")
    with pytest.raises(RuntimeError, match="before reset"):
        make_learner(start=False).train_once()


# -- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_images_train_with_their_mean_subtracted(precision):
    config = dataclasses.replace(SMALL, network="small-cnn", num_envs=2, learning_starts=60, report_steps=40)
    learner = make_learner(config, env="PongNoFrameskip-v4", precision=precision)
    assert learner.replay.spec.frame_nbytes == 84 * 84
    train_until(learner, 80)
    assert learner.learning.updates > 0
    assert set(learner.precision) == {"acting", "training"}
    if precision == "bfloat16":
        assert set(learner.precision.values()) == {learner.player.policy.precision} == {"bfloat16"}
    trunk = learner.learning.network.trunk
    assert trunk.mean_image.mean() > 50
    np.testing.assert_array_equal(trunk.mean_image, learner.learning.target_network.trunk.mean_image)


def test_priorities_become_the_errors():
    learner = make_learner(dataclasses.replace(SMALL, prioritized=True, priority_exponent=1.0, steps_per_update=1e9))
    train_until(learner, 300)
    seen = []
    learner.replay.priorities.update = lambda places, errors: seen.append((places, errors.copy()))
    sample = learner.replay.sample
    batches = []
    learner.replay.sample = lambda *arguments: batches.append(sample(*arguments)) or batches[-1]
    network, target = (
        {name: tensor.clone() for name, tensor in own.state_dict().items()}
        for own in (learner.learning.network, learner.learning.target_network)
    )
    learner.learning.update(learner.replay, 300)
    [(places, errors)], [batch] = seen, batches
    np.testing.assert_array_equal(places, batch.places)
    learner.learning.network.load_state_dict(network)
    learner.learning.target_network.load_state_dict(target)
    with torch.no_grad():
        values = learner.learning.network(torch.from_numpy(batch.observations))[0].numpy()
        after = learner.learning.target_network(torch.from_numpy(batch.next_observations))[1].numpy()
    chosen = values[np.arange(16), batch.actions]
    np.testing.assert_allclose(errors, np.abs(batch.returns + batch.discounts * after - chosen), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_share_a_gradient_step(num_threads):
    states = []
    for threads in (1, num_threads):
        learner = make_learner(dataclasses.replace(EVERYTHING, training_threads=threads, noisy=False))
        train_until(learner, 400)
        states.append(weights(learner))
        learner.close()
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-5)


def learns_cartpole(config, seed, target, window, most_steps):
    learner = make_learner(config, seed=seed)
    recent = deque(maxlen=window)
    while learner.env_steps < most_steps:
        recent.extend(episode.total_reward for episode in learner.train_once().episodes)
        if len(recent) == window and np.mean(recent) >= target:
            return True
    return False


def test_cartpole_is_learnt():
    config = dataclasses.replace(DQN_PRESETS["classic-control"], report_steps=500)
    assert learns_cartpole(config, seed=0, target=120.0, window=10, most_steps=20_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_cartpole_is_solved(seed):
    config = DQN_PRESETS["classic-control"]
    assert learns_cartpole(config, seed, target=475.0, window=100, most_steps=config.total_steps)
