"""Environment ids that the user's process has registered, for constructors that call `gymnasium.make` in a worker."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vecenv.pickling import by_value, dumps

#: What `gymnasium.make` raises for an id that it does not know; the second where it knows a later version.
_UNKNOWN = (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv)


def pickled_specs() -> tuple[bytes, ...]:
    """The specs of all registered ids, each part with its ids before it; one that cannot be pickled is left out."""
    standard, plain, special = {}, {}, {}
    for env_id, spec in list(gym.registry.items()):
        if not _is_plain(spec):
            special[env_id] = spec
        elif _is_gymnasiums(spec.entry_point):
            standard[env_id] = spec
        else:
            plain[env_id] = spec
    pickled = [(tuple(part), pickle.dumps(part, pickle.HIGHEST_PROTOCOL)) for part in (standard, plain)]
    with by_value() if special else contextlib.nullcontext():
        for env_id, spec in special.items():
            with contextlib.suppress(Exception):
                pickled.append(((env_id,), dumps({env_id: spec})))
    return tuple(pickle.dumps(part) for part in pickled)


def override_ids(pickled: Sequence[bytes]) -> None:
    """Take over what the user's process has registered under Gymnasium's own ids, which are no unknown ones here.

    Args:
        pickled: what `pickled_specs` gave in the user's process.
    """
    for data in pickled:
        ids, part = pickle.loads(data)
        own = [env_id for env_id in ids if env_id in gym.registry and _is_gymnasiums(gym.registry[env_id].entry_point)]
        if own:
            with contextlib.suppress(Exception):  # what cannot be loaded here stays as it is
                given = pickle.loads(part)
                gym.registry.update({env_id: given[env_id] for env_id in own if given[env_id] != gym.registry[env_id]})


def call_with_ids(env_fn: Callable[[], Any], specs: Sequence[bytes]) -> Any:
    """Build an env; where it asks for an id that is not known in this process, register those and build it again.

    Not before: most workers need none of them, and packages register their own ids when they are imported.

    Args:
        env_fn: the constructor.
        specs: what `pickled_specs` gave in the user's process.
    """
    try:
        return env_fn()
    except _UNKNOWN as error:
        reason = str(error)
        if not any(_is_named(spec, reason) for spec in _register(specs)):
            raise
    return env_fn()


def _register(pickled: Sequence[bytes]) -> list[EnvSpec]:
    """Register ids that are missing here; gives their specs."""
    added = []
    for data in pickled:
        with contextlib.suppress(Exception):  # what cannot be loaded here stays unknown
            ids, part = pickle.loads(data)
            missing = [env_id for env_id in ids if env_id not in gym.registry]
            given = pickle.loads(part) if missing else {}
            for env_id in missing:
                gym.registry[env_id] = given[env_id]
                added.append(given[env_id])
    # a package whose env is built now registers its ids once more, and would warn of each
    warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    return added


def _is_named(spec: EnvSpec, reason: str) -> bool:
    """Whether an error of Gymnasium's names the env, or the namespace where nothing of that is known."""
    return spec.name in reason or (spec.namespace is not None and spec.namespace in reason)


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
    return entry_point is None or type(entry_point) is str or _is_gymnasiums(entry_point)


def _is_gymnasiums(entry_point: Any) -> bool:
    """Whether an entry point, a name or a function, lies in Gymnasium itself."""
    where = entry_point if type(entry_point) is str else getattr(entry_point, "__module__", "")
    return str(where).partition(".")[0] == "gymnasium"


def _is_plain_value(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain_value(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain_value(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)
