"""Comparison of nests of arrays, to the last type, dtype and value."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(one: Any, two: Any, where: str = "value") -> None:
    """Compare nests of dicts, tuples, lists and arrays: structure, types, dtypes, shapes and every value.

    Raises:
        AssertionError: saying where they differ.
    """
    if type(one) is not type(two):
        raise AssertionError(f"{where}: types differ: {type(one).__name__} and {type(two).__name__}")
    if isinstance(one, dict):
        if one.keys() != two.keys():
            raise AssertionError(f"{where}: keys differ: {sorted(one)} and {sorted(two)}")
        for key in one:
            assert_same(one[key], two[key], f"{where}[{key!r}]")
    elif isinstance(one, (tuple, list)):
        if len(one) != len(two):
            raise AssertionError(f"{where}: lengths differ: {len(one)} and {len(two)}")
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(one, np.ndarray):
        if one.dtype != two.dtype or one.shape != two.shape:
            raise AssertionError(f"{where}: {one.dtype}{one.shape} and {two.dtype}{two.shape}")
        if one.dtype == object:
            assert_same(one.tolist(), two.tolist(), where)
        elif not np.array_equal(one, two, equal_nan=one.dtype.kind in "fc"):
            raise AssertionError(f"{where}: values differ:\n{one}\n{two}")
    elif one != two and not (one != one and two != two):
        raise AssertionError(f"{where}: {one!r} and {two!r}")
