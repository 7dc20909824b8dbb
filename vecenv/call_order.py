"""Which call may follow which: what every back end refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.arguments import out_like
from vecenv.batch import BatchArrays
from vecenv.errors import EpisodeEnded
from vecenv.spaces import allocate_batch, has_fixed_layout


class CallOrder:
    """Checks of a vector env that needs no more than its own bookkeeping, and that bookkeeping."""

    closed: bool
    num_envs: int
    single_observation_space: Any
    autoreset_mode: AutoresetMode
    _arrays: BatchArrays
    # Envs whose episode has ended and that were not reset since.
    _done: npt.NDArray[np.bool_]
    # Envs that raised and were not reset since.
    _failed: set[int]
    # Envs that were sent an action alone, in the order of sending, and not received.
    _outstanding: dict[int, None]
    # Whether a whole batch was sent and not received.
    _whole_sent: bool
    # The seed of the constructor, as long as it waits for its reset.
    _first_seed: int | Sequence[int | None] | None

    def _check_open(self, doing: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`. `{doing}` needs it open"
            )

    def _check_no_fork(self, doing: str, belongs_here: bool) -> None:
        if not belongs_here:
            raise ClosedEnvironmentError(
                f"`{doing}` was called in a fork of the process that the vector env belongs to; build another one here"
            )

    def _check_not_outstanding(self, doing: str, rows: Iterable[int]) -> None:
        busy = [row for row in rows if self._whole_sent or row in self._outstanding]
        if busy:
            raise AlreadyPendingCallError(
                f"`{doing}` was called while results of environments {busy} are outstanding; receive them first", "send"
            )

    def _check_failed_selected(self, rows: Iterable[int], cause: Exception | None = None) -> None:
        if self._failed and not self._failed <= set(rows):
            raise ResetNeeded(
                f"reset: environments {sorted(self._failed)} failed before; select them in reset_mask"
            ) from cause

    def _passed_options(self, options: dict[str, Any] | None) -> Any:
        """Options of a reset in the form in which they go to the envs.

        What refuses them does so here, before anything is dropped or sent.
        """
        return options

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

    def _check_out(self, out: Any, count: int | None = None) -> None:
        """Refuse an `out` that cannot take the observations, before any env is asked for them."""
        if out is None:
            return
        if not has_fixed_layout(self.single_observation_space):
            raise TypeError(f"out: observations of {self.single_observation_space} do not lie in arrays")
        rows = self.num_envs if count is None else count
        out_like(
            out, allocate_batch(self.single_observation_space, lambda _, shape, dtype: np.empty((rows, *shape), dtype))
        )

    def _check_states(self, states: Sequence[bytes]) -> None:
        self._check_open("set_state")
        # Rows that were sent alone are dropped, as by a reset.
        self._check_not_outstanding("set_state", range(self.num_envs) if self._whole_sent else ())
        if isinstance(states, bytes) or not isinstance(states, Sequence):
            raise TypeError(f"set_state: expected a sequence of {self.num_envs} states, got {type(states).__name__}")
        if len(states) != self.num_envs:
            raise ValueError(f"set_state: expected {self.num_envs} states, one per environment, got {len(states)}")
        for index, state in enumerate(states):
            if not isinstance(state, bytes):
                raise TypeError(f"set_state: expected bytes for environment {index}, got {type(state).__name__}")

    def _note_ends(self, rows: Any) -> None:
        """Note whose episodes have ended, as the arrays tell; under SAME_STEP the next ones have begun.

        Args:
            rows: rows as an index into arrays.
        """
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._done[rows] = self._arrays.terminations[rows] | self._arrays.truncations[rows]

    def _take_over_states(self) -> None:
        """After all envs have taken up other states, whose generators go on at the next reset."""
        self._first_seed = None
        self._failed = set()
        self._done[:] = False
        self._note_ends(slice(None))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles: they would share, or lose, memory and processes."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled; build another one and carry the states of the envs "
            "over with get_state and set_state"
        )
