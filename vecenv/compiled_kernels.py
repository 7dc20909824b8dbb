"""Kernels of the `compiled` back end: whole batches of envs stepped, ended, counted and reset in one call.

Arrays lie as structures of arrays, and the work is cut into passes over all rows that LLVM turns into vector
instructions; what concerns only ended episodes runs over a list of their rows.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit

from vecenv import compiled_batch, compiled_functions, pcg64, sine_cosine
from vecenv.compiled_batch import COUNT, LAST_LENGTH, LAST_RETURN, LAST_SECONDS, NEXT_STEP, SAME_STEP, STARTED
from vecenv.compiled_functions import advance, advance_usual, all_usual, observation_size, observe, start
from vecenv.preprocess.compiling import cached

# A byte of 1 in a word of eight, times `_PLACES`, has the byte's place in its upper three bits.
_NONE, _LOWEST, _PLACE_SHIFT = np.uint64(0), np.uint64(1), np.uint64(61)
_PLACES = np.uint64(sum(place << (61 - 8 * place) for place in range(8)))

# -- passes over the rows ---------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def _taken_discrete(actions: Any, taken: Any, over: Any, rules: Any) -> Any:
    """Check actions; what an ignored one is does not matter.

    Args:
        actions: as the caller gave them.
        taken: for actions that differ from those.
        over: see `Batch`.
        rules: see `Rules`.

    Returns:
        The actions to play: those given, or where ignored ones are out of range, `taken` with valid ones in their
        places. And the first row whose action is out of range, -1 for none.
    """
    first, count = rules.first_action, rules.num_actions
    outside = 0
    for row in range(len(actions)):
        outside += not np.uint64(actions[row] - first) < np.uint64(count)
    if outside == 0:
        return actions, -1
    for row in range(len(actions)):
        valid = first <= actions[row] < first + count
        if not valid and not (rules.mode == NEXT_STEP and over[row]):
            return actions, row
        taken[row] = actions[row] if valid else first
    return taken, -1


@njit(error_model="numpy")
def _list_over(words: Any, found: Any, rows: Any) -> int:
    """List the rows of envs whose episode is over; gives their number.

    Most words hold nothing, and which ones no processor can foretell: so those that do are found without a branch.

    Args:
        words: see `Batch.over_words`: bytes that are 0 or 1.
        found: scratch, as long as `words`.
        rows: where they are written.
    """
    filled = 0
    for word in range(len(words)):
        found[filled] = word
        filled += words[word] != _NONE
    count = 0
    for place in range(filled):
        word = found[place]
        left = words[word]
        while left != _NONE:
            lowest = left & (~left + _LOWEST)
            rows[count] = 8 * word + np.int64((lowest * _PLACES) >> _PLACE_SHIFT)
            count += 1
            left ^= lowest
    return count


@njit(error_model="numpy")
def _start_rows(batch: Any, count: int, bounds: Any, parameters: Any) -> None:
    for place in range(count):
        start(batch.state, batch.rows[place], batch.generators, bounds, parameters)


@njit(error_model="numpy")
def _keep_starts(batch: Any, count: int) -> None:
    """NEXT_STEP: remember first states; all rows are about to be advanced."""
    state, generators = batch.state, batch.generators
    for place in range(count):
        row = batch.rows[place]
        for index in range(len(state)):
            batch.starts[place, index] = state[index, row]
        batch.draws[place, 0] = generators[row, 0]
        batch.draws[place, 1] = generators[row, 1]


@njit(error_model="numpy")
def _restore_starts(batch: Any, count: int) -> None:
    state, generators = batch.state, batch.generators
    for place in range(count):
        row = batch.rows[place]
        for index in range(len(state)):
            state[index, row] = batch.starts[place, index]
        generators[row, 0] = batch.draws[place, 0]
        generators[row, 1] = batch.draws[place, 1]


@njit(error_model="numpy")
def _unmake_step(batch: Any, count: int, results: Any) -> None:
    """NEXT_STEP: rows that were only reset have no reward and no end."""
    for place in range(count):
        row = batch.rows[place]
        results.rewards[row] = 0.0
        results.terminations[row] = False
        results.truncations[row] = False
        batch.steps[row] = 0
        batch.returns[row] = 0.0
        batch.over[row] = False


@njit(error_model="numpy")
def _advance_row(state: Any, row: int, actions: Any, generators: Any, parameters: Any) -> Any:
    """One inner step of one row, for where rows cannot be computed several at once: compiled once, not inlined."""
    return advance(state, row, actions, generators, parameters)


@njit(error_model="numpy")
def _advance_rows(actions: Any, batch: Any, results: Any, rules: Any, parameters: Any) -> None:
    """Play one step in every row, and see whether it ended the episode."""
    state, generators = batch.state, batch.generators
    rewards, terminations, truncations = results.rewards, results.terminations, results.truncations
    steps, over, returns = batch.steps, batch.over, batch.returns
    num_envs, max_steps = len(steps), rules.max_steps
    if rules.frame_skip == 1:
        if all_usual(state, num_envs, parameters):
            for row in range(num_envs):
                rewards[row], terminations[row] = advance_usual(state, row, actions, generators, parameters)
                returns[row] += rewards[row]
        else:
            for row in range(num_envs):
                rewards[row], terminations[row] = advance(state, row, actions, generators, parameters)
                returns[row] += rewards[row]
        for row in range(num_envs):
            steps[row] += 1
            truncations[row] = steps[row] >= max_steps
    else:
        for row in range(num_envs):
            total, terminated, truncated = 0.0, False, False
            for _ in range(rules.frame_skip):
                reward, ended = _advance_row(state, row, actions, generators, parameters)
                total += reward
                terminated = bool(ended)
                steps[row] += 1
                truncated = steps[row] >= max_steps
                if terminated or truncated:
                    break
            rewards[row], terminations[row], truncations[row] = total, terminated, truncated
            returns[row] += total
    for row in range(num_envs):
        over[row] = terminations[row] | truncations[row]


@njit(error_model="numpy")
def _end_episodes(batch: Any, count: int, results: Any, rules: Any, now: float) -> None:
    """Note the statistics of the episodes that ended in this step."""
    for place in range(count):
        row = batch.rows[place]
        length = (batch.steps[row] + rules.frame_skip - 1) // rules.frame_skip
        episode = batch.episodes[row]
        seconds = now - episode[STARTED]
        episode[COUNT] += 1.0
        episode[LAST_RETURN] = batch.returns[row]
        episode[LAST_LENGTH] = length
        episode[LAST_SECONDS] = seconds
        episode[STARTED] = now
        if rules.reports:
            results.ended_returns[row] = batch.returns[row]
            results.ended_lengths[row] = length
            results.ended_seconds[row] = seconds
        batch.returns[row] = 0.0
        batch.steps[row] = 0


@njit(error_model="numpy")
def _observe_rows(batch: Any, observations: Any, parameters: Any) -> None:
    """Observe all rows; with their size known to the compiler it can write several at once."""
    state = batch.state
    if observations.shape[1] != observation_size(parameters):
        raise ValueError("observations of another size than the env's")
    for row in range(len(observations)):
        observe(state, row, observations, parameters)


# -- what the back end calls ------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def _step(actions: Any, batch: Any, results: Any, rules: Any, bounds: Any, parameters: Any, now: float) -> int:
    """Step every env once.

    Returns:
        The number of episodes that ended, whose rows stand in ``batch.rows``; or -1 - row of the first action that is
        out of range, and nothing has changed.
    """
    if actions.ndim == 1:  # known when this is compiled
        played, wrong = _taken_discrete(actions, batch.actions, batch.over, rules)
        if wrong >= 0:
            return -1 - int(wrong)
    else:
        played = batch.actions
    pending = 0
    if rules.mode == NEXT_STEP:
        pending = batch.listed[0]
        if pending < 0:
            pending = _list_over(batch.over_words, batch.found, batch.rows)
    if pending and not rules.advances_ended:
        _start_rows(batch, pending, bounds, parameters)
        _keep_starts(batch, pending)
    _advance_rows(played, batch, results, rules, parameters)
    if pending and rules.advances_ended:
        _start_rows(batch, pending, bounds, parameters)
    elif pending:
        _restore_starts(batch, pending)
    _unmake_step(batch, pending, results)
    count = _list_over(batch.over_words, batch.found, batch.rows)
    batch.listed[0] = count
    _end_episodes(batch, count, results, rules, now)
    if rules.mode == SAME_STEP:
        for place in range(count):
            observe(batch.state, batch.rows[place], results.final_observations, parameters)
            start(batch.state, batch.rows[place], batch.generators, bounds, parameters)
    _observe_rows(batch, results.observations, parameters)
    return count


@njit(error_model="numpy")
def _reset(rows: Any, batch: Any, observations: Any, bounds: Any, parameters: Any, now: float) -> None:
    """Begin new episodes in some rows; observe all."""
    for place in range(len(rows)):
        row = rows[place]
        start(batch.state, row, batch.generators, bounds, parameters)
        batch.steps[row] = 0
        batch.returns[row] = 0.0
        batch.over[row] = False
        batch.episodes[row, STARTED] = now
    batch.listed[0] = -1
    _observe_rows(batch, observations, parameters)


class Kernels(NamedTuple):
    """The compiled functions.

    Attributes:
        step: see `_step`.
        reset: see `_reset`.
        observe: see `_observe_rows`.
        seed: see `pcg64.seed_rows`.
    """

    step: Callable[..., int]
    reset: Callable[..., None]
    observe: Callable[..., None]
    seed: Callable[..., None]


@functools.cache
def kernels_of(parameters_class: type[Any]) -> Kernels:
    """The kernels for the env whose parameters have this class; compiled when they are first called.

    Those of this package's own envs are kept in Numba's cache on disk, under a key that holds a hash of all sources
    that go into them: Numba itself looks only at the file of the outermost function. What users register is compiled
    in every process, as its sources may lie anywhere.
    """
    own = parameters_class.__module__.startswith("vecenv.")
    digest = _digest_of_sources(parameters_class) if own else None
    return Kernels(*(_compiled(function, digest is not None) for function in _functions_with(digest)))


def machine_code(kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """A kernel as compiled for arguments of these types.

    Finding the types of arguments out takes Numba longer than a step of a hundred envs takes. What is returned does
    not look at them: arguments of other types, or arrays in another layout, make it read wrong memory.
    """
    if not hasattr(kernel, "compile"):
        return kernel  # not compiled at all
    type_of: Callable[[Any], Any] = numba.typeof
    code: Callable[..., Any] = kernel.compile(tuple(type_of(argument) for argument in arguments))
    return code


def _digest_of_sources(parameters_class: type) -> str:
    own = sys.modules[__name__], sys.modules[parameters_class.__module__]
    modules = (compiled_batch, compiled_functions, pcg64, sine_cosine, *own)
    files = [inspect.getfile(module) for module in modules]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def _functions_with(digest: str | None) -> tuple[Callable[..., Any], ...]:
    """The functions to compile, each with the hash in its closure, where Numba's cache finds it.

    The closures hold nothing else: compiled functions in them would make a key that no other process has.
    """

    def step(actions: Any, batch: Any, results: Any, rules: Any, bounds: Any, parameters: Any, now: float) -> Any:
        _ = digest
        return _step(actions, batch, results, rules, bounds, parameters, now)

    def reset(rows: Any, batch: Any, observations: Any, bounds: Any, parameters: Any, now: float) -> Any:
        _ = digest
        return _reset(rows, batch, observations, bounds, parameters, now)

    def observe_rows(batch: Any, observations: Any, parameters: Any) -> Any:
        _ = digest
        return _observe_rows(batch, observations, parameters)

    def seed_rows(words: Any, rows: Any, generators: Any) -> Any:
        _ = digest
        return pcg64.seed_rows(words, rows, generators)

    return step, reset, observe_rows, seed_rows


def _compiled(function: Callable[..., Any], is_cached: bool) -> Callable[..., Any]:
    """A kernel that releases the interpreter lock."""
    configuration: Any = numba.config
    if configuration.DISABLE_JIT:
        return _without_warnings(function)
    return cached(function) if is_cached else njit(nogil=True)(function)


def _without_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Uncompiled, NumPy warns of integers that wrap around, which generators live by."""

    @functools.wraps(function)
    def quiet(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return quiet
