"""Batches of actions are checked before any env gets one, and reach the envs as Gymnasium would hand them over."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from vecenv import SubprocVecEnv, SyncVecEnv
from vecenv.testing import CountEnv, assert_same

BACKENDS = [SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2)]


class EchoEnv(CountEnv):
    """Reports the action as it came."""

    def __init__(self, action_space):
        super().__init__(length=1000)
        self.action_space = action_space
        self.kept = []

    def step(self, action):
        self.kept.append(action)
        return *super().step(action)[:4], {}

    def seen(self):
        return self.kept


SPACES = {
    "discrete": gym.spaces.Discrete(3, start=-1),
    "multi": gym.spaces.MultiDiscrete([2, 5]),
    "binary": gym.spaces.MultiBinary(3),
    "box32": gym.spaces.Box(-1, 1, (2,), np.float32),
    "box64": gym.spaces.Box(-1, 1, (2, 2), np.float64),
    "box8": gym.spaces.Box(0, 255, (2,), np.uint8),
    "scalar": gym.spaces.Box(-1, 1, (), np.float32),
    "dict": gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiBinary(2))),
}


@pytest.mark.parametrize("build", BACKENDS)
@pytest.mark.parametrize("name", SPACES)
def test_actions_reach_the_envs_as_gymnasium_hands_them_over(build, name):
    fns = [lambda: EchoEnv(SPACES[name])] * 3
    theirs = SyncVectorEnv(fns)
    theirs.reset()
    with build(fns) as ours:
        ours.reset()
        for _ in range(4):
            actions = theirs.action_space.sample()
            ours.step(actions)
            theirs.step(actions)
        assert_same(ours.call("seen"), theirs.call("seen"))


@pytest.mark.parametrize("build", BACKENDS)
def test_wider_floats_reach_the_envs_unrounded(build):
    with build([lambda: EchoEnv(SPACES["box32"])] * 2) as envs:
        envs.reset()
        actions = np.array([[0.1, 0.2], [0.3, 0.4]])
        envs.step(actions)
        envs.step(actions.astype(np.float32))
        envs.step([[1, 0], [0, 1]])
        for row, (wide, narrow, ints) in enumerate(envs.call("seen")):
            assert_same(wide, actions[row])
            assert_same(narrow, actions[row].astype(np.float32))
            assert ints.dtype.kind == "f"


@pytest.mark.parametrize("build", BACKENDS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, list, tuple])
def test_accepted_forms(build, dtype):
    with build([functools.partial(CountEnv, length=9)] * 3) as envs:
        envs.reset()
        actions = dtype([0, 1, 1]) if dtype in (list, tuple) else np.array([0, 1, 1], dtype)
        np.testing.assert_array_equal(envs.step(actions)[1], [1, 1, 1])


BAD = [
    ("discrete", 1, TypeError, "sequence of 3 actions"),
    ("discrete", np.int64(1), TypeError, "sequence"),
    ("discrete", None, TypeError, "sequence"),
    ("discrete", [0, 1], ValueError, "expected 3 actions, one per environment, got 2"),
    ("discrete", [], ValueError, "got 0"),
    ("discrete", [[0], [1], [1]], ValueError, "shape"),
    ("discrete", [0, 1, 2], ValueError, "of environment 2 is not in Discrete"),
    ("discrete", [0, -2, 1], ValueError, "of environment 1"),
    ("discrete", [0.0, 1.0, 1.0], TypeError, "float64"),
    ("discrete", ["a", "b", "c"], TypeError, "dtype"),
    ("discrete", [0, None, 1], TypeError, "object"),
    ("discrete", np.array([0, 1, 2**63], np.uint64), ValueError, "do not fit"),
    ("multi", [[0, 1], [1, 5], [0, 0]], ValueError, "of environment 1"),
    ("multi", [[0, 1], [1], [0, 0]], ValueError, "shape"),
    ("box32", np.zeros((3, 3), np.float32), ValueError, "shape"),
    ("box32", np.zeros((3, 2), complex), TypeError, "complex"),
    ("box8", np.full((3, 2), 300), ValueError, "do not fit"),
    ("dict", {"a": [0, 0, 0]}, ValueError, "keys"),
    ("dict", [0, 0, 0], ValueError, "keys"),
    ("dict", {"a": [0, 2, 0], "b": np.zeros((3, 2), np.float32)}, ValueError, r"\['a'\].*environment 1"),
    ("tuple", ([0, 0, 0],), ValueError, "tuple of 2"),
]


@pytest.mark.parametrize("build", BACKENDS)
@pytest.mark.parametrize(("name", "actions", "error", "text"), BAD)
def test_refused_before_anything_is_sent(build, name, actions, error, text):
    with build([lambda: EchoEnv(SPACES[name])] * 3) as envs:
        envs.reset()
        with pytest.raises(error, match=text):
            envs.step(actions)
        assert envs.call("seen") == ([], [], [])
        good = envs.action_space.sample()
        envs.step(good)
        assert [len(kept) for kept in envs.call("seen")] == [1, 1, 1]


@pytest.mark.parametrize("build", BACKENDS)
def test_box_values_are_the_envs_business(build):
    with build([lambda: EchoEnv(SPACES["box32"])] * 2) as envs:
        envs.reset()
        envs.step(np.full((2, 2), 7, np.float32))
        assert envs.call("seen")[1][0].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("build", BACKENDS)
def test_kept_actions_do_not_change(build):
    with build([lambda: EchoEnv(SPACES["box32"])] * 2) as envs:
        envs.reset()
        for value in (0.25, 0.5):
            envs.step(np.full((2, 2), value, np.float32))
        assert [float(action[0]) for action in envs.call("seen")[0]] == [0.25, 0.5]


@pytest.mark.parametrize("build", BACKENDS)
def test_steps_before_reset_are_the_envs_business(build):
    with (
        build([functools.partial(gym.make, "CartPole-v1")] * 2) as envs,
        pytest.raises(gym.error.ResetNeeded, match="environment 0"),
    ):
        envs.step([0, 0])
