"""Numba kernels of the replay: writing rows, finding out which ones may be sampled, rebuilding frame stacks.

Every environment has a stream of its own, a ring of rows. Each row holds one frame. An observation is the stack of the
last `S` rows, so the rows before an episode's first observation hold its older frames; they are never sampled. The row
after an episode's last step holds the last observation, from which truncated episodes bootstrap.

Rows are named by how many rows their stream had before them; row `a` lies in slot ``a % L``. No kernel touches Python
objects, so all of them release the interpreter lock. Kernels that call each other must stay in this file: Numba's cache
on disk does not notice edits elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from vecenv.preprocess.compiling import kernel as _kernel

OLDER = 0
"""Kind of a row that only holds an older frame of the first observation after it (also: not yet written)."""
OPEN = 1
"""Kind of the newest row of a stream: its observation is there, its action is not."""
STEP = 2
"""Kind of a row with an action and a reward, whose episode went on or was truncated."""
TERMINAL = 3
"""Kind of a row with an action and a reward, after which the episode was over for good."""
LAST = 4
"""Kind of a row with the last observation of an episode that ended (or was given up)."""

_FRAMES = types.Array(types.uint8, 3, "C")
_STACKS = types.Array(types.uint8, 3, "C")
_KINDS = types.Array(types.uint8, 2, "C")
_ACTIONS = types.Array(types.int32, 2, "C")
_REWARDS = types.Array(types.float32, 2, "C")
_COUNTS = types.Array(types.int64, 1, "C")
_FLAGS = types.Array(types.boolean, 1, "C")
_FLOATS = types.Array(types.float32, 1, "C")
_DOUBLES = types.Array(types.float64, 1, "C")
_STATE = types.Array(types.uint64, 1, "C")


@_kernel(types.void(_FRAMES, _KINDS, _COUNTS, types.int64, _STACKS, types.int64, types.uint8, types.boolean))
def append_observation(
    frames: Any, kinds: Any, written: Any, stream: int, stacks: Any, row: int, kind: int, begins: bool
) -> None:
    """Append an observation to a stream: one row where it continues the stack before it, else all of its frames.

    Args:
        frames: [E, L, F] uint8, frames of every stream as bytes.
        kinds: [E, L] uint8.
        written: [E] int64, rows that every stream has had so far; updated.
        stream: which stream.
        stacks: [N, S, F] uint8, observations of a batch, newest frame last.
        row: which of them.
        kind: of the new row.
        begins: whether a new episode begins, so that nothing before it is part of the observation.
    """
    num_slots, stack_size = frames.shape[1], stacks.shape[1]
    begin = stack_size - 1
    if begins or written[stream] < stack_size:
        begin = 0
    else:
        difference = np.uint8(0)
        for place in range(stack_size - 1):
            slot = (written[stream] - (stack_size - 1) + place) % num_slots
            for byte in range(frames.shape[2]):
                difference |= frames[stream, slot, byte] ^ stacks[row, place, byte]
        if difference != 0:
            begin = 0
    for place in range(begin, stack_size):
        slot = written[stream] % num_slots
        for byte in range(frames.shape[2]):
            frames[stream, slot, byte] = stacks[row, place, byte]
        kinds[stream, slot] = kind if place == stack_size - 1 else OLDER
        written[stream] += 1


@_kernel(types.void(_FRAMES, _KINDS, _COUNTS, _STACKS, _FLAGS))
def begin_episodes(frames: Any, kinds: Any, written: Any, stacks: Any, selected: Any) -> None:
    """Begin an episode in some streams; one that was still under way ends there as if truncated.

    Arguments as for `append_observation`; `stacks` [E, S, F] are observations, `selected` [E] bool says whose episodes
    begin.
    """
    num_slots = frames.shape[1]
    for stream in range(frames.shape[0]):
        if written[stream] > 0:
            kinds[stream, (written[stream] - 1) % num_slots] = LAST
        if selected[stream]:
            append_observation(frames, kinds, written, stream, stacks, stream, OPEN, True)


@_kernel(
    types.void(
        _FRAMES,
        _KINDS,
        _ACTIONS,
        _REWARDS,
        _COUNTS,
        _FLAGS,
        types.Array(types.int64, 1, "C"),
        _DOUBLES,
        _FLAGS,
        _FLAGS,
        _STACKS,
        _STACKS,
        types.boolean,
    )
)
def record_step(
    frames: Any,
    kinds: Any,
    actions: Any,
    rewards: Any,
    written: Any,
    is_filler: Any,
    new_actions: Any,
    new_rewards: Any,
    terminations: Any,
    truncations: Any,
    next_stacks: Any,
    first_stacks: Any,
    same_step: bool,
) -> None:
    """Record one step of every stream.

    Args:
        frames: [E, L, F] uint8.
        kinds: [E, L] uint8.
        actions: [E, L] int32.
        rewards: [E, L] float32.
        written: [E] int64, updated.
        is_filler: [E] bool, streams whose action was not executed: `next_stacks` are first observations there. Where
            one ended again, a restart has come in between, and its reset is yet to come.
        new_actions: [E] int64.
        new_rewards: [E] float64.
        terminations: [E] bool.
        truncations: [E] bool.
        next_stacks: [E, S, F] uint8, true next observations.
        first_stacks: [E, S, F] uint8, what `step` returned; differs from `next_stacks` at ends in same-step autoreset.
        same_step: whether a new episode begins in the step that ends the one before.
    """
    num_slots = frames.shape[1]
    for stream in range(frames.shape[0]):
        ended = terminations[stream] or truncations[stream]
        if is_filler[stream]:
            if not ended:
                append_observation(frames, kinds, written, stream, next_stacks, stream, OPEN, True)
            continue
        slot = (written[stream] - 1) % num_slots
        actions[stream, slot] = new_actions[stream]
        rewards[stream, slot] = new_rewards[stream]
        kinds[stream, slot] = TERMINAL if terminations[stream] else STEP
        append_observation(frames, kinds, written, stream, next_stacks, stream, LAST if ended else OPEN, False)
        if ended and same_step:
            append_observation(frames, kinds, written, stream, first_stacks, stream, OPEN, True)


@_kernel(types.int64(_KINDS, types.int64, types.int64, types.int64))
def following_row(kinds: Any, stream: int, row: int, written: int) -> Any:
    """The row that holds the observation after that of `row`; `written` where there is none yet."""
    num_slots = kinds.shape[1]
    row += 1
    while row < written and kinds[stream, row % num_slots] == OLDER:
        row += 1
    return row


@_kernel(types.boolean(_KINDS, types.int64, types.int64, types.int64, types.int64))
def is_complete(kinds: Any, stream: int, row: int, written: int, num_steps: int) -> Any:
    """Whether the next `num_steps` steps from a row, or all up to its episode's end, have been written."""
    num_slots = kinds.shape[1]
    for step in range(num_steps):
        if kinds[stream, row % num_slots] == TERMINAL:
            return True
        row = following_row(kinds, stream, row, written)
        if row >= written:
            return False
        kind = kinds[stream, row % num_slots]
        if kind == LAST:
            return True
        if kind == OPEN:
            return step == num_steps - 1
    return True


@_kernel(types.int64(_KINDS, _COUNTS, _COUNTS, _COUNTS, _COUNTS, types.int64, types.int64, types.int64, _COUNTS))
def advance_streams(
    kinds: Any,
    written: Any,
    ready: Any,
    expired: Any,
    sizes: Any,
    num_steps: int,
    stack_size: int,
    margin: int,
    changes: Any,
) -> Any:
    """Find the rows that have become fit for sampling, and those that no longer are.

    Args:
        kinds: [E, L] uint8.
        written: [E] int64.
        ready: [E] int64, updated: rows from here on are not complete yet.
        expired: [E] int64, updated: rows below are overwritten, or may soon be.
        sizes: [E] int64, updated: rows in between that hold a step.
        num_steps: n of n-step returns.
        stack_size: S.
        margin: rows that a writer may be ahead of `written`.
        changes: [C] int64, filled: place ``stream * L + slot`` of a row that became fit, or minus 1 minus that place
            of one that no longer is.

    Returns:
        How many changes there are. Where it is C there may be more: call again.
    """
    num_slots, found = kinds.shape[1], 0
    for stream in range(kinds.shape[0]):
        while ready[stream] < written[stream] and found < len(changes):
            slot = ready[stream] % num_slots
            kind = kinds[stream, slot]
            if kind == OPEN:
                break
            if kind in (STEP, TERMINAL):
                if not is_complete(kinds, stream, ready[stream], written[stream], num_steps):
                    break
                changes[found] = stream * num_slots + slot
                found += 1
                sizes[stream] += 1
            ready[stream] += 1
        oldest = written[stream] + margin - num_slots
        limit = oldest + stack_size - 1 if oldest > 0 else 0
        while expired[stream] < min(limit, ready[stream]) and found < len(changes):
            slot = expired[stream] % num_slots
            kind = kinds[stream, slot]
            if kind in (STEP, TERMINAL):
                changes[found] = -1 - (stream * num_slots + slot)
                found += 1
                sizes[stream] -= 1
            expired[stream] += 1
        if found == len(changes):
            break
    return found


@_kernel(types.uint64(_STATE))
def next_random(state: Any) -> Any:
    """The next 64 random bits of SplitMix64 (Steele, Lea and Flood, 2014); `state` [1] uint64 is updated."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@_kernel(types.void(_STATE, _DOUBLES))
def fill_random(state: Any, numbers: Any) -> None:
    """Fill `numbers` with uniform random numbers in [0, 1); `state` as for `next_random`."""
    for index in range(len(numbers)):
        numbers[index] = np.float64(next_random(state) >> np.uint64(11)) * 2.0**-53


@_kernel(types.boolean(_KINDS, _COUNTS, _COUNTS, _STATE, _COUNTS))
def draw_uniform(kinds: Any, ready: Any, expired: Any, state: Any, places: Any) -> Any:
    """Draw rows that may be sampled, each with the same chance, with replacement.

    Args:
        kinds: [E, L] uint8.
        ready: [E] int64.
        expired: [E] int64.
        state: [1] uint64, of the generator; updated.
        places: [B] int64, filled: ``stream * L + slot``.

    Returns:
        False: hardly any row may be sampled.
    """
    num_streams, num_slots = kinds.shape
    total = 0
    for stream in range(num_streams):
        total += ready[stream] - expired[stream]
    if total <= 0:
        return False
    for index in range(len(places)):
        tries = 0
        while True:
            offset = np.int64(next_random(state) % np.uint64(total))
            stream = 0
            while offset >= ready[stream] - expired[stream]:
                offset -= ready[stream] - expired[stream]
                stream += 1
            slot = (expired[stream] + offset) % num_slots
            kind = kinds[stream, slot]
            if kind in (STEP, TERMINAL):
                places[index] = stream * num_slots + slot
                break
            tries += 1
            if tries > 100_000:
                return False
    return True


@_kernel(
    types.void(
        _FRAMES,
        _KINDS,
        _ACTIONS,
        _REWARDS,
        _COUNTS,
        types.int64,
        types.float64,
        _STACKS,
        _STACKS,
        _COUNTS,
        _FLOATS,
        _FLOATS,
    )
)
def gather_rows(
    frames: Any,
    kinds: Any,
    actions: Any,
    rewards: Any,
    places: Any,
    num_steps: int,
    gamma: float,
    stacks: Any,
    next_stacks: Any,
    out_actions: Any,
    returns: Any,
    discounts: Any,
) -> None:
    """Rebuild observations and n-step transitions.

    Args:
        frames: [E, L, F] uint8.
        kinds: [E, L] uint8.
        actions: [E, L] int32.
        rewards: [E, L] float32.
        places: [B] int64, ``stream * L + slot`` of complete rows.
        num_steps: n.
        gamma: discount per step.
        stacks: [B, S, F] uint8, filled: the observations.
        next_stacks: [B, S, F] uint8, filled: those to bootstrap from, n steps later or at the episode's end.
        out_actions: [B] int64, filled.
        returns: [B] float32, filled: discounted sum of the rewards in between.
        discounts: [B] float32, filled: what the value of `next_stacks` counts; 0 after a termination.
    """
    num_slots, frame_size = frames.shape[1], frames.shape[2]
    stack_size = stacks.shape[1]
    for index in range(len(places)):
        stream = places[index] // num_slots
        slot = places[index] % num_slots
        out_actions[index] = actions[stream, slot]
        total, discount, at = 0.0, 1.0, slot
        for _ in range(num_steps):
            total += discount * rewards[stream, at]
            discount *= gamma
            terminal = kinds[stream, at] == TERMINAL
            at = following_row(kinds, stream, at, at + num_slots) % num_slots
            if terminal:
                discount = 0.0
                break
            if kinds[stream, at] == LAST:
                break
        returns[index] = total
        discounts[index] = discount
        for place in range(stack_size):
            source = (slot - (stack_size - 1) + place) % num_slots
            next_source = (at - (stack_size - 1) + place) % num_slots
            for byte in range(frame_size):
                stacks[index, place, byte] = frames[stream, source, byte]
            for byte in range(frame_size):
                next_stacks[index, place, byte] = frames[stream, next_source, byte]
