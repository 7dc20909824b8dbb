"""Attributes and methods of some envs of a vector env, for interfaces that address them one by one."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vecenv.addressable_env import AddressableEnv
from vecenv.base import VecEnv
from vecenv.sync_backend import SyncVecEnv


def named_envs(indices: Any, num_envs: int) -> list[int]:
    """The envs that indices name, in their order.

    Args:
        indices: None (all), an int, a slice, or several ints; negative ones count from the end.
        num_envs: how many envs there are.

    Raises:
        TypeError: something else, such as a mask.
        IndexError: there is no such env.
    """
    rows = range(num_envs)
    if indices is None:
        return list(rows)
    if isinstance(indices, slice):
        return list(rows[indices])
    if isinstance(indices, (int, np.integer)) or getattr(indices, "shape", None) == ():
        indices = [indices]
    try:
        chosen = [_index(index) for index in indices]
    except TypeError as error:
        raise TypeError(f"expected indices of environments, got {indices!r}") from error
    for index in chosen:
        if not -num_envs <= index < num_envs:
            raise IndexError(f"expected indices of environments from 0 to {num_envs - 1}, got {index}")
    return [rows[index] for index in chosen]


def _index(index: Any) -> int:
    """An index as int; a bool is none: it would be one of a mask."""
    if isinstance(index, (bool, np.bool_)):
        raise TypeError("a bool is no index")
    return operator.index(index)


class EnvAccess:
    """Reaches some envs of a vector env; what concerns all of them works on every back end that has `call`.

    Args:
        envs: the vector env.
        addressable: whether its envs are `AddressableEnv`.
    """

    def __init__(self, envs: VecEnv, addressable: bool) -> None:
        self._envs = envs
        self.addressable = addressable

    def ask(self, rows: Sequence[int], doing: str, *arguments: Any) -> list[Any]:
        """Have envs carry out a method of `AddressableEnv`.

        Args:
            rows: the envs; one that is named twice does it twice.
            doing: name of the method.
            arguments: its arguments.

        Returns:
            One result per row named.

        Raises:
            NotImplementedError: single envs cannot be reached.
        """
        envs = self._envs
        results: Sequence[list[Any]]
        if self.addressable:
            results = envs.call("on_envs", list(rows), doing, *arguments)
        elif isinstance(envs, SyncVecEnv):
            results = [AddressableEnv(env, row).on_envs(rows, doing, *arguments) for row, env in enumerate(envs.envs)]
        else:
            raise NotImplementedError(
                f"{doing} of single envs is not available in a wrapped vector env whose envs live elsewhere; let the "
                "adapter's own class build the envs, or use backend='sync'"
            )
        remaining: list[Iterator[Any]] = [iter(own) for own in results]
        return [next(remaining[row]) for row in rows]

    def read(self, name: str, rows: Sequence[int]) -> list[Any]:
        """An attribute of some envs, through wrappers; a method is not called.

        Raises:
            AttributeError: an env does not have it.
        """
        if self._reaches_single_envs:
            return self.ask(rows, "read_attribute", name)
        if name in ("render_mode", "metadata"):  # the same for all, and known without asking
            return [getattr(self._envs, name)] * len(rows)
        values = self._envs.call("get_wrapper_attr", name)
        return [values[row] for row in rows]

    def has(self, name: str) -> bool:
        """Whether all envs have an attribute."""
        rows = range(self._envs.num_envs)
        if self._reaches_single_envs:
            return all(self.ask(rows, "has_attribute", name))
        try:
            self.read(name, rows)
        except AttributeError:
            return False
        return True

    def write(self, name: str, value: Any, rows: Sequence[int] | None = None) -> None:
        """Set an attribute of some envs (None: all) where it lives."""
        if rows is None and not self._reaches_single_envs:
            self._envs.set_attr(name, [value] * self._envs.num_envs)
        else:
            self.ask(range(self._envs.num_envs) if rows is None else rows, "write_attribute", name, value)

    def call(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], rows: Sequence[int] | None = None
    ) -> list[Any]:
        """Call a method of some envs (None: all), through wrappers."""
        if rows is None and not self._reaches_single_envs:
            return list(self._envs.call(name, *arguments, **keywords))
        every = range(self._envs.num_envs) if rows is None else rows
        return self.ask(every, "call_method", name, arguments, keywords)

    @property
    def _reaches_single_envs(self) -> bool:
        return self.addressable or isinstance(self._envs, SyncVecEnv)
