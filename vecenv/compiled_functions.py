"""Functions of the env that a kernel is compiled for, found by the class of its parameters when Numba compiles it."""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import overload

from vecenv.compiled_env import functions_of


def start(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> Any:
    """Begin an episode; this body runs only where Numba is told not to compile."""
    return functions_of(type(parameters)).start(state, row, generators, bounds, parameters)


def advance(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    """Play one inner step; this body runs only where Numba is told not to compile."""
    return functions_of(type(parameters)).advance(state, row, actions, generators, parameters)


def observe(state: Any, row: Any, observations: Any, parameters: Any) -> Any:
    """Write an observation; this body runs only where Numba is told not to compile."""
    return functions_of(type(parameters)).observe(state, row, observations, parameters)


def all_usual(state: Any, count: Any, parameters: Any) -> bool:
    """Whether `advance_usual` may play all rows; this body runs only where Numba is told not to compile."""
    is_usual = functions_of(type(parameters)).is_usual
    return is_usual is not None and all(is_usual(state, row, parameters) for row in range(count))


def advance_usual(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    """`advance` where all rows are usual; this body runs only where Numba is told not to compile."""
    function: Any = functions_of(type(parameters)).advance_usual
    return function(state, row, actions, generators, parameters)


def observation_size(parameters: Any) -> int:
    """Numbers of an observation, a constant of the compiled code."""
    return functions_of(type(parameters)).observation_size


_INLINED: Any = {"forceinline": True, "error_model": "numpy"}


@overload(start, jit_options=_INLINED, strict=False)
def _start(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> Any:
    return functions_of(parameters.instance_class).start


@overload(advance, jit_options=_INLINED, strict=False)
def _advance(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    return functions_of(parameters.instance_class).advance


@overload(observe, jit_options=_INLINED, strict=False)
def _observe(state: Any, row: Any, observations: Any, parameters: Any) -> Any:
    return functions_of(parameters.instance_class).observe


@overload(all_usual, jit_options=_INLINED, strict=False)
def _all_usual(state: Any, count: Any, parameters: Any) -> Any:
    is_usual = functions_of(parameters.instance_class).is_usual
    if is_usual is None:
        return lambda state, count, parameters: False
    usual: Any = njit(**_INLINED)(is_usual)

    def look(state: Any, count: Any, parameters: Any) -> bool:
        others = 0
        for row in range(count):
            others += not usual(state, row, parameters)
        return others == 0

    return look


@overload(advance_usual, jit_options=_INLINED, strict=False)
def _advance_usual(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    functions = functions_of(parameters.instance_class)
    return functions.advance_usual or functions.advance


@overload(observation_size, strict=False)
def _observation_size(parameters: Any) -> Any:
    size = functions_of(parameters.instance_class).observation_size
    return lambda parameters: size
