"""Main of a worker process: builds its share of the envs, then resets and steps them into the shared block.

Steps are started and answered by signals alone; everything else (building, reset, calls, errors, odd infos) are
messages. Each answer is: the messages, then their number and the sequence number of the call in the block, then the
signal. The worker shares no lock with anyone.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.actions import split_actions
from vecenv.batch import batch_arrays
from vecenv.buffers import Block, Layout
from vecenv.channel import Channel, dumps
from vecenv.env_slice import EnvSlice, SliceFailed, build_envs, env_failure
from vecenv.errors import EnvFailure
from vecenv.infos import InfoColumns, Signature
from vecenv.lifeline import end_with
from vecenv.signals import Signal
from vecenv.sync_backend import describe_envs

#: Places in the control array `[3 + 2 * workers] int64` of the block; then the workers' sequence and message numbers.
SEQUENCE, SLOT, WIDE, FIRST_WORKER = 0, 1, 2, 3


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told at its start.

    Attributes:
        env_fns: constructors, each pickled by value where needed.
        first_index: index of its first env.
        worker_index: which worker it is.
        autoreset_mode: what happens when an episode ends.
    """

    env_fns: tuple[bytes, ...]
    first_index: int
    worker_index: int
    autoreset_mode: AutoresetMode


@dataclass(frozen=True)
class BlockPlan:
    """What a worker needs to use the shared block.

    Attributes:
        layout: names and places.
        num_envs: of the whole vector env.
        num_workers: of the whole vector env.
        slots: length of the observation ring.
    """

    layout: Layout
    num_envs: int
    num_workers: int
    slots: int


def pack_failures(failures: Sequence[EnvFailure]) -> list[tuple[EnvFailure, bytes | None]]:
    """Make failures fit for the pipe: exceptions that cannot be pickled stay behind, their text travels."""
    packed = []
    for failure in failures:
        data = None
        if failure.exception is not None:
            try:
                data = dumps(failure.exception)
                pickle.loads(data)
            except Exception:
                data = None
        packed.append((replace(failure, exception=None), data))
    return packed


def unpack_failures(packed: Sequence[tuple[EnvFailure, bytes | None]]) -> list[EnvFailure]:
    """The failures with their exceptions, where those could be carried."""
    failures = []
    for failure, data in packed:
        exception = None
        if data is not None:
            try:
                exception = pickle.loads(data)
            except Exception:
                exception = None
        failures.append(replace(failure, exception=exception))
    return failures


def worker_main(descriptors: Sequence[int]) -> None:
    """Run a worker until it is told to close or the user's process is gone.

    Args:
        descriptors: channel, lifeline, signal to wait for, signal to answer with, block; owned from here on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    channel_fd, lifeline_fd, command_fd, answer_fd, block_fd = descriptors
    end_with(lifeline_fd)
    # Forked workers would all begin with the fork server's state; seeded here once and never again.
    random.seed()
    np.random.seed()  # noqa: NPY002 - it is the global generator that user code may draw from
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        config: WorkerConfig = channel.receive()
        worker = _Worker(config, channel, Signal(command_fd, answer_fd), block_fd)
        if worker.build():
            worker.run()
    except (EOFError, ConnectionError):
        pass  # the user's process has let go of the channel


class _Worker:
    def __init__(self, config: WorkerConfig, channel: Channel, signals: Signal, block_fd: int) -> None:
        self._config = config
        self._channel = channel
        self._signals = signals
        self._block_fd = block_fd
        self._messages: list[Any] = []
        self._infos = InfoColumns()

    def build(self) -> bool:
        """Build the envs and say what they are; False: it failed and everything is closed again."""
        first = self._config.first_index
        try:
            env_fns = [self._load(data, first + row) for row, data in enumerate(self._config.env_fns)]
            self._envs = build_envs(env_fns, first)
        except SliceFailed as failed:
            self._channel.send(("failed", pack_failures(failed.failures)))
            return False
        self._slice = EnvSlice(self._envs, first, self._config.autoreset_mode)
        try:
            description = describe_envs(self._envs, first)
            self._channel.send(("built", description))
        except RuntimeError as error:
            self._channel.send(("differ", str(error)))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            self._channel.send(("differ", f"the description of environment {first} cannot be sent: {error}"))
        plan: BlockPlan | None = self._channel.receive()
        if plan is None:
            self._slice.close()
            return False
        self._attach(plan, description)
        return True

    def _load(self, data: bytes, index: int) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:
            raise SliceFailed([env_failure(index, error)]) from error

    def _attach(self, plan: BlockPlan, description: Any) -> None:
        block = Block(plan.layout, self._block_fd)
        first, count, worker = self._config.first_index, len(self._envs), self._config.worker_index
        arrays = batch_arrays(block, description.observation_space, description.action_space)
        self._action_space = description.action_space
        self._arrays = arrays.rows(first, first + count)
        self._num_envs = plan.num_envs
        self._arena = block["info_arena"]
        self._slice.attach(self._arrays, description.observation_space, plan.slots, self._infos)
        self._control = block["control"]
        self._done_place = FIRST_WORKER + worker
        self._count_place = FIRST_WORKER + plan.num_workers + worker
        self._answer()

    def run(self) -> None:
        """Serve until told to close."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        poller.register(self._signals.read_fd, select.POLLIN)
        channel_fd = self._channel.fileno()
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            if channel_fd in ready and not self._serve_messages():
                return
            if self._signals.read_fd in ready:
                self._signals.clear()
                self._step()

    def _serve_messages(self) -> bool:
        """Carry out what has arrived; False: the last message was among it."""
        while self._serve(self._channel.receive()):
            if not self._channel.has_message():
                return True
        return False

    def _serve(self, message: tuple[Any, ...]) -> bool:
        """Carry out one message; False: it was the last."""
        word = message[0]
        if word == "close":
            self._close()
            return False
        if word == "column":
            self._use_column(*message[1:])
            return True
        self._infos.begin()
        try:
            if word == "reset":
                self._slice.reset(*message[1:])
            elif word == "call":
                _, name, arguments, keywords = message
                results = [self._slice.call(name, row, arguments, keywords) for row in range(len(self._envs))]
                self._messages.append(("results", results))
            elif word == "set_attr":
                self._slice.set_attr(*message[1:])
        except SliceFailed as failed:
            self._messages.append(("failed", pack_failures(failed.failures)))
        self._answer()
        return True

    def _step(self) -> None:
        control = self._control
        self._infos.begin()
        actions = split_actions(self._action_space, self._arrays.actions, bool(control[WIDE]))
        try:
            self._slice.step(int(control[SLOT]), actions)
        except SliceFailed as failed:
            self._messages.append(("failed", pack_failures(failed.failures)))
        self._answer()

    def _answer(self) -> None:
        messages = self._messages
        if self._infos.odd:
            messages.append(("infos", {self._config.first_index + row: i for row, i in self._infos.odd.items()}))
        if self._infos.announcements:
            messages.append(("columns", self._infos.announcements))
        for message in messages:
            self._channel.send_bytes(self._packed(message))
        control = self._control
        control[self._count_place] = len(messages)
        control[self._done_place] = control[SEQUENCE]
        self._signals.send()
        if messages:
            self._messages = []

    def _packed(self, message: tuple[Any, ...]) -> bytes:
        """Pickle an answer; what cannot be sent becomes a failure of the env that it came from."""
        try:
            return dumps(message)
        except Exception:
            failures = []
            items = message[1].items() if isinstance(message[1], dict) else enumerate(message[1])
            for index, value in items:
                try:
                    dumps(value)
                except Exception as error:
                    env_index = index if message[0] == "infos" else self._config.first_index + index
                    failures.append(env_failure(env_index, error))
            return cloudpickle.dumps(("failed", pack_failures(failures)))  # type: ignore[no-any-return]

    def _use_column(self, signature: Signature, values_offset: int, mask_offset: int) -> None:
        values, mask = column_arrays(self._arena, signature, values_offset, mask_offset, self._num_envs)
        first = self._config.first_index
        rows = slice(first, first + len(self._envs))
        self._infos.add_column(signature, values[rows], mask[rows])

    def _close(self) -> None:
        for failure in self._slice.close():
            print(failure.traceback, file=sys.stderr, flush=True)


def column_arrays(
    arena: Any, signature: Signature, values_offset: int, mask_offset: int, num_envs: int
) -> tuple[Any, Any]:
    """Views of an info column in the arena.

    Args:
        arena: `[bytes] uint8` of the block.
        signature: what the column holds.
        values_offset: byte where the values begin.
        mask_offset: byte where the mask begins.
        num_envs: number of rows.

    Returns:
        values: `[num_envs, ...]`.
        mask: `[num_envs]` bool.
    """
    _, dtype, shape = signature
    values = np.ndarray((num_envs, *shape), np.dtype(dtype), arena.data, values_offset)
    return values, np.ndarray((num_envs,), np.bool_, arena.data, mask_offset)
