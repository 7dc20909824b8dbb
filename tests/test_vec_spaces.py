"""Every space of Gymnasium, in arrays or as objects, batched as Gymnasium batches it."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenv import SubprocVecEnv, SyncVecEnv, make_vec, true_next_obs
from vecenv.testing import CountEnv, assert_same


class CustomSpace(gym.Space):
    """A space that nobody knows."""

    def sample(self, mask=None, probability=None):
        return f"custom {self.np_random.integers(100)}"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, CustomSpace)


SPACES = {
    "float64": spaces.Box(-1, 1, (2,), np.float64),
    "int8": spaces.Box(-5, 5, (3,), np.int8),
    "bool": spaces.Box(0, 1, (2,), np.bool_),
    "uint8": spaces.Box(0, 255, (2, 2, 1), np.uint8),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "discrete": spaces.Discrete(5, start=3),
    "multidiscrete": spaces.MultiDiscrete([[3, 4], [5, 6]]),
    "multibinary": spaces.MultiBinary((2, 3)),
    "nested": spaces.Dict(
        {
            "b": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float32)}))),
            "a": spaces.MultiBinary(2),
        }
    ),
    "text": spaces.Text(6),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "oneof": spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "dict-with-text": spaces.Dict({"t": spaces.Text(3), "n": spaces.Box(0, 1, (2,), np.float32)}),
    "tuple-with-sequence": spaces.Tuple((spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2))),
    "custom": CustomSpace(),
}
FIXED = list(SPACES)[:9]


class SpaceEnv(gym.Env):
    """Samples its observation space; ends every third step."""

    def __init__(self, space, action_space=None):
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        if action not in self.action_space:
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}


def plain(value):
    """Graph instances and other tuples compared by their parts."""
    if isinstance(value, spaces.GraphInstance):
        return ("graph", *map(plain, value))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(part) for part in value.tolist()]
    return value


BUILDS = {
    "sync": (SyncVecEnv, {}),
    "shared": (SubprocVecEnv, {"num_workers": 2, "shared_memory": None}),
    "pipe": (SubprocVecEnv, {"num_workers": 2, "shared_memory": False}),
}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", SPACES)
def test_observations_equal_gymnasium(name, build, mode):
    fns = [functools.partial(SpaceEnv, SPACES[name])] * 3
    theirs = SyncVectorEnv([lambda: SpaceEnv(_copy(SPACES[name]))] * 3, autoreset_mode=mode)
    make, settings = BUILDS[build]
    fns = [lambda: SpaceEnv(_copy(SPACES[name]))] * 3
    with make(fns, autoreset_mode=mode, **settings) as ours:
        assert ours.observation_space == theirs.observation_space
        one, two = ours.reset(seed=4), theirs.reset(seed=4)
        assert_same(plain(one), plain(two))
        assert one[0] in ours.observation_space
        for step in range(7):
            one, two = ours.step([0, 1, 0]), theirs.step(np.array([0, 1, 0]))
            final, expected = one[4].pop("final_obs", None), two[4].pop("final_obs", None)
            assert_same(plain(one), plain(two), f"step {step}")
            assert (final is None) == (expected is None)
            for left, right in zip(
                final if final is not None else [], expected if expected is not None else [], strict=True
            ):
                assert (left is None) == (right is None)
                if left is not None:
                    assert left in ours.single_observation_space
                    np.testing.assert_equal(plain(left), plain(right))
            if final is not None and name in FIXED:
                one[4]["final_obs"] = final
                after = true_next_obs(one[0], one[4], mode)
                assert after in ours.observation_space


def _copy(space):
    import copy

    return copy.deepcopy(space)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_space(name, build):
    make, settings = BUILDS[build]
    fns = [lambda: SpaceEnv(spaces.Discrete(2), _copy(SPACES[name]))] * 3
    with make(fns, **settings) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            rewards = envs.step(envs.action_space.sample())[1]
        np.testing.assert_array_equal(rewards, [1, 1, 1])


def test_custom_spaces_and_shared_memory():
    with pytest.raises(ValueError, match="shared_memory"):
        SubprocVecEnv([lambda: SpaceEnv(CustomSpace())])
    with make_vec(lambda: SpaceEnv(CustomSpace()), 2, "subproc") as envs:
        observations, _ = envs.reset()
        assert isinstance(observations, tuple)
        with pytest.raises(TypeError, match="ring"):
            _ = envs.observation_slots


@pytest.mark.parametrize("build", BUILDS)
def test_wrong_numbers_of_object_actions(build):
    make, settings = BUILDS[build]
    with make([lambda: SpaceEnv(spaces.Discrete(2), spaces.Text(4))] * 3, **settings) as envs:
        envs.reset()
        for actions in (("a", "b"), ("a", "b", "c", "d")):
            with pytest.raises(ValueError, match="expected 3 actions"):
                envs.step(actions)
        with pytest.raises((TypeError, ValueError)):
            envs.step(3)
        envs.step(("a", "b", "c"))


def bounded(high):
    env = CountEnv()
    env.observation_space = spaces.Box(-1e6, high, (3,), np.float32)
    return env


@pytest.mark.parametrize("build", [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)])
def test_observation_modes(build):
    fns = [functools.partial(bounded, 10.0 + uid) for uid in range(3)]
    with pytest.raises(RuntimeError, match=r"environments 0 and 1 differ"):
        build(fns)
    theirs = SyncVectorEnv(fns, observation_mode="different")
    with build(fns, observation_mode="different") as envs:
        assert envs.observation_space == theirs.observation_space
        assert envs.single_observation_space == theirs.single_observation_space
        assert_same(envs.reset()[0], theirs.reset()[0])
    single = spaces.Box(-1e7, 1e7, (3,), np.float32)
    batched = spaces.Box(-1e7, 1e7, (3, 3), np.float32)
    with build(fns, observation_mode=(batched, single)) as envs:
        assert envs.observation_space == batched
        assert envs.single_observation_space == single
        envs.reset()
    for mode, error in (("other", ValueError), ((single, 3), TypeError)):
        with pytest.raises(error, match="observation_mode"):
            build(fns, observation_mode=mode)
    with pytest.raises(RuntimeError, match="environment 0"):
        build(fns, observation_mode=(batched, spaces.Box(-1, 1, (4,), np.float32)))


@pytest.mark.parametrize("build", [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)])
@pytest.mark.parametrize("name", ["uint8", "nested"])
def test_writing_into_the_callers_arrays(build, name):
    fns = [lambda: SpaceEnv(_copy(SPACES[name]))] * 2
    with build(fns) as envs, build(fns) as reference:
        out = envs.reset(seed=1)[0]
        reference.reset(seed=1)
        for step in range(4):
            result = envs.step([0, 0], out=out)
            assert result[0] is out
            assert_same(out, reference.step([0, 0])[0], f"step {step}")
        assert envs.reset(out=out)[0] is out
    with build([CountEnv] * 2) as envs:
        envs.reset()
        for wrong, error in (
            (np.zeros((2, 3)), ValueError),
            (np.zeros((3, 3), np.float32), ValueError),
            ([[0, 0, 0]], TypeError),
        ):
            with pytest.raises(error, match="out"):
                envs.step([0, 0], out=wrong)


class NestedEnv(gym.Env):
    """Its second observation is what it was given."""

    def __init__(self, second):
        part = gym.spaces.Box(0, 9, (2,), np.float32)
        self.observation_space = gym.spaces.Dict({"a": part, "b": gym.spaces.Tuple((part, gym.spaces.Discrete(3)))})
        self.action_space, self.second = gym.spaces.Discrete(2), second

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"a": np.zeros(2, np.float32), "b": (np.zeros(2, np.float32), 1)}, {}

    def step(self, action):
        return self.second, 0.0, False, False, {}


@pytest.mark.parametrize("build", [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=1)])
@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"a": np.zeros(3), "b": (np.zeros(2), 1)}, r"\['a'\]: expected shape"),
        ({"a": np.zeros(2), "b": (np.zeros(2), 1.5)}, r"\['b'\]\[1\]: expected dtype"),
        ({"a": np.zeros(2), "b": 5}, r"\['b'\]: expected a tuple"),
        ({"a": np.zeros(2)}, r"missing \['b'\]"),
    ],
)
def test_wrong_parts_of_nests_are_named(build, second, text):
    with build([functools.partial(NestedEnv, second)]) as envs:
        envs.reset()
        with pytest.raises((TypeError, ValueError), match=text):
            envs.step([0])
