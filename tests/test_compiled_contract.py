"""Compiled envs keep the contract of vector envs, with the exceptions that are named here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import vecenv
from vecenv import CompiledEnv, CompiledVecEnv
from vecenv.pcg64 import uniform
from vecenv.testing import CountEnv, DrawEnv, all_checks, check_vec_env

# -- the toy environments of the contract suite, as compiled envs -----------------------------------------------------


class CountParameters(NamedTuple):
    """Lengths of the episodes of four envs."""

    length_0: float = 5.0
    length_1: float = 5.0
    length_2: float = 5.0
    length_3: float = 5.0


def count_start(state, row, generators, bounds, parameters):
    state[0, row] += 1.0
    state[1, row] = 0.0


def count_advance(state, row, actions, generators, parameters):
    length = parameters.length_0 if row == 0 else parameters.length_1
    length = parameters.length_2 if row == 2 else length
    length = parameters.length_3 if row == 3 else length
    state[1, row] += 1.0
    return state[1, row], state[1, row] >= length


def count_observe(state, row, observations, parameters):
    observations[row, 0] = row
    observations[row, 1] = state[0, row] - 1.0  # the first episode is 0
    observations[row, 2] = state[1, row]


class DrawParameters(NamedTuple):
    """Steps of an episode."""

    length: float = 3.0


def draw_start(state, row, generators, bounds, parameters):
    state[0, row] = uniform(generators, row, 0.0, 1.0)
    state[1, row] = uniform(generators, row, 0.0, 1.0)
    state[2, row] = 0.0


def draw_advance(state, row, actions, generators, parameters):
    state[0, row] = uniform(generators, row, 0.0, 1.0)
    state[1, row] = uniform(generators, row, 0.0, 1.0)
    state[2, row] += 1.0
    return 0.0, state[2, row] >= parameters.length


def draw_observe(state, row, observations, parameters):
    observations[row, 0] = state[0, row]
    observations[row, 1] = state[1, row]


def compiled_count(lengths):
    return CompiledEnv(
        observation_space=spaces.Box(-1e6, 1e6, (3,), np.float32),
        action_space=spaces.Discrete(2),
        state_size=2,
        parameters=CountParameters(*map(float, lengths)),
        start=count_start,
        advance=count_advance,
        observe=count_observe,
    )


def compiled_draw(length):
    return CompiledEnv(
        observation_space=spaces.Box(0.0, 1.0, (2,), np.float64),
        action_space=spaces.Discrete(2),
        state_size=3,
        parameters=DrawParameters(float(length)),
        start=draw_start,
        advance=draw_advance,
        observe=draw_observe,
    )


vecenv.register_compiled_env("test/Count-v0", compiled_count([5, 5, 5, 5]))
vecenv.register_compiled_env("test/Draw-v0", compiled_draw(3))


def make_toys(env_fns, **settings):
    """Compiled twins of the toy environments that the suite asks for."""
    plain = [function() for function in env_fns]
    kinds = {type(env) for env in plain}
    if kinds == {DrawEnv}:
        return CompiledVecEnv(compiled_draw(plain[0].length), len(plain), **settings)
    assert kinds == {CountEnv}, f"no compiled twin of {kinds}"
    assert not any(env.truncates or env.fails_at for env in plain)
    return CompiledVecEnv(compiled_count([env.length for env in plain]), len(plain), **settings)


#: What envs that are functions on rows of arrays have not: infos, attributes, nested spaces, exceptions, frames, time
#: limits of single envs, and batches of some of the envs.
NOT_OF_COMPILED_ENVS = [
    "actions_belong_to_the_caller",
    "actions_of_nested_spaces",
    "actions_reach_their_env",
    "actions_as_lists_and_other_ints",
    "attributes_that_do_not_exist",
    "autoreset_passes_no_options",
    "call_through_wrappers",
    "constructors_that_fail_are_named",
    "exceptions_of_envs_keep_class_and_message",
    "failing_envs_are_named_and_the_others_spared",
    "final_obs_is_the_end",
    "final_obs_of_envs_that_reuse_their_array",
    "final_obs_of_nested_spaces",
    "frames_of_all_envs",
    "get_attr_through_wrappers",
    "infos_are_arrays_with_masks",
    "infos_of_infos",
    "infos_of_some_envs",
    "infos_stay",
    "mask_resets_the_selected_only",
    "nested_observations_are_batched",
    "nested_observations_into_the_callers_arrays",
    "nested_observations_stay",
    "next_step_after_truncation",
    "options_reach_every_env",
    "order_of_send_and_receive",
    "rewards_of_one_element",
    "same_step_after_truncation",
    "send_and_receive",
    "set_attr_reaches_the_env",
    "set_attr_values",
]


@pytest.mark.parametrize("copies", ["copies", "views"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_toy_environments(mode, copies):
    def make(env_fns, **settings):
        return make_toys(env_fns, **{**({"copy": False, "slots": 12} if copies == "views" else {}), **settings})

    held = check_vec_env(make, autoreset_modes=[mode], skip=NOT_OF_COMPILED_ENVS)
    assert len(held) >= 32
    assert set(NOT_OF_COMPILED_ENVS) <= set(all_checks())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_classic_control(env_id):
    def make(env_fns, **settings):
        return vecenv.make_vec(env_id, len(env_fns), "compiled", **settings)

    held = check_vec_env(make, env_id=env_id)
    assert len(held) >= 33
