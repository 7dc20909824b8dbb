"""Rows of an actor on the caller's machine: read from its memory, where its reply would otherwise carry them."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np

from vecenv.batch import batch_arrays
from vecenv.buffers import Block
from vecenv.infos import Signature
from vecenv.protocol import column_arrays
from vecenv.ray_shared_block import BlockAddress, open_shared_block
from vecenv.ray_step_runs import SLOT, WIDE, RunAddress, StepRun
from vecenv.ray_worker import SliceReply, read_row_fields
from vecenv.spaces import copy_arrays, map_arrays


class SharedRows:
    """The caller's view of an actor's memory. It stays readable when the actor has died.

    What stands there counts only when the actor's reply is there, and only until it is asked for more.

    Args:
        block: mapped.
        observation_space: as in `vecenv.ray_worker.SlicePlan`.
        action_space: likewise.
        num_rows: of the actor.
    """

    def __init__(
        self,
        block: Block,
        observation_space: gym.Space[Any] | None,
        action_space: gym.Space[Any] | None,
        num_rows: int,
    ) -> None:
        self._arrays = batch_arrays(block, observation_space, action_space)
        self._has_observations = observation_space is not None
        self._control, self._arena = block["control"], block["info_arena"]
        self._columns: dict[Signature, tuple[Any, Any]] = {}
        self._num_rows = num_rows

    @classmethod
    def of(cls, address: BlockAddress | None, *arguments: Any) -> SharedRows | None:
        """Those of an actor that has told its address; None: rows have to travel. Other arguments as above."""
        block = None if address is None else open_shared_block(address)
        return None if block is None else cls(block, *arguments)

    def open_run(self, pid: int, address: RunAddress) -> StepRun | None:
        """The caller's side of the actor's runs of steps; None: its pipes cannot be opened, it is asked each time."""
        return StepRun.of(self._control, pid, address)

    def put_actions(self, actions: Any, wide: bool) -> None:
        """Write the actions of the next step where the actor reads them; arguments as of `SliceActor.step`."""
        copy_arrays(self._arrays.actions, actions)
        self._control[WIDE] = wide

    def reply(self, data: bytes, places: list[int] | None) -> SliceReply:
        """A reply as it would have come in a message.

        Args:
            data: what came: a pickled reply without rows; empty: there is nothing to tell but that they are there.
            places: rows of the actor that it is about; None: all.

        Returns:
            Views where all rows are told of, copies otherwise; to be read before the actor is asked for more.
        """
        told: SliceReply = pickle.loads(data) if data else SliceReply(None, None)
        arrays, own = self._arrays, slice(None) if places is None else places
        observations = final = None
        if self._has_observations:
            slot = self._control[SLOT].item()
            observations = map_arrays(arrays.observations, lambda array: array[slot][own])
            ended = np.arange(self._num_rows)[own][arrays.final_mask[own]]
            if len(ended):
                final = map_arrays(arrays.final_observations, lambda array: array[ended])
        fields = read_row_fields(arrays, own, self._num_rows if places is None else len(places))
        for column in told.shared_columns:
            if column[0] not in self._columns:
                self._columns[column[0]] = column_arrays(self._arena, *column, self._num_rows)
        columns = [(signature, values[own], mask[own]) for signature, (values, mask) in self._columns.items()]
        return told._replace(
            observations=observations, row_fields=fields, final_observations=final, columns=tuple(columns)
        )
