"""Compiled classic control beside Gymnasium's own envs: start states to the last bit, steps within 1e-6, same ends."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vecenv
from vecenv.classic_control import CartPoleParameters
from vecenv.pcg64 import generator_of_row, row_of_generator, row_of_seed, seed_rows, seed_words, uniform
from vecenv.sine_cosine import sine_cosine

ENVS = {
    "CartPole-v1": 500,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
    "Pendulum-v1": 200,
    "Acrobot-v1": 500,
}
#: How far off a threshold must be for the flag to be compared.
CLEAR = 1e-6


def random_states(env_id: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """States all over the space, the ends included, in the dtype that the env itself keeps them in."""
    if env_id.startswith("CartPole"):
        spread = np.array([2.45, 3.0, 0.215, 3.0])
        return rng.uniform(-spread, spread, (count, 4))
    if env_id == "Acrobot-v1":
        spread = np.array([np.pi, np.pi, 4 * np.pi, 9 * np.pi])
        return rng.uniform(-spread, spread, (count, 4))
    if env_id == "Pendulum-v1":
        states = rng.uniform([-np.pi, -8], [np.pi, 8], (count, 2))
        states[::3, 0] *= 30  # angles are not brought back into one turn
        return states
    states = rng.uniform([-1.2, -0.07], [0.6, 0.07], (count, 2))
    states[::5, 0] = -1.2
    states[1::5, 0] = rng.uniform(0.4, 0.6, len(states[1::5]))
    return states.astype(np.float32).astype(np.float64) if "Continuous" in env_id else states


def random_actions(space, count: int, rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(0, space.n, count)
    return (rng.uniform(-1.5, 1.5, (count, 1)) * space.high).astype(np.float32)  # beyond the bounds, too


def near_a_threshold(env_id: str, state: np.ndarray) -> bool:
    if env_id.startswith("CartPole"):
        return abs(abs(state[0]) - 2.4) < CLEAR or abs(abs(state[2]) - 12 * 2 * np.pi / 360) < CLEAR
    if env_id == "Acrobot-v1":
        return abs(-np.cos(state[0]) - np.cos(state[0] + state[1]) - 1.0) < CLEAR
    if env_id == "Pendulum-v1":
        return False
    goal = 0.45 if "Continuous" in env_id else 0.5
    return abs(state[0] - goal) < CLEAR or abs(state[1]) < CLEAR


@pytest.mark.parametrize("env_id", ENVS)
def test_a_step_from_anywhere(env_id):
    """The same state and action give Gymnasium's next state, observation, reward and end."""
    count = 1500
    rng = np.random.default_rng(sum(map(ord, env_id)))
    envs = vecenv.make_vec(env_id, count, "compiled", autoreset_mode="Disabled")
    plain = gym.make(env_id).unwrapped
    envs.reset(seed=0)
    states, actions = random_states(env_id, count, rng), random_actions(envs.single_action_space, count, rng)
    envs.set_attr("state", list(states))
    observations, rewards, terminations, _, _ = envs.step(actions)
    plain.reset(seed=0)
    after = envs.get_attr("state")
    ends = 0
    for row in range(count):
        plain.state = states[row].astype(np.float32) if "Continuous" in env_id else states[row].copy()
        plain.steps_beyond_terminated = None  # CartPole pays only for the first step beyond
        observation, reward, terminated, _, _ = plain.step(actions[row])
        np.testing.assert_allclose(after[row], plain.state, rtol=1e-6, atol=1e-6, err_msg=f"row {row}")
        np.testing.assert_allclose(observations[row], observation, rtol=1e-6, atol=1e-6, err_msg=f"row {row}")
        if not near_a_threshold(env_id, np.asarray(plain.state)):
            assert terminations[row] == terminated, row
            assert abs(rewards[row] - reward) < 1e-6 * max(1.0, abs(reward)), row
            ends += terminated
    assert ends > 10 or env_id == "Pendulum-v1"
    envs.close()


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_start_states_are_gymnasiums(env_id, mode):
    """In resets and in every autoreset, bit for bit; and so are rewards, flags, lengths of whole runs."""
    num_envs, steps = 6, 450
    ours = vecenv.make_vec(env_id, num_envs, "compiled", autoreset_mode=mode, max_episode_steps=57)
    theirs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id, max_episode_steps=57)] * num_envs, autoreset_mode=mode)
    seeds = [3, 2**32 + 1, 2**64 + 5, 0, 2**140, 77]
    np.testing.assert_array_equal(ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0])
    theirs.action_space.seed(1)
    starts = 0
    before = np.zeros(num_envs, np.bool_)
    for step in range(steps):
        actions = theirs.action_space.sample()
        one, two = ours.step(actions), theirs.step(actions)
        for part in (2, 3):
            np.testing.assert_array_equal(one[part], two[part], err_msg=f"step {step}")
        np.testing.assert_allclose(one[1], two[1], rtol=1e-5, atol=1e-5)
        ended = one[2] | one[3]
        started = ended if mode == "SameStep" else before
        np.testing.assert_array_equal(one[0][started], two[0][started], err_msg=f"start in step {step}")
        np.testing.assert_allclose(one[0], two[0], rtol=1e-3, atol=1e-3)
        starts += int(started.sum())
        before = ended
    assert starts >= 6 * num_envs
    for mine, its in zip(ours.np_random, theirs.np_random, strict=True):
        assert mine.bit_generator.state == its.bit_generator.state
    assert ours.np_random_seed == theirs.np_random_seed
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("env_id", "limit"), ENVS.items())
def test_time_limits(env_id, limit):
    """Each env is truncated at its own limit, and an episode that goes on terminates nowhere before."""
    envs = vecenv.make_vec(env_id, 2, "compiled", autoreset_mode="Disabled")
    envs.reset(seed=0)
    rest = [state.copy() for state in envs.get_attr("state")]
    still = np.zeros((2, 1), np.float32) if envs.single_action_space.shape else np.ones(2, np.int64)
    for step in range(1, limit + 1):
        envs.set_attr("state", rest)  # never anywhere near an end
        _, _, terminations, truncations, _ = envs.step(still)
        assert not terminations.any()
        assert truncations.tolist() == [step == limit] * 2, step
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(still)


def test_terminated_and_truncated_in_one_step():
    envs = vecenv.make_vec("CartPole-v1", 2, "compiled", max_episode_steps=1)
    envs.reset(seed=0)
    envs.set_attr("state", [[2.5, 0, 0, 0], [0, 0, 0, 0]])
    _, _, terminations, truncations, _ = envs.step(np.array([0, 1]))
    assert terminations.tolist() == [True, False]
    assert truncations.tolist() == [True, True]


def test_no_limit():
    envs = vecenv.make_vec("Pendulum-v1", 1, "compiled", max_episode_steps=-1)
    envs.reset(seed=0)
    assert not any(envs.step(np.zeros((1, 1), np.float32))[3][0] for _ in range(1200))


@pytest.mark.parametrize(
    ("env_id", "keyword", "value", "actions"),
    [
        ("CartPole-v1", "sutton_barto_reward", True, np.array([1])),
        ("Pendulum-v1", "g", 9.81, np.array([[0.5]], np.float32)),
        ("MountainCar-v0", "goal_velocity", 0.06, np.array([2])),
        ("MountainCarContinuous-v0", "goal_velocity", 0.06, np.array([[1.0]], np.float32)),
    ],
)
def test_keywords_of_the_envs(env_id, keyword, value, actions):
    envs = vecenv.make_vec(env_id, 1, "compiled", **{keyword: value})
    plain = gym.make(env_id, **{keyword: value})
    envs.reset(seed=4)
    plain.reset(seed=4)
    if env_id.startswith("MountainCar"):
        for start, ends in ((0.05, False), (0.065, True)):
            envs.reset(seed=4)
            envs.set_attr("state", [[0.48, start]])
            assert bool(envs.step(actions)[2][0]) is ends
        return
    for _ in range(30):
        one, two = envs.step(actions), plain.step(actions[0])
        np.testing.assert_allclose(one[0][0], two[0], rtol=1e-5, atol=1e-6)
        assert one[1][0] == pytest.approx(two[1], rel=1e-6)
        assert one[2][0] == two[2]
        if two[2]:
            break


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {"low": -0.2, "high": 0.1}),
        ("MountainCar-v0", {"low": -0.9}),
        ("MountainCarContinuous-v0", {"high": -0.3, "unknown": 1}),
        ("Pendulum-v1", {"x_init": 0.5, "y_init": 2}),
        ("Acrobot-v1", {"low": -1.0, "high": 1.0}),
    ],
)
def test_options_of_reset(env_id, options):
    envs, plain = vecenv.make_vec(env_id, 3, "compiled"), gym.make(env_id)
    observations, _ = envs.reset(seed=8, options=options)
    for row in range(3):
        np.testing.assert_array_equal(observations[row], plain.reset(seed=8 + row, options=options)[0])
    again, _ = envs.reset(seed=8)  # options are for one reset
    np.testing.assert_array_equal(again[0], plain.reset(seed=8)[0])
    if env_id == "Pendulum-v1":
        wrong = [{"x_init": value} for value in ("far", math.nan, math.inf, -1.0)]
    else:
        wrong = [{"low": 1.0, "high": -1.0}, {"low": math.nan}, {"high": math.inf}]
    for options in wrong:
        with pytest.raises(ValueError, match="options"):
            envs.reset(options=options)


# -- what the envs are made of ----------------------------------------------------------------------------------------

SEEDS = st.one_of(st.integers(0, 2**32 + 10), st.integers(0, 2**128 - 1))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SEEDS, min_size=1, max_size=5), st.floats(-1e3, 1e3), st.floats(0, 1e3))
def test_generators_are_numpys(seeds, low, width):
    generators = np.zeros((len(seeds), 4), np.uint64)
    seed_rows(seed_words(seeds), np.arange(len(seeds)), generators)
    for row, seed in enumerate(seeds):
        plain = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        np.testing.assert_array_equal(generators[row], row_of_generator(plain))
        np.testing.assert_array_equal(generators[row], row_of_seed(seed))
        for _ in range(3):
            assert uniform(generators, row, low, low + width) == plain.uniform(low, low + width)
        assert generator_of_row(generators[row]).bit_generator.state == plain.bit_generator.state


def test_other_generators_are_refused():
    with pytest.raises(TypeError, match="MT19937"):
        row_of_generator(np.random.Generator(np.random.MT19937(0)))


@settings(max_examples=500, deadline=None)
@given(st.floats(-1e5, 1e5))
def test_sine_and_cosine(angle):
    sine, cosine = sine_cosine(angle)
    assert abs(sine - np.sin(angle)) < 1e-15
    assert abs(cosine - np.cos(angle)) < 1e-15


def test_sine_and_cosine_at_quarter_turns():
    for quarter in range(-9, 10):
        for nudge in (-1e-9, 0.0, 1e-9):
            angle = quarter * np.pi / 2 + nudge
            for near in (angle, np.nextafter(angle, 99.0), quarter * np.pi / 4 + nudge):
                sine, cosine = sine_cosine(near)
                assert abs(sine - np.sin(near)) < 1e-15
                assert abs(cosine - np.cos(near)) < 1e-15


def test_parameters_are_gymnasiums():
    plain = gym.make("CartPole-v1").unwrapped
    for name, value in CartPoleParameters()._asdict().items():
        if name != "sutton_barto_reward":
            assert value == getattr(plain, name), name


@pytest.mark.parametrize("env_id", ENVS)
def test_spaces_and_spec_are_gymnasiums(env_id):
    envs, plain = vecenv.make_vec(env_id, 2, "compiled"), gym.make(env_id)
    assert envs.single_observation_space == plain.observation_space
    assert envs.single_action_space == plain.action_space
    assert envs.spec.id == env_id


def test_upright_poles_move_alike_whether_or_not_one_hangs_down():
    """While all are upright a shorter way to their sines is taken, with the same bits."""
    upright, mixed = (vecenv.make_vec("CartPole-v1", 65, "compiled") for _ in range(2))
    actions = np.random.default_rng(0).integers(0, 2, (60, 65))
    upright.reset(seed=3)
    mixed.reset(seed=3)
    for batch in actions:
        states = np.stack(mixed.get_attr("state"))
        states[64, 2] = 3.0
        mixed.set_attr("state", list(states))
        for one, other in zip(upright.step(batch)[:4], mixed.step(batch)[:4], strict=True):
            np.testing.assert_array_equal(one[:64], other[:64])
    assert upright.episode_statistics().episode_counts[:64].sum() > 64
