"""The random number of frames without an action that begins an Atari game."""

from __future__ import annotations

from typing import Any

import numpy as np


class NoopStarts:
    """Draws as the C++ engines do: ``std::uniform_int_distribution`` over ``std::mt19937``.

    Args:
        count: numbers from 0 to ``count - 1`` are drawn; below 1: always 0.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._bits = np.random.MT19937()

    def seed(self, seed: int) -> None:
        """Begin the sequence of ``std::mt19937(seed)``.

        Args:
            seed: from 0 to 2**32 - 1.
        """
        # Seeding through RandomState is the one public way to NumPy's old, standard seeding of this generator.
        np.random.RandomState(self._bits).seed(seed)

    def draw(self) -> int:
        """The next number of frames."""
        if self._count < 1:
            return 0
        # Lemire's method: the high word of a 64-bit product, with the few draws rejected that would favour a value.
        rejected_below = (2**32 - self._count) % self._count
        product = self._bits.random_raw() * self._count
        while product & 0xFFFFFFFF < rejected_below:
            product = self._bits.random_raw() * self._count
        return int(product >> 32)

    def get_state(self) -> dict[str, Any]:
        """Where the sequence stands."""
        return dict(self._bits.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._bits.state = state  # type: ignore[assignment]
