"""BatchedPolicy: what it acts like, and that it is the only one to act."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from vecenv.agents import evaluation, inference, precision, train
from vecenv.agents.config import PPOConfig
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.networks import build_actor_critic

IMAGES = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTORS = gymnasium.spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(6)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def image_network(name="small-cnn", seed=0):
    return build_actor_critic(IMAGES, ACTIONS, PPOConfig(network=name), seed)


def ball_images(count):
    """[count, 4, 84, 84] uint8: still background, two paddles and a moving ball, the kind of image that Pong shows."""
    rng = np.random.default_rng(0)
    images = np.full((count, 4, 84, 84), 87, np.uint8)
    images[:, :, 13:16] = images[:, :, 77:80] = 236
    for image in images:
        left, right = rng.integers(17, 70, 2)
        row, column, down, across = *rng.integers(20, 70, 2), *rng.integers(-2, 3, 2)
        for t in range(4):
            image[t, left : left + 7, 8:10], image[t, right : right + 7, 74:76] = 130, 147
            image[t, row + t * down : row + t * down + 2, column + t * across] = 236
    return images


def test_act_agrees_with_the_network():
    network = build_actor_critic(VECTORS, ACTIONS, PPOConfig(), seed=3)
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 5)).astype(np.float32)
    actions, log_probs, values = BatchedPolicy(network, head="greedy").act(observations)
    logits, expected_values = network(torch.from_numpy(observations))
    np.testing.assert_array_equal(actions, logits.argmax(-1).numpy())
    expected = torch.log_softmax(logits, -1).max(-1).values
    np.testing.assert_allclose(log_probs, expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(values, expected_values.detach().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(BatchedPolicy(network).values(observations), values)
    assert (actions.dtype, log_probs.dtype, values.dtype) == (np.int64, np.float32, np.float32)


def test_categorical_draws_with_the_policys_probabilities():
    network = build_actor_critic(VECTORS, ACTIONS, PPOConfig(), seed=0)
    with torch.no_grad():
        network.policy_head.weight.zero_()
        network.policy_head.bias.copy_(torch.log(torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125])))
    actions = BatchedPolicy(network, seed=1).act(np.zeros((200_000, 5), np.float32)).actions
    shares = np.bincount(actions, minlength=6) / len(actions)
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125], atol=0.005)


def test_draws_repeat_for_a_seed_and_leave_global_generators_alone():
    network = build_actor_critic(VECTORS, ACTIONS, PPOConfig(), seed=0)
    observations = np.zeros((64, 5), np.float32)
    before = torch.get_rng_state()
    first, again, other = (BatchedPolicy(network, seed=seed).act(observations).actions for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    build_actor_critic(VECTORS, ACTIONS, PPOConfig(), seed=9)
    assert torch.equal(before, torch.get_rng_state())


def test_observations_are_read_in_place_on_the_cpu():
    policy = BatchedPolicy(image_network())
    observations = np.zeros((3, 4, 84, 84), np.uint8)
    assert policy.stage(observations).data_ptr() == observations.ctypes.data


def test_one_forward_pass_serves_the_whole_batch():
    network = image_network()
    sizes = []
    network.register_forward_hook(lambda module, inputs, outputs: sizes.append(len(inputs[0])))
    BatchedPolicy(network).act(ball_images(20))
    assert sizes == [20]


def test_acting_needs_no_gradients_and_leaves_observations_as_they_are():
    network, observations = image_network(), ball_images(4)
    kept = observations.copy()
    BatchedPolicy(network).act(observations)
    np.testing.assert_array_equal(observations, kept)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("head", ["beta", "epsilon-greedy", "Greedy"])
def test_heads_that_do_not_exist_are_refused_by_name(head):
    with pytest.raises(NotImplementedError, match=f"'{head}'.*categorical, greedy"):
        BatchedPolicy(image_network(), head=head)


def test_bfloat16_follows_the_learner_when_refreshed():
    network, observations = image_network(), ball_images(32)
    policy = BatchedPolicy(network, precision="bfloat16")
    with torch.no_grad():
        network.value_head.bias.add_(5.0)
    stale = policy.values(observations)
    policy.refresh()
    np.testing.assert_allclose(policy.values(observations), stale + 5.0, atol=0.05)
    full = BatchedPolicy(network).values(observations)
    np.testing.assert_allclose(policy.values(observations), full, atol=0.1)


def test_auto_takes_bfloat16_only_where_it_acts_the_same(monkeypatch):
    network, observations = image_network(), ball_images(64)
    cpu = torch.device("cpu")
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    seconds = iter([2.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(precision, "_fastest_seconds", lambda work: next(seconds))
    monkeypatch.setattr(precision, "greedy_agreement", lambda *arguments: 0.9991)
    assert precision.choose_acting_precision(network, observations, 16, "auto", cpu) == "bfloat16"
    assert precision.choose_acting_precision(network, observations, 16, "auto", cpu) == "float32"  # no faster
    monkeypatch.setattr(precision, "greedy_agreement", lambda *arguments: 0.9989)
    assert precision.choose_acting_precision(network, observations, 16, "auto", cpu) == "float32"
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    assert precision.choose_acting_precision(network, observations, 16, "auto", cpu) == "float32"
    assert precision.choose_acting_precision(network, observations, 16, "bfloat16", cpu) == "bfloat16"


@pytest.mark.parametrize("mean_image", [False, True])
def test_what_auto_chooses_agrees_with_float32(mean_image):
    network, observations = image_network(), ball_images(1000)
    if mean_image:
        network.trunk.set_mean_image(torch.from_numpy(observations))
    chosen = precision.choose_acting_precision(network, observations, 16, "auto", torch.device("cpu"))
    full, half = (
        BatchedPolicy(network, head="greedy", precision=kind).act(observations).actions
        for kind in ("float32", "bfloat16")
    )
    assert np.mean(full == half) >= 0.999 or chosen == "float32"


def test_agreement_is_measured_against_float32(monkeypatch):
    network, observations = image_network(), ball_images(100)
    assert precision.greedy_agreement(network, observations, torch.device("cpu")) > 0.9
    monkeypatch.setattr(type(network), "cast_trunks", lambda self, dtype: image_network(seed=77))
    assert precision.greedy_agreement(network, observations, torch.device("cpu")) < 0.9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_staging_on_cuda_keeps_two_batches_apart():
    staging = inference.CudaStaging(torch.device("cuda"))
    first, second = (staging.stage(np.full((4, 3), value, np.float32)) for value in (1, 2))
    assert first.unique().item() == 1
    assert second.unique().item() == 2


ONLY_TO_ACT = {"inference_mode", "no_grad", "argmax", "multinomial", "exponential_", "Categorical"}
"""Names that mean choosing an action or running a network without gradients."""
MAY_CALL_A_NETWORK = {("inference.py", "act"), ("inference.py", "values"), ("ppo_update.py", "_loss")}
"""Acting, and the gradient step that learns."""


MAY_COMPUTE_TARGETS = {("dqn_loss.py", "row_losses")}
"""The next action of a target is chosen where it is learnt from, not to act."""


def acting_outside(file_name, source):
    """Places in ``source`` that act or call a network where they should not."""
    found = []
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            computes_targets = (file_name, function.name) in MAY_COMPUTE_TARGETS
            if name in ONLY_TO_ACT and file_name != "inference.py" and not computes_targets:
                found.append((function.name, name))
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                is_network = called.endswith("network") and not called.startswith(("build_", "set_"))
                if (is_network or called in ("_acting", "__call__")) and (
                    file_name,
                    function.name,
                ) not in MAY_CALL_A_NETWORK:
                    found.append((function.name, called))
    return found


def test_nobody_else_calls_a_network_to_act():
    files = sorted(Path(inference.__file__).parent.glob("*.py"))
    assert {"inference.py", "ppo.py", "collector.py", "evaluation.py"} <= {file.name for file in files}
    assert {file.name: acting_outside(file.name, file.read_text()) for file in files} == {
        file.name: [] for file in files
    }


@pytest.mark.parametrize(
    "line",
    ["self.network(x)", "network(x).argmax()", "torch.no_grad()", "policy._acting(x)", "Categorical(logits=x)"],
)
def test_the_walk_finds_acting_elsewhere(line):
    assert acting_outside("evaluation.py", f"def play(self, x, network, policy):\n    return {line}\n")
    assert acting_outside("ppo.py", f"def play(self, x, network, policy):\n    return {line}\n")


def test_benchmarks_call_networks_only_to_compare():
    folder = Path(inference.__file__).parent.parent / "benchmarks"
    found = {file.name: acting_outside(f"benchmarks/{file.name}", file.read_text()) for file in folder.glob("*.py")}
    elsewhere = {name: {function for function, _ in places} for name, places in found.items() if places}
    # What batched inference is measured against: observations one by one, and acting with gradients left on.
    assert elsewhere == {"inference.py": {"act_one_by_one"}, "one_by_one.py": {"_play"}, "slowed_dqn.py": {"act"}}


@pytest.mark.parametrize(
    "words",
    [
        ("ppo", "--num-envs", "2", "--num-steps", "8", "--total-steps", "40"),
        ("ppo", "--num-envs", "2", "--num-steps", "8", "--total-steps", "40", "--overlap"),
        ("dqn", "--total-steps", "400"),
        ("es", "--total-steps", "300"),
    ],
    ids=["ppo", "overlap", "dqn", "es"],
)
def test_every_forward_pass_of_a_run_is_batched_inference_or_learning(words, tmp_path):
    """The walk above reads names; this watches what is called."""
    passes = []

    def watch(module, inputs):
        frame, callers = sys._getframe(1), set()
        while frame is not None:
            callers.add((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
            frame = frame.f_back
        acts = callers & {("inference.py", "act"), ("inference.py", "values")}
        learns = callers & {("ppo_update.py", "_loss"), ("dqn_loss.py", "row_losses")}
        passes.append("acts" if acts else "learns" if learns else type(module).__name__)

    watching = torch.nn.modules.module.register_module_forward_pre_hook(watch)
    try:
        run = [*words, "--env", "CartPole-v1", "--backend", "sync", "--run-dir", str(tmp_path / "run")]
        assert train.main(run) == 0
        assert evaluation.main([str(tmp_path / "run"), "--episodes", "1", "--backend", "sync"]) == 0
    finally:
        watching.remove()
    assert "acts" in passes
    assert set(passes) <= {"acts", "learns"}
