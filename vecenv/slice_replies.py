"""What the processes that host envs do alike: load the constructors, describe the envs, pickle what envs gave."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym

from vecenv.env_failures import SliceFailed, env_failure, pack_failures
from vecenv.env_slice import build_envs
from vecenv.pickling import dumps
from vecenv.settings import EnvDescription, describe_env


def load_envs(rows: Sequence[int], env_fns: Sequence[bytes]) -> dict[int, gym.Env[Any, Any]]:
    """Load the constructors and call them.

    Args:
        rows: indices of the envs.
        env_fns: their constructors, pickled.

    Raises:
        SliceFailed: a constructor cannot be loaded here, or raised; what was built is closed again.
    """
    return build_envs({row: _load(data, row) for row, data in zip(rows, env_fns, strict=True)})


def _load(data: bytes, index: int) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise SliceFailed([env_failure(index, error)]) from error


def description_message(envs: Mapping[int, gym.Env[Any, Any]]) -> bytes:
    """What every env says about itself; whether they agree is for the caller to judge.

    Returns:
        Pickled ``("built", descriptions)``, or ``("failed", packed failures)`` where something does not survive that.
    """
    descriptions: list[EnvDescription] = []
    for index, env in envs.items():
        try:
            description = describe_env(env)
            if descriptions:  # equal spaces are sent once
                description = _sharing(description, descriptions[0])
            descriptions.append(description)
            if len(descriptions) == 1 or description.observation_spaces != descriptions[0].observation_spaces:
                pickle.loads(dumps(description))
        except Exception as error:
            return dumps(("failed", pack_failures([env_failure(index, error)])))
    return dumps(("built", descriptions))


def _sharing(description: EnvDescription, known: EnvDescription) -> EnvDescription:
    """The same description with the very spaces of another one where they are equal."""
    if description.observation_spaces == known.observation_spaces:
        description = replace(description, observation_spaces=known.observation_spaces)
    if description.action_space == known.action_space:
        description = replace(description, action_space=known.action_space)
    return description


def dumps_by_row(message: tuple[Any, ...]) -> bytes:
    """Pickle ``(word, {row: value})``; what cannot be sent becomes a failure of the env that it came from.

    Returns:
        The pickled message, or pickled ``("failed", packed failures)``.
    """
    try:
        return dumps(message)
    except Exception:
        failures = []
        for index, value in message[1].items():
            try:
                dumps(value)
            except Exception as error:
                failures.append(env_failure(index, error))
        return dumps(("failed", pack_failures(failures)))
