"""The worker processes of one vector env, seen from the user's process: start, wake, wait, notice deaths, shut down."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.buffers import create_block_file, reserve_block
from vecenv.channel import Channel, dumps
from vecenv.errors import WorkerDied
from vecenv.signals import Signal
from vecenv.worker import FIRST_WORKER, SEQUENCE, WorkerConfig, unpack_failures
from vecenv.worker_process import WorkerProcess, launch_worker

#: After asking in vain, how long a worker that ends by SIGTERM gets before SIGKILL, in seconds.
_TERMINATE_SECONDS = 0.5
#: How long a worker that is busy with a step or reset gets to take notice of the closing, in seconds.
_BUSY_SECONDS = 2.0

_groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()


def _close_in_fork() -> None:
    for group in list(_groups):
        group.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


class WorkerGroup:
    """Workers and the ways to them.

    Args:
        slices: `[first, stop)` of each worker's envs.
    """

    def __init__(self, slices: Sequence[tuple[int, int]]) -> None:
        self.slices = list(slices)
        self.processes: list[WorkerProcess] = []
        self._owner = os.getpid()
        self._channels: list[Channel] = []
        self._commands: list[Signal] = []
        self._answers: Signal | None = None
        self._lifelines: list[int] = []
        self._block_fd: int | None = None
        self._poller = select.poll()
        self._inboxes: list[list[Any]] = [[] for _ in self.slices]
        self._control: npt.NDArray[np.int64] | None = None
        self._dead: WorkerDied | None = None
        self._closed = False
        _groups.add(self)

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self, method: str, configs: Sequence[WorkerConfig], preload: Sequence[str]) -> None:
        """Start all workers and tell each what to build; they build side by side."""
        self._block_fd = create_block_file()
        self._answers = Signal.create()
        self._poller.register(self._answers.read_fd, select.POLLIN)
        for _ in configs:
            self._launch(method, self._block_fd, self._answers, preload)
        self.send_all([dumps(config) for config in configs], "construction")

    def _launch(self, method: str, block_fd: int, answers: Signal, preload: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        self._channels.append(channel)
        with theirs:
            command = Signal.create()
            self._commands.append(command)
            # One pipe per worker: whom the kernel notifies of its end is a property of the open file, not of the copy.
            lifeline, held = os.pipe()
            self._lifelines.append(held)
            try:
                self._poller.register(channel.fileno(), select.POLLIN)
                descriptors = [theirs.fileno(), lifeline, command.read_fd, answers.write_fd, block_fd]
                self.processes.append(launch_worker(method, descriptors, preload))
            finally:
                os.close(lifeline)

    def first_messages(self, doing: str) -> list[tuple[str, Any]]:
        """Wait for one message from every worker and take it."""
        while not all(self._inboxes):
            self._take_events(None, doing)
        return [inbox.pop(0) for inbox in self._inboxes]

    def reserve(self, size: int) -> int:
        """Give the shared block its size in bytes and return its descriptor.

        Raises:
            MemoryError: the machine cannot hold it.
        """
        if self._block_fd is None:
            raise RuntimeError("the workers are not started")
        reserve_block(self._block_fd, size)
        return self._block_fd

    def attach(self, control: npt.NDArray[np.int64]) -> None:
        """Take the control array of the block."""
        self._control = control
        count = len(self.slices)
        self._done = control[FIRST_WORKER : FIRST_WORKER + count]
        self._counts = control[FIRST_WORKER + count : FIRST_WORKER + 2 * count]

    # -- calls -------------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raise what is known about a dead worker.

        Raises:
            WorkerDied: one died before.
        """
        if self._dead is not None:
            raise WorkerDied(self._dead.env_indices, self._dead.pid, self._dead.exitcode, self._dead.doing)

    def send_all(self, messages: Sequence[bytes], doing: str) -> None:
        """Send one message to each worker.

        Raises:
            WorkerDied: one is gone.
        """
        for worker, (channel, message) in enumerate(zip(self._channels, messages, strict=True)):
            try:
                channel.send_bytes(message)
            except OSError:
                self._report_death(worker, doing)

    def signal_all(self) -> None:
        """Wake all workers for a step."""
        for command in self._commands:
            command.send()

    def wait(self, doing: str, timeout: float | None) -> list[list[Any]] | None:
        """Wait until every worker has answered the call whose sequence number stands in the block.

        Args:
            doing: name of the call, for errors.
            timeout: seconds; None: until all have answered or one is dead.

        Returns:
            The messages of each worker; None when the time is over.

        Raises:
            WorkerDied: a worker ended.
        """
        if self._control is None:
            raise RuntimeError("the workers have no block yet")
        self.check_alive()
        sequence = int(self._control[SEQUENCE])
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._all_answered(sequence):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._take_events(left, doing)
        replies, self._inboxes = self._inboxes, [[] for _ in self.slices]
        return replies

    def _all_answered(self, sequence: int) -> bool:
        for worker, done in enumerate(self._done.tolist()):
            if done != sequence or len(self._inboxes[worker]) < self._counts[worker]:
                return False
        return True

    def _take_events(self, timeout: float | None, doing: str) -> None:
        """Sleep until something comes, then take it: wake-ups, messages, deaths."""
        for descriptor, _ in self._poller.poll(None if timeout is None else max(1, int(timeout * 1000) + 1)):
            if self._answers is not None and descriptor == self._answers.read_fd:
                self._answers.clear()
            else:
                self._read_channel(descriptor, doing)

    def _read_channel(self, descriptor: int, doing: str) -> None:
        worker = next(w for w, channel in enumerate(self._channels) if channel.fileno() == descriptor)
        try:
            messages = self._channels[worker].read_available()
        except EOFError:
            self._report_death(worker, doing)
            return
        for data in messages:
            kind, value = pickle.loads(data)
            self._inboxes[worker].append((kind, unpack_failures(value) if kind == "failed" else value))

    def _report_death(self, worker: int, doing: str) -> None:
        process = self.processes[worker]
        process.join(1.0)
        self._dead = WorkerDied(range(*self.slices[worker]), process.pid, process.exitcode, doing)
        raise self._dead

    # -- end ---------------------------------------------------------------------------------------------------------

    def shut_down(self, owner: int, timeout: float) -> None:
        """End all workers and give everything back, in bounded time; a second call does nothing.

        Args:
            owner: process id that may do this; a fork of it must not.
            timeout: seconds that envs may take to close; 0: end the workers at once.
        """
        if self._closed or owner != os.getpid() or owner != self._owner:
            return
        self._closed = True
        try:
            if timeout > 0:
                self._ask_to_close(timeout)
            self._end(WorkerProcess.terminate, _TERMINATE_SECONDS)
            self._end(WorkerProcess.kill, 5.0)
        finally:
            self._release()

    def _ask_to_close(self, timeout: float) -> None:
        """Let the workers close their envs; one that does not even read its message is not waited for as long."""
        message = dumps(("close",) if self._control is not None else None)
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send_now(message)
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            for channel in self._channels:
                with contextlib.suppress(EOFError, OSError):
                    channel.read_available()  # an answer still under way must not block a worker
            running = [worker for worker, process in enumerate(self.processes) if process.is_alive()]
            if not running:
                return
            waited = time.monotonic() - start
            if waited > _BUSY_SECONDS and all(self._channels[worker].unread() for worker in running):
                return
            self.processes[running[0]].join(0.01)

    def _end(self, how: Any, seconds: float) -> None:
        alive = [process for process in self.processes if process.is_alive()]
        for process in alive:
            how(process)
        deadline = time.monotonic() + seconds
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))

    def leave_to_parent(self) -> None:
        """In a fork: close this process's copies. Kept open they would hide the parent's death from the workers."""
        if self._closed or self._owner == os.getpid():
            return
        self._closed = True
        for channel in self._channels:
            channel.close()
        for lifeline in self._lifelines:
            os.close(lifeline)
        self._lifelines = []

    def _release(self) -> None:
        _groups.discard(self)
        for channel in self._channels:
            channel.close()
        for command in self._commands:
            command.close()
        if self._answers is not None:
            self._answers.close()
        for lifeline in self._lifelines:
            os.close(lifeline)
        self._lifelines = []
        if self._block_fd is not None:
            os.close(self._block_fd)
            self._block_fd = None
        for process in self.processes:
            process.release()
