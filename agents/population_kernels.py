"""Numba kernels of a population's forward pass on the CPU: few calls, each over all members.

While environments play, the caches forget what a forward pass needs: the fewer different things it touches, the better.
Sums are taken in the order of the inputs, one member after the other, so that what a member does is the same bits in
every row and for every number of rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from vecenv.preprocess.compiling import kernel as _kernel

_ROWS = types.Array(types.float32, 3, "C")
_NUMBERS = types.Array(types.float32, 1, "C")
_INTEGERS = types.Array(types.int32, 1, "C")

_TANH_IS_ONE = np.float32(10.0)  # from 9.011 on, in float32
_DOUBLINGS = np.float32(2.0 / math.log(2.0))  # exp(2 x) = 2 ** (x * this)
# 2 ** f for |f| <= 1/2 by its Taylor series; what is left out is less than a unit in the last place of float32.
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(math.log(2.0) ** n / math.factorial(n)) for n in range(1, 8))
_ONE, _TWO = np.float32(1.0), np.float32(2.0)


@_kernel(types.void(_NUMBERS, _INTEGERS, _NUMBERS))
def squash(numbers: Any, powers: Any, fractions: Any) -> None:
    """The hyperbolic tangent of `numbers` [D] float32, in place, as 1 - 2 / (exp(2 x) + 1).

    No result is off by more than 3e-7: that is what roundings near 1 add up to. ``math.tanh`` would be called number by
    number; these loops are vectorised. `powers` [D] int32 and `fractions` [D] float32 are scratch.
    """
    for place in range(numbers.size):
        number = numbers[place]
        if number > _TANH_IS_ONE:
            number = _TANH_IS_ONE
        if number < -_TANH_IS_ONE:
            number = -_TANH_IS_ONE
        exponent = number * _DOUBLINGS
        whole = np.rint(exponent)
        fractions[place] = exponent - whole
        powers[place] = (np.int32(whole) + 127) << 23  # 2 ** whole, as float32 is written in bits
    doubled = powers.view(np.float32)
    for place in range(numbers.size):
        f = fractions[place]
        series = _C4 + f * (_C5 + f * (_C6 + f * _C7))
        series = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * series)))
        numbers[place] = _ONE - np.divide(_TWO, series * doubled[place] + _ONE)  # no check that forbids wide divisions


@_kernel(types.void(_ROWS, _ROWS, _ROWS, types.int64, types.boolean, _ROWS))
def apply_layers(biases: Any, inputs: Any, weights: Any, num_in: int, squashed: bool, outputs: Any) -> None:
    """One linear layer per member.

    Args:
        biases: [N, 1, out] float32.
        inputs: [N, 1, in] float32.
        weights: [N, in, out] float32.
        num_in: how many of the inputs there are; those behind them, which fill up a line of the cache, are not looked
            at.
        squashed: whether `squash` follows.
        outputs: [N, 1, out] float32, overwritten.
    """
    powers, fractions = np.empty(outputs.shape[2], np.int32), np.empty(outputs.shape[2], np.float32)
    for member in range(weights.shape[0]):
        sums, numbers, matrix = outputs[member, 0], inputs[member, 0], weights[member]
        for place in range(sums.size):
            sums[place] = biases[member, 0, place]
        whole = num_in - num_in % 4
        for source in range(0, whole, 4):  # four at once: the sums are read and written less often
            a, b, c, d = numbers[source], numbers[source + 1], numbers[source + 2], numbers[source + 3]
            row_a, row_b, row_c, row_d = matrix[source], matrix[source + 1], matrix[source + 2], matrix[source + 3]
            for place in range(sums.size):
                sums[place] = sums[place] + a * row_a[place] + b * row_b[place] + c * row_c[place] + d * row_d[place]
        for source in range(whole, num_in):
            for place in range(sums.size):
                sums[place] += numbers[source] * matrix[source, place]
        if squashed:
            squash(sums, powers, fractions)


def _scale(observations: Any, shift: Any, factor: Any, limit: Any, inputs: Any) -> None:
    """Observations minus a shift, times a factor, cut off at a limit; rounded to float32 before and after each.

    Args:
        observations: [N, D] float32 or float64.
        shift: [D] float32.
        factor: [D] float32.
        limit: float32.
        inputs: [N, 1, D or more] float32; the first D numbers of every row are overwritten.
    """
    for member in range(observations.shape[0]):
        for place in range(shift.size):
            scaled = (np.float32(observations[member, place]) - shift[place]) * factor[place]
            if scaled > limit:
                scaled = limit
            if scaled < -limit:
                scaled = -limit
            inputs[member, 0, place] = scaled


scale_float32, scale_float64 = (
    _kernel(types.void(types.Array(number, 2, "C"), _NUMBERS, _NUMBERS, types.float32, _ROWS))(_scale)
    for number in (types.float32, types.float64)
)
