"""Main of a worker process: builds its share of the envs, then resets and steps them into the shared block.

The worker shares no lock with anyone; see `vecenv.protocol` for what it and the caller tell each other.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete

from vecenv.actions import split_actions
from vecenv.batch import batch_arrays
from vecenv.buffers import Block
from vecenv.channel import Channel
from vecenv.env_failures import SliceFailed, pack_failures
from vecenv.env_slice import EnvSlice
from vecenv.forks import close_in_forks
from vecenv.infos import InfoColumns, Signature
from vecenv.lifeline import begin_child
from vecenv.protocol import RESET_ROW, STEP_ROW, BlockPlan, WorkerConfig, column_arrays, control_arrays
from vecenv.row_chunks import RowChunks
from vecenv.row_wait import note_finished_rows
from vecenv.short_wait import ShortWait
from vecenv.signals import Signal
from vecenv.slice_replies import description_message, dumps_by_row, load_envs, load_for, load_options
from vecenv.slice_stepper import index_of


def worker_main(descriptors: Sequence[int]) -> None:
    """Run a worker until it is told to close or the user's process is gone.

    Args:
        descriptors: channel, lifeline, signal to wait for, signal to answer with, block; owned from here on.
    """
    channel_fd, lifeline_fd, command_fd, answer_fd, block_fd = descriptors
    begin_child(descriptors, lifeline_fd)
    # Forked workers would all begin with the fork server's state; seeded here once and never again.
    random.seed()
    np.random.seed()  # noqa: NPY002 - it is the global generator that user code may draw from
    channel = Channel(socket.socket(fileno=channel_fd))
    close_in_forks(channel, descriptors[1:])
    try:
        config: WorkerConfig = channel.receive()
        worker = _Worker(config, channel, Signal(command_fd, answer_fd), block_fd)
        if worker.build():
            worker.run()
    except (EOFError, ConnectionError):
        pass  # the user's process has let go of the channel, or said that it is about to


class _Worker:
    def __init__(self, config: WorkerConfig, channel: Channel, signals: Signal, block_fd: int) -> None:
        self._config = config
        self._channel = channel
        self._signals = signals
        self._block_fd = block_fd
        self._infos = InfoColumns()
        self._last_step = 0
        self._row_requests_seen = -1  # rows may be waiting since before a restart
        self._messages_seen = -1
        self._chunks = RowChunks()
        # Words of a reset of single rows, kept until those rows get their turn: seed and options by row.
        self._row_resets: dict[int, tuple[int | None, bytes | None]] = {}
        # Actions of single rows that have no place in the block.
        self._row_actions: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}

    # -- start -------------------------------------------------------------------------------------------------------

    def build(self) -> bool:
        """Build the envs and say what they are; False: it failed and everything is closed again."""
        config = self._config
        try:
            envs = load_envs(config.rows, config.env_fns, config.specs)
        except SliceFailed as failed:
            self._channel.send(("failed", pack_failures(failed.failures)))
            return False
        self._slice = EnvSlice(envs, config.autoreset_mode)
        if self._config.restart_seeds is not None:
            self._slice.take_over(self._config.restart_seeds, self._config.last_observations)
        self._channel.send_bytes(description_message(envs))
        plan = self._channel.receive()
        if not isinstance(plan, BlockPlan):  # it is being closed instead
            self._slice.close()
            return False
        self._attach(plan)
        return True

    def _attach(self, plan: BlockPlan) -> None:
        block = Block(plan.layout, self._block_fd)
        self._arrays = batch_arrays(block, plan.observation_space, plan.action_space)
        self._action_space = plan.action_space
        self._action_objects: dict[int, Any] = {}
        self._num_envs = plan.num_envs
        self._arena = block["info_arena"]
        self._slice.attach(self._arrays, plan.observation_space, plan.slots, self._infos)
        for column in plan.columns:
            self._use_column(*column)
        control = control_arrays(block)
        self._control = control
        if plan.measures:
            self._slice.step_seconds = control.step_seconds
        self._groups_rows = plan.groups_rows
        self._last_step = int(control.step[0])
        self._answer([])

    # -- serving -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to close."""
        channel_fd, signal_fd = self._channel.fileno(), self._signals.read_fd
        poller = select.poll()
        poller.register(channel_fd, select.POLLIN)
        poller.register(signal_fd, select.POLLIN)
        control, worker = self._control, self._config.worker_index
        wait = ShortWait()

        step, mine = control.step, slice(worker, worker + 1)
        requests, messages = control.row_requests[mine], control.messages_sent[mine]

        def called() -> bool:
            return bool(
                step.item() != self._last_step
                or requests.item() != self._row_requests_seen
                or messages.item() != self._messages_seen
            )

        while True:
            if wait.look(called):
                if not self._serve_block():
                    return
                continue
            ready = [channel_fd] if self._channel.has_message() else [descriptor for descriptor, _ in poller.poll()]
            wait.slept()
            if channel_fd in ready and not self._serve_messages():
                return
            if signal_fd in ready:
                self._signals.clear()
                # A message may be there before its number is seen, where stores are not seen in order.
                if not (self._serve_sent_before() and self._serve_block()):
                    return

    def _serve_block(self) -> bool:
        """Serve what the block tells of: messages, then a whole step or rows; False: a message was the last one."""
        control, worker = self._control, self._config.worker_index
        newest, sent = control.step.item(), control.messages_sent[worker].item()  # messages go before their step
        if sent != self._messages_seen:
            self._messages_seen = sent
            if not self._serve_sent_before():
                return False
        if newest != self._last_step:
            self._last_step = newest
            self._step()
        elif control.row_requests[worker] != self._row_requests_seen:
            self._serve_rows()
        return True

    def _serve_sent_before(self) -> bool:
        """Carry out all messages that are there; False: the last one was among them."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        while poller.poll(0):
            if not self._serve_messages():
                return False
        return True

    def _serve_messages(self) -> bool:
        """Carry out what has arrived; False: the last message was among it."""
        while self._serve(*self._channel.receive()):
            if not self._channel.has_message():
                return True
        return False

    def _serve_next(self) -> None:
        """Wait for one message and carry it out; those that came with it stay in the channel, untold by the poller."""
        if not self._serve(*self._channel.receive()):
            raise EOFError("told to close while it waited for something else")

    def _serve(self, word: str, *value: Any) -> bool:
        """Carry out one message; False: it was the last."""
        if word == "close":
            for failure in self._slice.close():
                print(failure.traceback, file=sys.stderr, flush=True)
            return False
        if word == "column":
            self._use_column(*value)
        elif word == "actions":
            self._action_objects.update(value[0])
        elif word == "row_actions":
            self._row_actions.update(value[0])
        elif word == "row_resets":
            self._row_resets.update(value[0])
        elif word == "step":  # in place of one that the worker before this one did not finish
            self._step()
        elif word == "reset":
            self._carry_out(lambda: self._reset(*value), whole=True)
        elif word == "call":
            self._carry_out(lambda: self._slice.call(value[0], *self._given(value[1])))
        elif word == "set_attr":
            self._carry_out(lambda: self._slice.set_attr(value[0], self._given(value[1])))
        elif word == "get_state":
            self._carry_out(lambda: {row: self._slice.get_state(row, value[0]) for row in self._slice.rows})
        elif word == "load_states":
            self._carry_out(lambda: self._load_states(*value))
        elif word == "place_states":
            self._carry_out(lambda: self._slice.place_states(value[0], self._loaded))
        elif word == "offer":
            self._carry_out(lambda: {value[0]: self._slice.offer(value[0])})
        elif word == "adopt":
            self._carry_out(lambda: {value[0]: self._slice.adopt(*value)})
        elif word == "let_go":
            self._carry_out(lambda: self._slice.let_go(*value))
        else:
            raise RuntimeError(f"a worker was sent the unknown word {word!r}")
        return True

    def _carry_out(self, function: Callable[[], Any], whole: bool = False) -> None:
        messages: list[Any] = []
        self._infos.begin(self._slice.own)
        try:
            results = function()
            if results is not None:
                messages.append(("results", results))
        except SliceFailed as failed:
            messages.append(("failed", pack_failures(failed.failures)))
        if whole:
            messages += self._object_messages(self._slice.rows)
        self._answer(messages)

    def _reset(self, slot: int, rows: list[int], seeds: list[int | None], options: bytes | None) -> None:
        if len(rows) < len(self._slice.rows):
            self._slice.keep_observations(slot)  # first: the caller goes on to the slot though the options do not load
        self._slice.reset(slot, rows, seeds, load_options(rows, options))

    def _given(self, data: bytes) -> Any:
        return load_for(self._slice.rows, data)

    def _load_states(self, states: dict[int, bytes]) -> None:
        self._loaded = self._slice.load_states(states)

    def _step(self) -> None:
        control, own = self._control, self._slice.own
        self._infos.begin(own)
        if self._action_space is None:
            actions = [self._action_objects.get(row) for row in self._slice.rows]
        else:
            actions = split_actions(
                self._action_space, self._arrays.actions, bool(control.wide[0]), own, len(self._slice.rows)
            )
        messages: list[Any] = []
        try:
            self._slice.step(int(control.slot[0]), actions)
        except SliceFailed as failed:
            messages.append(("failed", pack_failures(failed.failures)))
        if self._slice.objects is not None:
            messages += self._object_messages(self._slice.rows)
        self._answer(messages)

    # -- rows that are sent alone ------------------------------------------------------------------------------------

    def _serve_rows(self) -> None:
        """Serve single rows in the order in which they were sent, until none is left."""
        control, worker = self._control, self._config.worker_index
        while True:
            self._row_requests_seen = control.row_requests[worker].item()
            own, rows = self._slice.own, np.array(self._slice.rows)
            requested = control.requested[own]
            waiting = np.flatnonzero(requested != control.completed[own])
            if not len(waiting):
                return
            in_order = rows[waiting[np.argsort(requested[waiting])]].tolist()
            while in_order:
                chunk = self._going_together(self._chunks.first_of(in_order))
                if len(chunk) > 1 and self._action_space is not None:
                    self._serve_chunk(sorted(chunk), self._action_space)
                else:
                    self._serve_row(chunk[0])
                del in_order[: len(chunk)]

    def _going_together(self, rows: list[int]) -> list[int]:
        """The first row, and those after it if all wait for mere steps, with actions in the block as envs get them.

        A row whose episode ended goes alone: its step is a reset under NEXT_STEP, which may take far longer.
        """
        control, arrays = self._control, self._arrays
        if not self._groups_rows or self._action_space is None:
            return rows[:1]
        odd = (control.kinds[rows] != STEP_ROW) | control.wide_rows[rows]
        odd |= arrays.terminations[rows] | arrays.truncations[rows]
        return rows[: max(1, int(odd.argmax()))] if np.count_nonzero(odd) else rows

    def _serve_chunk(self, rows: list[int], action_space: Space[Any]) -> None:
        """Step rows and report them together."""
        control, index = self._control, index_of(rows)
        numbers, start = control.requested[index].copy(), time.monotonic()
        self._infos.begin(index)
        actions = split_actions(action_space, self._arrays.actions, False, index, len(rows))
        messages: list[Any] = []
        try:
            self._slice.step(int(control.slot[0]), actions, rows)
        except SliceFailed as failed:
            messages.append(("failed", pack_failures(failed.failures)))
        self._report(rows, index, numbers, messages)
        self._chunks.note(rows, time.monotonic() - start)

    def _serve_row(self, row: int) -> None:
        control = self._control
        number, slot, start = control.requested[row], int(control.slot[0]), time.monotonic()
        self._infos.begin(row)
        messages: list[Any] = []
        try:
            if control.kinds[row] == RESET_ROW:
                while row not in self._row_resets:  # its words are on the way
                    self._serve_next()
                seed, options = self._row_resets.pop(row)
                self._slice.reset(slot, [row], [seed], load_options([row], options))
            else:
                self._slice.step(slot, [self._row_action(row)], [row])
        except SliceFailed as failed:
            messages.append(("failed", pack_failures(failed.failures)))
        self._report([row], row, number, messages)
        self._chunks.note([row], time.monotonic() - start)

    def _report(self, rows: list[int], index: Any, numbers: Any, messages: list[Any]) -> None:
        """Say that rows are finished; `index` and `numbers` are those of the rows."""
        control = self._control
        messages = self._object_messages(rows) + messages + self._info_messages()
        for message in messages:
            self._channel.send_bytes(dumps_by_row(message))
        control.has_messages[index] = bool(messages)
        control.finished[index] = time.monotonic()
        control.completed[index] = numbers
        if note_finished_rows(control, self._config.worker_index, len(rows)):
            self._signals.send()

    def _row_action(self, row: int) -> Any:
        if self._action_space is None:
            while row not in self._row_actions:  # it is on the way
                self._serve_next()
            return self._row_actions.pop(row)
        wide = bool(self._control.wide_rows[row])
        actions = self._arrays.actions
        if type(self._action_space) is Discrete and actions.dtype == self._action_space.dtype:
            return actions[row]  # a scalar of its own
        return split_actions(self._action_space, self._arrays.actions, wide, [row], 1)[0]

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, messages: list[Any]) -> None:
        messages = messages + self._info_messages()
        for message in messages:
            self._channel.send_bytes(dumps_by_row(message))
        control, worker = self._control, self._config.worker_index
        control.message_counts[worker] = len(messages)
        control.answered[worker] = control.sequence[0]
        self._signals.send()

    def _info_messages(self) -> list[Any]:
        messages: list[Any] = []
        infos = self._infos
        if infos.odd:
            messages.append(("infos", infos.odd))
        if infos.announcements:
            messages.append(("columns", infos.announcements))
        return messages

    def _object_messages(self, rows: Sequence[int]) -> list[Any]:
        """Observations that do not lie in the block."""
        objects, final = self._slice.objects, self._slice.final_objects
        if objects is None:
            return []
        messages: list[Any] = [("observations", {row: objects[row] for row in rows if row in objects})]
        ended = {row: final[row] for row in rows if self._arrays.final_mask[row]}
        return [*messages, ("final", ended)] if ended else messages

    def _use_column(self, signature: Signature, values_offset: int, mask_offset: int) -> None:
        self._infos.add_column(
            signature, *column_arrays(self._arena, signature, values_offset, mask_offset, self._num_envs)
        )
