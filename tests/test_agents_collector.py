"""The collector over an env whose every value says which env, episode and step it came from."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vecenv.agents.collector import RolloutCollector
from vecenv.agents.config import PPOConfig
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.networks import build_actor_critic
from vecenv.agents.rollout_buffer import TrainingBatch
from vecenv.errors import UnknownSetting
from vecenv.sync_backend import SyncVecEnv
from vecenv.toy_envs import CountEnv

LENGTHS = (4, 2, 5)


class RecordingEnv(CountEnv):
    """`CountEnv` whose actions begin at 3; keeps those that were executed."""

    def __init__(self, uid, length, truncates):
        super().__init__(uid, length, truncates)
        self.action_space = gymnasium.spaces.Discrete(2, start=3)
        self.executed = []

    def step(self, action):
        self.executed.append(int(action))
        return super().step(action)


def make_collector(num_steps, autoreset_mode, truncates):
    envs = SyncVecEnv(
        [lambda uid=uid, n=n: RecordingEnv(uid, n, truncates) for uid, n in enumerate(LENGTHS)],
        autoreset_mode=autoreset_mode,
        copy=False,
        slots=num_steps + 1,
        statistics=True,
    )
    network = build_actor_critic(envs.single_observation_space, envs.single_action_space, PPOConfig(), seed=0)
    collector = RolloutCollector(envs, BatchedPolicy(network, seed=0), num_steps)
    collector.reset(seed=0)
    return collector


def observations_in_order(rollout):
    """[T + 1, N, 3]: the observations of every row, and those after the last."""
    return torch.stack([rollout.observations[rollout.slot(t)] for t in range(rollout.num_steps + 1)]).numpy()


@pytest.mark.parametrize("truncates", [False, True])
def test_next_step_trains_on_real_steps_only(truncates):
    collector = make_collector(7, "NextStep", truncates)
    trained = [0] * len(LENGTHS)
    for _ in range(5):  # the ring turns, and episodes go on from one rollout into the next
        collector.collect()
        rollout, observations = collector.rollout, observations_in_order(collector.rollout)
        for t, env in np.argwhere(rollout.valid):
            uid, episode, step = observations[t, env]
            np.testing.assert_array_equal(observations[t + 1, env], [uid, episode, step + 1])
            assert uid == env
            assert rollout.rewards[t, env] == step + 1
            ended = step + 1 == LENGTHS[env]
            assert rollout.terminations[t, env] == (ended and not truncates)
            assert rollout.truncations[t, env] == (ended and truncates)
            executed = collector.envs.envs[env].executed[trained[env]]
            assert executed == rollout.actions[t, env] + 3  # Discrete(2, start=3)
            trained[env] += 1
    assert trained == [len(env.executed) for env in collector.envs.envs]


def test_same_step_has_no_filler_rows():
    collector = make_collector(7, "SameStep", False)
    collector.collect()
    assert collector.rollout.valid.all()
    assert sum(len(env.executed) for env in collector.envs.envs) == 7 * len(LENGTHS)


@pytest.mark.parametrize("truncates", [False, True])
def test_both_autoreset_modes_give_the_same_advantages(truncates):
    found = {}
    for mode in ("NextStep", "SameStep"):
        # Both lengths end at the end of an episode of env 0: NextStep spends one more row per episode.
        collector = make_collector(15 if mode == "NextStep" else 12, mode, truncates)
        collector.collect()
        rollout = collector.rollout
        rollout.compute_advantages(0.9, 0.8)
        rows = [rollout.valid[:, env] for env in range(len(LENGTHS))]
        found[mode] = [
            (
                observations_in_order(rollout)[:-1, env][valid],
                rollout.advantages[:, env][valid],
                rollout.returns[:, env][valid],
            )
            for env, valid in enumerate(rows)
        ]
    compared = 0
    for env, length in enumerate(LENGTHS):
        whole = min(len(found[mode][env][0]) for mode in found) // length * length  # whole episodes in both
        for next_step, same_step in zip(found["NextStep"][env], found["SameStep"][env], strict=True):
            np.testing.assert_allclose(next_step[:whole], same_step[:whole], rtol=1e-5)
        compared += whole
    assert compared >= 32


def test_episodes_are_reported_once_with_their_returns():
    collector = make_collector(14, "NextStep", True)
    episodes = collector.collect() + collector.collect()
    lengths = sorted(episode.length for episode in episodes)
    assert set(lengths) == set(LENGTHS)
    assert all(episode.total_reward == sum(range(1, episode.length + 1)) for episode in episodes)
    assert len(episodes) == sum(28 // (length + 1) for length in LENGTHS) + sum(28 % (n + 1) == n for n in LENGTHS)


def test_training_batch_holds_the_rows_it_names():
    collector = make_collector(7, "NextStep", False)
    for _ in range(3):
        collector.collect()
        rollout = collector.rollout
        rollout.compute_advantages(0.9, 0.8)
        batch = TrainingBatch(rollout, torch.device("cpu"))
        assert batch.num_rows == rollout.valid.sum()
        minibatch = batch.select(torch.arange(batch.num_rows).flip(0))
        expected = observations_in_order(rollout)[:-1][rollout.valid][::-1]
        np.testing.assert_array_equal(minibatch.observations.numpy(), expected)
        np.testing.assert_array_equal(minibatch.actions.numpy(), rollout.actions[rollout.valid][::-1])
        np.testing.assert_array_equal(minibatch.returns.numpy(), rollout.returns[rollout.valid][::-1])
        assert minibatch.advantages.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert minibatch.advantages.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


class CopyCounter(TorchDispatchMode):
    """Counts bytes of observation dtype that torch writes anywhere but into ``storage``."""

    def __init__(self, storage):
        super().__init__()
        self.start, self.end = storage.ctypes.data, storage.ctypes.data + storage.nbytes
        self.copied = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.uint8:
            inside = self.start <= result.data_ptr() < self.end
            self.copied += 0 if inside else result.nbytes
        return result


class ImageEnv(CountEnv):
    def __init__(self):
        super().__init__(length=5, truncates=True)
        self.observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((4, 84, 84), 1, np.uint8), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.full((4, 84, 84), 1 + self.time, np.uint8), *rest


def test_collecting_copies_no_observation_bytes():
    envs = SyncVecEnv([ImageEnv] * 2, copy=False, slots=9, statistics=True)
    config = PPOConfig(network="small-cnn")
    network = build_actor_critic(envs.single_observation_space, envs.single_action_space, config, seed=0)
    collector = RolloutCollector(envs, BatchedPolicy(network, seed=0), 8)
    collector.reset(seed=0)
    slots = envs.observation_slots
    with CopyCounter(slots) as counter:
        collector.collect()
        collector.collect()
        assert counter.copied == 0
        collector.rollout.observations[0].clone()  # the counter does count
        assert counter.copied == slots[0].nbytes
    assert collector.rollout.observations.data_ptr() == slots.ctypes.data
    assert collector.rollout.observations.shape == slots.shape
    slots[3, 1, 2, 5, 7] = 123
    assert collector.rollout.observations[3, 1, 2, 5, 7] == 123


def test_a_stop_request_gives_the_rollout_up():
    collector = make_collector(7, "NextStep", False)
    answers = iter([False, False, True])
    with pytest.raises(CollectionInterrupted):
        collector.collect(lambda: next(answers))
    assert [len(env.executed) for env in collector.envs.envs] == [2, 2, 2]


def test_collecting_before_reset_is_an_error():
    collector = make_collector(7, "NextStep", False)
    fresh = RolloutCollector(collector.envs, collector.policy, 7)
    with pytest.raises(RuntimeError, match="before reset"):
        fresh.collect()


def test_disabled_autoreset_is_refused():
    class Disabled:
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}  # noqa: RUF012

    with pytest.raises(UnknownSetting, match="NextStep or SameStep"):
        RolloutCollector(Disabled(), None, 2)
