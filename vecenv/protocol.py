"""What a vector env and its workers agree on: the control arrays in the shared block and the messages beside it.

A whole step is started by writing the sequence number, slot and actions, then the step number, and waking every worker;
the step number comes last because a worker may look at it without having been woken. A worker answers by writing the
call's sequence number and waking the caller; the caller answers for workers that a masked reset does not concern. Rows
that are sent alone (`send`/`recv`) carry numbers of their own.

Everything else are messages. To a worker, `(word, *values)`: column, actions, row_actions, row_resets, step, reset,
call, set_attr, get_state, load_states, place_states, offer, adopt, let_go, close. Back, `(word, value)`: built, failed,
results, infos, columns, observations, final; they precede the answer that they belong to, which tells their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from vecenv.buffers import Block, Layout
from vecenv.infos import Signature, dtype_of

Array = npt.NDArray[Any]

#: Values of `Control.kinds`: what is asked of a row that was sent alone.
STEP_ROW, RESET_ROW = 0, 1


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told at its start.

    Attributes:
        env_fns: constructors, each pickled by value where needed.
        rows: indices of its envs.
        worker_index: which worker it is.
        autoreset_mode: what happens when an episode ends.
        specs: ids that the user's process knows, see `vecenv.registered_ids`.
        restart_seeds: after a restart, one seed per env for the reset that is due; None: the first start.
        last_observations: after a restart, by env, where observations are objects.
    """

    env_fns: tuple[bytes, ...]
    rows: tuple[int, ...]
    worker_index: int
    autoreset_mode: AutoresetMode
    specs: tuple[bytes, ...] = ()
    restart_seeds: tuple[int | None, ...] | None = None
    last_observations: dict[int, Any] | None = None


@dataclass(frozen=True)
class BlockPlan:
    """What a worker needs to use the shared block.

    Attributes:
        layout: names and places.
        num_envs: of the whole vector env.
        slots: length of the observation ring.
        observation_space: single space that the rows are planned for; None: observations take the pipe.
        action_space: single space that the rows are planned for; None: actions take the pipe.
        columns: info columns that exist already, with their places in the arena.
        measures: whether workers keep `Control.step_seconds`.
        groups_rows: whether rows that are sent alone may be stepped and reported together; not where each has a limit.
    """

    layout: Layout
    num_envs: int
    slots: int
    observation_space: Space[Any] | None
    action_space: Space[Any] | None
    columns: tuple[tuple[Signature, int, int], ...] = ()
    measures: bool = False
    groups_rows: bool = True


@dataclass(frozen=True)
class Control:
    """Views of the control arrays.

    Attributes:
        sequence: `[1] int64` number of the newest call.
        step: `[1] int64` number of the newest whole step.
        slot: `[1] int64` slot that the call writes observations into.
        wide: `[1] int64` whether float actions are wider than their space.
        answered: `[workers] int64` number of the newest call that each worker has answered, or the caller for it.
        message_counts: `[workers] int64` how many messages belong to that answer.
        messages_sent: `[workers] int64` messages sent to each worker, except to close; counted after they are sent.
        row_requests: `[workers] int64` how many rows were ever sent alone to each worker.
        rows_finished: `[workers] int64` how many rows each worker ever finished.
        rows_wanted: `[1] int64` at how many of them, of all workers, the caller wants to be woken.
        requested: `[envs] int64` number of the newest request of each row.
        completed: `[envs] int64` number of the request answered last.
        finished: `[envs] float64` monotonic clock in seconds when it was answered.
        has_messages: `[envs]` bool, whether messages belong to that answer.
        kinds: `[envs] int8` what is asked of the row.
        wide_rows: `[envs]` bool, whether its action is wider than the space.
        step_seconds: `[envs] float64` running mean of the time of a step, where balancing needs it.
    """

    sequence: Array
    step: Array
    slot: Array
    wide: Array
    answered: Array
    message_counts: Array
    messages_sent: Array
    row_requests: Array
    rows_finished: Array
    rows_wanted: Array
    requested: Array
    completed: Array
    finished: Array
    has_messages: Array
    kinds: Array
    wide_rows: Array
    step_seconds: Array


_SHAPES: dict[str, tuple[str, Any]] = {
    "sequence": ("one", np.int64),
    "step": ("one", np.int64),
    "slot": ("one", np.int64),
    "wide": ("one", np.int64),
    "answered": ("workers", np.int64),
    "message_counts": ("workers", np.int64),
    "messages_sent": ("workers", np.int64),
    "row_requests": ("workers", np.int64),
    "rows_finished": ("workers", np.int64),
    "rows_wanted": ("one", np.int64),
    "requested": ("envs", np.int64),
    "completed": ("envs", np.int64),
    "finished": ("envs", np.float64),
    "has_messages": ("envs", np.bool_),
    "kinds": ("envs", np.int8),
    "wide_rows": ("envs", np.bool_),
    "step_seconds": ("envs", np.float64),
}


def plan_control(layout: Layout, num_envs: int, num_workers: int) -> None:
    """Plan the control arrays in a layout."""
    sizes = {"one": 1, "workers": num_workers, "envs": num_envs}
    for name, (size, dtype) in _SHAPES.items():
        layout.add(f"control.{name}", (sizes[size],), dtype)


def control_arrays(block: Block) -> Control:
    """The control arrays as views of a block."""
    return Control(**{name: block[f"control.{name}"] for name in _SHAPES})


def column_arrays(
    arena: Array, signature: Signature, values_offset: int, mask_offset: int, num_envs: int
) -> tuple[Array, Array]:
    """Views of an info column in the arena of the block.

    Args:
        arena: `[bytes] uint8`.
        signature: what the column holds.
        values_offset: byte where the values begin.
        mask_offset: byte where the mask begins.
        num_envs: number of rows.

    Returns:
        values: `[num_envs, ...]`.
        mask: `[num_envs]` bool.
    """
    values: Array = np.ndarray((num_envs, *signature[2]), dtype_of(signature), arena.data, values_offset)
    return values, np.ndarray((num_envs,), np.bool_, arena.data, mask_offset)
