"""Numba kernels of the sum tree behind prioritized replay.

The tree is an array of `2 P` numbers, P a power of two: node `i` holds the sum of nodes `2 i` and `2 i + 1`, node 1 the
sum of all, and leaf `j` is node ``P + j``. Sums are formed anew from both children, so that rounding never piles up.
"""

from __future__ import annotations

from typing import Any

from numba import types

from vecenv.preprocess.compiling import kernel as _kernel

_TREE = types.Array(types.float64, 1, "C")
_PLACES = types.Array(types.int64, 1, "C")


@_kernel(types.void(_TREE, _PLACES, _TREE))
def set_leaves(tree: Any, places: Any, values: Any) -> None:
    """Give leaves new values; where a place comes twice the later one counts.

    Args:
        tree: [2 P] float64, changed.
        places: [B] int64, from 0 to P - 1.
        values: [B] float64, at least 0.
    """
    half = len(tree) // 2
    for index in range(len(places)):
        node = half + places[index]
        tree[node] = values[index]
        node //= 2
        while node >= 1:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


@_kernel(types.void(_TREE, _TREE, _PLACES, _TREE))
def draw_stratified(tree: Any, numbers: Any, places: Any, probabilities: Any) -> None:
    """Draw leaves with chances in proportion to their values: one from each of B equal parts of the sum.

    Args:
        tree: [2 P] float64, with a sum above 0.
        numbers: [B] float64, random numbers in [0, 1).
        places: [B] int64, filled.
        probabilities: [B] float64, filled: the chance of each leaf.
    """
    half, count = len(tree) // 2, len(places)
    for index in range(count):
        mass = (index + numbers[index]) / count * tree[1]
        node = 1
        while node < half:
            node *= 2
            # A leaf of value 0 is never taken, also where rounding has pushed the mass past the last one.
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        places[index] = node - half
        probabilities[index] = tree[node] / tree[1]
