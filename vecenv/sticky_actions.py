"""What the emulator's sticky actions hold at the moment, which its own saved states leave out."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

# Steps that are remembered; that no draw of so many kept the agent's action does not happen.
_REMEMBERED_STEPS = 4096

_NOOP = 0


class StickyActions:
    """Tells which action the emulator played last, from the actions that were asked for and the draws between.

    At every frame the emulator draws a number from ``std::mt19937`` for each player and, where it is below the
    probability, plays the previous action in place of the new one. Neither a saved state nor a call tells what that
    action is, but the draws can be drawn again.

    Args:
        probability: chance that the previous action is repeated.
    """

    def __init__(self, probability: float) -> None:
        self.probability = probability
        self.seed = 0
        self._held_before = _NOOP
        self._frame_number = 0
        self._lost = False
        self._asked: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_STEPS)

    def begin(self, frame_number: int, held: int = _NOOP) -> None:
        """Forget what was asked for: a new game begins with no action, a restored one with the action it `held`.

        Args:
            frame_number: frames played since the emulator was seeded.
            held: the action that it played last.
        """
        self._asked.clear()
        self._held_before = held
        self._frame_number = frame_number

    def lose(self) -> None:
        """Note that the emulator was put into another state, so that its draws cannot be followed."""
        self._lost = True

    def load(self, seed: int) -> None:
        """Note that the emulator was loaded anew, seeded with `seed` from 0 to 2**32 - 1."""
        self.seed = seed
        self._lost = False
        self.begin(0)

    def note(self, action: int, frames: int) -> None:
        """Remember that `action` was asked for at the last `frames` frames."""
        self._asked.append((action, frames))
        self._frame_number += frames

    def held_action(self, frame_number: int) -> int:
        """The action that the emulator played last.

        Args:
            frame_number: frames played since the emulator was seeded.

        Raises:
            ValueError: the emulator was restored, or played directly, since it was seeded.
        """
        if self._lost or frame_number != self._frame_number:
            raise ValueError(
                "the state cannot be saved: with sticky actions the emulator must not be restored or played directly; "
                "a reset with a seed begins anew"
            )
        total = sum(frames for _, frames in self._asked)
        draws = self.draws(frame_number - total, total)
        for action, frames in reversed(self._asked):
            if (draws[total - frames : total] >= self.probability).any():
                return action
            total -= frames
        return self._held_before

    def draws(self, first: int, count: int) -> npt.NDArray[np.float64]:
        """Numbers that decide about frames.

        Args:
            first: frame number of the first one, from 0.
            count: how many.

        Returns:
            [count] float64, from 0 to 1.
        """
        bits = np.random.MT19937()
        # Seeding through RandomState is the one public way to NumPy's old, standard seeding of this generator.
        np.random.RandomState(bits).seed(self.seed)
        for skipped in range(0, 2 * first, 1 << 20):
            bits.random_raw(min(1 << 20, 2 * first - skipped), output=False)
        # The second word of a frame decides about the second player.
        words = np.asarray(bits.random_raw(2 * count), np.float64).reshape(count, 2)
        return words[:, 0] / 2.0**32
