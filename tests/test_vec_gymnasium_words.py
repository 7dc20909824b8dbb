"""What code written for Gymnasium's vector envs may rely on beside the results: messages, identity, accepted forms."""

from __future__ import annotations

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from vecenv import SubprocVecEnv, SyncVecEnv
from vecenv.testing import CountEnv, assert_same

COUNTS = [lambda: CountEnv(length=9)] * 3


class Bounded(CountEnv):
    def __init__(self, high=10.0, choices=2):
        super().__init__(length=9)
        self.observation_space = gym.spaces.Box(0.0, high, (3,))
        self.action_space = gym.spaces.Discrete(choices)


class Temperature(gym.Space):
    """A space of one's own."""


class Anything(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(self.np_random_seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return np.asarray(self.observation_space.sample()), 0.0, False, False, {}


class Force(gym.Env):
    """Rewards with the force that it was given: one number, as Pendulum's."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action.shape == (1,)
        return np.zeros(1, np.float32), float(action[0]), False, False, {}


def mask(*values):
    return {"reset_mask": np.array(values)}


#: Calls that both refuse, each with the class and in words that both use.
REFUSED = {
    "seeds": (lambda envs: envs.reset(seed=[1, 2]), "the length must match num_envs=3 but got length=2."),
    "mask kind": (lambda envs: envs.reset(options={"reset_mask": [True]}), "must be a numpy array, got <class 'list'>"),
    "mask shape": (lambda envs: envs.reset(options=mask(True)), "must have shape `(3,)`, got (1,)"),
    "mask dtype": (lambda envs: envs.reset(options=mask(0, 1, 1)), "must have `dtype=np.bool_`, got int64"),
    "mask of none": (
        lambda envs: envs.reset(options=mask(False, False, False)),
        "must contain a boolean array with at least one True value, got reset_mask=[False False False]",
    ),
    "values": (
        lambda envs: envs.set_attr("length", [1, 2]),
        "Values must be a list or tuple with length equal to the number of environments. "
        "Got `2` values for 3 environments.",
    ),
    "wait": (lambda envs: envs.step_wait(), "Calling `step_wait` without any prior call to `step_async`."),
    "call": (
        lambda envs: envs.call("step", 0),
        "Trying to call function `step` with `call`, use `step` directly instead.",
    ),
    "closed": (lambda envs: (envs.close(), envs.reset()), "`, after a call to `close()`."),
}

UNBUILT = {
    "observations": ([Bounded, lambda: Bounded(high=5.0)], {}, "If this is intentional, use `observation_mode="),
    "layouts": (
        [Bounded, Bounded],
        {"observation_mode": (gym.spaces.Discrete(4), gym.spaces.Discrete(2))},
        "the sub-environment's observation spaces do not share a common shape and dtype.",
    ),
    "actions": ([Bounded, lambda: Bounded(choices=3)], {}, "have an action space different from `Discrete(2)`."),
    "no layout": (
        [lambda: Anything(Temperature())],
        {},
        "you can disable this feature with `shared_memory=False` however this is slower.",
    ),
    "lengths that vary": ([lambda: Anything(gym.spaces.Sequence(gym.spaces.Discrete(2)))], {}, ""),
    "no number": ([Bounded], {"max_concurrency": 1.5}, "`max_concurrency` must be an integer or None, got"),
    "too few": ([Bounded], {"max_concurrency": 0}, "`max_concurrency` must be a positive or None, got 0."),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_calls_are_refused_in_the_same_words(name):
    refused, words = REFUSED[name]
    kinds = []
    for build in (AsyncVectorEnv, SubprocVecEnv):
        envs = build(COUNTS)
        with pytest.raises(Exception, match=re.escape(words)) as caught:
            refused(envs)
        kinds.append(caught.type)
        envs.close(terminate=True)
    assert issubclass(kinds[1], kinds[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNBUILT)
def test_envs_that_do_not_go_together_are_refused_in_the_same_words(name):
    env_fns, settings, words = UNBUILT[name]
    kinds = []
    for build in (AsyncVectorEnv, SubprocVecEnv):
        with pytest.raises(
            (RuntimeError, ValueError, TypeError), match=re.escape(words.removeprefix("however "))
        ) as caught:
            build(env_fns, **settings)
        kinds.append(caught.type)
    assert issubclass(kinds[1], kinds[0])


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("copy", [True, False])
def test_observations_of_the_vector_env_are_those_returned_without_copies(copy, shared_memory):
    with SubprocVecEnv(COUNTS, shared_memory=shared_memory, copy=copy) as envs:
        for act in (envs.reset, lambda: envs.step([0, 0, 0])):
            returned = act()[0]
            returned[0] = 77
            assert bool((envs.observations[0] == 77).all()) is not copy
            assert not (envs.observations[1] == 77).any()
        envs.send([0], [0])
        envs.send([0, 0], [1, 2])
        newest = envs.recv()[0]
        np.testing.assert_array_equal(envs.observations, newest)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Text(5),
        gym.spaces.OneOf([gym.spaces.Discrete(3), gym.spaces.Box(0.0, 1.0, (2,))]),
        gym.spaces.Dict(name=gym.spaces.Tuple([gym.spaces.Text(3), gym.spaces.Discrete(2)])),
    ],
    ids=["Text", "OneOf", "nested"],
)
def test_spaces_that_gymnasium_holds_in_shared_memory_are_not_refused(space):
    with SubprocVecEnv([lambda: Anything(space)] * 2) as envs, SyncVecEnv([lambda: Anything(space)] * 2) as same:
        observations = envs.reset(seed=1)[0]
        assert observations in envs.observation_space
        assert_same(observations, same.reset(seed=1)[0])


@pytest.mark.parametrize("build", [SyncVecEnv, SubprocVecEnv])
def test_scalar_observations_as_objects(build):
    with build([lambda: Anything(gym.spaces.Box(-1.0, 1.0, (), np.float64))] * 2, shared_memory=False) as envs:
        envs.reset(seed=1)
        observations = envs.step([0, 0])[0]
        assert observations.shape == (2,)
        assert observations.dtype == np.float64


def test_call_async_passes_every_keyword_on():
    """The word `name` is the environment's too."""
    with SubprocVecEnv(COUNTS) as envs:
        envs.call_async("has_wrapper_attr", name="length")
        assert envs.call_wait(timeout=60) == (True, True, True)


@pytest.mark.parametrize("build", [SyncVecEnv, SubprocVecEnv])
def test_one_number_per_env_where_an_action_is_one_number(build):
    with build([Force] * 3) as envs:
        envs.reset()
        for forces in ([0.5, 1.0, -1.0], [[0.5], [1.0], [-1.0]], np.array([0.5, 1.0, -1.0], np.float32)):
            assert envs.step(forces)[1].tolist() == [0.5, 1.0, -1.0]
        with pytest.raises(ValueError, match="shape"):
            envs.step([[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]])


def test_max_concurrency_is_an_attribute():
    with SubprocVecEnv(COUNTS, max_concurrency=2) as envs:
        assert envs.max_concurrency == envs.num_workers == 2
