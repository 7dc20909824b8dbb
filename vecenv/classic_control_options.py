"""Options that `reset` of the classic control envs understands, read as Gymnasium reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"options[{name!r}]: expected a number, got {value!r}") from error


def low_and_high(low: float, high: float) -> Callable[[Mapping[str, Any]], tuple[float, ...]]:
    """A reader of ``options["low"]`` and ``options["high"]``, the ends that start states are drawn between.

    Args:
        low: what holds where the options do not name it.
        high: likewise.

    Returns:
        The reader; it raises ValueError where an end is no number, or `low` is above `high`.
    """

    def read(options: Mapping[str, Any]) -> tuple[float, ...]:
        bounds = _number("low", options.get("low", low)), _number("high", options.get("high", high))
        if not -math.inf < bounds[0] <= bounds[1] < math.inf:
            raise ValueError(f"options: expected finite low <= high, got low={bounds[0]}, high={bounds[1]}")
        return bounds

    return read


def largest_angle_and_speed(options: Mapping[str, Any]) -> tuple[float, ...]:
    """``options["x_init"]`` and ``options["y_init"]`` of the pendulum: start states lie between minus these and these.

    Raises:
        ValueError: one is no number, or no range.
    """
    largest = _number("x_init", options.get("x_init", math.pi)), _number("y_init", options.get("y_init", 1.0))
    for name, value in zip(("x_init", "y_init"), largest, strict=True):
        if not 0 <= value < math.inf:
            raise ValueError(f"options[{name!r}]: expected a finite number of at least 0, got {value}")
    return largest
