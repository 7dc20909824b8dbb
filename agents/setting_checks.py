"""Values of settings, refused with the name, what is allowed and what came."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np

from vecenv.errors import UnknownSetting


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        UnknownSetting: with the name and what came.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UnknownSetting(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_seed(name: str, value: Any) -> None:
    """Refuse what is no whole number from 0 to 2**64 - 1, the seeds of torch's generators.

    Raises:
        UnknownSetting: with the name and what came.
    """
    check_count(name, value, 0)
    if value >= 2**64:
        raise UnknownSetting(f"{name} must be below 2**64, got {value!r}")


def check_kinds(settings: Any, kind: type[Any]) -> None:
    """Refuse fields of a dataclass that are not what their annotations say: such a run could not be loaded again.

    Args:
        settings: an instance.
        kind: the class whose own and inherited fields are looked at.

    Raises:
        UnknownSetting: as of :func:`check_kind`.
    """
    for name, hint in get_type_hints(kind).items():
        check_kind(name, getattr(settings, name), hint)


def check_kind(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not what a field's annotation says: of bool, str, int, float, None and unions of them.

    Numbers of NumPy pass; checkpoints hold them as Python's.

    Raises:
        UnknownSetting: with the name, what is allowed and what came.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if all(one in _KINDS for one in kinds) and not any(_KINDS[one][1](value) for one in kinds):
        raise UnknownSetting(f"{name} must be {' or '.join(_KINDS[one][0] for one in kinds)}, got {value!r}")


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, (bool, np.bool_))),
    str: ("text", lambda value: isinstance(value, str)),
    int: ("a whole number", lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool)),
    float: ("a number", lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool)),
    NoneType: ("null", lambda value: value is None),
}
"""Kind of a setting -> its name, as JSON has it, and what a value of it looks like."""


def check_number(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    optional: bool = False,
) -> None:
    """Refuse what is no finite number within bounds; None only passes where it is ``optional``.

    Raises:
        UnknownSetting: with the name, the bounds and what came.
    """
    if value is None and optional:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if least is not None and most is not None:
        rule, fits = f"lie between {least:g} and {most:g}", is_number and least <= value <= most
    elif least is not None:
        rule, fits = f"be at least {least:g}", is_number and value >= least
    elif above is not None:
        rule, fits = f"be above {above:g}", is_number and value > above
    else:
        rule, fits = "be a finite number", is_number
    if not fits:
        raise UnknownSetting(f"{name} must {rule}, got {value!r}")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse what is not one of the values of a ``Literal``.

    Raises:
        UnknownSetting: with the name, the values and what came.
    """
    if value not in get_args(choices):
        raise UnknownSetting(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
