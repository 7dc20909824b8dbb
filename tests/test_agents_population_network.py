"""A population in one forward pass: the same as one network per member, and the same bits in every row."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from vecenv.agents import population_kernels
from vecenv.agents.actions import EnvActions
from vecenv.agents.es_config import ESConfig
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.population_network import (
    ObservationScaling,
    PolicyNetwork,
    SquashedMean,
    StackedNetwork,
    action_head,
    build_policy_network,
)

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
NUM_MEMBERS = 9

CASES: dict[str, tuple[gym.Space[Any], gym.Space[Any], ESConfig]] = {
    "cheetah-like": (
        Box(-3.0, 3.0, (17,), np.float64),
        Box(-1.0, 1.0, (6,), np.float32),
        ESConfig(hidden_size=64, normalise_observations=True),
    ),
    "cartpole-like": (Box(-3.0, 3.0, (4,), np.float32), Discrete(2), ESConfig()),
    "odd sizes": (Box(-1.0, 1.0, (5, 3), np.float32), Box(-2.0, 1.0, (2, 3), np.float64), ESConfig(hidden_size=33)),
    "images": (Box(0, 255, (4, 84, 84), np.uint8), Discrete(6), ESConfig(network="small-cnn", hidden_size=20)),
    "odd images": (Box(0, 255, (1, 40, 36), np.uint8), Discrete(3), ESConfig(network="small-cnn", hidden_size=7)),
    "three layers": (Box(0, 255, (2, 50, 44), np.uint8), Discrete(4), ESConfig(network="nature-cnn", hidden_size=16)),
}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def members_of(network: PolicyNetwork) -> torch.Tensor:
    """Weights [N, P] that differ from member to member."""
    size = sum(parameter.numel() for parameter in network.parameters())
    middle = nn.utils.parameters_to_vector(network.parameters())
    return middle + 0.1 * torch.randn(NUM_MEMBERS, size, generator=torch.Generator().manual_seed(1))


def observations_of(space: gym.Space[Any]) -> np.ndarray[Any, Any]:
    space.seed(3)
    return np.stack([space.sample() for _ in range(NUM_MEMBERS)])


def stacked(network: PolicyNetwork, weights: torch.Tensor) -> StackedNetwork:
    result = StackedNetwork(network, len(weights))
    for member, parameters in enumerate(weights):
        result.load(member, parameters)
    return result


@pytest.mark.parametrize("case", CASES)
def test_a_population_acts_like_one_network_per_member(case: str) -> None:
    observation_space, action_space, config = CASES[case]
    network = build_policy_network(observation_space, action_space, config, seed=0)
    if config.normalise_observations:
        network.scaling.set(np.linspace(-1, 1, 17, dtype=np.float32), np.linspace(0.5, 20, 17, dtype=np.float32))
    weights, observations = members_of(network), observations_of(observation_space)
    outputs = stacked(network, weights)(torch.from_numpy(observations))[0].clone()
    policy = BatchedPolicy(stacked(network, weights), head=action_head(action_space))  # type: ignore[arg-type]
    actions = policy.act(observations).actions
    for member in range(NUM_MEMBERS):
        nn.utils.vector_to_parameters(weights[member], network.parameters())
        row = observations[member : member + 1]
        expected = network(torch.from_numpy(row))[0][0]
        # Sums in another order: a few units in the last place of the largest term.
        torch.testing.assert_close(outputs[member], expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
        own = BatchedPolicy(network, head=action_head(action_space)).act(row).actions[0]  # type: ignore[arg-type]
        assert actions[member] == pytest.approx(own, abs=1e-4)
    assert len({tuple(row) for row in outputs.tolist()}) == NUM_MEMBERS


@pytest.mark.parametrize("case", CASES)
def test_a_member_does_not_see_its_row_nor_the_number_of_rows(case: str) -> None:
    observation_space, action_space, config = CASES[case]
    network = build_policy_network(observation_space, action_space, config, seed=0)
    weights, observations = members_of(network), observations_of(observation_space)
    whole = stacked(network, weights)(torch.from_numpy(observations))[0].clone()
    for num_rows in (1, 2, 3, 5, 8):
        for start in range(0, NUM_MEMBERS - num_rows + 1, 2):
            rows = slice(start, start + num_rows)
            part = stacked(network, weights[rows])(torch.from_numpy(observations[rows].copy()))[0]
            assert torch.equal(part, whole[rows]), (num_rows, start)


def test_values_that_a_caller_writes_into_are_not_seen_again() -> None:
    spaces = CASES["cartpole-like"]
    network = build_policy_network(*spaces, seed=0)
    policy = BatchedPolicy(stacked(network, members_of(network)), head="greedy")
    observations = observations_of(spaces[0])
    policy.act(observations).values[:] = 7.0
    assert not policy.act(observations).values.any()


def test_a_policy_with_two_threads_acts_the_same() -> None:
    observation_space, action_space, config = CASES["cheetah-like"]
    network = build_policy_network(observation_space, action_space, config, seed=0)
    weights, observations = members_of(network), observations_of(observation_space)
    before = torch.get_num_threads()
    try:
        outputs = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            outputs.append(stacked(network, weights)(torch.from_numpy(observations))[0].clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*outputs)


def test_weights_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    spaces = CASES["cartpole-like"][:2]
    state = torch.random.get_rng_state()
    first, again, other = (
        nn.utils.parameters_to_vector(build_policy_network(*spaces, ESConfig(), seed).parameters())
        for seed in (1, 1, 2**64 - 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_box_actions_reach_the_bounds_and_never_leave_them() -> None:
    space = Box(np.array([-2, 0, -np.inf, 1], np.float32), np.array([1, 0.1, np.inf, np.inf], np.float32))
    head, generator = SquashedMean(space), torch.Generator()
    outputs = torch.tensor([[100.0] * 4, [-100.0] * 4, [0.0] * 4, [0.5, 0.5, 0.5, 1.5]])
    squashed, log_probs = head(outputs, generator)
    assert log_probs.tolist() == [0.0] * 4
    actions = EnvActions(space)(squashed.numpy())
    assert actions[0].tolist() == pytest.approx([1.0, 0.1, 100.0, 100.0])
    assert actions[1].tolist() == pytest.approx([-2.0, 0.0, -100.0, 1.0])
    assert actions[2].tolist() == pytest.approx([-0.5, 0.05, 0.0, 1.0])
    assert actions[3].tolist() == pytest.approx([-0.5 + 1.5 * np.tanh(0.5), 0.05 + 0.05 * np.tanh(0.5), 0.5, 1.5])
    for row in actions:
        assert space.contains(row)


def test_box_actions_have_the_shape_and_dtype_of_the_space() -> None:
    space = Box(-0.3, 0.7, (2, 3), np.float64)
    actions = EnvActions(space)(SquashedMean(space)(torch.randn(5, 6) * 9, torch.Generator())[0].numpy())
    assert actions.shape == (5, 2, 3)
    assert actions.dtype == np.float64
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "config", "error", "words"),
    [
        (Box(0, 1, (3,)), gym.spaces.MultiDiscrete([2, 2]), ESConfig(), NotImplementedError, "MultiDiscrete"),
        (Box(0, 1, (3,)), Box(0, 9, (2,), np.int64), ESConfig(), NotImplementedError, "Box"),
        (gym.spaces.Dict({}), Discrete(2), ESConfig(), NotImplementedError, "Dict"),
        (Box(0, 1, (3,)), Discrete(2), ESConfig(network="small-cnn"), ValueError, "use network mlp"),
        (Box(0, 255, (1, 9, 9), np.uint8), Discrete(2), ESConfig(network="nature-cnn"), ValueError, "too small"),
        (Box(0, 255, (8,), np.uint8), Discrete(2), ESConfig(normalise_observations=True), ValueError, "bytes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    observation_space: Any, action_space: Any, config: ESConfig, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build_policy_network(observation_space, action_space, config, 0)


def test_layers_without_a_stacked_form_are_refused() -> None:
    network = build_policy_network(*CASES["cartpole-like"][:2], ESConfig(), 0)
    network.layers.append(nn.Softplus())
    with pytest.raises(TypeError, match="Softplus"):
        StackedNetwork(network, 2)
    network.layers[-1] = nn.Conv2d(1, 1, 3, padding=1)
    with pytest.raises(TypeError, match="padding"):
        StackedNetwork(network, 2)


def squashed(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = numbers.copy()
    population_kernels.squash(result, np.empty(result.size, np.int32), np.empty(result.size, np.float32))
    return result


def test_the_kernels_tangent_is_off_by_less_than_its_bound() -> None:
    # Roundings near 1: of the series, of the sum with 1, of the quotient and of the difference, half of 6e-8 or 1.2e-7.
    numbers = np.concatenate([np.linspace(-12, 12, 200_001), np.logspace(-45, 38, 5_000)]).astype(np.float32)
    exact = np.tanh(numbers.astype(np.float64))
    assert np.abs(squashed(numbers) - exact).max() < 3e-7
    assert np.abs(squashed(numbers)).max() <= 1.0


def test_the_kernels_tangent_of_what_is_no_usual_number() -> None:
    numbers = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38], np.float32)
    np.testing.assert_array_equal(squashed(numbers), np.array([0, 0, 1, -1, np.nan, 1, -1], np.float32))


@pytest.mark.parametrize("num_in", [1, 2, 3, 4, 5, 17, 64])
@pytest.mark.parametrize("is_squashed", [False, True])
def test_layers_by_the_kernel_are_those_of_torch(num_in: int, is_squashed: bool) -> None:
    generator = torch.Generator().manual_seed(num_in)
    biases, inputs, weights = (
        torch.randn(shape, generator=generator) for shape in ((3, 1, 16), (3, 1, 64), (3, 64, 16))
    )
    outputs = torch.full((3, 1, 16), torch.nan)
    arrays = (tensor.numpy() for tensor in (biases, inputs, weights))
    population_kernels.apply_layers(*arrays, num_in, is_squashed, outputs.numpy())
    expected = biases.double() + inputs[:, :, :num_in].double() @ weights[:, :num_in].double()
    if is_squashed:
        expected = expected.tanh()
    # Sums of up to 64 products of about 1, rounded to float32 after each.
    torch.testing.assert_close(outputs.double(), expected, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_observations_scaled_by_the_kernel_have_the_bits_of_the_module(dtype: type[Any]) -> None:
    generator = np.random.default_rng(2)
    observations = generator.normal(scale=30.0, size=(7, 17)).astype(dtype)
    observations[0, :4] = np.nan, np.inf, -np.inf, -0.0
    shift, factor = (generator.normal(size=17).astype(np.float32) for _ in range(2))
    scaling = ObservationScaling(torch.from_numpy(shift), torch.from_numpy(factor), limit=10.0)
    inputs = np.zeros((7, 1, 32), np.float32)
    kernel = population_kernels.scale_float32 if dtype is np.float32 else population_kernels.scale_float64
    kernel(observations, shift, factor, 10.0, inputs)
    expected = scaling(torch.from_numpy(observations)).numpy()
    np.testing.assert_array_equal(inputs[:, 0, :17].view(np.uint32)[1:], expected.view(np.uint32)[1:])
    np.testing.assert_array_equal(inputs[0, 0, :17], expected[0])  # nan has more than one pattern of bits
    assert (np.abs(expected[1:]) == 10.0).any()
    assert not inputs[:, 0, 17:].any()
