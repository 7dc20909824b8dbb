"""Saving and restoring the state of environments: the run goes on bit for bit, or the refusal names the env."""

from __future__ import annotations

import functools
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.utils import EzPickle

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, make_vec
from vecenv.testing import CountEnv, assert_same

BUILDS = [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)]


def run(envs, steps, seed):
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(steps):
        result = envs.step(rng.integers(0, 2, envs.num_envs))
        if "episode" in result[4]:
            result[4]["episode"].pop("t")
        results.append(result)
    return results


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("other", BUILDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_run_goes_on_bit_for_bit(build, other, mode):
    """Also on the other back end, and when the state was taken at the very end of an episode."""
    fns = [functools.partial(gym.make, "CartPole-v1")] * 3
    settings = {"autoreset_mode": mode, "statistics": True}
    with build(fns, **settings) as envs, other(fns, **settings) as others:
        envs.reset(seed=4)
        others.reset(seed=77)
        for steps in (5, 17, 30):
            run(envs, steps, steps)
            states = envs.get_state()
            assert all(isinstance(state, bytes) for state in states)
            expected = run(envs, 40, 1)
            others.set_state(states)
            assert_same(run(others, 40, 1), expected)
            envs.set_state(states)
            assert_same(run(envs, 40, 1), expected)


@pytest.mark.parametrize("build", BUILDS)
def test_partial_resets_keep_restored_observations(build):
    with build([CountEnv] * 2) as envs:
        envs.reset()
        envs.step([0, 0])
        states = envs.get_state()
        envs.step([0, 0])
        envs.set_state(states)
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        np.testing.assert_array_equal(observations, [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("backend", ["sync", "subproc", "compiled"])
def test_states_are_not_taken_up_while_a_whole_batch_is_outstanding(backend):
    """What was sent would be received as a step from a state in which it was never played."""
    with make_vec("CartPole-v1", 2, backend) as envs:
        envs.reset(seed=1)
        states = envs.get_state()
        expected = envs.step([0, 1])
        envs.set_state(states)
        envs.send([0, 1])
        with pytest.raises(AlreadyPendingCallError):
            envs.set_state(states)
        assert_same(envs.recv(timeout=30)[:4], expected[:4])
        envs.set_state(states)
        assert_same(envs.step([0, 1])[:4], expected[:4])


@pytest.mark.parametrize("backend", ["sync", "subproc", "compiled"])
def test_the_seed_of_the_constructor_is_not_for_a_reset_after_a_state_was_taken_up(backend):
    with make_vec("CartPole-v1", 2, backend, seed=3) as envs, make_vec("CartPole-v1", 2, backend, seed=3) as others:
        envs.reset()
        envs.step([0, 1])
        others.set_state(envs.get_state())
        np.testing.assert_array_equal(others.reset()[0], envs.reset()[0])


class ByArguments(CountEnv, EzPickle):
    def __init__(self):
        EzPickle.__init__(self)
        CountEnv.__init__(self)


@pytest.mark.parametrize("build", BUILDS)
def test_envs_that_would_forget_are_refused(build):
    with build([CountEnv, ByArguments]) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 1 .*ByArguments cannot be saved"):
            envs.get_state()
        envs.step([0, 0])


@pytest.mark.parametrize("build", BUILDS)
def test_bad_states(build):
    with build([CountEnv] * 2) as envs:
        envs.reset()
        states = envs.get_state()
        with pytest.raises(ValueError, match="expected 2 states"):
            envs.set_state(states[:1])
        with pytest.raises(TypeError, match="environment 1"):
            envs.set_state([states[0], "text"])
        with pytest.raises(EnvError, match="environment 1"):
            envs.set_state([states[0], b"nonsense"])


class OtherEnv(CountEnv):
    """Has observations that do not fit into the rows of a `CountEnv`."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 1, (5,), np.float32)

    def _observation(self):
        return np.zeros(5, np.float32)


@pytest.mark.parametrize("build", BUILDS)
def test_states_of_other_envs_are_refused_and_nothing_is_taken_up(build):
    """The first env was replaced, then the worker ended."""
    with build([OtherEnv] * 2) as others:
        others.reset()
        foreign = others.get_state()[1]
    with build([CountEnv] * 2) as envs:
        envs.reset()
        states = envs.get_state()
        envs.step([0, 0])
        for bad in (
            foreign,
            pickle.dumps((CountEnv(), None)),
            pickle.dumps((CountEnv(), (False, None, {"returns": 0}))),
        ):
            with pytest.raises(EnvError, match=r"environment 1 .*(another version|no state|observation_space)"):
                envs.set_state([states[0], bad])
        assert envs.step([0, 0])[0][:, 2].tolist() == [2, 2]
        envs.set_state(states)
        assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_plain_atari_of_ale_py_is_built_when_preprocessing_is_none():
    pytest.importorskip("ale_py")
    with make_vec("ALE/Pong-v5", 2, "subproc", preprocess="none") as envs:
        observations, _ = envs.reset(seed=0)
        assert observations.shape == (2, 210, 160, 3)


def test_ids_of_this_package_are_registered():
    pytest.importorskip("ale_py")
    env = gym.make("vecenv/Pong-v5")
    observation, _ = env.reset(seed=0)
    assert observation.shape == (4, 84, 84)
    env.close()


class Letters(gym.spaces.Space):
    """A space of one's own that equals nothing but itself."""

    def __init__(self, shape=None):
        super().__init__(shape, np.dtype(object))

    def contains(self, x):
        return True


class LettersEnv(CountEnv):
    def __init__(self, space):
        super().__init__()
        self.observation_space = space

    def _observation(self):
        return {"letters": "a" * self.time, "other": np.zeros(self.observation_space["other"].shape, np.float32)}


@pytest.mark.parametrize("build", BUILDS)
def test_states_of_envs_whose_spaces_cannot_be_compared(build):
    def env_fn(*, shape=None, high=1):
        return LettersEnv(gym.spaces.Dict(letters=Letters(shape), other=gym.spaces.Box(0, high, (2,))))

    with build([env_fn], shared_memory=False) as envs:
        envs.reset()
        envs.step([0])
        states, _ = envs.get_state(), envs.step([0])
        envs.set_state(states)
        assert envs.step([0])[0]["letters"] == ("aa",)
        for other in ({"shape": (3,)}, {"high": 2}):
            with SyncVecEnv([functools.partial(env_fn, **other)]) as others:
                others.reset()
                foreign = others.get_state()
            with pytest.raises(EnvError, match="observation_space"):
                envs.set_state(foreign)
