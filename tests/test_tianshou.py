"""Tianshou takes our vector envs for its own: results per env id, asynchronous steps, attributes, training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("tianshou")

import tianshou.env
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import vecenv
from vecenv.errors import EnvError, WorkerDied
from vecenv.factory import BACKENDS
from vecenv.tianshou import DummyVectorEnv, SubprocVectorEnv, wrap
from vecenv.toy_envs import CountEnv, DrawEnv, EchoEnv, NestedEnv

CLASSES = [SubprocVectorEnv, DummyVectorEnv]


def flag_class() -> Any:
    """A class that travels to workers by value: this module would bring Tianshou along."""

    class FlagEnv(CountEnv):
        """`CountEnv` whose steps last until a file exists."""

        def __init__(self, uid: int, path: str) -> None:
            super().__init__(uid, length=100)
            self.path = path

        def step(self, action: Any) -> Any:
            end = time.monotonic() + 30
            while action == 1 and not os.path.exists(self.path) and time.monotonic() < end:
                time.sleep(0.005)
            return super().step(action)

    return FlagEnv


# -- results of whole steps and of some envs ------------------------------------------------------------------------


@pytest.mark.parametrize("vector_env_class", CLASSES)
def test_results_are_those_of_their_class(vector_env_class: Any) -> None:
    env_fns = [partial(gym.make, "CartPole-v1") for _ in range(4)]
    ours, theirs = vector_env_class(env_fns), tianshou.env.DummyVectorEnv(env_fns)
    assert isinstance(ours, BaseVectorEnv)
    assert len(ours) == ours.env_num == 4
    assert not ours.is_async
    assert ours.seed(3) == theirs.seed(3) == [[3], [4], [5], [6]]
    np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(60):
        ids = np.arange(4) if step % 3 else rng.permutation(4)[: 1 + step % 4]
        actions = rng.integers(0, 2, len(ids))
        own, other = ours.step(actions, ids), theirs.step(actions, ids)
        for part, expected in zip(own[:4], other[:4], strict=True):
            np.testing.assert_array_equal(part, expected)
            assert part.dtype == expected.dtype
        assert own[4].dtype == object
        assert own[4].tolist() == other[4].tolist()
        done = own[4][own[2] | own[3]]
        if len(done):
            again = [info["env_id"] for info in done]
            ended += len(again)
            for part, expected in zip(ours.reset(again), theirs.reset(again), strict=True):
                np.testing.assert_array_equal(part, expected)
    assert ended > 5
    ours.close()
    ours.close()


def test_reset_takes_ids_seeds_and_options() -> None:
    envs = DummyVectorEnv([DrawEnv, DrawEnv, DrawEnv])
    first = envs.reset(seed=5)[0]
    np.testing.assert_array_equal(first[0], first[2])  # the same seed for each, as there
    np.testing.assert_array_equal(envs.reset(1, seed=5)[0], first[:1])
    assert envs.reset([2, 0])[0].shape == (2, 2)
    counting = DummyVectorEnv([partial(CountEnv, uid) for uid in range(3)])
    observations, infos = counting.reset(np.array([2, 1]), options={"a": 1})
    assert observations.tolist() == [[2, 0, 0], [1, 0, 0]]
    assert [info["options"] for info in infos] == ["{'a': 1}"] * 2
    assert counting.get_env_attr("episode") == [-1, 0, 0]
    with pytest.raises(TypeError, match="seed and options, got colour"):
        counting.reset(colour=1)
    with pytest.raises(IndexError):
        counting.reset([3])


def test_dict_observations_come_as_dicts_and_tuples_are_refused() -> None:
    envs = DummyVectorEnv([NestedEnv, partial(NestedEnv, 1)])
    observations, _ = envs.reset()
    assert observations.dtype == object
    assert [observation["count"].tolist() for observation in observations] == [[0, 0, 0], [1, 0, 0]]
    assert envs.step([0], 1)[0][0]["count"].tolist() == [1, 0, 1]
    assert envs.step([0, 0])[0][1]["count"].tolist() == [1, 0, 2]

    class PairEnv(CountEnv):
        observation_space: Any = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2)))

        def __init__(self) -> None:
            super().__init__()
            self.observation_space = type(self).observation_space

        def _observation(self) -> Any:
            return (0, 1)

    with pytest.raises(TypeError, match="no tuples"):
        DummyVectorEnv([PairEnv]).reset()


def test_actions_may_be_tensors_and_must_be_as_many_as_envs() -> None:
    envs = DummyVectorEnv([EchoEnv, EchoEnv])
    envs.reset()
    envs.step(torch.tensor([1, 0]))
    assert envs.get_env_attr("last_action") == [1, 0]
    with pytest.raises(ValueError, match="expected 2 actions, one per environment named, got 1"):
        envs.step([1])
    with pytest.raises(ValueError, match="expected actions"):
        envs.step(None)


# -- asynchronous steps ---------------------------------------------------------------------------------------------


def test_wait_num_returns_the_first_that_finish(tmp_path: Any) -> None:
    flag = tmp_path / "go"
    envs = SubprocVectorEnv([partial(flag_class(), uid, str(flag)) for uid in range(3)], wait_num=2)
    assert envs.is_async
    envs.reset()
    *_, infos = envs.step([1, 0, 0])  # the first waits for the file
    assert sorted(info["env_id"] for info in infos) == [1, 2]
    assert envs.waiting_id == [0]
    assert sorted(envs.ready_id) == [1, 2]
    for call in (lambda: envs.step([0], [0]), lambda: envs.reset(0), lambda: envs.seed(1), lambda: envs.render()):
        with pytest.raises(AlreadyPendingCallError, match=r"\[0\]"):
            call()
    assert envs.reset([2])[0].tolist() == [[2, 1, 0]]  # the others may be reset meanwhile
    flag.touch()
    observations, rewards, *_, infos = envs.step(None)
    assert [info["env_id"] for info in infos] == [0]
    assert observations.tolist() == [[0, 0, 1]]
    assert rewards.tolist() == [1.0]
    assert envs.waiting_id == []
    assert envs.step(None)[0].shape == (0, 3)
    envs.close()


def test_a_step_finished_during_a_reset_is_not_lost(tmp_path: Any) -> None:
    flag = tmp_path / "go"
    envs = SubprocVectorEnv([partial(flag_class(), uid, str(flag)) for uid in range(3)], wait_num=1)
    envs.reset()
    first = envs.step([1, 0, 1])[4][0]["env_id"]
    assert first == 1
    flag.touch()
    for _ in range(20):
        assert envs.reset([1])[0].shape == (1, 3)
    ids = {envs.step(None)[4][0]["env_id"] for _ in range(2)}
    assert ids == {0, 2}
    assert envs.waiting_id == []
    envs.close()


def test_timeout_returns_what_is_there(tmp_path: Any) -> None:
    flag = tmp_path / "go"
    envs = SubprocVectorEnv([partial(flag_class(), uid, str(flag)) for uid in range(2)], timeout=0.2)
    assert envs.wait_num == 2
    envs.reset()
    *_, infos = envs.step([0, 1])
    assert [info["env_id"] for info in infos] == [0]
    flag.touch()
    assert [info["env_id"] for info in envs.step(None)[4]] == [1]
    envs.close()


@pytest.mark.parametrize("vector_env_class", CLASSES)
def test_asynchronous_steps_belong_together(vector_env_class: Any) -> None:
    envs = vector_env_class([partial(gym.make, "CartPole-v1") for _ in range(4)], wait_num=2)
    envs.seed(0)
    last = dict(enumerate(envs.reset()[0]))
    ids = np.arange(4)
    counts = np.zeros(4, int)
    rounds, deadline = 0, time.monotonic() + 30
    # The first to finish may be the same ones for a while, where another one's process gets no core.
    while rounds < 80 or (counts.min() == 0 and time.monotonic() < deadline):
        observations, _, terminated, truncated, infos = envs.step(np.ones(len(ids), int), ids)
        ids = np.array([info["env_id"] for info in infos])
        assert len(ids) == 2
        for env_id, observation in zip(ids, observations, strict=True):
            # a cart moves by its speed: wrong rows would not fit
            np.testing.assert_allclose(last[env_id][0] + 0.02 * last[env_id][1], observation[0], atol=1e-6)
            last[env_id] = observation
            counts[env_id] += 1
        for env_id in ids[terminated | truncated]:
            last[env_id] = envs.reset(env_id)[0][0]
        rounds += 1
    assert counts.sum() == 2 * rounds
    assert counts.min() > 0
    envs.close()


def test_a_failure_takes_no_finished_step_along() -> None:
    env_fns = [CountEnv, partial(CountEnv, 1, fails_at=1), partial(CountEnv, 2)]
    envs = DummyVectorEnv(env_fns, timeout=30)  # with a limit, steps are fetched one by one
    envs.reset()
    with pytest.raises(EnvError, match="boom from env 1"):
        envs.step([0, 0, 0])
    assert sorted(envs.waiting_id) == [0, 2]
    observations, *_, infos = envs.step(None)
    assert [info["env_id"] for info in infos] == [0, 2]
    assert observations.tolist() == [[0, 0, 1], [2, 0, 1]]
    assert envs.waiting_id == []
    assert sorted(envs.ready_id) == [0, 1, 2]
    assert envs.reset([1])[0].tolist() == [[1, 1, 0]]


def test_a_timeout_that_an_env_raises_is_raised() -> None:
    class LateEnv(CountEnv):
        def step(self, action: Any) -> Any:
            raise multiprocessing.TimeoutError("a simulator did not answer")

    envs = DummyVectorEnv([CountEnv, LateEnv], timeout=30)
    envs.reset()
    with pytest.raises(EnvError, match="did not answer"):
        envs.step([0, 0])
    assert [info["env_id"] for info in envs.step(None)[4]] == [0]


def test_a_ctrl_c_takes_no_finished_step_along(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = DummyVectorEnv([CountEnv, partial(CountEnv, 1)], timeout=30)
    receive = envs._receive

    def interrupted(count: int, timeout: float | None = None) -> Any:
        if timeout is not None:  # there is a row already
            raise KeyboardInterrupt
        return receive(count, timeout)

    envs.reset()
    with monkeypatch.context() as patched:
        patched.setattr(envs, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
    assert [info["env_id"] for info in envs.step(None)[4]] == [0, 1]
    assert envs.waiting_id == []


def test_a_step_that_fails_during_a_reset_leaves_no_row_of_the_reset_behind() -> None:
    envs = DummyVectorEnv([CountEnv, partial(CountEnv, 1, fails_at=1), partial(CountEnv, 2)], wait_num=1)
    envs.reset()
    assert [info["env_id"] for info in envs.step([0, 0, 0])[4]] == [0]
    with pytest.raises(EnvError, match="boom from env 1"):
        envs.reset([0])
    assert envs.waiting_id == [2]
    assert sorted(envs.ready_id) == [0, 1]
    assert [info["env_id"] for info in envs.step(None)[4]] == [2]
    assert envs.reset([0, 1])[0].tolist() == [[0, 2, 0], [1, 1, 0]]


def test_what_wait_num_and_timeout_may_be() -> None:
    for arguments, error, text in (
        ({"wait_num": 3}, ValueError, "at most 2"),
        ({"wait_num": 0}, ValueError, "wait_num"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"wait_num": 1.5}, TypeError, "wait_num"),
    ):
        with pytest.raises(error, match=text):
            DummyVectorEnv([CountEnv, CountEnv], **arguments)  # type: ignore[arg-type]


# -- attributes, seeds, failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector_env_class", CLASSES)
def test_attributes_of_some_envs(vector_env_class: Any) -> None:
    envs = vector_env_class([partial(EchoEnv, uid, render_mode="rgb_array") for uid in range(3)])
    assert envs.get_env_attr("uid") == [0, 1, 2]
    assert envs.get_env_attr("twice_uid", [2, 0]) == [4, 0]
    envs.set_env_attr("uid", 7, np.array([1]))
    with pytest.raises(TypeError, match="expected indices of environments"):
        envs.get_env_attr("uid", np.array([False, True, False]))
    assert envs.get_env_attr("uid") == [0, 7, 2]
    envs.set_env_attr("uid", 9)
    assert envs.reset()[0][:, 0].tolist() == [9, 9, 9]
    with pytest.raises(AttributeError, match="nothing"):
        envs.get_env_attr("nothing")
    assert envs.observation_space == [envs.vector_env.single_observation_space] * 3
    assert [metadata["render_fps"] for metadata in envs.metadata] == [30] * 3
    assert [picture[0, 0, 0] for picture in envs.render()] == [9, 9, 9]
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


def test_action_spaces_can_be_seeded() -> None:
    envs = DummyVectorEnv([CountEnv, CountEnv])
    spaces = envs.action_space
    draws = []
    for _ in range(2):
        envs.seed([4, 4])
        draws.append([[space.sample() for _ in range(20)] for space in spaces])
    assert draws[0] == draws[1]
    assert draws[0][0] == draws[0][1]
    assert envs.action_space[0] is spaces[0]


@pytest.mark.parametrize("wait_num", [None, 1])
def test_failures_leave_the_envs_usable(wait_num: int | None) -> None:
    envs = SubprocVectorEnv([CountEnv, partial(CountEnv, 1, fails_at=1)], wait_num)
    envs.reset()
    with pytest.raises(EnvError, match="boom from env 1"):
        envs.step([0], [1])
    envs.reset([1])
    observations, *_ = envs.step([0], [0])
    assert observations.tolist() == [[0, 0, 1]]
    os.kill(envs.vector_env.processes[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(WorkerDied):
        envs.step([0], [0])
    envs.close()


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_wrap(backend: str) -> None:
    envs = wrap(vecenv.make_vec(lambda: CountEnv(length=2), 3, backend, autoreset_mode="Disabled"))
    envs.reset()
    envs.step([0, 0, 0])
    _, rewards, terminated, _, infos = envs.step([0, 0], [2, 0])
    assert rewards.tolist() == [2.0, 2.0]
    assert terminated.all()
    assert [info["env_id"] for info in infos] == [2, 0]
    assert envs.reset([0, 2])[0].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert envs.get_env_attr("uid") == [0, 0, 0]
    envs.set_env_attr("uid", 3)
    assert envs.get_env_attr("uid", 1) == [3]
    envs.close()


@pytest.mark.parametrize("backend", [name for name in ("compiled", "envpool") if name in BACKENDS])
def test_wrap_takes_the_engines(backend: str) -> None:
    pytest.importorskip({"envpool": "envpool", "compiled": "numba"}[backend])
    envs = wrap(vecenv.make_vec("CartPole-v1", 3, backend, autoreset_mode="Disabled", seed=0))
    assert envs.reset()[0].shape == (3, 4)
    ended = 0
    for _ in range(40):
        observations, _rewards, terminated, truncated, infos = envs.step(np.ones(3, np.int64))
        assert [info["env_id"] for info in infos] == [0, 1, 2]
        done = np.flatnonzero(terminated | truncated)
        ended += len(done)
        if len(done):
            again, _ = envs.reset(done)
            assert (np.abs(again) <= 0.05).all()
            assert (np.abs(observations[done][:, 2]) > 0.2).all()
    assert ended > 6
    before = np.copy(envs.vector_env.observations)
    with pytest.raises(NotImplementedError, match="sync, subproc or ray"):
        envs.step([0], [1])
    with pytest.raises(NotImplementedError, match="wait_num"):
        wrap(envs.vector_env, wait_num=2)
    assert np.array_equal(envs.vector_env.observations, before)
    envs.close()


def test_wrap_refuses_what_it_cannot_serve() -> None:
    with pytest.raises(ValueError, match="Disabled"):
        wrap(vecenv.make_vec(CountEnv, 2, "sync"))
    with pytest.raises(TypeError, match="vector env of this package"):
        wrap(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))  # type: ignore[arg-type]


# -- training -------------------------------------------------------------------------------------------------------


def make_algorithm(seed: int) -> Any:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - Tianshou draws from it
    space: Any = gym.spaces.Discrete(2)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[32]), action_space=space, eps_training=0.2
    )
    return DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), n_step_return_horizon=3, target_update_freq=100)


@pytest.mark.usefixtures("one_torch_thread")
def test_cartpole_is_trained_along_the_same_curve() -> None:
    curves = []
    for make in (tianshou.env.DummyVectorEnv, DummyVectorEnv, SubprocVectorEnv):
        algorithm = make_algorithm(0)
        env_fns = [partial(gym.make, "CartPole-v1") for _ in range(3)]
        training_envs, test_envs = make(env_fns), make(env_fns)
        training_envs.seed(1)
        test_envs.seed(2)
        result = algorithm.run_training(
            OffPolicyTrainerParams(
                training_collector=Collector(algorithm, training_envs, VectorReplayBuffer(2000, 3)),
                test_collector=Collector(algorithm, test_envs),
                max_epochs=1,
                epoch_num_steps=150,
                collection_step_num_env_steps=15,
                test_step_num_episodes=4,  # the last round of a test steps only some of the envs
                batch_size=32,
                update_step_num_gradient_steps_per_sample=0.2,
                show_progress=False,
                verbose=False,
            )
        )
        weights = torch.cat([parameter.detach().flatten() for parameter in algorithm.policy.parameters()])
        curves.append((result.best_score, result.train_step, weights.tolist()))
        training_envs.close()
        test_envs.close()
    assert curves[0][1] == 150
    assert curves[0] == curves[1] == curves[2]
