"""Networks: shapes, start, and what is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from vecenv.agents.config import PPOConfig
from vecenv.agents.networks import build_actor_critic

IMAGES = Box(0, 255, (4, 84, 84), np.uint8)
VECTORS = Box(-1, 1, (5,), np.float32)


@pytest.mark.parametrize(
    ("space", "name"),
    [(VECTORS, "mlp"), (Box(-1, 1, (2, 3), np.float64), "mlp"), (IMAGES, "small-cnn"), (IMAGES, "nature-cnn")],
)
def test_shapes_and_dtypes(space, name):
    network = build_actor_critic(space, Discrete(3), PPOConfig(network=name), seed=0)
    batch = torch.from_numpy(np.stack([space.sample() for _ in range(7)]))
    logits, values = network(batch)
    assert (logits.shape, values.shape) == ((7, 3), (7,))
    assert (logits.dtype, values.dtype) == (torch.float32, torch.float32)
    assert (torch.softmax(logits, -1) - 1 / 3).abs().max() < 0.1  # close to uniform at the start


def test_convolutions_are_the_published_ones():
    convolutions = {
        name: [
            (layer.out_channels, layer.kernel_size[0], layer.stride[0])
            for layer in build_actor_critic(IMAGES, Discrete(6), PPOConfig(network=name), 0).modules()
            if isinstance(layer, torch.nn.Conv2d)
        ]
        for name in ("small-cnn", "nature-cnn")
    }
    assert convolutions == {"small-cnn": [(16, 8, 4), (32, 4, 2)], "nature-cnn": [(32, 8, 4), (64, 4, 2), (64, 3, 1)]}


def test_weights_are_orthogonal_and_follow_the_seed():
    first, again, other = (build_actor_critic(VECTORS, Discrete(2), PPOConfig(), seed=seed) for seed in (1, 1, 2))
    weight = first.trunk.layers[3].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(weight, other.trunk.layers[3].weight)


def test_the_mean_image_is_subtracted():
    network = build_actor_critic(IMAGES, Discrete(6), PPOConfig(network="small-cnn"), seed=0)
    images = torch.from_numpy(np.stack([IMAGES.sample() for _ in range(9)]))
    network.trunk.set_mean_image(images)
    assert network.trunk.mean_image.frac().abs().max() == 0  # whole numbers are exact in bfloat16
    mean = network.trunk.mean_image.to(torch.uint8).unsqueeze(0)
    features = network.trunk(mean)
    network.trunk.mean_image.zero_()
    torch.testing.assert_close(features, network.trunk(torch.zeros_like(mean)))


def test_bfloat16_pixels_are_exact():
    network = build_actor_critic(IMAGES, Discrete(6), PPOConfig(network="small-cnn"), seed=0)
    images = torch.from_numpy(np.stack([IMAGES.sample() for _ in range(9)]))
    network.trunk.set_mean_image(images)
    mean = network.trunk.mean_image.clone()
    seen = []
    network.cast_trunks(torch.bfloat16).trunk.layers.register_forward_pre_hook(
        lambda layer, inputs: seen.extend(inputs)
    )
    network(images)
    assert seen[0].dtype == torch.bfloat16
    assert torch.equal(seen[0].double(), (images - mean).double() / 128)


@pytest.mark.parametrize(
    ("observations", "actions", "network", "named"),
    [
        (VECTORS, Box(0, 9, (2,), np.int64), "mlp", "no action head for Box"),
        (VECTORS, MultiDiscrete([2, 2]), "mlp", "MultiDiscrete"),
        (Discrete(4), Discrete(2), "mlp", "no network for Discrete"),
        (Dict(a=VECTORS), Discrete(2), "mlp", "no network for Dict"),
        (VECTORS, Discrete(2), "small-cnn", "small-cnn needs uint8 images"),
        (Box(0, 255, (4, 20, 20), np.uint8), Discrete(2), "nature-cnn", "too small"),
    ],
)
def test_what_has_no_network_is_refused_by_name(observations, actions, network, named):
    with pytest.raises((NotImplementedError, ValueError), match=named):
        build_actor_critic(observations, actions, PPOConfig(network=network), seed=0)


def test_spaces_of_real_envs_fit():
    env = gymnasium.make("Acrobot-v1")
    network = build_actor_critic(env.observation_space, env.action_space, PPOConfig(), seed=0)
    observation, _ = env.reset(seed=0)
    outputs, values = network(torch.as_tensor(observation[None]))
    assert (outputs.shape, values.shape) == ((1, 3), (1,))
    env.close()
