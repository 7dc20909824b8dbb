"""The compiled back end as a vector env: actions, infos, memory, states, frame skip, what it refuses."""

from __future__ import annotations

import copy
import gc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vecenv
from vecenv import CompiledVecEnv, UnknownSetting, make_vec, true_next_obs
from vecenv.compiled_backend import supports
from vecenv.preprocess.wrappers import FrameSkip
from vecenv.testing import assert_same

MODES = ["NextStep", "SameStep", "Disabled"]


def cart_poles(num_envs=3, **arguments):
    envs = make_vec("CartPole-v1", num_envs, "compiled", **arguments)
    assert isinstance(envs, CompiledVecEnv)
    return envs


def fall(envs, most=60):
    """Push to the right until an episode ends; the results of that step."""
    actions = np.ones(envs.num_envs, np.int64)
    for _ in range(most):
        result = envs.step(actions)
        if (result[2] | result[3]).any():
            return result
    raise AssertionError("no episode ended")


# -- actions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "as_given", [np.array, list, lambda actions: np.array(actions, np.int32)], ids=["array", "list", "int32"]
)
def test_actions_out_of_range_change_nothing(mode, as_given):
    envs, other = cart_poles(autoreset_mode=mode), cart_poles(autoreset_mode=mode)
    envs.reset(seed=1)
    other.reset(seed=1)
    for wrong in (2, -1, -(2**31), 2**31 - 1):
        with pytest.raises(ValueError, match=r"environment 1 is not in Discrete\(2\)"):
            envs.step(as_given([0, wrong, 5]))
    for wrong in (-(2**63), 2**63 - 1):
        with pytest.raises(ValueError, match=r"environment 2 is not in Discrete\(2\)"):
            envs.step(np.array([0, 1, wrong]))
    assert_same(envs.step(as_given([1, 0, 1])), other.step(np.array([1, 0, 1])))
    assert_same(envs.episode_statistics().lengths, np.ones(3, np.int64))


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        ([0, 1], ValueError),
        ([0, 1, 1, 0], ValueError),
        (1, TypeError),
        (np.zeros(3), TypeError),
        (np.zeros((3, 1), np.int64), ValueError),
        (None, (TypeError, ValueError)),
        ("abc", (TypeError, ValueError)),
    ],
)
def test_actions_of_another_form(actions, error):
    envs = cart_poles()
    envs.reset(seed=0)
    with pytest.raises(error, match="actions"):
        envs.step(actions)
    assert not envs.episode_statistics().lengths.any()


@pytest.mark.parametrize("start", [-1, 3])
def test_actions_in_other_layouts(start):
    """Strided, read-only and narrow arrays, and ones of the other byte order, mean the same actions."""
    plain = cart_poles(4)
    plain.reset(seed=start + 5)
    actions = np.array([1, 0, 0, 1])
    wanted = plain.step(actions)
    frozen = actions.copy()
    frozen.flags.writeable = False
    for given_actions in (np.repeat(actions, 2)[::2], frozen, actions.astype(np.uint8), actions.astype(">i8")):
        envs = cart_poles(4)
        envs.reset(seed=start + 5)
        assert_same(envs.step(given_actions), wanted)


def test_ignored_actions_are_not_checked():
    envs = cart_poles()
    envs.reset(seed=0)
    ended = np.flatnonzero(fall(envs)[2])
    actions = np.zeros(3, np.int64)
    actions[ended[0]] = 77
    _, rewards, terminations, *_ = envs.step(actions)
    assert rewards[ended[0]] == 0
    assert not terminations[ended[0]]
    with pytest.raises(ValueError, match="not in"):
        envs.step(actions)


def test_float_actions():
    """Wider floats reach the env as they are; ints in arrays do not pass for floats, and nothing is range-checked.

    One number per env is an action of one number.
    """
    envs = make_vec("Pendulum-v1", 2, "compiled")
    rewards = []
    for actions in (np.array([[0.1], [99.0]]), np.array([[0.1], [99.0]], np.float32), [[0.1], [99.0]], [0.1, 99.0]):
        envs.reset(seed=0)
        rewards.append(envs.step(actions)[1])
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=1e-6)
    np.testing.assert_array_equal(rewards[0], rewards[2])
    np.testing.assert_array_equal(rewards[0], rewards[3])
    for wrong in (np.zeros(3, np.float32), np.zeros((2, 1), np.int64).astype(object), np.zeros((3, 1), np.float32)):
        with pytest.raises((TypeError, ValueError), match="actions"):
            envs.step(wrong)


# -- beside the sync back end -----------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 25)),
        st.tuples(st.just("mask"), st.lists(st.booleans(), min_size=3, max_size=3).filter(any)),
        st.tuples(st.just("seeds"), st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=3, max_size=3)),
        st.tuples(st.just("reset"), st.none()),
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODES), OPERATIONS, st.integers(0, 2**32), st.sampled_from(["copies", "views"]))
def test_any_course_is_that_of_sync(mode, operations, seed, copies):
    """Resets of all kinds between steps: flags, infos, statistics and starts are equal, the rest to 1e-4."""
    views = {"copy": False, "slots": 3} if copies == "views" else {}
    ours = make_vec("CartPole-v1", 3, "compiled", autoreset_mode=mode, statistics=True, max_episode_steps=23, **views)
    sync = make_vec("CartPole-v1", 3, "sync", autoreset_mode=mode, statistics=True, max_episode_steps=23)
    rng = np.random.default_rng(seed)
    assert_same(ours.reset(seed=seed), sync.reset(seed=seed))
    for what, argument in operations:
        if what == "steps":
            for _ in range(argument):
                actions = rng.integers(0, 2, 3)
                one, two = ours.step(actions), sync.step(actions)
                _compare(one, two)
                if mode == "Disabled" and (one[2] | one[3]).any():
                    _compare_resets(ours, sync, options={"reset_mask": one[2] | one[3]})
        elif what == "mask":
            _compare_resets(ours, sync, options={"reset_mask": np.array(argument)})
        else:
            _compare_resets(ours, sync, seed=argument)
        mine, its = ours.episode_statistics(), sync.episode_statistics()
        for name in ("returns", "lengths", "episode_counts", "last_returns", "last_lengths"):
            assert_same(getattr(mine, name), getattr(its, name), name)
    assert ours.np_random_seed == sync.np_random_seed


def _compare_resets(ours, sync, **arguments):
    one, two = ours.reset(**arguments), sync.reset(**arguments)
    np.testing.assert_allclose(one[0], two[0], atol=1e-4)
    assert one[1] == two[1] == {}


def _compare(one, two):
    np.testing.assert_allclose(one[0], two[0], atol=1e-4)
    for part in (1, 2, 3):
        assert_same(one[part], two[part])
    assert one[4].keys() == two[4].keys()
    for key in one[4]:
        if key.startswith("_"):
            assert_same(one[4][key], two[4][key], key)
    if "episode" in one[4]:
        assert_same(one[4]["episode"]["r"], two[4]["episode"]["r"])
        assert_same(one[4]["episode"]["l"], two[4]["episode"]["l"])
        assert ((one[4]["episode"]["t"] > 0) == one[4]["_episode"]).all()
    if "final_obs" in one[4]:
        for row, final in enumerate(two[4]["final_obs"]):
            np.testing.assert_allclose(one[4]["final_obs"][row], np.zeros(4) if final is None else final, atol=1e-4)


def test_same_step_infos():
    envs = cart_poles(5, autoreset_mode="SameStep", statistics=True)
    envs.reset(seed=2)
    observations, *_, infos = fall(envs)
    final, mask = infos["final_obs"], infos["_final_obs"]
    assert final.shape == (5, 4)
    assert final.dtype == np.float32
    assert mask.any()
    assert not mask.all()
    assert (np.abs(final[mask][:, 2]) > 0.2).all()
    assert not final[~mask].any()
    assert (np.abs(observations[mask]) <= 0.05).all()
    np.testing.assert_array_equal(true_next_obs(observations, infos, "SameStep")[mask], final[mask])
    assert not infos["episode"]["r"][~mask].any()
    assert not infos["episode"]["l"][~mask].any()
    kept = copy.deepcopy(infos)
    for _ in range(30):
        envs.step(np.ones(5, np.int64))
    assert_same(infos, kept)


def test_statistics_are_counted_always_and_reported_if_asked():
    envs = cart_poles(2)
    recorded = gym.wrappers.vector.RecordEpisodeStatistics(cart_poles(2))
    reported = cart_poles(2, statistics=True)
    for one in (envs, recorded, reported):
        one.reset(seed=0)
    for _ in range(100):
        actions = np.ones(2, np.int64)
        infos, theirs, mine = envs.step(actions)[4], recorded.step(actions)[4], reported.step(actions)[4]
        assert infos == {}
        assert ("episode" in theirs) == ("episode" in mine)
        if "episode" in mine:
            assert_same(mine["_episode"], theirs["_episode"])
            assert_same(mine["episode"]["r"], theirs["episode"]["r"])
            assert_same(mine["episode"]["l"].astype(int), theirs["episode"]["l"].astype(int))
    assert envs.episode_statistics().episode_counts.min() > 5


def test_wrappers_of_gymnasium_work_around():
    envs = gym.wrappers.vector.NormalizeObservation(gym.wrappers.vector.DictInfoToList(cart_poles(4)))
    envs.reset(seed=0)
    assert np.isfinite(envs.step(np.zeros(4, np.int64))[0]).all()


# -- memory -----------------------------------------------------------------------------------------------------------


def test_results_belong_to_the_caller():
    envs = cart_poles(64, statistics=True, autoreset_mode="SameStep")
    kept = [envs.reset(seed=0)]
    snapshots = [copy.deepcopy(kept[0])]
    for step in range(60):
        kept.append(envs.step(np.full(64, step % 2)))
        snapshots.append(copy.deepcopy(kept[-1]))
        if step % 7 == 0:
            del kept[1:3], snapshots[1:3]  # what is given back may be used again, what is kept may not
            gc.collect()
    assert_same(kept, snapshots)
    kept[-1][0][:] = 5  # nor does the caller reach the env through them
    kept[-1][2][:] = True
    assert np.abs(envs.step(np.zeros(64, np.int64))[0]).max() < 5


def test_the_ring_with_copies():
    """The newest observations can be had as views; asked for once, the ring is kept up from then on."""
    envs = cart_poles(2, slots=3)
    first, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(envs.observations, first)
    second = envs.step(np.array([0, 1]))[0]
    np.testing.assert_array_equal(envs.observations, second)
    np.testing.assert_array_equal(envs.observation_slots[envs.slot], second)
    kept = [second] + [envs.step(np.array([0, 1]))[0] for _ in range(2)]
    for back, observations in enumerate(reversed(kept)):
        np.testing.assert_array_equal(envs.observation_slots[(envs.slot - back) % 3], observations)


def test_views_of_the_ring_cost_no_copy():
    envs = cart_poles(2, copy=False, slots=2)
    observations, _ = envs.reset(seed=0)
    before = observations.copy()
    after = envs.step(np.array([0, 1]))[0]
    assert np.shares_memory(after, envs.observation_slots[envs.slot])
    np.testing.assert_array_equal(observations, before)
    envs.step(np.array([0, 1]))
    assert not np.array_equal(observations, before)


@pytest.mark.parametrize("copies", [True, False])
def test_out(copies):
    envs, other = cart_poles(3, copy=copies), cart_poles(3)
    out = np.zeros((3, 4), np.float32)
    strided = np.zeros((3, 8), np.float32)[:, ::2]
    assert envs.reset(seed=3, out=out)[0] is out
    np.testing.assert_array_equal(out, other.reset(seed=3)[0])
    for target in (out, strided):
        assert envs.step(np.array([0, 1, 0]), out=target)[0] is target
        np.testing.assert_array_equal(target, other.step(np.array([0, 1, 0]))[0])
        np.testing.assert_array_equal(envs.observations, target)
    for wrong in (np.zeros((2, 4), np.float32), np.zeros((3, 4))):
        with pytest.raises(ValueError, match="out"):
            envs.step(np.array([0, 1, 0]), out=wrong)
    assert envs.episode_statistics().lengths.tolist() == [2, 2, 2]


# -- seeds and states -------------------------------------------------------------------------------------------------


def test_seeds():
    envs, plain = cart_poles(seed=9), gym.make("CartPole-v1")
    np.testing.assert_array_equal(envs.reset()[0][2], plain.reset(seed=11)[0])
    np.testing.assert_array_equal(envs.reset()[0][2], plain.reset()[0])
    assert envs.np_random_seed == (9, 10, 11)
    np.testing.assert_array_equal(envs.np_random[2].random(3), plain.unwrapped.np_random.random(3))
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=-1)


def test_without_a_seed_every_env_gets_its_own():
    one, two = cart_poles(50), cart_poles(50)
    first = np.concatenate([one.reset()[0], two.reset()[0]])
    assert len(np.unique(first[:, 0])) == 100
    assert len({*one.np_random_seed, *two.np_random_seed}) == 100
    seeded = make_vec("CartPole-v1", 1, "sync")
    np.testing.assert_array_equal(seeded.reset(seed=one.np_random_seed[7])[0][0], first[7])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_states_continue_to_the_last_bit(env_id, mode):
    def follow(envs, steps):
        results = []
        for _ in range(steps):
            result = envs.step(rng.integers(0, 2, 3) if env_id == "CartPole-v1" else rng.uniform(-2, 2, (3, 1)))
            if "episode" in result[4]:
                result[4]["episode"].pop("t")
            results.append(result)
            ends = result[2] | result[3]
            if mode == "Disabled" and ends.any():
                results.append(envs.reset(options={"reset_mask": ends}))
        return results

    arguments = {"autoreset_mode": mode, "statistics": True, "max_episode_steps": 19}
    envs, other = (make_vec(env_id, 3, "compiled", **arguments) for _ in range(2))
    rng = np.random.default_rng(0)
    envs.reset(seed=4)
    follow(envs, 19)  # ends of episodes, whose resets are pending under NEXT_STEP
    states = envs.get_state()
    assert all(type(state) is bytes and len(state) < 400 for state in states)
    rng = np.random.default_rng(1)
    wanted = follow(envs, 60)
    other.set_state(states)  # never reset
    np.testing.assert_array_equal(other.get_attr("np_random_seed"), (4, 5, 6))
    rng = np.random.default_rng(1)
    assert_same(follow(other, 60), wanted)
    envs.set_state(states)
    rng = np.random.default_rng(1)
    assert_same(follow(envs, 60), wanted)


def test_states_that_do_not_fit():
    envs, pendulum = cart_poles(), make_vec("Pendulum-v1", 3, "compiled")
    envs.reset(seed=0)
    pendulum.reset(seed=0)
    good, before = envs.get_state(), envs.observations.copy()
    for wrong in ([good[0], b"", good[2]], [good[0], good[1][:-3], good[2]], [good[0], *pendulum.get_state()[1:]]):
        with pytest.raises(vecenv.EnvError, match="environment 1"):
            envs.set_state(wrong)
    with pytest.raises(ValueError, match="3 states"):
        envs.set_state(good[:2])
    np.testing.assert_array_equal(envs.observations, before)


# -- frame skip -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_frame_skip(env_id, mode):
    """As `FrameSkip` around the env: ends and the limit cut a step short, rewards add up, lengths count steps."""
    skip, limit = 3, 25
    options = {"autoreset_mode": mode, "statistics": True, "max_episode_steps": limit}
    ours = make_vec(env_id, 4, "compiled", backend_options={"frame_skip": skip}, **options)
    sync = make_vec(env_id, 4, "sync", wrappers=[lambda env: FrameSkip(env, skip, max_pool=False)], **options)
    np.testing.assert_array_equal(ours.reset(seed=5)[0], sync.reset(seed=5)[0])
    sync.action_space.seed(3)
    ends = 0
    for _ in range(120):
        actions = sync.action_space.sample()
        one, two = ours.step(actions), sync.step(actions)
        np.testing.assert_allclose(one[0], two[0], atol=1e-4)
        np.testing.assert_allclose(one[1], two[1], rtol=1e-5)
        assert_same(one[2:4], two[2:4])
        if "episode" in two[4]:
            ends += 1
            assert_same(one[4]["episode"]["l"], two[4]["episode"]["l"])
            np.testing.assert_allclose(one[4]["episode"]["r"], two[4]["episode"]["r"], rtol=1e-5)
        np.testing.assert_array_equal(ours.episode_statistics().lengths, sync.episode_statistics().lengths)
    assert ends > 5
    for wrong in (0, -1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="frame_skip"):
            make_vec(env_id, 4, "compiled", backend_options={"frame_skip": wrong})


# -- send and recv, order of calls, refusals --------------------------------------------------------------------------


def test_send_and_recv():
    envs, other = cart_poles(), cart_poles()
    with pytest.raises(NoAsyncCallError):
        envs.recv()
    envs.send_reset(seed=3)
    with pytest.raises(AlreadyPendingCallError):
        envs.reset()
    observations, rewards, terminations, truncations, infos = envs.recv()
    np.testing.assert_array_equal(observations, other.reset(seed=3)[0])
    assert not rewards.any()
    assert not terminations.any()
    assert not truncations.any()
    np.testing.assert_array_equal(infos["env_id"], np.arange(3))
    actions = np.array([0, 1, 1])
    envs.send(actions, [0, 1, 2])
    for call in (lambda: envs.step(actions), lambda: envs.send(actions), envs.reset, envs.get_state):
        with pytest.raises(AlreadyPendingCallError):
            call()
    out = np.zeros((3, 4), np.float32)
    assert envs.recv(out=out)[0] is out
    np.testing.assert_array_equal(out, other.step(actions)[0])
    with pytest.raises(NotImplementedError, match="all environments"):
        envs.send(actions[:2], [0, 1])
    with pytest.raises(NotImplementedError, match="all environments"):
        envs.send_reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(ValueError, match="not in"):
        envs.send(np.array([0, 1, 2]))
    assert_same(envs.step(actions), other.step(actions))


def test_step_needs_a_reset():
    envs = cart_poles()
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\]"):
        envs.step(np.zeros(3, np.int64))
    envs.reset(seed=0, options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        envs.step(np.zeros(3, np.int64))
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 2}, NotImplementedError, "batch_size"),
        ({"num_workers": 2}, NotImplementedError, "num_workers"),
        ({"wrappers": [lambda env: env]}, NotImplementedError, "wrappers"),
        ({"render_mode": "rgb_array"}, NotImplementedError, "render_mode"),
        ({"per_env_kwargs": [{}] * 3}, NotImplementedError, "per_env_kwargs"),
        ({"preprocess": "ale"}, UnknownSetting, "preprocess"),
        ({"gravity": 1.0}, UnknownSetting, "gravity.*max_episode_steps, sutton_barto_reward"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps"),
        ({"backend_options": {"threads": 2}}, UnknownSetting, "frame_skip"),
        ({"slots": 0}, ValueError, "slots"),
        ({"batch_size": 4}, ValueError, "batch_size"),
    ],
)
def test_refusals_of_make_vec(arguments, error, words):
    with pytest.raises(error, match=words):
        make_vec("CartPole-v1", 3, "compiled", **arguments)


def test_ids():
    assert supports("CartPole-v1")
    assert supports("gymnasium:Pendulum-v1")
    assert not supports("LunarLander-v3")
    assert make_vec(gym.spec("CartPole-v1"), 1, "compiled").spec.id == "CartPole-v1"
    short = copy.deepcopy(gym.spec("CartPole-v1"))  # the registry's own otherwise
    short.max_episode_steps = 3
    envs = make_vec(short, 1, "compiled")
    envs.reset(seed=0)
    assert [bool(envs.step(np.array([step % 2]))[3][0]) for step in range(3)] == [False, False, True]
    assert make_vec("gymnasium:CartPole-v1", 1, "compiled").num_envs == 1
    assert make_vec("CartPole-v0", 1, "compiled").num_envs == 1
    with pytest.raises(UnknownSetting, match=r"LunarLander-v3.*Acrobot-v1, CartPole-v0"):
        make_vec("LunarLander-v3", 1, "compiled")
    with pytest.raises(NotImplementedError, match="register_compiled_env"):
        make_vec(lambda: gym.make("CartPole-v1"), 1, "compiled")


def test_an_id_that_was_registered_anew(monkeypatch):
    """Gymnasium's id with another env behind it is not the env that was compiled."""
    spec = copy.deepcopy(gym.spec("MountainCar-v0"))
    spec.entry_point = "somewhere:Else"
    monkeypatch.setitem(gym.registry, "MountainCar-v0", spec)
    assert not supports("MountainCar-v0")
    with pytest.raises(UnknownSetting, match="somewhere:Else"):
        make_vec("MountainCar-v0", 1, "compiled")


def test_attributes():
    envs = cart_poles(2)
    envs.reset(seed=0)
    assert envs.get_attr("gravity") == (9.8, 9.8)
    np.testing.assert_allclose(np.array(envs.get_attr("state")), envs.observations, atol=1e-7)
    envs.get_attr("state")[0][:] = 7  # a copy
    assert np.abs(envs.observations).max() < 1
    envs.set_attr("state", ([0.5, 0, 0, 0], [1.5, 0, 0, 0]))
    np.testing.assert_array_equal(envs.observations[:, 0], np.array([0.5, 1.5], np.float32))
    for call, error in (
        (lambda: envs.get_attr("nowhere"), AttributeError),
        (lambda: envs.set_attr("gravity", 3), NotImplementedError),
        (lambda: envs.set_attr("state", [[0, 0, 0, 0]]), ValueError),
        (lambda: envs.set_attr("state", [[0, 0], [0, 0]]), ValueError),
        (envs.render, NotImplementedError),
        (lambda: envs.call("step"), ValueError),
        (lambda: copy.deepcopy(envs), TypeError),
    ):
        with pytest.raises(error):
            call()
    envs.close()
    for call in (envs.render, envs.get_state, lambda: envs.get_attr("state"), lambda: envs.send([0, 0]), envs.recv):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize("num_envs", [2048, 2051])
def test_large_batches_are_rows_of_small_ones(num_envs):
    """Whatever lies between the numbers of an env in memory: results, attributes and saved states do not show it."""
    large = vecenv.make_vec("CartPole-v1", num_envs, "compiled")
    seeds = list(range(num_envs))
    ends = slice(num_envs - 5, num_envs)
    small = vecenv.make_vec("CartPole-v1", 5, "compiled")
    np.testing.assert_array_equal(large.reset(seed=seeds)[0][ends], small.reset(seed=seeds[ends])[0])
    actions = np.random.default_rng(0).integers(0, 2, (40, num_envs))
    for row in actions[:30]:
        for ours, theirs in zip(large.step(row)[:4], small.step(row[ends])[:4], strict=True):
            np.testing.assert_array_equal(ours[ends], theirs)
    saved, states = large.get_state(), large.get_attr("state")
    np.testing.assert_array_equal(states[ends], small.get_attr("state"))
    following = [large.step(row)[0].copy() for row in actions[30:]]
    large.set_state(saved)
    large.set_attr("state", list(states))
    np.testing.assert_array_equal([large.step(row)[0].copy() for row in actions[30:]], following)
    large.close()
    small.close()
