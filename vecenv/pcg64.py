"""NumPy's PCG64 generator and the SeedSequence that seeds it, as kernels: the same stream, a row of integers per env.

The numbers are those of ``np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))``, which is what
`gymnasium.Env.reset(seed=...)` makes. Algorithms: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
Statistically Good Algorithms for Random Number Generation", 2014 (PCG XSL RR 128/64), and NumPy's documentation of
`SeedSequence`; constants as published there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]

#: Columns of a row of generators: high and low half of the state, high and low half of the increment.
GENERATOR_SIZE = 4

_MULTIPLIER_HIGH = np.uint64(0x2360ED051FC65DA4)
_MULTIPLIER_LOW = np.uint64(0x4385DF649FCCF645)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_ZERO, _ONE, _SIXTEEN, _THIRTY_TWO = np.uint64(0), np.uint64(1), np.uint64(16), np.uint64(32)
_ELEVEN, _FIFTY_EIGHT, _SIXTY_THREE, _SIXTY_FOUR = np.uint64(11), np.uint64(58), np.uint64(63), np.uint64(64)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2 ** -53

# SeedSequence
_INIT_A, _MULTIPLIER_A = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_INIT_B, _MULTIPLIER_B = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_TWO_TO_32 = np.uint64(2**32)
_POOL = 4


@njit(forceinline=True)
def _high_product(one: Any, two: Any) -> Any:
    """Upper 64 bits of the product of two 64-bit integers."""
    one_low, one_high = one & _LOW_HALF, one >> _THIRTY_TWO
    two_low, two_high = two & _LOW_HALF, two >> _THIRTY_TWO
    low = one_low * two_low
    middle = one_high * two_low + (low >> _THIRTY_TWO)
    other = one_low * two_high + (middle & _LOW_HALF)
    return one_high * two_high + (middle >> _THIRTY_TWO) + (other >> _THIRTY_TWO)


@njit(forceinline=True)
def _step(generators: Any, row: Any) -> None:
    """Advance the 128-bit state of a row once."""
    high, low, increment_low = generators[row, 0], generators[row, 1], generators[row, 3]
    new_low = low * _MULTIPLIER_LOW + increment_low
    carry = _ONE if new_low < increment_low else _ZERO
    carried = _high_product(low, _MULTIPLIER_LOW) + generators[row, 2] + carry
    generators[row, 0] = high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH + carried
    generators[row, 1] = new_low


@njit(forceinline=True)
def uniform(generators: Any, row: Any, low: Any, high: Any) -> Any:
    """Draw a float as ``np_random.uniform(low, high)`` does; for use in functions of compiled envs.

    Args:
        generators: `[num_envs, 4] uint64`, changed in place.
        row: index of the env.
        low: lower end, a float.
        high: upper end, a float.
    """
    _step(generators, row)
    high_half = generators[row, 0]
    mixed = high_half ^ generators[row, 1]
    turn = high_half >> _FIFTY_EIGHT
    bits = (mixed >> turn) | (mixed << ((_SIXTY_FOUR - turn) & _SIXTY_THREE))
    return low + (high - low) * (np.float64(bits >> _ELEVEN) * _TO_UNIT)


@njit(forceinline=True)
def _hashed(value: Any, constant: Any, multiplier: Any) -> Any:
    """One step of SeedSequence's hash; gives the value and the next constant."""
    value = value ^ constant
    constant = (constant * multiplier) & _LOW_HALF
    value = (value * constant) & _LOW_HALF
    return value ^ (value >> _SIXTEEN), constant


@njit(forceinline=True)
def _mixed(one: Any, two: Any) -> Any:
    left, right = (_MIX_LEFT * one) & _LOW_HALF, (_MIX_RIGHT * two) & _LOW_HALF
    value = (left + _TWO_TO_32 - right) & _LOW_HALF
    return value ^ (value >> _SIXTEEN)


@njit
def seed_rows(words: Any, rows: Any, generators: Any) -> None:
    """Seed the generators of some rows.

    Args:
        words: `[len(rows), 4] uint64`, the seeds in pieces of 32 bits, lowest first.
        rows: `[...] int64`, indices of envs.
        generators: `[num_envs, 4] uint64`, changed in place.
    """
    pool = np.zeros(_POOL, np.uint64)
    state = np.zeros(2 * _POOL, np.uint64)
    for place in range(len(rows)):
        row = rows[place]
        constant = _INIT_A
        for index in range(_POOL):
            pool[index], constant = _hashed(words[place, index], constant, _MULTIPLIER_A)
        for source in range(_POOL):
            for target in range(_POOL):
                if source != target:
                    value, constant = _hashed(pool[source], constant, _MULTIPLIER_A)
                    pool[target] = _mixed(pool[target], value)
        constant = _INIT_B
        for index in range(2 * _POOL):
            state[index], constant = _hashed(pool[index % _POOL], constant, _MULTIPLIER_B)
        start_high = state[0] | (state[1] << _THIRTY_TWO)
        start_low = state[2] | (state[3] << _THIRTY_TWO)
        stream_high = state[4] | (state[5] << _THIRTY_TWO)
        stream_low = state[6] | (state[7] << _THIRTY_TWO)
        generators[row, 0] = _ZERO
        generators[row, 1] = _ZERO
        generators[row, 2] = (stream_high << _ONE) | (stream_low >> _SIXTY_THREE)
        generators[row, 3] = (stream_low << _ONE) | _ONE
        _step(generators, row)
        low = generators[row, 1] + start_low
        carry = _ONE if low < start_low else _ZERO
        generators[row, 0] = generators[row, 0] + start_high + carry
        generators[row, 1] = low
        _step(generators, row)


def seed_words(seeds: Sequence[int]) -> Array:
    """Seeds below 2 ** 128 as `seed_rows` takes them, `[len(seeds), 4] uint64`."""
    data = b"".join(seed.to_bytes(16, "little") for seed in seeds)
    return np.frombuffer(data, "<u4").reshape(len(seeds), _POOL).astype(np.uint64)


def row_of_seed(seed: int) -> Array:
    """The generator that a seed of any size gives, `[4] uint64`."""
    return row_of_generator(np.random.Generator(np.random.PCG64(seed)))


def row_of_generator(generator: np.random.Generator) -> Array:
    """A NumPy generator on PCG64 as a row, `[4] uint64`.

    Raises:
        TypeError: it runs on another bit generator.
    """
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"expected a generator on PCG64, got one on {state['bit_generator']}")
    numbers = (state["state"]["state"], state["state"]["inc"])
    return np.array([part for number in numbers for part in divmod(number, 2**64)], np.uint64)


def generator_of_row(row: Array) -> np.random.Generator:
    """A NumPy generator that goes on where a row stands; a copy, later draws of either are not seen by the other."""
    high, low, increment_high, increment_low = (int(part) for part in row)
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return np.random.Generator(bits)
