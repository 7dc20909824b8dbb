"""The contract suite holds for our back ends in every mode, and finds what is wrong with broken ones."""

from __future__ import annotations

import functools
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from vecenv import SubprocVecEnv, SyncVecEnv, UnknownSetting
from vecenv.testing import ContractViolation, CountEnv, all_checks, assert_same, check_vec_env

BACKENDS = {"sync": SyncVecEnv, "subproc": functools.partial(SubprocVecEnv, num_workers=2)}
#: How copies are set where it is not left to the check; with views, results last as long as the suite asks for.
COPIES = {"copies": {}, "views": {"copy": False, "slots": 12}}
#: What views cannot change.
NOT_ABOUT_VIEWS = [
    name
    for name, check in all_checks().items()
    if name.startswith(("seed", "close", "use_after", "everything", "get_attr", "set_attr", "actions", "order_of"))
]


def with_defaults(build, defaults, env_fns, **settings):
    return build(env_fns, **{**defaults, **settings})


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_back_ends_keep_the_contract(backend, copies, mode):
    make = functools.partial(with_defaults, BACKENDS[backend], COPIES[copies])
    skip = NOT_ABOUT_VIEWS if copies == "views" else []
    held = check_vec_env(make, autoreset_modes=[mode], skip=skip)
    assert len(held) > (35 if copies == "views" else 45)
    assert all(name.endswith(f"[{mode.value}]") for name in held)


def test_objects_in_place_of_arrays():
    """Observations that take the pipe keep the same contract, but for the ring that they do not lie in."""
    make = functools.partial(SubprocVecEnv, num_workers=2, shared_memory=False)
    check_vec_env(make, autoreset_modes=["SameStep"], skip=["views_of_the_ring", "nested_observations_are_batched"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_registered_env(backend):
    held = check_vec_env(BACKENDS[backend], env_id="CartPole-v1", autoreset_modes=["NextStep"])
    assert "same_seed_same_run [NextStep]" in held
    assert "flat_observations_stay [NextStep]" not in held


#: What the suite finds in Gymnasium's own CartPole: float32 rewards, metadata of the class, a closed one goes on.
FAULTS = ["close_twice", "metadata_belongs_to_the_instance", "step_gives_arrays", "use_after_close"]


def test_a_back_end_that_cannot_take_constructors():
    """It may look at no more than their number."""

    def make(env_fns, autoreset_mode):
        assert autoreset_mode is AutoresetMode.NEXT_STEP
        return gym.make_vec("CartPole-v1", len(env_fns), "vector_entry_point")

    held = check_vec_env(make, env_id="CartPole-v1", only=["gymnasium"], skip=FAULTS, autoreset_modes=["NextStep"])
    assert "spaces_are_batched [NextStep]" in held
    with pytest.raises(ContractViolation) as caught:
        check_vec_env(make, env_id="CartPole-v1", only=FAULTS, autoreset_modes=["NextStep"])
    assert [name.partition(" ")[0] for name in caught.value.failures] == sorted(FAULTS, key=list(all_checks()).index)


# -- Gymnasium's own back ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "wrong"),
    [
        (
            SyncVectorEnv,
            {
                "final_obs_of_envs_that_reuse_their_array",
                "final_obs_of_nested_spaces",
                "infos_stay",
                "mask_leaves_the_options_alone",
                "use_after_close",
            },
        ),
        (
            AsyncVectorEnv,
            {
                "disabled_refuses_to_go_on",
                "final_obs_of_envs_that_reuse_their_array",
                "final_obs_of_nested_spaces",
                "mask_leaves_the_options_alone",
            },
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_own(build, wrong):
    """They keep the group named after them but for faults of theirs that ours do not have."""
    only = set(all_checks())
    if build is AsyncVectorEnv:  # it prints the traceback of each exception: a few checks are enough
        only = wrong | {"next_step_after_termination", "same_step_after_truncation", "seed_int", "infos_of_some_envs"}
    only = {name for name in only if all_checks()[name].group == "gymnasium"}
    with pytest.raises(ContractViolation) as caught:
        check_vec_env(lambda env_fns, autoreset_mode: build(env_fns, autoreset_mode=autoreset_mode), only=only)
    assert {name.partition(" ")[0] for name in caught.value.failures} == wrong


# -- broken back ends -------------------------------------------------------------------------------------------------


class OneSeedForAll(SyncVecEnv):
    def reset(self, *, seed=None, options=None, out=None):
        return super().reset(seed=[seed] * self.num_envs if isinstance(seed, int) else seed, options=options, out=out)


class SeedsAgain(SyncVecEnv):
    known = None

    def reset(self, *, seed=None, options=None, out=None):
        self.known = self.known if seed is None else seed
        return super().reset(seed=self.known, options=options, out=out)


class TakesTheMask(SyncVecEnv):
    def reset(self, *, seed=None, options=None, out=None):
        result = super().reset(seed=seed, options=options, out=out)
        if options:
            options.pop("reset_mask", None)
        return result


class ResetsAll(SyncVecEnv):
    def reset(self, *, seed=None, options=None, out=None):
        if options and "reset_mask" in options:
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        return super().reset(seed=seed, options=options, out=out)


class NarrowRewards(SyncVecEnv):
    def step(self, actions, out=None):
        observations, rewards, *rest = super().step(actions, out)
        return observations, rewards.astype(np.float32), *rest


class SwapsFlags(SyncVecEnv):
    def step(self, actions, out=None):
        observations, rewards, terminations, truncations, infos = super().step(actions, out)
        return observations, rewards, truncations, terminations, infos


class LateFinal(SyncVecEnv):
    def step(self, actions, out=None):
        result = super().step(actions, out)
        for row in np.flatnonzero(result[4].get("_final_obs", ())):
            result[4]["final_obs"][row] = result[0][row]
        return result


class NoMasks(SyncVecEnv):
    def step(self, actions, out=None):
        *rest, infos = super().step(actions, out)
        return *rest, {key: value for key, value in infos.items() if not key.startswith("_")}


class OuterAttributes(SyncVecEnv):
    def set_attr(self, name, values):
        values = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)


class SharedMetadata(SyncVecEnv):
    metadata: dict = {}  # noqa: RUF012 - that is the fault

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        SharedMetadata.metadata.update(self.metadata)
        del self.__dict__["metadata"]


class SingleSpaces(SyncVecEnv):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space


class ClosesOnce(SyncVecEnv):
    def close(self, **arguments):
        if self.closed:
            raise RuntimeError("closed already")
        super().close(**arguments)


class ForgetsToClose(SyncVecEnv):
    def close_extras(self, **arguments):
        pass

    def _check_open(self, doing):
        pass


class SilentFailures(SyncVecEnv):
    def step(self, actions, out=None):
        try:
            return super().step(actions, out)
        except ValueError:
            zeros = np.zeros(self.num_envs)
            return self.observations.copy(), zeros, zeros.astype(bool), zeros.astype(bool), {}


class StepsAnyway(SyncVecEnv):
    def step(self, actions, out=None):
        self.seen = getattr(self, "seen", 0) + 1
        return super().step(np.clip(actions, 0, 1) if self.seen > 0 and np.ndim(actions) == 1 else actions, out)


class MixesRows(SyncVecEnv):
    def recv(self, timeout=None, out=None):
        result = super().recv(timeout, out)
        result[4]["env_id"] = result[4]["env_id"][::-1]
        return result


class CountsResets(SyncVecEnv):
    def episode_statistics(self):
        statistics = super().episode_statistics()
        statistics.lengths[:] += 1
        return statistics


def wrong_mode(env_fns, **settings):
    envs = SyncVecEnv(env_fns, **{**settings, "autoreset_mode": AutoresetMode.SAME_STEP})
    envs.metadata["autoreset_mode"] = settings["autoreset_mode"]
    return envs


def views_without_asking(env_fns, **settings):
    return SyncVecEnv(env_fns, **{"copy": False, "slots": 2, **settings})


SABOTAGES = {
    "one-seed": (OneSeedForAll, "seed_int"),
    "seeds-again": (SeedsAgain, "seed_is_used_once"),
    "takes-the-mask": (TakesTheMask, "mask_leaves_the_options_alone"),
    "resets-all": (ResetsAll, "mask_resets_the_selected_only"),
    "resets-all-statistics": (ResetsAll, "statistics_under_a_mask"),
    "narrow-rewards": (NarrowRewards, "step_gives_arrays"),
    "swaps-flags": (SwapsFlags, "next_step_after_truncation"),
    "swaps-flags-same-step": (SwapsFlags, "same_step_after_termination"),
    "late-final": (LateFinal, "final_obs_is_the_end"),
    "late-final-truth": (LateFinal, "true_next_observations"),
    "no-masks": (NoMasks, "infos_are_arrays_with_masks"),
    "outer-attributes": (OuterAttributes, "set_attr_reaches_the_env"),
    "shared-metadata": (SharedMetadata, "metadata_belongs_to_the_instance"),
    "single-spaces": (SingleSpaces, "spaces_are_batched"),
    "closes-once": (ClosesOnce, "close_twice"),
    "forgets-to-close": (ForgetsToClose, "use_after_close"),
    "silent-failures": (SilentFailures, "exceptions_of_envs_keep_class_and_message"),
    "steps-anyway": (StepsAnyway, "actions_out_of_range"),
    "mixes-rows": (MixesRows, "send_and_receive"),
    "counts-resets": (CountsResets, "statistics_are_counted"),
    "wrong-mode": (wrong_mode, "next_step_after_termination"),
    "views-flat": (views_without_asking, "flat_observations_stay"),
    "views-nested": (views_without_asking, "nested_observations_stay"),
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_broken_back_ends_are_caught_by_the_right_check(name):
    broken, check = SABOTAGES[name]
    with pytest.raises(ContractViolation, match=check) as caught:
        check_vec_env(broken)
    failed = {failed.partition(" ")[0] for failed in caught.value.failures}
    assert check in failed
    assert len(failed) < len(all_checks()) / 2, "most of the suite depends on this one thing"


# -- the suite itself -------------------------------------------------------------------------------------------------


def test_choosing_checks():
    names = []
    held = check_vec_env(SyncVecEnv, only=["seed_int", "vecenv"], skip=["send_and_receive"], report=names.append)
    assert names == held
    assert [name for name in held if name.startswith("seed_int ")] == [
        f"seed_int [{mode.value}]" for mode in AutoresetMode
    ]
    assert not any(name.startswith(("send_and_receive ", "close_twice")) for name in held)
    assert check_vec_env(SyncVecEnv, only=["final_obs_is_the_end"]) == ["final_obs_is_the_end [SameStep]"]
    assert check_vec_env(SyncVecEnv, only=["final_obs_is_the_end"], autoreset_modes=["Disabled"]) == []
    for choice in ({"only": ["seed_itn"]}, {"skip": ["nowhere"]}):
        with pytest.raises(UnknownSetting, match="does not exist"):
            check_vec_env(SyncVecEnv, **choice)


def test_violations_tell_the_sentence_and_what_came():
    with pytest.raises(ContractViolation) as caught:
        check_vec_env(NarrowRewards, only=["step_gives_arrays", "seed_int"], autoreset_modes=["NextStep"])
    assert set(caught.value.failures) == {"step_gives_arrays [NextStep]"}
    message = str(caught.value)
    assert "float64 rewards `[N]`" in message
    assert "rewards: got float32(3,)" in message


def test_what_a_check_built_is_closed_when_it_fails():
    built = []

    def make(env_fns, **settings):
        built.append(NarrowRewards(env_fns, **settings))
        return built[-1]

    with pytest.raises(ContractViolation):
        check_vec_env(make, only=["step_gives_arrays"])
    assert len(built) == 3
    assert all(envs.closed for envs in built)


def test_every_check_has_a_sentence_and_a_group():
    checks = all_checks()
    assert len(checks) > 60
    assert {check.group for check in checks.values()} == {"gymnasium", "vecenv"}
    for name, check in checks.items():
        assert check.name == name
        assert check.sentence.endswith("."), f"{name}: {check.sentence!r}"


@pytest.mark.parametrize(
    ("one", "two", "where"),
    [
        ({"a": 1}, {"a": 1.0}, r"\['a'\].*types"),
        ({"a": 1}, {"b": 1}, "keys"),
        ((1, 2), (1,), "lengths"),
        (np.zeros(2), np.zeros(2, np.float32), "float64"),
        (np.zeros(2), np.zeros(3), r"\(2,\)"),
        ([np.array([1.0, 2.0])], [np.array([1.0, 3.0])], r"\[0\].*values"),
        (np.array([None, 1], object), np.array([None, 2], object), "1 and 2"),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), "a=1"),
    ],
)
def test_comparison_sees_every_difference(one, two, where):
    with pytest.raises(AssertionError, match=where):
        assert_same(one, two)


def test_comparison_lets_equals_pass():
    value = {"a": (np.array([1.0, np.nan]), [None, "x"]), "b": np.array([None, np.zeros(2)], object), "c": float("nan")}
    assert_same(value, {key: value[key] for key in reversed(value)})
    assert_same(CountEnv.metadata, CountEnv.metadata)
