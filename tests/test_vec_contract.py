"""The contract of the vector env on every back end, compared with Gymnasium's own vector envs where they are right."""

from __future__ import annotations

import copy
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenv import SubprocVecEnv, SyncVecEnv, true_next_obs
from vecenv.testing import CountEnv, assert_same

BACKENDS = {
    "sync": SyncVecEnv,
    "subproc": functools.partial(SubprocVecEnv, num_workers=2),
    "subproc-one-each": functools.partial(SubprocVecEnv, num_workers=99),
}


@pytest.fixture(params=BACKENDS)
def make(request):
    """A constructor of vector envs that closes what it made."""
    made = []

    def build(env_fns, **settings):
        envs = BACKENDS[request.param](env_fns, **settings)
        made.append(envs)
        return envs

    yield build
    for envs in made:
        envs.close()


def count_fns(count=3, **settings):
    return [functools.partial(CountEnv, uid=uid, length=3 + uid, **settings) for uid in range(count)]


class NestedEnv(gym.Env):
    """Nested Dict/Tuple observations and actions, keys returned in another order than the space's."""

    def __init__(self):
        self.observation_space = gym.spaces.Dict(
            {
                "picture": gym.spaces.Box(0, 255, (2, 3), np.uint8),
                "pair": gym.spaces.Tuple((gym.spaces.Discrete(5, start=-2), gym.spaces.MultiBinary(4))),
                "many": gym.spaces.MultiDiscrete([3, 4]),
            }
        )
        self.action_space = gym.spaces.Dict(
            {"move": gym.spaces.Discrete(3), "force": gym.spaces.Box(-1, 1, (2,), np.float32)}
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self._reversed(), {}

    def _reversed(self):
        return dict(reversed(list(self.observation_space.sample().items())))

    def step(self, action):
        assert isinstance(action, dict)
        return self._reversed(), float(action["move"]) + float(action["force"].sum()), False, False, {}


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "CliffWalking-v1"])
def test_equals_gymnasium(make, mode, env_id):
    """Observations, rewards, flags and infos are Gymnasium's, value for value and dtype for dtype."""
    fns = [functools.partial(gym.make, env_id, max_episode_steps=20)] * 3
    ours, theirs = make(fns, autoreset_mode=mode), SyncVectorEnv(fns, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    theirs.action_space.seed(0)
    for step in range(60):
        actions = theirs.action_space.sample()
        one, two = ours.step(actions), theirs.step(actions)
        narrow_as_gymnasium(one[4], two[4])
        for row, final in enumerate(two[4].get("final_obs", ())):
            if final is not None:  # theirs is what the env returned, ours is of the space's dtype
                two[4]["final_obs"][row] = np.asarray(final, theirs.single_observation_space.dtype)[()]
        assert_same(one, two, f"step {step}")


def narrow_as_gymnasium(ours, theirs):
    """Where envs report an int and a float in one step, Gymnasium cuts the float to an int; we keep it."""
    for key, value in theirs.items():
        if isinstance(value, dict):
            narrow_as_gymnasium(ours[key], value)
        elif value.dtype == np.int64 and ours[key].dtype == np.float64:
            assert (ours[key] != ours[key].astype(int)).any()
            ours[key] = ours[key].astype(np.int64)


def test_nested_spaces_equal_gymnasium(make):
    fns = [NestedEnv] * 3
    ours, theirs = make(fns), SyncVectorEnv(fns)
    result = ours.reset(seed=1)
    assert_same(result, theirs.reset(seed=1))
    assert result[0] in ours.observation_space
    for _ in range(10):
        actions = theirs.action_space.sample()
        assert_same(ours.step(actions), theirs.step(actions))


@pytest.mark.parametrize("copy_mode", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_results_stay_as_they_were(make, mode, copy_mode):
    """Nothing that was returned changes later; with copy=False observations last while `slots - 1` calls follow."""
    slots = 12
    envs = make(count_fns(), autoreset_mode=mode, copy=copy_mode, slots=slots, statistics=True)
    kept = [envs.reset()]
    snapshots = [copy.deepcopy(kept[0])]
    for _ in range(slots - 1):
        kept.append(envs.step([0, 1, 0]))
        snapshots.append(copy.deepcopy(kept[-1]))
    for one, two in zip(kept, snapshots, strict=True):
        assert_same(one, two)


def test_views_of_the_ring(make):
    envs = make(count_fns(), copy=False, slots=3)
    observations, _ = envs.reset()
    assert envs.observation_slots.shape == (3, 3, 3)
    for _ in range(5):
        assert np.shares_memory(observations, envs.observation_slots[envs.slot])
        np.testing.assert_array_equal(observations, envs.observation_slots[envs.slot])
        before = envs.slot
        observations, *_ = envs.step([0, 0, 0])
        assert envs.slot == (before + 1) % 3


def test_views_last_for_one_call_less_than_there_are_slots_and_until_a_row_is_sent_alone(make):
    envs = make([functools.partial(CountEnv, uid=uid, length=99) for uid in range(3)], copy=False, slots=3)
    observations, _ = envs.reset()
    for _ in range(2):
        envs.step([0, 0, 0])
        assert observations[:, 2].tolist() == [0, 0, 0]
    envs.step([0, 0, 0])
    assert observations[:, 2].tolist() == [3, 3, 3]
    envs.batch_size = 1
    envs.send([0], [1])
    received = envs.recv(timeout=30)[0]
    assert observations[:, 2].tolist() == [3, 4, 3]  # the newest slot
    assert received.tolist() == [[1, 0, 4]]
    assert not np.shares_memory(received, envs.observation_slots)


@pytest.mark.parametrize("reuses", [False, True])
def test_same_step_keeps_the_end_of_the_episode(make, reuses):
    """final_obs and final_info hold the episode's end even where an env reuses its array and dict."""
    envs = make(count_fns(2, reuses=reuses), autoreset_mode="SameStep", statistics=True)
    envs.reset()
    for _ in range(3):
        observations, _rewards, terminations, _truncations, infos = envs.step([0, 0])
    np.testing.assert_array_equal(terminations, [True, False])
    np.testing.assert_array_equal(observations, [[0, 1, 0], [1, 0, 3]])
    np.testing.assert_array_equal(infos["_final_obs"], [True, False])
    np.testing.assert_array_equal(infos["final_obs"][0], [0, 0, 3])
    assert infos["final_obs"][1] is None
    np.testing.assert_array_equal(infos["final_info"]["time"], [3, 0])
    np.testing.assert_array_equal(infos["time"], [0, 3])
    np.testing.assert_array_equal(infos["episode"]["r"], [6.0, 0.0])
    np.testing.assert_array_equal(infos["episode"]["l"], [3, 0])
    np.testing.assert_array_equal(infos["_episode"], [True, False])
    np.testing.assert_array_equal(true_next_obs(observations, infos, "SameStep"), [[0, 0, 3], [1, 0, 3]])


def test_next_step_ignores_the_action_after_an_end(make):
    envs = make(count_fns(2), statistics=True)
    envs.reset()
    for _ in range(3):
        observations, rewards, terminations, *_ = envs.step([0, 0])
    np.testing.assert_array_equal(observations[0], [0, 0, 3])
    np.testing.assert_array_equal(terminations, [True, False])
    # the ignored action is not even range-checked
    observations, rewards, terminations, _truncations, _infos = envs.step([77, 0])
    np.testing.assert_array_equal(observations[0], [0, 1, 0])
    np.testing.assert_array_equal(rewards, [0.0, 4.0])
    np.testing.assert_array_equal(terminations, [False, True])
    statistics = envs.episode_statistics()
    np.testing.assert_array_equal(statistics.lengths, [0, 0])
    np.testing.assert_array_equal(statistics.episode_counts, [1, 1])
    np.testing.assert_array_equal(statistics.last_returns, [6.0, 10.0])
    np.testing.assert_array_equal(statistics.last_lengths, [3, 4])


def test_statistics_are_counted_but_not_reported_by_default(make):
    envs = make(count_fns(2))
    envs.reset()
    for _ in range(4):
        infos = envs.step([0, 0])[4]
        assert "episode" not in infos
    assert envs.episode_statistics().episode_counts.sum() == 2


def test_recorder_of_gymnasium_works_around(make):
    fns = [functools.partial(gym.make, "CartPole-v1")] * 2
    ours = gym.wrappers.vector.RecordEpisodeStatistics(make(fns))
    counted = make(fns, statistics=True)
    ours.reset(seed=0)
    counted.reset(seed=0)
    ended = 0
    for step in range(200):
        actions = [step % 2, (step // 2) % 2]
        one, two = ours.step(actions)[4], counted.step(actions)[4]
        if "episode" in one:
            ended += 1
            mask = one["_episode"]
            np.testing.assert_array_equal(mask, two["_episode"])
            np.testing.assert_allclose(one["episode"]["r"][mask], two["episode"]["r"][mask])
            np.testing.assert_array_equal(one["episode"]["l"][mask], two["episode"]["l"][mask])
    assert ended > 3


def test_disabled_needs_resets_by_mask(make):
    envs = make(count_fns(2), autoreset_mode="Disabled")
    envs.reset()
    for _ in range(3):
        observations, _, terminations, truncations, _ = envs.step([0, 0])
    with pytest.raises(gym.error.ResetNeeded, match=r"\[0\]"):
        envs.step([0, 0])
    options = {"reset_mask": terminations | truncations, "level": 2}
    before = copy.deepcopy(options)
    observations, infos = envs.reset(options=options)
    assert_same(options, before)
    np.testing.assert_array_equal(observations, [[0, 1, 0], [1, 0, 3]])
    np.testing.assert_array_equal(infos["_time"], [True, False])
    assert infos["options"][0] == "{'level': 2}"
    np.testing.assert_array_equal(envs.episode_statistics().lengths, [0, 3])
    observations, *_ = envs.step([0, 0])
    np.testing.assert_array_equal(observations, [[0, 1, 1], [1, 0, 4]])


def test_masked_reset_twice_with_one_dict(make):
    envs = make(count_fns(2))
    envs.reset(seed=1)
    envs.step([0, 0])
    options = {"reset_mask": np.array([True, False])}
    for episode in (1, 2):
        observations, _ = envs.reset(options=options)
        np.testing.assert_array_equal(observations, [[0, episode, 0], [1, 0, 1]])
    np.testing.assert_array_equal(envs.episode_statistics().returns, [0.0, 1.0])


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_bad_reset_masks(make, mask, error):
    envs = make(count_fns(2))
    envs.reset()
    with pytest.raises(error, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
    observations, *_ = envs.step([0, 0])
    np.testing.assert_array_equal(observations, [[0, 0, 1], [1, 0, 1]])


def test_seeds(make):
    fns = [functools.partial(gym.make, "CartPole-v1")] * 3
    envs, again = make(fns), make(fns, seed=5)
    first, _ = envs.reset(seed=5)
    assert len(np.unique(first[:, 0])) == 3
    np.testing.assert_array_equal(first, again.reset()[0])
    assert not np.array_equal(again.reset()[0], first), "the seed of the constructor is for the first reset only"
    np.testing.assert_array_equal(envs.reset(seed=np.int64(5))[0], first)
    np.testing.assert_array_equal(envs.reset(seed=[5, 6, 7])[0], first)
    np.testing.assert_array_equal(envs.reset(seed=np.array([5, 6, 7]))[0], first)
    pair, _ = envs.reset(seed=[5, None, 5])
    np.testing.assert_array_equal(pair[0], pair[2])
    second, _ = envs.reset()
    assert not np.array_equal(second, first)


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        ([1, 2], ValueError),
        ("12", TypeError),
        (1.5, TypeError),
        (True, TypeError),
        (-1, ValueError),
        ([1, 2, "3"], TypeError),
    ],
)
def test_bad_seeds(make, seed, error):
    envs = make(count_fns(3))
    with pytest.raises(error, match="seed"):
        envs.reset(seed=seed)


class InfoEnv(CountEnv):
    """Infos of many kinds, some in some steps only."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        t, uid = self.time, self.uid
        info["number"] = t if (t + uid) % 2 else float(t)
        info["flag"] = bool(t % 2)
        info["array"] = np.arange(2) + t
        info["text"] = f"step {t}"
        info["numpy"] = np.float32(t)
        info["deep"] = {"inner": t, "text": "x"}
        if (t + uid) % 3 == 0:
            info["some"] = t
            info["huge"] = 2**70
        if t == 2:
            info["shape"] = np.zeros(uid + 1)
        return observation, reward, terminated, truncated, info


def test_infos_are_the_same_on_every_back_end(make):
    fns = [functools.partial(InfoEnv, uid=uid, length=6 + uid) for uid in range(4)]
    ours, reference = make(fns), SyncVecEnv(fns)
    assert_same(ours.reset(), reference.reset())
    for step in range(20):
        one, two = ours.step([0] * 4), reference.step([0] * 4)
        assert_same(one, two, f"step {step}")
    assert one[4]["number"].dtype == np.float64
    assert one[4]["flag"].dtype == np.bool_
    assert one[4]["array"].shape == (4, 2)
    reference.close()


def test_known_infos_send_no_messages():
    """Numbers, bools and arrays of a fixed shape travel in the shared block after the first steps."""
    fns = [functools.partial(CountEnv, uid=uid, length=50) for uid in range(4)]
    with SubprocVecEnv(fns, num_workers=2) as envs:
        envs.reset()
        for _ in range(3):
            envs.step([0] * 4)
        counts = []
        for _ in range(40):
            infos = envs.step([0] * 4)[4]
            counts.append(int(envs._control.message_counts.sum()))
            assert infos["_time"].all()
        assert sum(counts) == 0
        np.testing.assert_array_equal(infos["time"], [43] * 4)


class AttributeWrapper(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.outer = 1


def test_attributes_reach_the_env_through_wrappers(make):
    fns = [lambda uid=uid: AttributeWrapper(CountEnv(uid, length=9)) for uid in range(2)]
    envs = make(fns)
    envs.reset()
    assert envs.get_attr("length") == (9, 9)
    assert envs.get_attr("outer") == (1, 1)
    envs.set_attr("length", [1, 5])
    np.testing.assert_array_equal(envs.step([0, 0])[2], [True, False])
    envs.set_attr("length", 2)
    assert envs.get_attr("length") == (2, 2)
    assert envs.call("has_wrapper_attr", "length") == (True, True)
    with pytest.raises(ValueError, match="`3` values for 2 environments"):
        envs.set_attr("length", [1, 2, 3])
    with pytest.raises(AttributeError, match="nowhere"):
        envs.get_attr("nowhere")
    with pytest.raises(ValueError, match="step"):
        envs.call("step", 0)
    envs.reset()


def test_closing(make):
    envs = make(count_fns(2))
    envs.reset()
    envs.close()
    envs.close()
    for call in (lambda: envs.step([0, 0]), envs.reset, lambda: envs.call("render"), lambda: envs.set_attr("x", 1)):
        with pytest.raises(gym.error.ClosedEnvironmentError):
            call()


def test_context_manager(make):
    with make(count_fns(2)) as envs:
        envs.reset()
        assert len(envs) == 2
    assert envs.closed


def test_metadata_belongs_to_the_instance(make):
    one = make(count_fns(1), autoreset_mode="NextStep")
    two = make(count_fns(1), autoreset_mode="SameStep")
    assert one.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert two.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in CountEnv.metadata


class OneRewardEnv(CountEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


def test_rewards_of_one_element(make):
    envs = make([functools.partial(OneRewardEnv, uid=uid, length=2 + uid) for uid in range(2)])
    envs.reset()
    rewards = [envs.step([0, 0])[1] for _ in range(5)]
    np.testing.assert_array_equal(rewards, [[1, 1], [2, 2], [0, 3], [1, 0], [2, 1]])


def test_different_spaces_are_refused():
    def wide():
        env = CountEnv()
        env.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        return env

    for build in BACKENDS.values():
        with pytest.raises(RuntimeError, match=r"environments [01] and 2 differ"):
            build([CountEnv, CountEnv, wide])


def test_wrong_observations_name_the_env(make):
    class Wrong(CountEnv):
        def step(self, action):
            return np.zeros(1, np.float32), *super().step(action)[1:]

    envs = make([CountEnv, Wrong])
    envs.reset()
    with pytest.raises(ValueError, match=r"environment 1 .*expected shape \(3,\), got \(1,\)"):
        envs.step([0, 0])
