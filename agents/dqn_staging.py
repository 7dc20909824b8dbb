"""Brings sampled transitions to the learner's device, on CUDA while the gradient step before is still running."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dqn_loss import QMinibatch
from .replay_buffer import Transitions


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device) -> NDArray[Any]:
    """Host memory for batches; page-locked where the device copies from it by itself."""
    array = np.zeros(shape, dtype)
    if device.type != "cuda":
        return array
    pinned: NDArray[Any] = torch.from_numpy(array).pin_memory().numpy()
    return pinned


def minibatch_arrays(transitions: Transitions) -> tuple[NDArray[Any], ...]:
    """The fields of a :class:`~vecenv.agents.dqn_loss.QMinibatch` in host memory; not copied, rows are numbered."""
    return (
        transitions.observations,
        transitions.actions,
        transitions.returns,
        transitions.discounts,
        transitions.next_observations,
        transitions.weights,
        np.arange(len(transitions.actions)),
    )


class MinibatchStaging:
    """Turns `Transitions` into tensors on the device.

    On the CPU the tensors are the arrays. On CUDA a stream of its own copies from page-locked memory into one of two
    sets of device buffers; the copy of a minibatch runs while the gradient step on the one before does. The order of
    calls is :meth:`wait`, sampling, :meth:`stage`, the gradient step, :meth:`release`.
    """

    def __init__(self, device: torch.device) -> None:
        """Stage to ``device``."""
        self._device = device
        self._turn = 0
        self._buffers: list[list[Tensor] | None] = [None, None]
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the arrays of the second last minibatch, which are sampled into next, have been copied."""
        if self._device.type == "cuda":
            self._copied[self._turn].synchronize()

    def stage(self, transitions: Transitions) -> QMinibatch:
        """The minibatch on the device; valid until the second next call."""
        fields = [torch.from_numpy(array) for array in minibatch_arrays(transitions)]
        if self._device.type != "cuda":
            return QMinibatch(*(field.to(self._device) for field in fields))
        turn = self._turn
        buffers = self._buffers[turn]
        if buffers is None or buffers[0].shape != fields[0].shape:
            buffers = self._buffers[turn] = [torch.empty_like(field, device=self._device) for field in fields]
        # Only the gradient step two minibatches ago read these buffers; the last one may still run.
        self._stream.wait_event(self._used[turn])
        with torch.cuda.stream(self._stream):
            for buffer, field in zip(buffers, fields, strict=True):
                buffer.copy_(field, non_blocking=True)
            self._copied[turn].record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._copied[turn])
        return QMinibatch(*buffers)

    def release(self) -> None:
        """The gradient step on the last minibatch has been started."""
        if self._device.type == "cuda":
            self._used[self._turn].record(torch.cuda.current_stream(self._device))
        self._turn = 1 - self._turn
