"""What a Ray actor runs: a share of the envs over arrays of its own, one reply per call, or per run of steps.

A reply carries the rows of the call as a few arrays, which Ray puts into its object store once and the caller reads
there without a copy; whatever is no array is pickled beside them, and only where there is any. A caller on the same
machine reads the rows in the actor's memory, see `vecenv.ray_shared_rows`, and the reply says only that they are there.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vecenv.actions import split_actions
from vecenv.batch import BatchArrays, batch_arrays, plan_batch
from vecenv.buffers import Layout
from vecenv.env_failures import SliceFailed, pack_failures
from vecenv.env_slice import EnvSlice
from vecenv.info_arena import ARENA_BYTES_PER_ENV, Column, InfoArena
from vecenv.infos import InfoColumns, Signature
from vecenv.pickling import dumps
from vecenv.protocol import WorkerConfig, column_arrays
from vecenv.ray_actor import HostedActor
from vecenv.ray_shared_block import BlockAddress, create_shared_block
from vecenv.ray_step_runs import SLOT, TOLD, WIDE, RunAddress, ServedRuns
from vecenv.slice_replies import description_message, dumps_by_row, load_envs, load_for, load_options
from vecenv.spaces import copy_arrays, map_arrays

Array = npt.NDArray[Any]

#: Arrays of a batch that hold one number per env and go into every reply. `started` stays: clocks differ by machine.
ROW_FIELDS = tuple(
    field.name
    for field in fields(BatchArrays)
    if field.name not in ("observations", "final_observations", "actions", "started")
)
_SLOTS = 2


class SliceReply(NamedTuple):
    """What a call of an actor gave.

    Attributes:
        observations: nest of `[rows, ...]`; None where they travel as objects, or none belong to the call.
        row_fields: `[len(ROW_FIELDS), rows] float64`, see `ROW_FIELDS`.
        final_observations: nest of `[ends, ...]`, the last observations of the rows in `final_mask`; None: there are
            none.
        columns: known info fields: what a column holds, `[rows, ...]` values, `[rows]` bool mask.
        seconds: what each row took, where rows were stepped alone.
        messages: pickled ``(word, value)`` of everything else; words are those of `vecenv.protocol`.
        shared_columns: where rows stay, info fields that have a column in the actor's memory from the next call on.
    """

    observations: Any
    row_fields: Array | None
    final_observations: Any = None
    columns: Sequence[tuple[Signature, Array, Array]] = ()
    seconds: tuple[float, ...] = ()
    messages: tuple[bytes, ...] = ()
    shared_columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class SlicePlan:
    """What an actor needs before it can serve.

    Attributes:
        observation_space: single space with a fixed layout; None: observations travel as objects.
        action_space: single space with a fixed layout; None: actions travel as objects.
        observations: after a restart, the last known ones of its rows, nest of `[rows, ...]`.
        row_fields: after a restart, what was counted, as in `SliceReply`.
    """

    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    observations: Any = None
    row_fields: Array | None = None


def read_row_fields(arrays: BatchArrays, rows: Any, count: int) -> Array:
    """One number per env and field as one array, `[len(ROW_FIELDS), count] float64`."""
    result = np.empty((len(ROW_FIELDS), count))
    for target, name in zip(result, ROW_FIELDS, strict=True):
        target[:] = getattr(arrays, name)[rows]
    return result


def write_row_fields(arrays: BatchArrays, rows: Any, row_fields: Array) -> None:
    """Write what `read_row_fields` gave into rows of another batch."""
    for source, name in zip(row_fields, ROW_FIELDS, strict=True):
        getattr(arrays, name)[rows] = source


class SliceActor(HostedActor):
    """Hosts a share of the envs; its rows are numbered from 0, messages and failures name envs of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self._infos = InfoColumns()
        self._columns: list[tuple[Signature, Array, Array]] = []
        self._places: list[Column] = []
        self._slot = 0
        self._rows_stay = False
        self._loaded: dict[int, Any] = {}

    # -- start -------------------------------------------------------------------------------------------------------

    def build(self, config: WorkerConfig) -> bytes:
        """Build the envs and say what they are; see `description_message`."""
        try:
            envs = load_envs(config.rows, config.env_fns, config.specs)
        except SliceFailed as failed:
            return dumps(("failed", pack_failures(failed.failures)))
        self._rows = config.rows
        self._slice = EnvSlice(dict(enumerate(envs.values())), config.autoreset_mode)
        if config.restart_seeds is not None:
            last = config.last_observations
            own = None if last is None else {config.rows.index(row): value for row, value in last.items()}
            self._slice.take_over(config.restart_seeds, own)
        return description_message(envs)

    def attach(self, plan: SlicePlan) -> BlockAddress | None:
        """Make room for a batch of the rows; gives where a caller on this machine finds it."""
        count, spaces = len(self._rows), (plan.observation_space, plan.action_space)
        layout = Layout()
        plan_batch(layout, *spaces, count, _SLOTS)
        layout.add("info_arena", (count * ARENA_BYTES_PER_ENV,), np.uint8)
        layout.add("control", (TOLD + 1,), np.int64)
        block, address = create_shared_block(layout)
        self._arrays, self._control = batch_arrays(block, *spaces), block["control"]
        self._action_space = plan.action_space
        self._memory = block["info_arena"]
        self._arena = InfoArena(self._memory, count)
        self._slice.attach(self._arrays, plan.observation_space, _SLOTS, self._infos)
        if plan.row_fields is not None:
            write_row_fields(self._arrays, slice(None), plan.row_fields)
        if plan.observations is not None:
            copy_arrays(map_arrays(self._arrays.observations, lambda array: array[self._slot]), plan.observations)
        return address

    def leave_rows(self) -> RunAddress | None:
        """From now on rows are not sent: the caller has found their memory. Gives what it needs for `run_steps`."""
        self._rows_stay = True
        try:
            self._runs = ServedRuns(self._control)
        except OSError:  # no descriptors are left
            return None
        return self._runs.address

    def give_up_runs(self) -> None:
        """The caller cannot open what `leave_rows` gave for `run_steps`."""
        self._runs.close()

    # -- steps and resets --------------------------------------------------------------------------------------------

    def step(self, actions: Any, wide: bool) -> SliceReply | bytes:
        """Step all rows once.

        Args:
            actions: nest of `[rows, ...]`, or a list where actions are objects.
            wide: as `split_actions` takes it.
        """
        each = self._split(actions, wide, len(self._rows))
        self._slot = (self._slot + 1) % _SLOTS
        return self._carry_out(lambda: self._slice.step(self._slot, each), None)

    def step_from_memory(self) -> SliceReply | bytes:
        """As `step`, with the actions that the caller has written into the memory. No argument is a cheaper message."""
        return self.step(self._arrays.actions, bool(self._control[WIDE]))

    def run_steps(self, run: int) -> bytes:
        """As `step_from_memory`, time and again, see `vecenv.ray_step_runs`; gives the reply that ends the run."""
        self._runs.leave_far_ends()
        while self._runs.next(run):
            reply: SliceReply | bytes = b"?"
            try:
                reply = self.step_from_memory()
            finally:
                self._runs.answer(tells=bool(reply))
            if reply:
                assert isinstance(reply, bytes)
                return reply
        return b""

    def step_rows(self, rows: list[int], actions: Any, wide: bool) -> SliceReply | bytes:
        """Step some rows alone; the others keep what they have."""
        each = self._split(actions, wide, len(rows))
        return self._one_by_one(rows, lambda place: self._slice.step(self._slot, [each[place]], [rows[place]]))

    def reset(self, data: bytes) -> SliceReply | bytes:
        """Begin new episodes in some rows, or all; ``data``: pickled rows, one seed each, pickled options or None."""
        rows, seeds, options = pickle.loads(data)
        self._slot = (self._slot + 1) % _SLOTS

        def carry_out() -> None:
            if len(rows) < len(self._rows):
                self._slice.keep_observations(self._slot)
            self._slice.reset(self._slot, rows, seeds, load_options(rows, options))

        return self._carry_out(carry_out, None)

    def reset_rows(self, data: bytes) -> SliceReply | bytes:
        """Begin new episodes in some rows alone; arguments as for `reset`."""
        rows, seeds, options = pickle.loads(data)

        def reset(place: int) -> None:
            own = [rows[place]]
            self._slice.reset(self._slot, own, [seeds[place]], load_options(own, options))

        return self._one_by_one(rows, reset)

    def _split(self, actions: Any, wide: bool, count: int) -> Sequence[Any]:
        if self._action_space is None:
            objects: Sequence[Any] = pickle.loads(actions)
            return objects
        return split_actions(self._action_space, actions, wide, slice(None), count)

    def _one_by_one(self, rows: list[int], function: Callable[[int], Any]) -> SliceReply | bytes:
        seconds: list[float] = []

        def carry_out() -> None:
            failures = []
            for place in range(len(rows)):
                start = time.perf_counter()
                try:
                    function(place)
                except SliceFailed as failed:
                    failures += failed.failures
                seconds.append(time.perf_counter() - start)
            if failures:
                raise SliceFailed(failures)

        return self._carry_out(carry_out, rows, seconds)

    # -- everything else ---------------------------------------------------------------------------------------------

    def call(self, name: str, data: bytes) -> SliceReply:
        """Call a method of every env, or read an attribute; ``data``: pickled arguments and keywords."""
        return self._ask(lambda: self._slice.call(name, *load_for(self._slice.rows, data)))

    def set_attr(self, name: str, data: bytes) -> SliceReply:
        """Set an attribute of every env; ``data``: pickled, one value per row."""
        return self._ask(lambda: self._slice.set_attr(name, load_for(self._slice.rows, data)))

    def get_state(self) -> SliceReply:
        """The states of all rows."""
        return self._ask(lambda: {row: self._slice.get_state(row, self._slot) for row in self._slice.rows})

    def load_states(self, states: list[bytes]) -> SliceReply:
        """Read one state per row, without changing anything yet."""

        def load() -> None:
            self._loaded = self._slice.load_states(dict(enumerate(states)))

        return self._ask(load)

    def place_states(self) -> SliceReply | bytes:
        """Take up the states that were loaded."""
        loaded, self._loaded = self._loaded, {}
        return self._carry_out(lambda: self._slice.place_states(self._slot, loaded), None)

    def close(self) -> list[str]:
        """Close the envs; gives the tracebacks of those that raise."""
        return [failure.traceback for failure in self._slice.close()]

    # -- replies -----------------------------------------------------------------------------------------------------

    def _ask(self, function: Callable[[], Any]) -> SliceReply:
        """Carry out what gives results, or nothing, and leaves observations as they are."""
        try:
            results = function()
        except SliceFailed as failed:
            return SliceReply(None, None, messages=(self._failed(failed),))
        if results is None:
            return SliceReply(None, None)
        return SliceReply(None, None, messages=(dumps_by_row(("results", self._named(results))),))

    def _carry_out(
        self, function: Callable[[], None], rows: list[int] | None, seconds: Sequence[float] = ()
    ) -> SliceReply | bytes:
        """Carry out what gives observations.

        Args:
            function: does it.
            rows: rows that the reply tells of; None: all.
            seconds: of each row, which the function may write down.

        Returns:
            The reply; where rows stay, what is left of it, pickled: nothing is the empty string, the cheapest message.
        """
        own: Any = slice(None) if rows is None else rows
        self._infos.begin(own)
        messages: list[bytes] = []
        try:
            function()
        except SliceFailed as failed:
            messages.append(self._failed(failed))
        observations = final = None
        if not self._rows_stay or self._slice.objects is not None:
            observations, final = self._observations(own, messages)
        if self._infos.odd:
            messages.append(dumps_by_row(("infos", self._named(self._infos.odd))))
        if self._rows_stay:
            self._control[SLOT] = self._slot
            before = len(self._places)
            self._add_columns()
            # Replies about single rows may be read in another order, so each tells of all columns.
            told = tuple(self._places[before:] if rows is None else self._places)
            if not (messages or told or seconds):
                return b""
            return dumps(SliceReply(None, None, seconds=tuple(seconds), messages=tuple(messages), shared_columns=told))
        columns = [(signature, values[own], mask[own]) for signature, values, mask in self._columns if mask[own].any()]
        self._add_columns()
        row_fields = read_row_fields(self._arrays, own, len(self._rows) if rows is None else len(rows))
        return SliceReply(observations, row_fields, final, columns, tuple(seconds), tuple(messages))

    def _add_columns(self) -> None:
        """Give new info fields a column each, from the next call on."""
        if not self._infos.announcements:
            return
        for column in self._arena.added(self._infos.announcements):
            signature, views = column[0], column_arrays(self._memory, *column, len(self._rows))
            self._infos.add_column(signature, *views)
            self._columns.append((signature, *views))
            self._places.append(column)

    def _observations(self, own: Any, messages: list[bytes]) -> tuple[Any, Any]:
        """Observations of rows and, of those that ended under SAME_STEP, the last ones; objects become messages."""
        ended = np.arange(len(self._rows))[own][self._arrays.final_mask[own]]
        objects, final = self._slice.objects, self._slice.final_objects
        if objects is None:
            last = map_arrays(self._arrays.final_observations, lambda array: array[ended]) if len(ended) else None
            return map_arrays(self._arrays.observations, lambda array: array[self._slot][own]), last
        rows = self._slice.rows if isinstance(own, slice) else own
        known = {row: objects[row] for row in rows if row in objects}
        messages.append(dumps_by_row(("observations", self._named(known))))
        if len(ended):
            messages.append(dumps_by_row(("final", self._named({row: final[row] for row in ended.tolist()}))))
        return None, None

    def _failed(self, failed: SliceFailed) -> bytes:
        named = [replace(failure, env_index=self._rows[failure.env_index]) for failure in failed.failures]
        return dumps(("failed", pack_failures(named)))

    def _named(self, by_row: dict[int, Any]) -> dict[int, Any]:
        """The same by index of the env in the whole."""
        return {self._rows[row]: value for row, value in by_row.items()}
