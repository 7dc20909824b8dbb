"""Which call may follow which: what every back end refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.errors import EpisodeEnded


class CallOrder:
    """Checks of a vector env that needs no more than its own bookkeeping."""

    closed: bool
    autoreset_mode: AutoresetMode
    # Envs whose episode has ended and that were not reset since.
    _done: npt.NDArray[np.bool_]
    # Envs that raised and were not reset since.
    _failed: set[int]
    # Envs that were sent an action alone, in the order of sending, and not received.
    _outstanding: dict[int, None]
    # Whether a whole batch was sent and not received.
    _whole_sent: bool

    def _check_open(self, doing: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`: `{doing}` needs it open"
            )

    def _check_not_outstanding(self, doing: str, rows: Iterable[int]) -> None:
        busy = [row for row in rows if self._whole_sent or row in self._outstanding]
        if busy:
            raise AlreadyPendingCallError(
                f"`{doing}` was called while results of environments {busy} are outstanding; receive them first", "send"
            )

    def _check_can_step(self, doing: str, rows: Iterable[int] | None = None) -> None:
        if self._failed:
            failed = sorted(self._failed if rows is None else self._failed.intersection(rows))
            if failed:
                raise ResetNeeded(f"{doing}: environments {failed} failed before; reset them first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._done.any():
            ended = np.flatnonzero(self._done).tolist()
            ended = ended if rows is None else [row for row in rows if row in ended]
            if ended:
                raise EpisodeEnded(
                    f"{doing}: the episodes of environments {ended} have ended and autoreset is disabled; call "
                    "reset(options={'reset_mask': terminations | truncations}) first"
                )
