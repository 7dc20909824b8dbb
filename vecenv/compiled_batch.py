"""The arrays that the kernels of the `compiled` back end work on, and the rules they follow."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]

NEXT_STEP, SAME_STEP, DISABLED = 0, 1, 2
#: Columns of `Batch.episodes`.
STARTED, COUNT, LAST_RETURN, LAST_LENGTH, LAST_SECONDS = range(5)
_PAGE, _APART = 4096, 9 * 64  # bytes
_FEW = 2047  # envs whose numbers lie in a level-1 or level-2 cache whichever way


def columns_of_state(num_envs: int) -> int:
    """How far apart the numbers of one env's state lie, in numbers; those behind the last env are not used.

    A level-1 cache has few places for addresses that are whole pages apart, fewer than the arrays that a step goes
    through side by side. Where the numbers of an env of a large batch would lie so, as with any multiple of 512 envs,
    they are moved some cache lines further apart.
    """
    beyond = 8 * num_envs % _PAGE
    if num_envs <= _FEW or _APART // 4 < beyond < _PAGE - _APART // 4:
        return num_envs
    return num_envs + (_APART - beyond) % _PAGE // 8


class Batch(NamedTuple):
    """What the envs of a batch are.

    Attributes:
        state: `[state_size, num_envs or more] float64`; see `columns_of_state`.
        generators: `[num_envs, 4] uint64`, see `pcg64`.
        steps: `[num_envs] int64`, inner steps of the running episode.
        returns: `[num_envs] float64`, its rewards so far.
        over: `[num_envs]` bool, envs whose episode ended in the last step (not reset since, but for SAME_STEP).
        over_words: the same memory, padded, as uint64: eight rows are looked at in one go.
        episodes: `[num_envs, 5] float64`: start of the running episode (monotonic clock, seconds), episodes ended,
            and return, length in steps and seconds of the last ended one.
        actions: `[num_envs] int64` or `[num_envs, size] float64`: the actions that `advance` gets.
        found: `[words] int64`, scratch, as many as `over_words`.
        rows: `[num_envs] int64`, rows of `over` in order.
        listed: `[1] int64`, how many of `rows` there are; -1: `over` was changed since they were listed.
        starts: `[num_envs, state_size] float64`, scratch.
        draws: `[num_envs, 2] uint64`, scratch.
    """

    state: Array
    generators: Array
    steps: Array
    returns: Array
    over: Array
    over_words: Array
    episodes: Array
    actions: Array
    found: Array
    rows: Array
    listed: Array
    starts: Array
    draws: Array


class Results(NamedTuple):
    """Where a step writes its results.

    Attributes:
        observations: `[num_envs, size]`.
        rewards: `[num_envs] float64`.
        terminations: `[num_envs]` bool.
        truncations: `[num_envs]` bool.
        final_observations: `[num_envs, size]`, zeroed; SAME_STEP writes the rows whose episode ended.
        ended_returns: `[num_envs] float64`, zeroed; written where an episode ended, if `Rules.reports`.
        ended_lengths: `[num_envs] int64`, likewise.
        ended_seconds: `[num_envs] float64`, likewise.
    """

    observations: Array
    rewards: Array
    terminations: Array
    truncations: Array
    final_observations: Array
    ended_returns: Array
    ended_lengths: Array
    ended_seconds: Array


class Rules(NamedTuple):
    """What does not change from step to step.

    Attributes:
        mode: `NEXT_STEP`, `SAME_STEP` or `DISABLED`.
        first_action: smallest action of a Discrete space.
        num_actions: their number; 0: a Box, which is not checked.
        max_steps: inner steps after which an episode is truncated.
        frame_skip: inner steps per step.
        advances_ended: whether `advance` may be called for ended episodes.
        reports: whether statistics of ended episodes are written to the results.
    """

    mode: int
    first_action: int
    num_actions: int
    max_steps: int
    frame_skip: int
    advances_ended: bool
    reports: bool
