"""The state of one environment as bytes, from which it continues bit-equally; or a refusal that says why not."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
from gymnasium.utils import EzPickle

from vecenv.pickling import dumps


def dump_env(env: gym.Env[Any, Any], extra: Any) -> bytes:
    """The env with its generators and whatever else its pickle holds.

    Args:
        env: the environment, wrappers included.
        extra: picklable; comes back from `load_env`.

    Raises:
        TypeError: the env's pickle does not hold its state; the message names the class.
    """
    layer: Any = env
    while True:
        # EzPickle keeps the constructor's arguments and builds the env anew: generators, positions, all would be lost.
        if isinstance(layer, EzPickle) and type(layer).__getstate__ is EzPickle.__getstate__:
            raise TypeError(
                f"the state of {type(layer).__name__} cannot be saved: it is pickled by its constructor's arguments"
            )
        if not isinstance(layer, gym.Wrapper):
            break
        layer = layer.env
    try:
        return dumps((env, extra))
    except Exception as error:
        raise TypeError(f"the state of {type(env.unwrapped).__name__} cannot be saved: {error}") from error


def load_env(data: bytes) -> tuple[gym.Env[Any, Any], Any]:
    """The env and the extra that `dump_env` was given.

    Only bytes from a trusted source: unpickling runs code.
    """
    env, extra = pickle.loads(data)
    return env, extra
