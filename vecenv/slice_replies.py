"""What the processes that host envs do alike: load the constructors, describe the envs, pickle what envs gave."""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from vecenv.env_failures import SliceFailed, env_failure, pack_failures, unpack_failures
from vecenv.env_slice import build_envs
from vecenv.pickling import dumps
from vecenv.registered_ids import call_with_ids, override_ids
from vecenv.settings import EnvDescription, describe_env

#: At the end of a message by row: how many rows stand before it, and that they do.
_ROWS = struct.Struct("=I4s")
_ROWS_FOLLOW = b"rows"


def load_envs(
    rows: Sequence[int], env_fns: Sequence[bytes], specs: Sequence[bytes] = ()
) -> dict[int, gym.Env[Any, Any]]:
    """Load the constructors and call them.

    Args:
        rows: indices of the envs.
        env_fns: their constructors, pickled.
        specs: the ids of the user's process, see `vecenv.registered_ids`.

    Raises:
        SliceFailed: a constructor cannot be loaded here, or raised; what was built is closed again.
    """
    functions = {row: load_for([row], data) for row, data in zip(rows, env_fns, strict=True)}
    override_ids(specs)
    return build_envs({row: functools.partial(call_with_ids, env_fn, specs) for row, env_fn in functions.items()})


def load_for(rows: Sequence[int], data: bytes) -> Any:
    """Load what the caller gives to envs: constructors, options, arguments, values of attributes.

    Raises:
        SliceFailed: it cannot be loaded in this process; all these envs go without it.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # what unpickling runs is the user's
        raise SliceFailed([env_failure(row, error) for row in rows]) from error


def load_options(rows: Sequence[int], data: bytes | None) -> Any:
    """Load the options of a reset of some envs, see `load_for`; None where there are none."""
    return None if data is None else load_for(rows, data)


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
        except Exception as error:  # spaces may be the user's own classes
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
        The pickled message, or pickled ``("failed", packed failures)``. The rows follow the pickle, which loading it
        does not notice; `loads_by_row` needs them where it cannot be loaded.
    """
    try:
        data = dumps(message)
        if isinstance(message[1], dict):
            data += np.array(list(message[1]), np.int64).tobytes() + _ROWS.pack(len(message[1]), _ROWS_FOLLOW)
        return data
    except Exception:  # what pickling runs is the user's: which rows it fails for is told
        failures = []
        for index, value in message[1].items():
            try:
                dumps(value)
            except Exception as error:
                failures.append(env_failure(index, error))
        return dumps(("failed", pack_failures(failures)))


def loads_by_row(data: bytes, pid: int) -> tuple[str, Any]:
    """Load a message of a worker.

    Args:
        data: as it came; `dumps_by_row` tells of the rows.
        pid: process id of the worker.

    Returns:
        Its word and value. ``("failed", failures)`` of all envs of the message where what envs gave cannot be loaded in
        this process: of several one cannot tell whose value it is.
    """
    try:
        word, value = pickle.loads(data)
    except Exception as error:
        count, follow = _ROWS.unpack(data[-_ROWS.size :])
        if follow != _ROWS_FOLLOW:
            raise
        stop = len(data) - _ROWS.size
        rows = np.frombuffer(data[stop - 8 * count : stop], np.int64).tolist()
        reason = TypeError(f"what it gave cannot be unpickled in the caller's process: {error!r}")
        reason.__cause__ = error
        return "failed", [replace(env_failure(row, reason), worker_pid=pid) for row in rows]
    return word, unpack_failures(value) if word == "failed" else value
