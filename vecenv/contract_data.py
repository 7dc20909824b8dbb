"""Checks of the contract: whose the returned arrays are, nested observations, infos, attributes of envs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from vecenv.comparison import assert_same
from vecenv.contract_case import Case, check, expect, expect_equal, expect_raises
from vecenv.toy_envs import CountEnv, EchoEnv, InfoEnv, LayerWrapper, NestedEnv

NO_ACTIONS = np.zeros(2, np.int64)
#: As many results as checks keep; `copy=False` has to leave them valid that long.
KEPT = 10


def _keep_results(case: Case, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], what: Callable[[Any], Any]) -> None:
    """Keep results of a run of several episodes, and expect that later calls change none of them."""
    envs = case.build(env_fns)
    kept, snapshots = [], []
    result: Any = envs.reset(options={"level": 1})
    for _ in range(KEPT):
        kept.append(what(result))
        snapshots.append(copy.deepcopy(kept[-1]))
        ended = len(result) == 5 and (result[2] | result[3])
        if np.any(ended) and envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.DISABLED:
            result = envs.reset(options={"reset_mask": ended})
        else:
            result = envs.step(NO_ACTIONS)
    for call, (one, two) in enumerate(zip(kept, snapshots, strict=True)):
        assert_same(one, two, f"result of call {call}, looked at {KEPT - call} calls later")


@check()
def flat_observations_stay(case: Case) -> None:
    """Observations that were returned do not change later, even where envs reuse their array."""
    fns = [functools.partial(CountEnv, uid, 3 + uid, reuses=True) for uid in range(2)]
    _keep_results(case, fns, lambda result: result[0])


@check()
def nested_observations_stay(case: Case) -> None:
    """Nor do arrays within dicts and tuples."""
    fns = [functools.partial(NestedEnv, uid, 3 + uid, reuses=True) for uid in range(2)]
    _keep_results(case, fns, lambda result: result[0])


@check()
def rewards_and_flags_stay(case: Case) -> None:
    """Rewards and flags that were returned do not change later."""
    fns = [functools.partial(CountEnv, uid, 3 + uid) for uid in range(2)]
    _keep_results(case, fns, lambda result: result[1:4] if len(result) == 5 else ())


@check()
def infos_stay(case: Case) -> None:
    """Info arrays, masks and final observations that were returned do not change later."""
    fns = [functools.partial(InfoEnv, uid, 3 + uid, reuses=True) for uid in range(2)]
    _keep_results(case, fns, lambda result: result[-1])


@check()
def nested_observations_are_batched(case: Case) -> None:
    """Dict and Tuple observations become dicts and tuples of batches, addressed by key whatever the env's order."""
    envs = case.build([functools.partial(NestedEnv, uid, 9) for uid in range(2)])
    observations, _ = envs.reset()
    for step in range(3):
        expect(observations in envs.observation_space, f"not in {envs.observation_space}: {observations!r}")
        expect_equal(observations["count"], [[0, 0, step], [1, 0, step]], "observations['count']")
        expect_equal(observations["picture"], np.full((2, 2, 2), step, np.uint8), "observations['picture']")
        expect(isinstance(observations["pair"], tuple), f"pair: expected a tuple, got {type(observations['pair'])}")
        expect_equal(observations["pair"][0], [step, step], "observations['pair'][0]")
        observations, *_ = envs.step(NO_ACTIONS)


# -- infos ------------------------------------------------------------------------------------------------------------


@check()
def infos_are_arrays_with_masks(case: Case) -> None:
    """Numbers, bools and arrays of infos become arrays of their dtype, all else object arrays, each with a mask."""
    envs = case.build([functools.partial(InfoEnv, uid, 9) for uid in range(2)])
    envs.reset()
    for step in range(1, 5):
        infos = envs.step(NO_ACTIONS)[4]
        wanted = {
            "time": np.full(2, step, np.int64),
            "half": np.full(2, step / 2),
            "even": np.full(2, step % 2 == 0),
            "array": np.array([[step, step + 1]] * 2, np.int16),
            "small": np.full(2, step, np.float32),
        }
        for key, value in wanted.items():
            expect_equal(infos[key], value, f"step {step}: infos[{key!r}]")
            expect_equal(infos[f"_{key}"], np.ones(2, np.bool_), f"step {step}: infos['_{key}']")
        expect(infos["text"].dtype == object, f"infos['text']: expected dtype object, got {infos['text'].dtype}")
        expect(list(infos["text"]) == [f"step {step}"] * 2, f"infos['text']: {infos['text']!r}")


@check()
def infos_of_some_envs(case: Case) -> None:
    """What only some envs report has a mask that says which; what none reports is not there."""
    envs = case.build([functools.partial(InfoEnv, uid, 9) for uid in range(2)])
    envs.reset()
    envs.step(NO_ACTIONS)
    envs.reset(options={"reset_mask": np.array([True, False])})
    infos = envs.step(NO_ACTIONS)[4]  # env 0 is at step 1, env 1 at step 2
    expect_equal(infos["_odd"], [True, False], "infos['_odd']")
    expect_equal(infos["odd"], np.array([1, 0]), "infos['odd']")
    infos = envs.step(NO_ACTIONS)[4]
    expect_equal(infos["_odd"], [False, True], "infos['_odd']")
    expect_equal(infos["odd"], np.array([0, 4]), "infos['odd']")
    expect("odd" not in envs.reset()[1], "infos['odd'] is there though no env reported it")


@check()
def infos_of_infos(case: Case) -> None:
    """Dicts in infos are batched within, masks included."""
    envs = case.build([functools.partial(InfoEnv, uid, 9) for uid in range(2)])
    envs.reset()
    infos = envs.step(NO_ACTIONS)[4]
    expect_equal(infos["deep"]["inner"], np.array([1, 1]), "infos['deep']['inner']")
    expect_equal(infos["deep"]["_inner"], [True, True], "infos['deep']['_inner']")
    expect(list(infos["deep"]["text"]) == ["x", "x"], f"infos['deep']['text']: {infos['deep']['text']!r}")
    expect_equal(infos["_deep"], [True, True], "infos['_deep']")


# -- attributes of the envs -------------------------------------------------------------------------------------------


def _wrapped(uid: int) -> gym.Env[Any, Any]:
    return LayerWrapper(gym.wrappers.TimeLimit(EchoEnv(uid), 1000))


def _wrapped_envs(case: Case) -> Any:
    envs = case.build([functools.partial(_wrapped, uid) for uid in range(2)])
    envs.reset()
    return envs


@check()
def get_attr_through_wrappers(case: Case) -> None:
    """`get_attr` gives one value per env, from whichever wrapper or env has it; properties too."""
    envs = _wrapped_envs(case)
    for name, wanted in (("uid", (0, 1)), ("twice_uid", (0, 2)), ("layer", ("outer", "outer"))):
        got = envs.get_attr(name)
        expect(isinstance(got, tuple) and got == wanted, f"get_attr({name!r}): expected {wanted}, got {got!r}")


@check()
def call_through_wrappers(case: Case) -> None:
    """`call` calls a method of every env with arguments."""
    got = _wrapped_envs(case).call("add", 10, more=5)
    expect(isinstance(got, tuple) and got == (15, 16), f"call('add', 10, more=5): expected (15, 16), got {got!r}")


@check()
def set_attr_reaches_the_env(case: Case) -> None:
    """`set_attr` changes the attribute where it is, under all wrappers: the env behaves differently."""
    envs = _wrapped_envs(case)
    envs.set_attr("length", [1, 1000])
    expect_equal(envs.step(NO_ACTIONS)[2], [True, False], "terminations after length = [1, 1000]")


@check()
def set_attr_values(case: Case) -> None:
    """`set_attr` takes one value for all, or a list or tuple of one per env; another number is refused."""
    envs = _wrapped_envs(case)
    for values, wanted in (("x", ("x", "x")), (["a", "b"], ("a", "b")), (("c", "d"), ("c", "d")), (3, (3, 3))):
        envs.set_attr("layer", values)
        expect(envs.get_attr("layer") == wanted, f"after set_attr('layer', {values!r}): {envs.get_attr('layer')!r}")
    expect_raises(ValueError, "set_attr of 3 values for 2 envs", envs.set_attr, "layer", [1, 2, 3])


@check()
def attributes_that_do_not_exist(case: Case) -> None:
    """`get_attr` of what no wrapper and no env has is an AttributeError."""
    envs = _wrapped_envs(case)
    expect_raises(AttributeError, "get_attr('nowhere')", envs.get_attr, "nowhere")
