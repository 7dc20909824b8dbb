"""``vecenv bench inference``: actions per second over batch size, precision, and shared or per-environment weights."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenv.agents.config import PPOConfig
from vecenv.agents.es_config import ESConfig
from vecenv.agents.inference import BatchedPolicy
from vecenv.agents.networks import build_actor_critic
from vecenv.agents.population_network import StackedNetwork, build_policy_network
from vecenv.doctor import describe_machine
from vecenv.errors import UnknownSetting

from .arguments import add_output, add_timing, make_parser, positive_int, positive_ints, words
from .compare import Samples
from .compiled_policy import CompiledPolicy, require_compiler
from .report import check_output, print_rates, publish, samples_of
from .timing import Rates, alternate, measure_rate

NETWORKS = ("mlp", "small-cnn", "nature-cnn")
NUM_ACTIONS = 6


@dataclass
class Acting:
    """A way to decide for a batch of environments.

    Attributes:
        name: of the row.
        act: decides for all of them once.
        batch_size: how many there are.
    """

    name: str
    act: Callable[[], object]
    batch_size: int

    def measure(self, seconds: float) -> float:
        """Actions per second."""

        def once() -> int:
            self.act()
            return self.batch_size

        return measure_rate(once, seconds)


def space_of(network: str) -> gymnasium.spaces.Box:
    """Observations that a network is made for: 17 numbers, or four gray images of 84 x 84."""
    if network == "mlp":
        return gymnasium.spaces.Box(-1.0, 1.0, (17,), np.float32)
    return gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def act_one_by_one(networks: Sequence[nn.Module], observations: NDArray[Any]) -> list[int]:
    """What the batched path is compared with: the module called once per environment, greedy.

    Args:
        networks: one per environment; the same one again and again where they share weights.
        observations: [B, ...].
    """
    actions = []
    with torch.inference_mode():
        for network, observation in zip(networks, observations, strict=True):
            outputs, _ = network(torch.from_numpy(observation[np.newaxis]))
            actions.append(int(outputs[0].argmax()))
    return actions


def shared_contestants(
    network_name: str, batch_size: int, precisions: Sequence[str], device: str, *, with_compiled: bool = False
) -> list[Acting]:
    """One set of weights for all environments; ``with_compiled``: once more in each precision with torch.compile."""
    space = space_of(network_name)
    config = PPOConfig(network=network_name)  # type: ignore[arg-type]
    network = build_actor_critic(space, gymnasium.spaces.Discrete(NUM_ACTIONS), config, seed=0).to(device)
    observations = _observations(space, batch_size)
    found = []
    for precision in precisions:
        policy = BatchedPolicy(network, head="greedy", device=device, precision=_checked(precision))
        found.append(Acting(f"batched, {precision}", lambda policy=policy: policy.act(observations), batch_size))  # type: ignore[misc]
    for precision in precisions if with_compiled else ():
        compiled = CompiledPolicy(network, head="greedy", device=device, precision=_checked(precision))
        found.append(Acting(f"compiled, {precision}", lambda policy=compiled: policy.act(observations), batch_size))  # type: ignore[misc]
    if device == "cpu":
        networks = [network] * batch_size
        found.append(Acting("once per env, float32", lambda: act_one_by_one(networks, observations), batch_size))
    return found


def per_env_contestants(network_name: str, batch_size: int) -> list[Acting]:
    """Weights of its own for every environment, as a population has them; float32 on the CPU."""
    space = space_of(network_name)
    config = ESConfig(network=network_name)  # type: ignore[arg-type]
    network = build_policy_network(space, gymnasium.spaces.Discrete(NUM_ACTIONS), config, seed=0)
    stacked = StackedNetwork(network, batch_size)
    networks = [copy.deepcopy(network) for _ in range(batch_size)]
    for member, own in enumerate(networks):
        for parameter in own.parameters():
            parameter.mul_(1.0 + 0.01 * member)
        stacked.load(member, nn.utils.parameters_to_vector(own.parameters()))
    observations = _observations(space, batch_size)
    policy = BatchedPolicy(stacked, head="greedy")
    return [
        Acting("own weights, batched", lambda: policy.act(observations), batch_size),
        Acting("own weights, once per env", lambda: act_one_by_one(networks, observations), batch_size),
    ]


def measure(arguments: argparse.Namespace, batch_size: int) -> list[Rates]:
    """All ways in alternating rounds, for one batch size."""
    contestants = shared_contestants(
        arguments.network, batch_size, arguments.precisions, arguments.device, with_compiled=arguments.compiled
    )
    if arguments.device == "cpu" and batch_size <= arguments.most_members:
        contestants += per_env_contestants(arguments.network, batch_size)
    return alternate(contestants, rounds=arguments.rounds, seconds=arguments.seconds, warm_up_seconds=0.1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write a JSON file.

    Args:
        argv: words after ``vecenv bench inference``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something got slower beyond noise.

    Raises:
        UnknownSetting: a network, precision or device that does not exist.
    """
    arguments = _parse(argv)
    check_output(arguments, "inference")
    print(describe_machine())
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        rates = {batch_size: measure(arguments, batch_size) for batch_size in arguments.batch_sizes}
    finally:
        torch.set_num_threads(threads)
    samples: dict[str, Samples] = {}
    for batch_size, rows in rates.items():
        title = f"{arguments.network} on {arguments.device}, {batch_size} environments at once"
        print_rates(title, rows, frames_per_step=1, unit="actions/s")
        theirs = [row.name for row in rows if "once per env" in row.name or row.name.startswith("compiled")]
        for name, row in samples_of(rows, "actions/s", theirs=theirs).items():
            samples[f"{name}, batch {batch_size}"] = row
    settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "compare")}
    results = {str(batch_size): [row.as_dict() for row in rows] for batch_size, rows in rates.items()}
    return publish(arguments, "inference", settings=settings, results=results, samples=samples)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("vecenv bench inference", __doc__)
    text = f"one of {', '.join(NETWORKS)} (default small-cnn)"
    parser.add_argument("--network", metavar="NAME", default="small-cnn", help=text)
    text = "environments at once, comma-separated (default 1,8,32,128)"
    parser.add_argument("--batch-sizes", type=positive_ints, metavar="N,N", default=[1, 8, 32, 128], help=text)
    text = "number formats, comma-separated; ratios are to the first (default float32,bfloat16)"
    parser.add_argument("--precisions", type=words, metavar="NAMES", default=["float32", "bfloat16"], help=text)
    text = "torch device where environments share weights (default cpu)"
    parser.add_argument("--device", metavar="NAME", default="cpu", help=text)
    text = "torch threads; training acts with 1 (default 1)"
    parser.add_argument("--threads", type=positive_int, metavar="N", default=1, help=text)
    text = "environments with weights of their own are measured up to this batch size (default 128)"
    parser.add_argument("--most-members", type=positive_int, metavar="N", default=128, help=text)
    text = "also with torch.compile, which takes minutes: it translates each network once per batch size"
    parser.add_argument("--compiled", action="store_true", help=text)
    add_timing(parser, rounds=5, seconds=0.5)
    add_output(parser, "inference")
    arguments = parser.parse_args(argv)
    if arguments.network not in NETWORKS:
        raise UnknownSetting(f"there is no network {arguments.network!r}; available: {', '.join(NETWORKS)}")
    if arguments.device != "cpu" and not (arguments.device.startswith("cuda") and torch.cuda.is_available()):
        raise UnknownSetting(f"device {arguments.device!r} was asked for, but torch finds no such device here")
    for precision in arguments.precisions:
        _checked(precision)
    if not arguments.precisions:
        raise UnknownSetting("--precisions: at least one of float32, bfloat16")
    if arguments.compiled:
        require_compiler()
    return arguments


def _checked(precision: str) -> Literal["float32", "bfloat16"]:
    if precision == "float32":
        return "float32"
    if precision == "bfloat16":
        return "bfloat16"
    raise UnknownSetting(f"there is no precision {precision!r}; available: float32, bfloat16")


def _observations(space: gymnasium.spaces.Box, batch_size: int) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    shape = (batch_size, *space.shape)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)
