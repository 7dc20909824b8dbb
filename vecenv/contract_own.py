"""Checks of what this package's back ends do beyond Gymnasium: group ``"vecenv"`` of the contract."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.autoreset import true_next_obs
from vecenv.comparison import assert_same
from vecenv.contract_case import Case, check, expect, expect_equal, expect_raises, sample_actions
from vecenv.errors import EnvError
from vecenv.toy_envs import CountEnv, DrawEnv, NestedEnv, OneRewardEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
NO_ACTIONS = np.zeros(2, np.int64)

# -- use --------------------------------------------------------------------------------------------------------------


@check(group="vecenv", any_env=True)
def context_manager(case: Case) -> None:
    """A ``with`` block closes the vector env at its end; `len` is the number of envs."""
    with case.any_envs(2) as envs:
        envs.reset()
        expect(len(envs) == 2, f"len: expected 2, got {len(envs)}")
    expect(envs.closed, "it is open after the block")


@check(group="vecenv")
def everything_is_refused_after_close(case: Case) -> None:
    """`call`, `get_attr`, `set_attr` and `render` of a closed vector env raise `ClosedEnvironmentError`."""
    envs = case.counting(3, 3)
    envs.close()
    for name, call in (
        ("call", lambda: envs.call("render")),
        ("get_attr", lambda: envs.get_attr("uid")),
        ("set_attr", lambda: envs.set_attr("uid", 1)),
        ("render", envs.render),
    ):
        expect_raises(ClosedEnvironmentError, name, call)


@check(group="vecenv")
def seed_of_the_constructor(case: Case) -> None:
    """``seed=`` of the constructor is for the first reset that gets none, and for no other."""
    envs = case.build([DrawEnv] * 2, seed=5)
    wanted = [DrawEnv().reset(seed=seed)[0] for seed in (5, 6)]
    expect_equal(envs.reset()[0], wanted, "observations of the first reset")
    expect(not np.array_equal(envs.reset()[0], np.asarray(wanted)), "the second reset used the seed again")


# -- statistics -------------------------------------------------------------------------------------------------------


@check(NEXT_STEP, SAME_STEP, group="vecenv")
def statistics_are_counted(case: Case) -> None:
    """`episode_statistics` counts returns and lengths, always; infos tell of them only if asked to."""
    envs = case.counting(2, 3)
    envs.reset()
    for _ in range(3):
        expect("episode" not in envs.step(NO_ACTIONS)[4], "infos['episode'] is there unasked")
    statistics = envs.episode_statistics()
    first = [0, 1] if case.mode is SAME_STEP else [0, 0]
    expect_equal(statistics.lengths, [first[1], 0], "lengths")
    expect_equal(statistics.episode_counts, [1, 1], "episode_counts")
    expect_equal(statistics.last_returns, [3.0, 6.0], "last_returns")
    expect_equal(statistics.last_lengths, [2, 3], "last_lengths")


@check(group="vecenv")
def statistics_in_infos(case: Case) -> None:
    """With ``statistics=True`` the step that ends an episode has ``infos["episode"]`` with r, l, t and its mask."""
    envs = case.counting(2, 3, statistics=True)
    envs.reset()
    expect("episode" not in envs.step(NO_ACTIONS)[4], "infos['episode'] is there without an end")
    infos = envs.step(NO_ACTIONS)[4]
    expect_equal(infos["_episode"], np.array([True, False]), "infos['_episode']")
    expect_equal(infos["episode"]["r"], np.array([3.0, 0.0]), "infos['episode']['r']")
    expect_equal(infos["episode"]["l"], np.array([2, 0]), "infos['episode']['l']")
    expect(infos["episode"]["t"].dtype == np.float64, "infos['episode']['t']: expected float64")


@check(group="vecenv")
def statistics_under_a_mask(case: Case) -> None:
    """A masked reset begins the count of the selected envs anew and leaves the others'."""
    envs = case.counting(9, 9)
    envs.reset()
    for _ in range(2):
        envs.step(NO_ACTIONS)
    envs.reset(options={"reset_mask": np.array([False, True])})
    expect_equal(envs.episode_statistics().lengths, [2, 0], "lengths")
    expect_equal(envs.episode_statistics().returns, [3.0, 0.0], "returns")
    envs.step(NO_ACTIONS)
    expect_equal(envs.episode_statistics().returns, [6.0, 1.0], "returns one step later")


# -- memory -----------------------------------------------------------------------------------------------------------


@check(group="vecenv")
def views_of_the_ring(case: Case) -> None:
    """With ``copy=False`` observations are views of ``observation_slots[slot]``, valid until the ring comes round."""
    slots = 4
    envs = case.counting(99, 99, copy=False, slots=slots)
    kept = [envs.reset()[0]]
    expect(envs.observation_slots.shape == (slots, 2, 3), f"observation_slots: {envs.observation_slots.shape}")
    for step in range(1, 3 * slots):
        before = envs.slot
        kept.append(envs.step(NO_ACTIONS)[0])
        expect(envs.slot == (before + 1) % slots, f"slot: expected {(before + 1) % slots}, got {envs.slot}")
        expect(
            np.shares_memory(kept[-1], envs.observation_slots[envs.slot]), "the observations are no view of the slot"
        )
        if step < 9:
            for back in range(min(slots, step + 1)):
                expect_equal(kept[step - back][:, 2], [step - back] * 2, f"observations of {back} calls ago")


@check(group="vecenv")
def observations_into_the_callers_array(case: Case) -> None:
    """``out=`` is filled and returned; one that does not fit is refused before any env is stepped."""
    envs = case.counting(9, 9)
    out = np.full((2, 3), -1, np.float32)
    expect(envs.reset(out=out)[0] is out, "reset: the returned observations are not `out`")
    expect_equal(out, [[0, 0, 0], [1, 0, 0]], "out after reset")
    wrong: list[Any] = [np.zeros((3, 3), np.float32), np.zeros((2, 3)), [[0, 0, 0]]]
    for bad in wrong:
        expect_raises((TypeError, ValueError), "step into what does not fit", envs.step, NO_ACTIONS, out=bad)
    expect(envs.step(NO_ACTIONS, out=out)[0] is out, "step: the returned observations are not `out`")
    expect_equal(out, [[0, 0, 1], [1, 0, 1]], "out after step, three refused ones before it")


@check(group="vecenv")
def nested_observations_into_the_callers_arrays(case: Case) -> None:
    """``out=`` takes a nest of arrays for a nested space."""
    envs = case.build([functools.partial(NestedEnv, uid, 9) for uid in range(2)])
    out, _ = envs.reset()
    arrays = (out["count"], out["picture"], *out["pair"])
    observations, *_ = envs.step(NO_ACTIONS, out=out)
    expect(observations is out, "the returned observations are not `out`")
    expect(all(a is b for a, b in zip(arrays, (out["count"], out["picture"], *out["pair"]), strict=True)), "new arrays")
    expect_equal(out["count"], [[0, 0, 1], [1, 0, 1]], "out['count']")
    expect_equal(out["pair"][0], [1, 1], "out['pair'][0]")


@check(NEXT_STEP, SAME_STEP, group="vecenv")
def true_next_observations(case: Case) -> None:
    """`true_next_obs` gives what the last actions led to, the end of an episode included, in every mode."""
    envs = case.counting(2, 3)
    envs.reset()
    envs.step(NO_ACTIONS)
    observations, *_, infos = envs.step(NO_ACTIONS)
    expect_equal(true_next_obs(observations, infos, case.mode), [[0, 0, 2], [1, 0, 2]], "true_next_obs")


# -- actions and rewards ----------------------------------------------------------------------------------------------


@check(group="vecenv")
def actions_out_of_range(case: Case) -> None:
    """A Discrete action out of range is refused with its env named, before any env is stepped."""
    envs = case.counting(9, 9)
    envs.reset()
    for actions in ([0, 2], [0, -1]):
        error = expect_raises(ValueError, f"actions {actions}", envs.step, np.array(actions))
        expect("environment 1" in str(error), f"the message names no env: {error}")
    wrong: list[Any] = [0, np.array([0.0, 1.0]), "ab"]
    for actions in wrong:
        expect_raises((TypeError, ValueError), f"actions {actions!r}", envs.step, actions)
    expect_equal(envs.step(NO_ACTIONS)[0][:, 2], [1, 1], "steps counted after the refused ones")


@check(NEXT_STEP, group="vecenv")
def ignored_actions_are_not_checked(case: Case) -> None:
    """NEXT_STEP: the action of an env whose episode has ended has no effect and may be anything of the right form."""
    envs = case.counting(1, 9)
    envs.reset()
    envs.step(NO_ACTIONS)
    expect_equal(envs.step(np.array([77, 0]))[0], [[0, 1, 0], [1, 0, 2]], "observations")


@check(group="vecenv")
def rewards_of_one_element(case: Case) -> None:
    """A reward of shape (1,) is a number, on every step alike."""
    envs = case.build([functools.partial(OneRewardEnv, uid, 9) for uid in range(2)])
    envs.reset()
    for step in (1, 2):
        expect_equal(envs.step(NO_ACTIONS)[1], np.full(2, step, np.float64), "rewards")


# -- failures ---------------------------------------------------------------------------------------------------------


@check(group="vecenv")
def failing_envs_are_named_and_the_others_spared(case: Case) -> None:
    """Failing envs raise one `EnvError` that names each; the others are stepped; a masked reset heals."""
    envs = case.build([functools.partial(CountEnv, uid, 9, fails_at=2 if uid in (1, 2) else None) for uid in range(4)])
    envs.reset()
    actions = np.zeros(4, np.int64)
    envs.step(actions)
    error = expect_raises(EnvError, "step of failing envs", envs.step, actions)
    expect(isinstance(error, ValueError), f"it is no ValueError: {type(error).__mro__}")
    expect(isinstance(error.__cause__, ValueError), f"its cause is {error.__cause__!r}")
    indices = [failure.env_index for failure in error.failures]
    expect(error.env_index == 1 and indices == [1, 2], f"named envs: {indices}")
    expect("in step" in error.remote_traceback, "remote_traceback does not show where")
    expect_raises(ResetNeeded, "step after a failure", envs.step, actions)
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True, True, False])})
    expect_equal(observations, [[0, 0, 2], [1, 1, 0], [2, 1, 0], [3, 0, 2]], "observations")
    expect_equal(envs.step(actions)[0][:, 2], [3, 1, 1, 3], "steps of the episodes")


def _cannot_be_built() -> Any:
    raise ValueError("no such level")


@check(group="vecenv")
def constructors_that_fail_are_named(case: Case) -> None:
    """A constructor that raises is named by its index."""
    error = expect_raises(EnvError, "construction", case.build, [CountEnv, _cannot_be_built, CountEnv])
    expect(error.env_index == 1, f"env_index: expected 1, got {error.env_index}")
    expect("no such level" in str(error), f"the message is {error}")


# -- send and recv ----------------------------------------------------------------------------------------------------


@check(NEXT_STEP, SAME_STEP, group="vecenv")
def send_and_receive(case: Case) -> None:
    """`send` and `recv` with a smaller `batch_size`: every env's rows, by `env_id`, are those of `step`."""
    lengths = (2, 3, 4)
    envs, reference = case.counting(*lengths, batch_size=2), case.counting(*lengths)
    expected: list[list[Any]] = [[], [], []]
    reference.reset()
    for _ in range(12):
        result = reference.step(np.zeros(3, np.int64))
        for row in range(3):
            expected[row].append([np.array(part[row]) for part in result[:4]])
    seen = [0, 0, 0]
    envs.reset()
    envs.send(np.zeros(3, np.int64), np.arange(3))
    while min(seen) < 6:
        result = envs.recv()
        ids = result[4]["env_id"]
        expect(len(ids) == 2 and len(result[0]) == 2, f"expected 2 rows, got {len(ids)}")
        for place, row in enumerate(ids):
            if seen[row] < 12:
                got = [np.array(part[place]) for part in result[:4]]
                assert_same(got, expected[row][seen[row]], f"env {row}, its step {seen[row] + 1}")
            seen[row] += 1
        envs.send(np.zeros(2, np.int64), ids)


@check(group="vecenv")
def order_of_send_and_receive(case: Case) -> None:
    """More receives than sends, a second send to an env, and `step` while rows are outstanding are errors."""
    envs = case.counting(9, 9, 9, batch_size=2)
    envs.reset()
    expect_raises(NoAsyncCallError, "recv without send", envs.recv)
    envs.send(NO_ACTIONS, [2, 0])
    expect_raises(AlreadyPendingCallError, "send to an env that is outstanding", envs.send, NO_ACTIONS, [1, 2])
    expect_raises(AlreadyPendingCallError, "step", envs.step, np.zeros(3, np.int64))
    ids = envs.recv()[4]["env_id"]
    expect(sorted(ids) == [0, 2], f"env_id: {ids}")
    expect_equal(envs.step(np.zeros(3, np.int64))[0][:, 2], [2, 1, 2], "steps of the envs")


@check(group="vecenv", any_env=True)
def send_and_receive_of_all(case: Case) -> None:
    """With all envs in a batch, `send` and `recv` are the halves of `step`, in env order."""
    envs, reference = case.any_envs(2), case.any_envs(2)
    envs.reset(seed=2)
    reference.reset(seed=2)
    envs.action_space.seed(1)
    for _ in range(3):
        actions = sample_actions(envs)
        envs.send(actions)
        result = envs.recv()
        expect_equal(result[4].pop("env_id"), np.arange(2), "infos['env_id']")
        result[4].pop("_env_id")
        assert_same(result, reference.step(actions), "send and recv")
