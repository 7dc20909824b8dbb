"""Random envs, episodes, masks, seeds and batch sizes: sync equals subproc equals a plain reference."""

from __future__ import annotations

import copy
import functools

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vecenv import SubprocVecEnv, SyncVecEnv
from vecenv.testing import EchoEnv, assert_same

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
BACKENDS = (SyncVecEnv, functools.partial(SubprocVecEnv, num_workers=2))


def some(count):
    """Bounded, and the same every time: an example builds worker processes."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# -- what is drawn ----------------------------------------------------------------------------------------------------

DTYPES = [np.uint8, np.int8, np.int16, np.int64, np.uint32, np.float16, np.float32, np.float64, np.bool_]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def box(shape, dtype):
    low = -2 if np.dtype(dtype).kind in "if" else 0
    return spaces.Box(low, 1 if dtype is np.bool_ else 5, shape, dtype)


FLAT = st.one_of(
    st.builds(box, SHAPES, st.sampled_from(DTYPES)),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
)
LOOSE = st.one_of(
    st.builds(spaces.Text, st.integers(1, 4)),
    st.builds(lambda n: spaces.Sequence(spaces.Discrete(n)), st.integers(1, 4)),
    st.builds(lambda n: spaces.OneOf((spaces.Discrete(n), spaces.Box(0, 1, (2,)))), st.integers(1, 4)),
)
KEYS = st.text("ab._", min_size=1, max_size=2)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=5,
    )


SPACES = st.one_of(nested(FLAT), nested(st.one_of(FLAT, LOOSE)))
ENDS = ((True, False), (False, True), (True, True))
SCRIPTS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(ENDS)), min_size=1, max_size=3)
SEEDS = st.integers(0, 2**40)


class ScriptedEnv(gym.Env):
    """Draws observations and rewards from its generator; lengths and ends of its episodes stand in a script."""

    def __init__(self, space, script):
        self.observation_space = copy.deepcopy(space)  # no two envs draw from one generator
        self.action_space = spaces.Discrete(3)
        self.script, self.episode = script, -1

    def _sample(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        return self._sample(), {"episode_number": self.episode, "options": str(options)}

    def step(self, action):
        self.time += 1
        length, (terminated, truncated) = self.script[self.episode % len(self.script)]
        over = self.time >= length
        info = {"time": self.time, **({"even": True} if self.time % 2 == 0 else {})}
        reward = 10 * int(action) + float(self.np_random.random())
        return self._sample(), reward, over and terminated, over and truncated, info


class Reference:
    """What a vector env does, told plainly: one env after the other, one list per result."""

    def __init__(self, envs, mode):
        self.envs, self.mode = envs, mode
        self.results = [None] * len(envs)
        self.done = [False] * len(envs)

    def reset(self, seeds, options, rows):
        infos = [{} for _ in self.envs]
        for i in rows:
            observation, infos[i] = self.envs[i].reset(seed=seeds[i], options=options)
            self.results[i], self.done[i] = (observation, 0.0, False, False, None), False
        return infos

    def step(self, actions, rows):
        infos = [{} for _ in self.envs]
        for i in rows:
            if self.done[i]:
                self.results[i] = (self.envs[i].reset()[0], 0.0, False, False, None)
                infos[i] = {"episode_number": self.envs[i].episode, "options": "None"}
                self.done[i] = False
                continue
            observation, reward, terminated, truncated, infos[i] = self.envs[i].step(actions[i])
            self.done[i], final = bool(terminated or truncated), None
            if self.done[i] and self.mode is SAME_STEP:
                final, self.done[i] = observation, False
                observation, info = self.envs[i].reset()
                infos[i] = {"final_info": infos[i], **info}
            self.results[i] = (observation, reward, terminated, truncated, final)
        return infos


def batched(space, rows):
    return concatenate(space, rows, create_empty_array(space, len(rows), fn=np.zeros))


def info_of(infos, row):
    """One env's info back out of arrays and masks."""
    info = {}
    for key, value in infos.items():
        if key.startswith("_") or key in ("final_obs", "env_id") or not infos[f"_{key}"][row]:
            continue
        info[key] = info_of(value, row) if isinstance(value, dict) else value[row]
    return info


def check_rows(envs, result, reference, infos, rows):
    """Compare a result, whose row p is env `rows[p]`, with the reference."""
    wanted = [reference.results[i] for i in rows]
    space = envs.single_observation_space
    assert_same(result[0], batched(space, [row[0] for row in wanted]), "observations")
    if len(result) == 5:
        for part, name in enumerate(("rewards", "terminations", "truncations"), 1):
            assert result[part].tolist() == [row[part] for row in wanted], name
        final = result[4].get("final_obs", [None] * len(rows))
        for place, row in enumerate(wanted):
            assert (final[place] is None) == (row[4] is None)
            if row[4] is not None:
                assert_same(batched(space, [final[place]]), batched(space, [row[4]]), "final_obs")
    for place, row in enumerate(rows):
        assert info_of(result[-1], place) == infos[row]


# -- whole calls ------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw):
    """A space, scripts, a mode, and calls: steps and resets of some envs with seeds of some kind."""
    count = draw(st.integers(1, 4))
    each = functools.partial(st.lists, min_size=count, max_size=count)
    seeds = st.one_of(st.none(), SEEDS, each(st.one_of(st.none(), SEEDS)))
    mask = st.one_of(st.none(), each(st.booleans()).filter(any))
    calls = st.lists(st.one_of(each(st.integers(0, 2)), st.tuples(seeds, mask)), min_size=4, max_size=12)
    return draw(SPACES), draw(each(SCRIPTS)), draw(st.sampled_from(list(AutoresetMode))), draw(SEEDS), draw(calls)


def seeds_per_env(seed, count):
    return [seed + i for i in range(count)] if isinstance(seed, int) else [None] * count if seed is None else seed


def masked(mask):
    return {} if mask is None else {"reset_mask": np.array(mask)}


@some(30)
@given(programs(), st.sampled_from([None, False]))
def test_whole_calls(program, shared_memory):
    space, scripts, mode, first_seed, calls = program
    fns = [functools.partial(ScriptedEnv, space, script) for script in scripts]
    count = len(fns)
    for build in BACKENDS:
        reference = Reference([fn() for fn in fns], mode)
        with build(fns, autoreset_mode=mode, shared_memory=shared_memory) as envs:
            assert envs.observation_space == batch_space(space, count)
            infos = reference.reset(seeds_per_env(first_seed, count), None, range(count))
            check_rows(envs, envs.reset(seed=first_seed), reference, infos, range(count))
            for call in calls:
                ended = list(reference.done)
                if isinstance(call, tuple):
                    seed, mask = call
                    rows = range(count) if mask is None else np.flatnonzero(mask).tolist()
                    infos = reference.reset(seeds_per_env(seed, count), {"level": 1}, rows)
                    result = envs.reset(seed=seed, options={"level": 1, **masked(mask)})
                elif mode is DISABLED and any(ended):
                    infos = reference.reset([None] * count, {}, np.flatnonzero(ended).tolist())
                    result = envs.reset(options=masked(ended))
                else:
                    infos = reference.step(call, range(count))
                    result = envs.step(np.array(call))
                check_rows(envs, result, reference, infos, range(count))


# -- part of the envs at a time ---------------------------------------------------------------------------------------


@some(15)
@given(
    nested(FLAT),
    st.lists(SCRIPTS, min_size=2, max_size=4),
    st.sampled_from([NEXT_STEP, SAME_STEP]),
    st.integers(0, 3),
    SEEDS,
)
def test_send_and_recv(space, scripts, mode, spare, seed):
    """Whatever is sent when, each env's rows are those of a run of its own."""
    count = len(scripts)
    size = max(1, count - spare)
    fns = [functools.partial(ScriptedEnv, space, script) for script in scripts]
    for build in BACKENDS:
        choice = np.random.default_rng(seed)  # what is idle depends on timing, so it cannot be drawn ahead
        reference = Reference([fn() for fn in fns], mode)
        with build(fns, autoreset_mode=mode, batch_size=size) as envs:
            envs.reset(seed=3)
            reference.reset([3 + i for i in range(count)], None, range(count))
            idle, outstanding, sent = list(range(count)), [], [0] * count
            for _ in range(14):
                rows = choice.permutation(idle)[: choice.integers(len(idle) + 1)].tolist()
                if rows:
                    actions = [(row + sent[row]) % 3 for row in rows]
                    envs.send(np.array(actions), rows)
                    for row in rows:
                        sent[row] += 1
                    outstanding += rows
                if len(outstanding) >= size:
                    result = envs.recv(timeout=60)
                    ids = result[4].pop("env_id").tolist()
                    assert len(ids) == size
                    assert set(ids) <= set(outstanding)
                    actions = [(row + sent[row] - 1) % 3 for row in range(count)]
                    infos = reference.step(actions, ids)
                    check_rows(envs, result, reference, infos, ids)
                    outstanding = [row for row in outstanding if row not in ids]
                idle = [row for row in range(count) if row not in outstanding]


# -- actions ----------------------------------------------------------------------------------------------------------


@some(20)
@given(SPACES, st.integers(1, 4), SEEDS)
def test_actions_reach_the_envs(space, count, seed):
    """Each env gets its row of the batch, as Gymnasium splits batches."""
    for build in BACKENDS:
        with build([functools.partial(EchoEnv, uid, space) for uid in range(count)], shared_memory=None) as envs:
            envs.reset()
            envs.action_space.seed(seed)
            for _ in range(2):
                actions = envs.action_space.sample()
                envs.step(actions)
                got = envs.get_attr("last_action")
                wanted = list(iterate(envs.action_space, actions))
                assert_same(batched(space, got), batched(space, wanted), "actions")
                assert all(action in space for action in got)


# -- infos ------------------------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.booleans(),
    st.floats(width=64),
    st.text(max_size=3),
    st.none(),
    st.sampled_from([np.int8(3), np.float32(0.5), np.uint64(2**63), np.bool_(True), np.complex64(1j)]),
    st.sampled_from([np.zeros(2), np.ones((2, 1), np.int16), np.array(5), np.array(["x", "yy"]), np.zeros((0, 2))]),
    st.lists(st.integers(0, 3), max_size=2),
)
INFOS = st.dictionaries(
    st.sampled_from("abc"), st.one_of(VALUES, st.dictionaries(st.sampled_from("xy"), VALUES, max_size=2)), max_size=3
)


class InfoScriptEnv(gym.Env):
    """Reports the infos of a script, one per step."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, infos, length):
        self.infos, self.length, self.time = infos, length, 0

    def _next(self):
        self.time += 1
        return dict(self.infos[self.time % len(self.infos)])

    def reset(self, *, seed=None, options=None):
        return 0, self._next()

    def step(self, action):
        return 1, 0.0, self.time % self.length == 0, False, self._next()


@some(30)
@given(
    st.lists(st.tuples(st.lists(INFOS, min_size=1, max_size=4), st.integers(2, 5)), min_size=1, max_size=4),
    st.sampled_from([NEXT_STEP, SAME_STEP]),
)
def test_infos_of_every_kind(scripts, mode):
    """Columns, messages and the caller's own process give the same arrays, masks and dtypes."""
    fns = [functools.partial(InfoScriptEnv, infos, length) for infos, length in scripts]
    one, two = (build(fns, autoreset_mode=mode) for build in BACKENDS)
    with one, two:
        assert_same(two.reset()[1], one.reset()[1], "reset")
        for step in range(8):
            actions = np.zeros(len(fns), np.int64)
            assert_same(two.step(actions)[4], one.step(actions)[4], f"step {step}")
