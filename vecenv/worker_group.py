"""The worker processes of one vector env, seen from the user's process: start, wake, wait, notice deaths, shut down."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.error import ClosedEnvironmentError

from vecenv.buffers import create_block_file, reserve_block
from vecenv.channel import Channel, framed
from vecenv.errors import LATE, WorkerDied
from vecenv.inboxes import Inboxes
from vecenv.pickling import dumps
from vecenv.protocol import Control, WorkerConfig
from vecenv.short_wait import ShortWait
from vecenv.signals import Signal, poll_milliseconds
from vecenv.worker_end import ask_to_close, end_by_force
from vecenv.worker_process import WorkerProcess, launch_worker

_groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()


def _close_in_fork() -> None:
    for group in list(_groups):
        group.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


class WorkerGroup:
    """Workers and the ways to them.

    Args:
        rows: indices of each worker's envs.
        stop_at_death: whether waiting ends as soon as one worker has died.

    Attributes:
        rows: indices of each worker's envs; balancing changes them.
        processes: handles, one per worker.
        deaths: workers that ended unasked, with the error that tells of it.
        inboxes: messages of the workers that have arrived.
        closed: whether the workers were ended on purpose, by `close` or at the exit of the interpreter.
    """

    def __init__(self, rows: Sequence[Sequence[int]], stop_at_death: bool = True) -> None:
        self.rows = [list(own) for own in rows]
        self.processes: list[WorkerProcess] = []
        self.deaths: dict[int, WorkerDied] = {}
        self._stop_at_death = stop_at_death
        self._owner = os.getpid()
        self._channels: list[Channel] = []
        self._commands: list[Signal] = []
        self._answers: Signal | None = None
        self._lifelines: dict[int, int] = {}
        self._block_fd: int | None = None
        self._poller = select.poll()
        self.inboxes = Inboxes(len(self.rows))
        self._control: Control | None = None
        self._short_wait = ShortWait()
        self._worker_of: dict[int, int] = {}
        self.closed = False
        _groups.add(self)

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self, method: str, configs: Sequence[WorkerConfig], preload: Sequence[str]) -> None:
        """Start all workers and tell each what to build; they build side by side."""
        self._method, self._preload = method, preload
        self._block_fd = create_block_file()
        self._answers = Signal.create()
        self._poller.register(self._answers.read_fd, select.POLLIN)
        for worker in range(len(configs)):
            self._launch(worker)
        for worker, config in enumerate(configs):
            self.send(worker, dumps(config), "construction")

    def _launch(self, worker: int) -> None:
        if self._answers is None or self._block_fd is None:
            raise RuntimeError("the group is not started")
        ours, theirs = socket.socketpair()
        with theirs:
            _put(self._channels, worker, Channel(ours))
            _put(self._commands, worker, Signal.create())
            # One pipe per worker: whom the kernel notifies of its end is a property of the open file, not of the copy.
            lifeline, held = os.pipe()
            self._lifelines[worker] = held
            try:
                self._watch(ours.fileno(), worker)
                command_fd, answer_fd = self._commands[worker].read_fd, self._answers.write_fd
                descriptors = [theirs.fileno(), lifeline, command_fd, answer_fd, self._block_fd]
                process = launch_worker(self._method, descriptors, self._preload)
                _put(self.processes, worker, process)
                if process.pidfd is not None:  # a process forked by an env may hold the channel open after its death
                    self._watch(process.pidfd, worker)
            finally:
                os.close(lifeline)

    def _watch(self, descriptor: int, worker: int) -> None:
        self._worker_of[descriptor] = worker  # first: what is polled must be known, to be forgotten with its worker
        self._poller.register(descriptor, select.POLLIN)

    def first_message(self, worker: int, timeout: float | None = None) -> tuple[str, Any]:
        """Wait for a worker's first message and take it.

        Raises:
            WorkerDied: the worker ended, or was killed since `timeout` seconds were over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.inboxes.count(worker):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self.end_late(worker, "construction")
            if worker in self.deaths:
                raise self.deaths[worker]
            self.take_events(left, "construction")
        return self.inboxes.take_first(worker)

    def reserve(self, size: int) -> int:
        """Give the shared block its size in bytes and return its descriptor.

        Raises:
            MemoryError: the machine cannot hold it.
            RuntimeError: the workers are not started.
        """
        if self._block_fd is None:
            raise RuntimeError("the workers are not started")
        reserve_block(self._block_fd, size)
        return self._block_fd

    def attach(self, control: Control) -> None:
        """Take the control arrays of the block."""
        self._control = control

    # -- calls -------------------------------------------------------------------------------------------------------

    def send(self, worker: int, message: bytes, doing: str, limit: float | None = None) -> None:
        """Send a pickled message to a worker; a death is noted in `deaths`.

        Args:
            worker: which.
            message: pickled.
            doing: name of the call, for errors.
            limit: seconds after which a worker that neither reads nor finishes a row is killed; None: never.
        """
        if worker in self.deaths:
            return
        channel, left, moved = self._channels[worker], memoryview(framed(message)), time.monotonic()
        poller = select.poll()
        poller.register(channel.fileno(), select.POLLIN | select.POLLOUT)
        while True:
            try:
                sent = channel.send_part(left)
            except OSError:
                self.note_death(worker, doing)
                return
            if sent == len(left):
                break
            if sent:
                left, moved = left[sent:], time.monotonic()
            # A worker that is sending itself does not read before its own words have been taken.
            for _, event in poller.poll(poll_milliseconds(1.0 if limit is None else min(1.0, limit))):
                if event & ~select.POLLOUT:
                    self.read_now(worker, doing)
            if not self.processes[worker].is_alive():
                self.note_death(worker, doing)
            elif limit is not None and time.monotonic() > max(moved, self._last_finished(worker)) + limit:
                self.end_late(worker, doing)
            if worker in self.deaths:
                return
        if self._control is not None:
            self._control.messages_sent[worker] += 1  # what a worker sees that looks into the block

    def _last_finished(self, worker: int) -> float:
        """When a worker last finished a row, on the monotonic clock; long ago: never."""
        return 0.0 if self._control is None else float(self._control.finished[self.rows[worker]].max())

    def wake(self, worker: int) -> None:
        """Wake a worker to look into the block."""
        self._commands[worker].send()

    def wake_all(self) -> None:
        """Wake all workers for a step."""
        for command in self._commands:
            command.send()

    def wait(
        self,
        doing: str,
        timeout: float | None,
        workers: Sequence[int] | None = None,
        answered: Callable[[Sequence[int]], None] | None = None,
    ) -> bool:
        """Wait until workers have answered the newest call, or have died.

        Args:
            doing: name of the call, for errors.
            timeout: seconds; None: without limit.
            workers: which; None: all.
            answered: told of the rows of workers that have answered while others have not.

        Returns:
            False when the time is over first. Deaths stand in `deaths`, messages in `inboxes`.
        """
        workers = range(len(self.rows)) if workers is None else workers
        deadline = None if timeout is None else time.monotonic() + timeout
        looked = False
        answered_all = self._attached.answered.tolist
        everyone = [int(self._attached.sequence[0])] * len(self.rows)
        if self._short_wait.look(
            # one comparison, as it is made again and again while others want the core
            lambda: (answered_all() == everyone or len(workers) < len(everyone)) and not self._unanswered(workers)
        ):
            return True
        waiting = self._unanswered(workers)
        while waiting and not (self.deaths and self._stop_at_death):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left == 0.0 and looked:
                return False
            self.take_events(left, doing)
            looked = left == 0.0
            before, waiting = waiting, self._unanswered(workers)
            if waiting and answered is not None and not self.deaths:
                for worker in before:
                    if worker not in waiting:
                        answered(self.rows[worker])
        self._short_wait.slept()
        return True

    def unanswered(self) -> list[int]:
        """Workers that have not answered the newest call."""
        return self._unanswered(range(len(self.rows)))

    @property
    def _attached(self) -> Control:
        if self._control is None:
            raise RuntimeError("the workers have no block yet")
        return self._control

    def _unanswered(self, workers: Sequence[int]) -> list[int]:
        control = self._attached
        sequence = int(control.sequence[0])
        answered, counts = control.answered.tolist(), control.message_counts.tolist()
        return [
            worker
            for worker in workers
            if (answered[worker] != sequence or (counts[worker] and self.inboxes.count(worker) < counts[worker]))
            and worker not in self.deaths
        ]

    def take_events(self, timeout: float | None, doing: str) -> None:
        """Sleep until something comes, then take it: wake-ups, messages, deaths."""
        for descriptor, _ in self._poller.poll(poll_milliseconds(timeout)):
            if self.closed:
                raise ClosedEnvironmentError(f"`{doing}` was waited for while the vector env was closed")
            worker = self._worker_of.get(descriptor)
            if worker is not None:
                self.read_now(worker, doing)
                if descriptor == self.processes[worker].pidfd:
                    self.note_death(worker, doing)
            elif self._answers is not None:
                self._answers.clear()

    def read_now(self, worker: int, doing: str) -> None:
        """Read what a worker has sent so far; a death is noted in `deaths`."""
        try:
            self.inboxes.read(worker, self._channels[worker], self.processes[worker].pid)
        except EOFError:
            self.note_death(worker, doing)

    def note_death(self, worker: int, doing: str) -> None:
        """Note in `deaths` that a worker has ended; a second call changes nothing there."""
        if worker not in self.deaths:
            process = self.processes[worker]
            process.join(1.0)
            with contextlib.suppress(EOFError):  # what it has told of rows that it finished stays true
                self.inboxes.read(worker, self._channels[worker], process.pid)
            self.deaths[worker] = WorkerDied(self.rows[worker], process.pid, process.exitcode, doing)
        for descriptor in [known for known, of in self._worker_of.items() if of == worker]:
            with contextlib.suppress(KeyError):  # a Ctrl-C came before it was registered
                self._poller.unregister(descriptor)
            self._worker_of.pop(descriptor)

    def end(self, worker: int, doing: str) -> None:
        """Kill a worker; it counts as dead."""
        self.processes[worker].kill()
        self.note_death(worker, doing)

    def end_late(self, worker: int, doing: str) -> None:
        """Kill a worker that is over its time limit; it counts as dead."""
        self.end(worker, f"{doing} {LATE}")

    # -- restart -----------------------------------------------------------------------------------------------------

    def replace(self, worker: int, config: WorkerConfig, limit: float | None = None) -> None:
        """Start a new process in the place of one that has died; until that is done it counts as dead.

        Args:
            worker: which.
            config: what it is told to build.
            limit: seconds in which it must begin to read that; None: any.
        """
        self._channels[worker].close()
        lifeline = self._lifelines.pop(worker, None)
        if lifeline is not None:
            os.close(lifeline)
        self.processes[worker].release()
        self.inboxes.clear(worker)
        command = self._commands[worker]
        try:
            self._launch(worker)
        finally:
            if command is not self._commands[worker]:  # else it stays open: dead workers are woken with the others
                command.close()
        if self._control is not None:
            self._control.answered[worker] = 0  # its predecessor may have answered this very call before it died
        del self.deaths[worker]
        self.send(worker, dumps(config), "construction", limit)

    def discard(self, worker: int) -> None:
        """Kill what `replace` has put into the place of a worker, done or half done; it counts as dead."""
        self.deaths.pop(worker, None)
        self.end(worker, "construction")
        self.inboxes.clear(worker)

    @property
    def belongs_here(self) -> bool:
        """Whether this process started the workers (a fork of it did not)."""
        return self._owner == os.getpid()

    # -- end ---------------------------------------------------------------------------------------------------------

    def shut_down(self, owner: int, timeout: float) -> None:
        """End all workers and give everything back, in bounded time; a second call does nothing.

        Args:
            owner: process id that may do this; a fork of it must not.
            timeout: seconds that envs may take to close; 0: end the workers at once.
        """
        if self.closed or owner != os.getpid() or owner != self._owner:
            return
        self.closed = True
        try:
            if timeout > 0:
                self._ask_to_close(timeout)
            end_by_force(self.processes)
        finally:
            self._release()

    def _ask_to_close(self, timeout: float) -> None:
        message = dumps(("close",) if self._control is not None else None)
        ask_to_close(self.processes, self._channels, message, timeout)

    def leave_to_parent(self) -> None:
        """In a fork: close this process's copies. Kept open they would hide the parent's death from the workers."""
        if self.closed or self._owner == os.getpid():
            return
        self.closed = True
        for channel in self._channels:
            channel.close()
        for lifeline in self._lifelines.values():
            os.close(lifeline)
        self._lifelines = {}

    def _release(self) -> None:
        _groups.discard(self)
        for channel in self._channels:
            channel.close()
        for command in self._commands:
            command.close()
        if self._answers is not None:
            self._answers.close()
        for lifeline in self._lifelines.values():
            os.close(lifeline)
        self._lifelines = {}
        if self._block_fd is not None:
            os.close(self._block_fd)
            self._block_fd = None
        for process in self.processes:
            process.release()


def _put(items: list[Any], place: int, item: Any) -> None:
    """Put an item into its place, which is the next one at the first start."""
    if place == len(items):
        items.append(item)
    else:
        items[place] = item
