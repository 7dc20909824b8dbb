"""DQN's targets and networks against numbers worked out by hand and slow twins."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.dqn_loss import QMinibatch, project_distribution, row_losses
from vecenv.agents.dqn_staging import MinibatchStaging, new_array
from vecenv.agents.q_networks import INITIAL_NOISE, NoisyLinear, build_q_network
from vecenv.agents.replay_buffer import Transitions

ATOMS = torch.tensor([0.0, 1.0, 2.0])


class Table(nn.Module):
    """A network that looks its outputs up: observation i gives row i."""

    def __init__(self, rows, atoms=None):
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))
        self.atoms = torch.zeros(1) if atoms is None else atoms

    def outputs(self, observations):
        rows = self.rows[observations]
        return rows if rows.dim() == 3 else rows.unsqueeze(-1)

    def action_values(self, outputs):
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs.softmax(dim=-1) @ self.atoms


def minibatch(actions, returns, discounts, weights=None):
    """Row i goes from observation i to observation i + 10."""
    count = len(actions)
    rows = torch.arange(count)
    return QMinibatch(
        rows,
        torch.tensor(actions),
        torch.tensor(returns),
        torch.tensor(discounts),
        rows + 10,
        torch.ones(count) if weights is None else torch.tensor(weights),
        rows,
    )


def tables():
    """Values of 3 actions. Next: online prefers action 2, target prefers action 0."""
    online, target = torch.zeros(20, 3), torch.zeros(20, 3)
    online[:10] = torch.tensor([1.0, 2.0, 3.0])
    online[10:] = torch.tensor([0.0, 1.0, 5.0])
    target[10:] = torch.tensor([4.0, 2.0, 3.0])
    return Table(online.tolist()), Table(target.tolist())


@pytest.mark.parametrize(("double", "next_value"), [(False, 4.0), (True, 3.0)])
def test_targets_by_hand(double, next_value):
    online, target = tables()
    # Goes on; terminated; truncated or n steps long (its discount is not 0); a large error.
    batch = minibatch([0, 1, 2, 2], [1.0, 0.5, 2.0, -20.0], [0.9, 0.0, 0.81, 0.9])
    losses, errors, values = row_losses(online, target, batch, double=double)
    wanted = np.array([1.0 + 0.9 * next_value, 0.5, 2.0 + 0.81 * next_value, -20.0 + 0.9 * next_value])
    difference = np.abs(np.array([1.0, 2.0, 3.0, 3.0]) - wanted)
    huber = np.where(difference < 1.0, 0.5 * difference**2, difference - 0.5)
    np.testing.assert_allclose(losses.detach(), huber, rtol=1e-6)
    np.testing.assert_allclose(errors, difference, rtol=1e-6)
    np.testing.assert_allclose(values, [1.0, 2.0, 3.0, 3.0])
    losses.sum().backward()
    gradient = torch.zeros(20, 3)  # only the actions taken, never through the target
    for row, action in enumerate([0, 1, 2, 2]):
        gradient[row, action] = float(np.clip([1.0, 2.0, 3.0, 3.0][row] - wanted[row], -1, 1))
    torch.testing.assert_close(online.rows.grad, gradient)
    assert target.rows.grad is None
    assert not errors.requires_grad
    assert not values.requires_grad


def slow_projection(probabilities, returned, discount, atoms):
    """Bellemare et al. (2017), algorithm 1, for one row."""
    low, high, spacing = atoms[0], atoms[-1], atoms[1] - atoms[0]
    result = np.zeros(len(atoms))
    for atom, probability in zip(atoms, probabilities, strict=True):
        position = (np.clip(returned + discount * atom, low, high) - low) / spacing
        below, above = int(np.floor(position)), int(np.ceil(position))
        if below == above:
            result[below] += probability
        else:
            result[below] += probability * (above - position)
            result[above] += probability * (position - below)
    return result


def test_projection_by_hand():
    probabilities = torch.tensor([[0.2, 0.3, 0.5]] * 4)
    returns, discounts = torch.tensor([0.0, 0.5, 0.25, -9.0]), torch.tensor([1.0, 0.5, 0.0, 1.0])
    expected = [
        [0.2, 0.3, 0.5],  # nothing moves
        [0.1, 0.65, 0.25],  # to 0.5, 1.0, 1.5: 0.2 is shared by 0 and 1, 0.5 by 1 and 2
        [0.75, 0.25, 0.0],  # terminated: all of it to 0.25
        [1.0, 0.0, 0.0],  # below the lowest
    ]
    torch.testing.assert_close(
        project_distribution(probabilities, returns, discounts, ATOMS), torch.tensor(expected), atol=1e-6, rtol=0
    )


def test_projection_is_the_papers_algorithm():
    rng = np.random.default_rng(0)
    atoms = np.linspace(-3.0, 7.0, 21)
    probabilities = rng.dirichlet(np.ones(21), 100)
    returns, discounts = rng.normal(0, 6, 100), rng.choice([0.0, 0.9, 0.99, 1.0], 100)
    expected = [slow_projection(*row, atoms) for row in zip(probabilities, returns, discounts, strict=True)]
    result = project_distribution(*map(torch.from_numpy, (probabilities, returns, discounts, atoms)))
    np.testing.assert_allclose(result, expected, atol=1e-9)
    np.testing.assert_allclose(result.sum(dim=1), 1.0)


@pytest.mark.parametrize(("double", "picked"), [(False, 0), (True, 1)])
def test_categorical_targets_by_hand(double, picked):
    online, target = torch.zeros(20, 2, 3), torch.zeros(20, 2, 3)
    online[0, 0] = torch.log(torch.tensor([0.25, 0.25, 0.5]))
    online[10, 1, 2] = 5.0  # the network picks action 1
    target[10, 0] = torch.log(torch.tensor([0.1, 0.1, 0.8]))  # the target network would pick action 0
    target[10, 1] = torch.log(torch.tensor([0.6, 0.2, 0.2]))
    online_network, target_network = Table(online.tolist(), ATOMS), Table(target.tolist(), ATOMS)
    batch = minibatch([0], [0.5], [0.5])
    losses, errors, values = row_losses(online_network, target_network, batch, double=double)
    next_probabilities = [[0.1, 0.1, 0.8], [0.6, 0.2, 0.2]][picked]
    wanted = slow_projection(next_probabilities, 0.5, 0.5, [0.0, 1.0, 2.0])
    cross_entropy = -(wanted * np.log([0.25, 0.25, 0.5])).sum()
    entropy = -(wanted[wanted > 0] * np.log(wanted[wanted > 0])).sum()
    assert losses.item() == pytest.approx(cross_entropy, rel=1e-5)
    assert errors.item() == pytest.approx(cross_entropy - entropy, rel=1e-4)
    assert values.item() == pytest.approx(1.25, rel=1e-5)


# -- networks ---------------------------------------------------------------------------------------------------------

VECTOR = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
FOUR = gymnasium.spaces.Discrete(4)


def build(space=VECTOR, seed=0, **changes):
    return build_q_network(space, FOUR, dataclasses.replace(DQNConfig(hidden_size=8), **changes), seed)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("categorical", [False, True])
def test_dueling_values_are_the_states_plus_the_advantages_less_their_mean(noisy, categorical):
    network = build(dueling=True, noisy=noisy, categorical=categorical, num_atoms=5)
    network.draw_noise(torch.Generator().manual_seed(1))
    observations = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    features = network.trunk(observations)
    assert features.shape == (6, 16)  # a hidden layer of 8 for each of the two
    state = network.value_layer(features[:, :8])  # (6, Z)
    advantages = network.advantage_layer(features[:, 8:]).view(6, 4, -1)
    expected = torch.stack([state + advantages[:, a] - advantages.mean(dim=1) for a in range(4)], dim=1)
    torch.testing.assert_close(network.outputs(observations), expected)
    values, best = network(observations)
    if categorical:
        expected_values = (expected.softmax(dim=-1) * torch.linspace(-10, 10, 5)).sum(dim=-1)
    else:
        expected_values = expected.squeeze(-1)
        torch.testing.assert_close(values.mean(dim=1), state.squeeze(-1))  # advantages cancel out
    torch.testing.assert_close(values, expected_values)
    torch.testing.assert_close(best, expected_values.max(dim=1).values)


def test_noisy_layer_is_the_papers():
    torch.manual_seed(0)
    layer = NoisyLinear(300, 200)
    assert layer.weight_scale.unique().item() == pytest.approx(INITIAL_NOISE / 300**0.5)
    assert layer.bias_scale.unique().item() == pytest.approx(INITIAL_NOISE / 300**0.5)
    assert layer.weight.abs().max() <= 1 / 300**0.5
    features = torch.randn(5, 300)
    torch.testing.assert_close(layer(features), nn.functional.linear(features, layer.weight, layer.bias))
    generator = torch.Generator().manual_seed(3)
    layer.draw_noise(generator)
    twin = torch.Generator().manual_seed(3)
    inputs, outputs = torch.randn(300, generator=twin), torch.randn(200, generator=twin)
    inputs, outputs = inputs.sign() * inputs.abs().sqrt(), outputs.sign() * outputs.abs().sqrt()
    weight = layer.weight + layer.weight_scale * outputs[:, None] * inputs[None, :]
    bias = layer.bias + layer.bias_scale * outputs
    expected = features @ weight.T + bias
    torch.testing.assert_close(layer(features), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer(features), layer(features))  # the same noise until the next draw
    before = layer(features)
    layer.draw_noise(generator)
    assert not torch.allclose(layer(features), before)
    layer.remove_noise()
    torch.testing.assert_close(layer(features), nn.functional.linear(features, layer.weight, layer.bias))


def test_noise_lies_in_every_layer_behind_the_convolutions_and_has_gradients():
    network = build(IMAGE, network="small-cnn", noisy=True, dueling=True)
    assert len(network.noisy_layers()) == 3  # hidden, value, advantages
    assert len(build(noisy=True).noisy_layers()) == 2
    assert not build().noisy_layers()
    network.draw_noise(torch.Generator().manual_seed(0))
    network.outputs(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).square().sum().backward()
    assert all(layer.weight_scale.grad.abs().sum() > 0 for layer in network.noisy_layers()[1:])


def test_weights_follow_the_seed_and_leave_torchs_generator_alone():
    before = torch.random.get_rng_state()
    first, again, other = build(seed=1, noisy=True), build(seed=1, noisy=True), build(seed=2, noisy=True)
    assert torch.equal(before, torch.random.get_rng_state())
    states = [torch.cat([tensor.flatten() for tensor in own.state_dict().values()]) for own in (first, again, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


# -- staging ----------------------------------------------------------------------------------------------------------


def transitions_of(number, count=6):
    floats = np.full(count, number, np.float32)
    images = np.full((count, 2, 3), number, np.uint8)
    return Transitions(images, np.full(count, number), floats, floats, images + 1, floats, np.arange(count))


def test_on_the_cpu_a_minibatch_is_the_arrays_themselves():
    staging, transitions = MinibatchStaging(torch.device("cpu")), transitions_of(3)
    staging.wait()
    batch = staging.stage(transitions)
    staging.release()
    assert batch.observations.data_ptr() == transitions.observations.ctypes.data
    for field in ("observations", "actions", "returns", "discounts", "next_observations", "weights"):
        np.testing.assert_array_equal(getattr(batch, field), getattr(transitions, field))
    assert batch.rows.tolist() == list(range(6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_two_minibatches_are_kept_apart():
    device = torch.device("cuda")
    assert torch.from_numpy(new_array((4,), np.dtype(np.float32), device)).is_pinned()
    staging, batches = MinibatchStaging(device), []
    for number in range(5):
        staging.wait()
        batches.append(staging.stage(transitions_of(number)))
        assert batches[-1].returns.unique().item() == number
        staging.release()
        if number:
            assert batches[-2].observations.unique().item() == number - 1
