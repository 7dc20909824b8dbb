"""The flat lists of arrays that EnvPool takes and gives, read without asking it at every step which array is what."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.native_batch import EngineBatch
from vecenv.spaces import map_arrays

Array = npt.NDArray[Any]
_ABOUT_THE_BATCH = ("env_id", "players")


class PoolArrays:
    """What stands where in the lists of one pool, as the pool itself says. The pool is not kept.

    Args:
        pool: of EnvPool, for one player per env.
        actions: `[num_envs, ...]`, any batch of actions, or a nest of them.

    Attributes:
        info_places: key -> index of an info, or a nest of them.
    """

    def __init__(self, pool: Any, actions: Any) -> None:
        *self._env_ids, flat = pool._from(actions)
        self._action_dtype = flat.dtype if isinstance(actions, np.ndarray) else None  # None: it is a nest
        keys = pool._state_keys
        # Given the places in place of the arrays, it puts them where the arrays would be.
        self._observations, self._rewards, _, self._truncations, infos = pool._to(list(range(len(keys))), False, True)
        self._ends, self._ids = keys.index("done"), keys.index("info:env_id")
        self.info_places = own_infos(infos)
        # A game may end without an end of the env's episode where lives count as episodes.
        self._all_ends = [self._ends, self._truncations]
        if "info:terminated" in keys:
            self._all_ends.append(keys.index("info:terminated"))

    def of_actions(self, pool: Any, actions: Any) -> list[Array]:
        """A batch of actions for all envs as the pool takes it; the pool reads it until the step is over."""
        if self._action_dtype is None:
            nest: list[Array] = pool._from(actions)
            return nest
        return [*self._env_ids, actions.astype(self._action_dtype, "C")]

    def batch(self, states: list[Array]) -> EngineBatch:
        """What the pool gave, as its own `recv` would return it."""
        truncations = states[self._truncations]
        return EngineBatch(
            _at(states, self._observations),
            states[self._rewards],
            states[self._ends] > truncations,  # ended and not truncated
            truncations,
            {key: _at(states, place) for key, place in self.info_places.items()},
        )

    def plain_parts(self, states: list[Array]) -> tuple[Any, Array, list[Array]] | None:
        """Observations, rewards and the list that the infos stand in; None: an episode or a game ended."""
        for place in self._all_ends:
            if np.count_nonzero(states[place]):
                return None
        return _at(states, self._observations), states[self._rewards], states

    def env_ids(self, states: list[Array]) -> Array:
        """Which envs the rows are of."""
        env_ids: Array = states[self._ids]
        return env_ids


def _at(states: list[Array], places: Any) -> Any:
    """The arrays at places, which may be a nest."""
    return states[places] if type(places) is int else map_arrays(places, states.__getitem__)


def own_infos(infos: dict[str, Any]) -> dict[str, Any]:
    """Infos of the envs, without what EnvPool says about its batch."""
    return {key: value for key, value in infos.items() if key not in _ABOUT_THE_BATCH}
