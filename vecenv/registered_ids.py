"""Environment ids that the user's process has registered, for constructors that call `gymnasium.make` in a worker."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vecenv.pickling import dumps_function


def pickled_specs() -> tuple[bytes, ...]:
    """The specs of all registered ids; one that cannot be pickled is left out."""
    plain, special = {}, []
    for env_id, spec in list(gym.registry.items()):
        if _is_plain(spec):
            plain[env_id] = spec
            continue
        with contextlib.suppress(Exception):
            special.append(dumps_function({env_id: spec}))
    return (pickle.dumps(plain, pickle.HIGHEST_PROTOCOL), *special)


def call_with_ids(env_fn: Callable[[], Any], specs: Sequence[bytes]) -> Any:
    """Build an env; where it asks for an id that is not known in this process, register those and build it again.

    Not before: most workers need none of them, and packages register their own ids when they are imported.

    Args:
        env_fn: the constructor.
        specs: what `pickled_specs` gave in the user's process.
    """
    try:
        return env_fn()
    except gym.error.UnregisteredEnv:
        if not _register(specs):
            raise
    return env_fn()


def _register(pickled: Sequence[bytes]) -> bool:
    """Register ids that are missing here; gives whether there were any."""
    before = len(gym.registry)
    for data in pickled:
        with contextlib.suppress(Exception):  # what cannot be loaded here stays unknown
            for env_id, spec in pickle.loads(data).items():
                gym.registry.setdefault(env_id, spec)
    # a package whose env is built now registers its ids once more, and would warn of each
    warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    return len(gym.registry) > before


def _is_plain(spec: EnvSpec) -> bool:
    """Whether a spec can be loaded wherever Gymnasium is."""
    return (
        _is_name(spec.entry_point)
        and _is_name(spec.vector_entry_point)
        and not spec.additional_wrappers
        and _is_plain_value(spec.kwargs)
    )


def _is_name(entry_point: Any) -> bool:
    """Names are imported when the env is built; Gymnasium's own functions are there."""
    if entry_point is None or type(entry_point) is str:
        return True
    return str(getattr(entry_point, "__module__", "")).partition(".")[0] == "gymnasium"


def _is_plain_value(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain_value(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain_value(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)
