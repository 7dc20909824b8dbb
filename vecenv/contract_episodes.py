"""Checks of the contract: the three autoreset modes, and resets of some envs by mask."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.comparison import assert_same
from vecenv.contract_case import Case, check, expect, expect_equal, expect_raises
from vecenv.toy_envs import CountEnv, DrawEnv, EchoEnv, NestedEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
#: Observations `[env][uid, episode, time]`, rewards and ends of envs that last 2 and 3 steps.
Expected = Sequence[tuple[list[list[int]], list[float], list[bool]]]
AFTER_NEXT_STEP: Expected = [
    ([[0, 0, 1], [1, 0, 1]], [1, 1], [False, False]),
    ([[0, 0, 2], [1, 0, 2]], [2, 2], [True, False]),
    ([[0, 1, 0], [1, 0, 3]], [0, 3], [False, True]),
    ([[0, 1, 1], [1, 1, 0]], [1, 0], [False, False]),
    ([[0, 1, 2], [1, 1, 1]], [2, 1], [True, False]),
    ([[0, 2, 0], [1, 1, 2]], [0, 2], [False, False]),
]
AFTER_SAME_STEP: Expected = [
    ([[0, 0, 1], [1, 0, 1]], [1, 1], [False, False]),
    ([[0, 1, 0], [1, 0, 2]], [2, 2], [True, False]),
    ([[0, 1, 1], [1, 1, 0]], [1, 3], [False, True]),
    ([[0, 2, 0], [1, 1, 1]], [2, 1], [True, False]),
    ([[0, 2, 1], [1, 1, 2]], [1, 2], [False, False]),
    ([[0, 3, 0], [1, 2, 0]], [2, 3], [True, True]),
]
NO_ACTIONS = np.zeros(2, np.int64)


def _follow(case: Case, expected: Expected, truncates: bool) -> None:
    envs = case.counting(2, 3, toys={"truncates": truncates})
    expect_equal(envs.reset()[0], [[0, 0, 0], [1, 0, 0]], "observations after reset")
    for step, (observations, rewards, ends) in enumerate(expected, 1):
        result = envs.step(NO_ACTIONS)
        never = [False, False]
        terminations, truncations = (never, ends) if truncates else (ends, never)
        wanted = (observations, rewards, terminations, truncations)
        names = ("observations", "rewards", "terminations", "truncations")
        for name, got, want in zip(names, result[:4], wanted, strict=True):
            expect_equal(got, want, f"step {step}: {name}")


# -- autoreset --------------------------------------------------------------------------------------------------------


@check(NEXT_STEP)
def next_step_after_termination(case: Case) -> None:
    """NEXT_STEP: the step after an end ignores the action and returns the reset, reward 0 and no flags."""
    _follow(case, AFTER_NEXT_STEP, truncates=False)


@check(NEXT_STEP)
def next_step_after_truncation(case: Case) -> None:
    """NEXT_STEP: a truncated episode is followed by a reset in the same way, and flagged as truncated only."""
    _follow(case, AFTER_NEXT_STEP, truncates=True)


@check(SAME_STEP)
def same_step_after_termination(case: Case) -> None:
    """SAME_STEP: the step that ends an episode returns the first observation of the next."""
    _follow(case, AFTER_SAME_STEP, truncates=False)


@check(SAME_STEP)
def same_step_after_truncation(case: Case) -> None:
    """SAME_STEP: likewise after a truncation, which is flagged as truncated only."""
    _follow(case, AFTER_SAME_STEP, truncates=True)


@check(NEXT_STEP, SAME_STEP)
def autoreset_goes_on_with_the_generator(case: Case) -> None:
    """An autoreset passes no seed: the env's generator goes on."""
    envs, plain = case.build([functools.partial(DrawEnv, 2)]), DrawEnv(2)
    envs.reset(seed=6)
    plain.reset(seed=6)
    for step in range(1, 7):
        observations = envs.step(np.zeros(1, np.int64))[0]
        wanted = plain.step(0)[0] if case.mode is SAME_STEP or step % 3 else plain.reset()[0]
        if case.mode is SAME_STEP and step % 2 == 0:
            wanted = plain.reset()[0]
        expect_equal(observations, [wanted], f"step {step}: observations")


@check(NEXT_STEP, SAME_STEP)
def autoreset_passes_no_options(case: Case) -> None:
    """Options of `reset` are for that reset only."""
    envs = case.counting(1)
    envs.reset(options={"level": 3})
    infos = [envs.step(np.zeros(1, np.int64))[4] for _ in range(2)]
    got = infos[0 if case.mode is SAME_STEP else 1]["options"][0]
    expect(got == "None", f"expected None at the autoreset, got {got}")


@check(NEXT_STEP)
def reset_forgets_a_pending_autoreset(case: Case) -> None:
    """NEXT_STEP: a reset after an end is the reset; the next step is a step."""
    envs = case.counting(1)
    envs.reset()
    envs.step(np.zeros(1, np.int64))
    expect_equal(envs.reset()[0], [[0, 1, 0]], "observations after reset")
    expect_equal(envs.step(np.zeros(1, np.int64))[0], [[0, 1, 1]], "observations after one step")


@check(SAME_STEP)
def final_obs_is_the_end(case: Case) -> None:
    """SAME_STEP: ``infos["final_obs"]`` holds the last observations of ended episodes, with a mask."""
    _check_final(case, reuses=False)


@check(SAME_STEP)
def final_obs_of_envs_that_reuse_their_array(case: Case) -> None:
    """SAME_STEP: `final_obs` and `final_info` are the end's even where an env returns the same array and dict again."""
    _check_final(case, reuses=True)


def _check_final(case: Case, reuses: bool) -> None:
    envs = case.counting(2, 3, toys={"reuses": reuses})
    envs.reset()
    infos = envs.step(NO_ACTIONS)[4]
    expect("final_obs" not in infos, "final_obs is there in a step without an end")
    infos = envs.step(NO_ACTIONS)[4]
    expect_equal(infos["_final_obs"], [True, False], "_final_obs")
    expect_equal(np.asarray(infos["final_obs"][0]), [0, 0, 2], "final_obs[0]")
    expect_equal(infos["_final_info"], [True, False], "_final_info")
    expect(int(infos["final_info"]["time"][0]) == 2, f"final_info: time is {infos['final_info']['time'][0]}, not 2")
    expect_equal(infos["time"], [0, 2], "time, of the next episode and of the running one")
    infos = envs.step(NO_ACTIONS)[4]
    expect_equal(infos["_final_obs"], [False, True], "_final_obs")
    expect_equal(np.asarray(infos["final_obs"][1]), [1, 0, 3], "final_obs[1]")
    expect(int(infos["final_info"]["time"][1]) == 3, f"final_info: time is {infos['final_info']['time'][1]}, not 3")


@check(SAME_STEP)
def final_obs_of_nested_spaces(case: Case) -> None:
    """SAME_STEP: `final_obs` has the structure of the single space, and is the end's, whatever the env reuses."""
    envs = case.build([functools.partial(NestedEnv, uid, 2 + uid, reuses=True) for uid in range(2)])
    envs.reset()
    envs.step(NO_ACTIONS)
    observations, *_, infos = envs.step(NO_ACTIONS)
    final = infos["final_obs"][0]
    expect(final in envs.single_observation_space, f"not in {envs.single_observation_space}: {final!r}")
    expect_equal(np.asarray(final["count"]), [0, 0, 2], "final_obs[0]['count']")
    expect_equal(np.asarray(final["picture"]), [[2, 2], [2, 2]], "final_obs[0]['picture']")
    expect(int(final["pair"][0]) == 2, f"final_obs[0]['pair'][0] is {final['pair'][0]}, not 2")
    expect_equal(observations["count"], [[0, 1, 0], [1, 0, 2]], "observations['count']")


@check(DISABLED)
def disabled_refuses_to_go_on(case: Case) -> None:
    """DISABLED: a step after an end is an error until the ended envs are reset by mask, then all go on."""
    envs = case.counting(2, 3)
    envs.reset()
    envs.step(NO_ACTIONS)
    ends = envs.step(NO_ACTIONS)[2]
    expect_equal(ends, [True, False], "terminations")
    expect_raises(Exception, "step after an end", envs.step, NO_ACTIONS)
    observations, _ = envs.reset(options={"reset_mask": ends})
    expect_equal(observations, [[0, 1, 0], [1, 0, 2]], "observations after the masked reset")
    observations, rewards, terminations, *_ = envs.step(NO_ACTIONS)
    expect_equal(observations, [[0, 1, 1], [1, 0, 3]], "observations")
    expect_equal(rewards, [1, 3], "rewards")
    expect_equal(terminations, [False, True], "terminations")


# -- reset of some envs by mask ---------------------------------------------------------------------------------------


@check()
def mask_resets_the_selected_only(case: Case) -> None:
    """``options["reset_mask"]`` resets the envs it selects; the others keep observation and episode."""
    envs = case.counting(9, 9, 9)
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(3, np.int64))
    observations, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
    expect_equal(observations, [[0, 0, 2], [1, 1, 0], [2, 0, 2]], "observations")
    expect_equal(infos["_time"], [False, True, False], "mask of an info")
    observations, rewards, *_ = envs.step(np.zeros(3, np.int64))
    expect_equal(observations, [[0, 0, 3], [1, 1, 1], [2, 0, 3]], "observations one step later")
    expect_equal(rewards, [3, 1, 3], "rewards one step later")


@check()
def mask_leaves_the_options_alone(case: Case) -> None:
    """The caller's options, mask included, are not changed: the same dict means the same reset twice."""
    envs = case.counting(9, 9)
    envs.reset()
    envs.step(NO_ACTIONS)
    options: dict[str, Any] = {"reset_mask": np.array([True, False]), "level": [2]}
    before = copy.deepcopy(options)
    for episode in (1, 2):
        observations, _ = envs.reset(options=options)
        assert_same(options, before, "options")
        expect_equal(observations, [[0, episode, 0], [1, 0, 1]], f"observations after masked reset {episode}")


@check()
def mask_with_seeds(case: Case) -> None:
    """Seeds under a mask are one per env of the vector env, and used for the selected envs only."""
    envs = case.build([functools.partial(DrawEnv, 9)] * 3)
    first, _ = envs.reset(seed=1)
    mask = np.array([True, False, True])
    wanted = [DrawEnv().reset(seed=50)[0], first[1], DrawEnv().reset(seed=52)[0]]
    expect_equal(envs.reset(seed=50, options={"reset_mask": mask})[0], wanted, "observations after seed=50")
    wanted = [DrawEnv().reset(seed=7)[0], first[1], DrawEnv().reset(seed=9)[0]]
    expect_equal(envs.reset(seed=[7, 8, 9], options={"reset_mask": mask})[0], wanted, "observations after a list")
    expect(tuple(envs.get_attr("np_random_seed")) == (7, 2, 9), f"seeds: {envs.get_attr('np_random_seed')!r}")


@check()
def mask_of_wrong_form(case: Case) -> None:
    """A mask that is no bool array `[num_envs]`, or selects nobody, is refused and nobody is reset."""
    envs = case.counting(9, 9)
    envs.reset()
    wrong: list[Any] = [[True, False], np.array([1, 0]), np.array([True]), np.zeros(2, np.bool_)]
    for mask in wrong:
        expect_raises(
            (TypeError, ValueError, AssertionError),
            f"reset_mask={mask!r}",
            envs.reset,
            options={"reset_mask": mask},
        )
    expect_equal(envs.step(NO_ACTIONS)[0], [[0, 0, 1], [1, 0, 1]], "observations after refused masks")


@check()
def options_reach_every_env(case: Case) -> None:
    """Options without a mask reach every env as they are; with one, without `reset_mask`."""
    envs = case.counting(9, 9)
    _, infos = envs.reset(options={"level": 3})
    expect(list(infos["options"]) == ["{'level': 3}"] * 2, f"options: {infos['options']!r}")
    _, infos = envs.reset(options={"level": 4, "reset_mask": np.array([True, True])})
    expect(list(infos["options"]) == ["{'level': 4}"] * 2, f"options under a mask: {infos['options']!r}")
    _, infos = envs.reset()
    expect(list(infos["options"]) == ["None"] * 2, f"no options: {infos['options']!r}")


# -- failures ---------------------------------------------------------------------------------------------------------


@check()
def exceptions_of_envs_keep_class_and_message(case: Case) -> None:
    """An exception that an env raises reaches the caller with its class and message; `close` works after it."""
    envs = case.build([functools.partial(CountEnv, uid, fails_at=2 if uid == 1 else None) for uid in range(3)])
    envs.reset()
    envs.step(np.zeros(3, np.int64))
    error = expect_raises(ValueError, "step of a failing env", envs.step, np.zeros(3, np.int64))
    expect("boom from env 1" in str(error), f"the message is {str(error)!r}")
    envs.close()


@check()
def frames_of_all_envs(case: Case) -> None:
    """`render` gives one frame per env, and `render_mode` is the envs'."""
    envs = case.build([functools.partial(EchoEnv, uid, render_mode="rgb_array") for uid in range(2)])
    envs.reset()
    expect(envs.render_mode == "rgb_array", f"render_mode: {envs.render_mode!r}")
    frames = envs.render()
    expect(isinstance(frames, tuple) and len(frames) == 2, f"expected two frames, got {frames!r}")
    for uid, frame in enumerate(frames):
        expect_equal(np.asarray(frame), np.full((2, 2, 3), uid, np.uint8), f"frame {uid}")
