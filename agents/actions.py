"""From what a policy decides to what an environment is sent."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class EnvActions:
    """Turns a batch of policy actions into a batch of the action space of ``space``'s vector env; call it.

    Discrete: the policy counts actions from 0, the env from ``space.start``. Box: the policy's actions are real
    numbers without bounds, [B, size] float32; what the env gets is clipped to its bounds and has its shape and dtype.

    Attributes:
        distribution: name of the policy's distribution, ``categorical`` or ``gaussian``.
        size: number of discrete actions, or numbers per continuous action.
        stored_shape: shape of one policy action.
        stored_dtype: its dtype.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        """Take the space of one environment.

        Raises:
            NotImplementedError: for a space that policies cannot act in, by name.
        """
        self._space = space
        if isinstance(space, gymnasium.spaces.Discrete):
            self.distribution, self.size = "categorical", int(space.n)
            self.stored_shape: tuple[int, ...] = ()
            self.stored_dtype: type[Any] = np.int64
        elif isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
            self.distribution, self.size = "gaussian", math.prod(space.shape)
            self.stored_shape, self.stored_dtype = (self.size,), np.float32
        else:
            raise NotImplementedError(
                f"agents act in Discrete and floating-point Box spaces; there is no action head for {space}"
            )

    def __call__(self, actions: NDArray[Any]) -> NDArray[Any]:
        """The env's actions for policy actions ``[B, *stored_shape]``: [B, ...], never the same memory for Box."""
        space = self._space
        if isinstance(space, gymnasium.spaces.Discrete):
            return actions + space.start if space.start else actions
        assert isinstance(space, gymnasium.spaces.Box)
        shaped = actions.reshape(len(actions), *space.shape)
        # Bounds are rounded to float32 where the space is float64; the cast comes first, so that none is overstepped.
        clipped: NDArray[Any] = np.clip(shaped.astype(space.dtype), space.low, space.high)
        return clipped
