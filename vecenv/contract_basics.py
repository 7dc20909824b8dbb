"""Checks of the contract: what a vector env is, its spaces, seeds, actions, and its end."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from vecenv.comparison import assert_same
from vecenv.contract_case import Case, check, expect, expect_equal, expect_raises, sample_actions
from vecenv.toy_envs import CountEnv, DrawEnv, EchoEnv

# -- what it is -------------------------------------------------------------------------------------------------------


@check(any_env=True)
def is_vector_env(case: Case) -> None:
    """It is a `gymnasium.vector.VectorEnv` of the asked number of envs, not closed, its own `unwrapped`."""
    envs = case.any_envs(3)
    expect(isinstance(envs, VectorEnv), f"expected a VectorEnv, got {type(envs).__name__}")
    expect(envs.num_envs == 3, f"num_envs: expected 3, got {envs.num_envs!r}")
    expect(envs.closed is False, f"closed: expected False, got {envs.closed!r}")
    expect(envs.unwrapped is envs, "unwrapped: expected the vector env itself")


@check(any_env=True)
def spaces_are_batched(case: Case) -> None:
    """`observation_space` and `action_space` are the single spaces batched by Gymnasium's rules."""
    envs = case.any_envs(3)
    for name in ("observation_space", "action_space"):
        batched = batch_space(getattr(envs, f"single_{name}"), 3)
        expect(getattr(envs, name) == batched, f"{name}: expected {batched}, got {getattr(envs, name)}")


@check(any_env=True)
def has_spec_and_render_mode(case: Case) -> None:
    """`spec` and `render_mode` exist; without a render mode it is None."""
    envs = case.any_envs(2)
    expect(envs.render_mode is None, f"render_mode: expected None, got {envs.render_mode!r}")
    expect(hasattr(envs, "spec"), "spec: the attribute is missing")


@check(any_env=True)
def metadata_names_the_mode(case: Case) -> None:
    """``metadata["autoreset_mode"]`` is the `AutoresetMode` that was asked for."""
    mode = case.any_envs(1).metadata["autoreset_mode"]
    expect(mode is case.mode, f"expected {case.mode!r}, got {mode!r}")


@check(AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, any_env=True)
def metadata_belongs_to_the_instance(case: Case) -> None:
    """A second vector env, of any mode or none, does not change the metadata of the first, of the class or the envs."""
    first = case.any_envs(1)
    before = [dict(VectorEnv.metadata), dict(type(first).metadata), dict(CountEnv.metadata), dict(first.metadata)]
    second = case.any_envs(1)
    second.metadata["mark"] = True
    after = [dict(VectorEnv.metadata), dict(type(first).metadata), dict(CountEnv.metadata), dict(first.metadata)]
    expect(after == before, f"metadata of others changed: {before} -> {after}")


# -- results ----------------------------------------------------------------------------------------------------------


@check(any_env=True)
def reset_gives_a_batch(case: Case) -> None:
    """`reset` returns a batch of the observation space and a dict."""
    envs = case.any_envs(3)
    result = envs.reset(seed=1)
    expect(isinstance(result, tuple) and len(result) == 2, f"expected two values, got {result!r}")
    expect(result[0] in envs.observation_space, f"not in {envs.observation_space}: {result[0]!r}")
    expect(isinstance(result[1], dict), f"infos: expected a dict, got {type(result[1]).__name__}")


@check(any_env=True)
def step_gives_arrays(case: Case) -> None:
    """`step` returns observations of the space, float64 rewards `[N]`, bool flags `[N]` and a dict."""
    envs = case.any_envs(3)
    envs.reset(seed=1)
    for _ in range(3):
        result = envs.step(sample_actions(envs))
        expect(isinstance(result, tuple) and len(result) == 5, f"expected five values, got {len(result)}")
        expect(result[0] in envs.observation_space, f"not in {envs.observation_space}: {result[0]!r}")
        names = ("rewards", "terminations", "truncations")
        for name, array, dtype in zip(names, result[1:4], (np.float64, np.bool_, np.bool_), strict=True):
            expect(isinstance(array, np.ndarray), f"{name}: expected an array, got {type(array).__name__}")
            expect(array.dtype == dtype and array.shape == (3,), f"{name}: got {array.dtype}{array.shape}")
        expect(isinstance(result[4], dict), f"infos: expected a dict, got {type(result[4]).__name__}")


@check(any_env=True)
def same_seed_same_run(case: Case) -> None:
    """Two vector envs with the same seed and actions give the same results, and the second of one gives others."""
    one, two = case.any_envs(2), case.any_envs(2)
    one.action_space.seed(5)
    assert_same(two.reset(seed=9), one.reset(seed=9), "reset")
    for step in range(4):
        actions = sample_actions(one)
        assert_same(two.step(copy.deepcopy(actions)), one.step(actions), f"step {step}")


@check()
def rewards_of_one_env_stay_a_batch(case: Case) -> None:
    """A single env is a batch of one."""
    envs = case.counting(9)
    expect_equal(envs.reset()[0], [[0, 0, 0]], "observations")
    observations, rewards, *_ = envs.step(np.array([0]))
    expect_equal(observations, [[0, 0, 1]], "observations")
    expect_equal(rewards, [1.0], "rewards")


# -- seeds ------------------------------------------------------------------------------------------------------------


def _drawing(case: Case, num_envs: int = 3) -> Any:
    return case.build([DrawEnv] * num_envs)


def _drawn(*seeds: int) -> list[Any]:
    return [DrawEnv().reset(seed=seed)[0] for seed in seeds]


@check()
def seed_int(case: Case) -> None:
    """``seed=s`` gives env i the seed s + i; seeds beyond 32 and 64 bits are seeds."""
    envs = _drawing(case)
    for seed in (3, 0, 2**32 + 5, 2**64 + 1):
        wanted = _drawn(*(seed + i for i in range(3)))
        expect_equal(envs.reset(seed=seed)[0], wanted, f"observations after reset(seed={seed!r})")


@check()
def seed_sequence(case: Case) -> None:
    """A list or tuple of seeds is used as it is given."""
    envs = _drawing(case)
    for seeds in ([5, 5, 1], (1, 2, 3)):
        expect_equal(envs.reset(seed=seeds)[0], _drawn(*seeds), f"observations after reset(seed={seeds!r})")


@check(group="vecenv")
def seeds_of_numpy(case: Case) -> None:
    """NumPy's integers, and arrays of them, are seeds like Python's."""
    envs = _drawing(case)
    for seed in (np.int64(3), np.uint8(255), np.uint64(2**64 - 1)):
        wanted = _drawn(*(int(seed) + i for i in range(3)))
        expect_equal(envs.reset(seed=seed)[0], wanted, f"observations after reset(seed={seed!r})")
    lists: list[Any] = [[np.int64(4), 0, 2], np.array([4, 0, 2]), np.array([4, 0, 2], np.uint8)]
    for seeds in lists:
        expect_equal(envs.reset(seed=seeds)[0], _drawn(4, 0, 2), f"observations after reset(seed={seeds!r})")


@check()
def seed_sequence_with_none(case: Case) -> None:
    """None in a sequence of seeds lets that env's generator go on."""
    envs, plain = _drawing(case), DrawEnv()
    envs.reset(seed=[1, 2, 3])
    plain.reset(seed=2)
    wanted = [*_drawn(7), plain.reset()[0], *_drawn(7)]
    expect_equal(envs.reset(seed=[7, None, 7])[0], wanted, "observations")


@check()
def seed_is_used_once(case: Case) -> None:
    """A seed is not used again: the next reset, or autoreset, goes on with the generators."""
    envs, plain = _drawing(case, 1), DrawEnv()
    envs.reset(seed=4)
    plain.reset(seed=4)
    for _ in range(3):
        expect_equal(envs.reset()[0], [plain.reset()[0]], "observations after a reset without seed")


@check()
def seed_of_wrong_length(case: Case) -> None:
    """A sequence of seeds of another length than the number of envs is refused."""
    envs = _drawing(case)
    for seeds in ([1, 2], [1, 2, 3, 4]):
        expect_raises((ValueError, AssertionError), f"reset(seed={seeds})", envs.reset, seed=seeds)


@check()
def seeds_are_reported(case: Case) -> None:
    """`np_random_seed` tells every env's seed."""
    envs = _drawing(case)
    envs.reset(seed=[8, 9, 4])
    expect(tuple(envs.np_random_seed) == (8, 9, 4), f"expected (8, 9, 4), got {envs.np_random_seed!r}")


# -- actions ----------------------------------------------------------------------------------------------------------


@check()
def actions_reach_their_env(case: Case) -> None:
    """Every env gets its own action, in the dtype of its space."""
    envs = case.build([functools.partial(EchoEnv, uid, spaces.Discrete(5)) for uid in range(3)])
    envs.reset()
    for actions in (np.array([4, 0, 2]), np.array([1, 2, 3])):
        envs.step(actions)
        expect_equal(np.array(envs.get_attr("last_action")), actions, "actions that the envs got")


@check()
def actions_as_lists_and_other_ints(case: Case) -> None:
    """Discrete actions may come as a list or as an array of any integer dtype."""
    envs = case.build([functools.partial(EchoEnv, uid, spaces.Discrete(5)) for uid in range(2)])
    envs.reset()
    for actions in ([3, 1], np.array([2, 4], np.int32), np.array([0, 3], np.uint8), np.array([1, 1], np.int64)):
        envs.step(actions)
        got = envs.get_attr("last_action")
        expect(tuple(map(int, got)) == tuple(map(int, actions)), f"actions {actions!r} reached the envs as {got!r}")


@check()
def actions_of_nested_spaces(case: Case) -> None:
    """Actions of a Dict space reach each env as a dict of its own row."""
    space = spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Box(-1, 1, (2,), np.float32)})
    envs = case.build([functools.partial(EchoEnv, uid, space) for uid in range(2)])
    envs.reset()
    force = np.array([[0.5, -0.5], [0.25, 1.0]], np.float32)
    envs.step({"move": np.array([2, 1]), "force": force})
    for row, action in enumerate(envs.get_attr("last_action")):
        expect(isinstance(action, dict) and set(action) == {"move", "force"}, f"env {row} got {action!r}")
        expect(int(action["move"]) == (2, 1)[row], f"env {row}: move is {action['move']!r}")
        expect_equal(np.asarray(action["force"]), force[row], f"env {row}: force")


@check()
def actions_belong_to_the_caller(case: Case) -> None:
    """Neither the caller's array is changed by the envs nor an env's action by the caller afterwards."""
    space = spaces.Box(-1, 1, (2,), np.float32)
    envs = case.build([functools.partial(EchoEnv, uid, space) for uid in range(2)])
    envs.reset()
    actions = np.array([[0.5, -0.5], [0.25, 1.0]], np.float32)
    envs.step(actions)
    before = np.array(envs.get_attr("last_action"))
    actions[:] = 0
    envs.step(np.full((2, 2), 0.125, np.float32))
    expect_equal(actions, np.zeros((2, 2), np.float32), "the caller's array")
    expect_equal(before, np.array([[0.5, -0.5], [0.25, 1.0]], np.float32), "the first actions")


@check(group="vecenv")
def actions_of_wrong_number(case: Case) -> None:
    """Too few or too many actions are refused, and no env is stepped by them."""
    envs = case.counting(9, 9, 9)
    envs.reset()
    for actions in ([0, 0], [0, 0, 0, 0]):
        expect_raises(Exception, f"step of {len(actions)} actions", envs.step, np.array(actions))
    expect_equal(envs.step(np.zeros(3, np.int64))[0][:, 2], [1, 1, 1], "steps counted after two refused calls")


# -- the end ----------------------------------------------------------------------------------------------------------


@check(any_env=True)
def close_twice(case: Case) -> None:
    """`close` may be called again, before or after a reset, and `closed` tells of it."""
    for prepare in (False, True):
        envs = case.any_envs(2)
        if prepare:
            envs.reset()
        envs.close()
        envs.close()
        expect(envs.closed is True, f"closed: expected True, got {envs.closed!r}")


@check(any_env=True)
def use_after_close(case: Case) -> None:
    """`reset` and `step` of a closed vector env raise `ClosedEnvironmentError`."""
    envs = case.any_envs(2)
    envs.reset()
    actions = sample_actions(envs)
    envs.close()
    expect_raises(ClosedEnvironmentError, "reset", envs.reset)
    expect_raises(ClosedEnvironmentError, "step", envs.step, actions)
