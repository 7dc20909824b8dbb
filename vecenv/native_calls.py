"""Calls of an engine whose effect a Ctrl-C cannot lose."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import Any


class EngineCalls:
    """What was sent to an engine and what it gave back.

    Python runs signal handlers between two of its own instructions: the result of a function that waits in C would be
    lost there, after the engine has given it away, and waiting for it again would never end. Called through `starmap`
    by ``list.extend``, which are C themselves, the function's result is in the list before any handler runs.
    """

    def __init__(self) -> None:
        self._sent: list[Any] = []
        self._received: list[Any] = []

    @property
    def pending(self) -> bool:
        """Whether something was sent with `send` whose results were not handed out by `receive`."""
        return bool(self._sent)

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Send something that `receive` gets all results of.

        Args:
            function: of the engine, not written in Python.
            arguments: for it.
        """
        self._sent.extend(starmap(function, [arguments]))

    def receive(self, function: Callable[[], Any], count: int = 1) -> list[Any]:
        """All results of what was sent last, those included that an interrupted call left here.

        Args:
            function: waits for one result; of the engine, not written in Python.
            count: number of results.
        """
        self._fill(function, count)
        results = self._received
        self._sent, self._received = [], []
        return results

    def receive_next(self, function: Callable[[], Any], count: int) -> list[Any]:
        """The next results of what was sent by other ways than `send`; arguments as for `receive`."""
        self._fill(function, count)
        results = self._received[:count]
        del self._received[:count]
        return results

    def _fill(self, function: Callable[[], Any], count: int) -> None:
        while len(self._received) < count:
            self._received.extend(starmap(function, [()]))
