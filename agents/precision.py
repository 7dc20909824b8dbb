"""Chooses float32 or bfloat16 by measurement: for acting, and for training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .config import Precision
from .inference import ActingNetwork, BatchedPolicy

ChosenPrecision = Literal["float32", "bfloat16"]

REQUIRED_AGREEMENT = 0.999
"""Share of greedy actions that must be the same in bfloat16 as in float32."""
REQUIRED_SPEEDUP = 1.1
"""bfloat16 must be at least this much faster to be worth its rounding."""


class ExploringNetwork(ActingNetwork, Protocol):
    """A network that says which heads act with it."""

    @property
    def distribution(self) -> ActionHeads:
        """Names of its heads."""


class ActionHeads(Protocol):
    """Names in `ACTION_HEADS`."""

    @property
    def explore(self) -> str:
        """Head that explores."""

    @property
    def exploit(self) -> str:
        """Head that takes the best action."""


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively (AVX512-BF16 or AMX); elsewhere it is emulated and slow."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())


def choose_acting_precision(
    network: ExploringNetwork, observations: NDArray[Any], num_envs: int, requested: Precision, device: torch.device
) -> ChosenPrecision:
    """Precision for acting in ``num_envs`` environments at once.

    ``auto`` takes bfloat16 only on a CPU that computes it natively, when it measures faster on ``observations`` [B,
    ...] and takes the same greedy action as float32 on at least 99.9 % of them.
    """
    if requested != "auto":
        return requested
    if device.type != "cpu" or not cpu_has_bfloat16():
        return "float32"
    if greedy_agreement(network, observations, device) < REQUIRED_AGREEMENT:
        return "float32"
    full_policy, half_policy = (
        BatchedPolicy(network, head=network.distribution.explore, device=device, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    full = _fastest_seconds(lambda: full_policy.act(observations[:num_envs]))
    half = _fastest_seconds(lambda: half_policy.act(observations[:num_envs]))
    return "bfloat16" if full > REQUIRED_SPEEDUP * half else "float32"


def greedy_agreement(network: ExploringNetwork, observations: NDArray[Any], device: torch.device) -> float:
    """Share of ``observations`` [B, ...] on which bfloat16 takes the same greedy action as float32.

    Continuous actions are the same where every number of them is.
    """
    full, half = (
        BatchedPolicy(network, head=network.distribution.exploit, device=device, precision=precision)
        .act(observations)
        .actions
        for precision in ("float32", "bfloat16")
    )
    return float(np.mean((full == half).reshape(len(full), -1).all(axis=1)))


def choose_training_precision(
    gradient_step: Callable[[bool], object], requested: Precision, device: torch.device
) -> ChosenPrecision:
    """Precision for gradient steps.

    Args:
        gradient_step: computes gradients on a typical minibatch, with autocast to bfloat16 when its argument is True,
            without changing any weights.
        requested: ``auto`` measures; anything else is taken as it is.
        device: where the network lies.
    """
    if requested != "auto":
        return requested
    if device.type != "cpu" or not cpu_has_bfloat16():
        return "float32"
    full = _fastest_seconds(lambda: gradient_step(False))
    half = _fastest_seconds(lambda: gradient_step(True))
    return "bfloat16" if full > REQUIRED_SPEEDUP * half else "float32"


def _fastest_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few timings: a busy machine only ever makes work slower."""
    work()
    timings = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        timings.append(time.perf_counter() - started)
    return min(timings)
