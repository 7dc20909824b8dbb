"""Arguments as users give them: read, checked, refused with the name, what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.errors import UnknownSetting


def check_positive_int(name: str, value: Any) -> int:
    """Refuse what is no int (a bool is none) or below 1.

    Raises:
        TypeError, ValueError: with the name and what came.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected a positive int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected a positive int, got {value}")
    return int(value)


def check_worker_failure(policy: Any) -> None:
    """Refuse what is no policy for dead workers.

    Raises:
        UnknownSetting: the message lists what is one.
    """
    if policy not in ("raise", "restart"):
        raise UnknownSetting(f"on_worker_failure={policy!r} does not exist; expected 'raise' or 'restart'")


def checked_env_fns(env_fns: Iterable[Any]) -> list[Any]:
    """A list of constructors.

    Raises:
        ValueError: there are none.
        TypeError: one of them cannot be called.
    """
    functions = list(env_fns)
    if not functions:
        raise ValueError("env_fns: expected at least one constructor, got none")
    for index, function in enumerate(functions):
        if not callable(function):
            raise TypeError(f"env_fns[{index}]: expected a function that builds an env, got {function!r}")
    return functions


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """One seed per env.

    Args:
        seed: None, an int s (env i gets s + i), or a sequence of ints and None.
        num_envs: how many.

    Raises:
        TypeError, ValueError: anything else, a wrong length, or a negative seed.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, np.ndarray) and seed.ndim == 0:
        seed = seed[()]
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        seeds: list[Any] = [int(seed) + i for i in range(num_envs)]
    elif isinstance(seed, (Sequence, np.ndarray)) and not isinstance(seed, (str, bytes)):
        seeds = list(seed)
    else:
        raise TypeError(f"seed: expected None, an int or a sequence of {num_envs} ints or None, got {seed!r}")
    if len(seeds) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seeds)}."
        )
    for index, one in enumerate(seeds):
        if one is None:
            continue
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            raise TypeError(f"seed: expected an int or None for environment {index}, got {one!r}")
        if one < 0:
            raise ValueError(f"seed: expected a non-negative int for environment {index}, got {one}")
        seeds[index] = int(one)
    return seeds


def split_reset_mask(
    options: dict[str, Any] | None, num_envs: int
) -> tuple[npt.NDArray[np.bool_] | None, dict[str, Any] | None]:
    """Take `reset_mask` out of reset options without changing the caller's dict.

    Returns:
        The mask (a copy) or None, and the options for the envs.

    Raises:
        TypeError, ValueError: the options are no dict, or the mask is no bool array `[num_envs]` with a True in it.
    """
    if options is None:
        return None, None
    if not isinstance(options, dict):
        raise TypeError(f"options: expected a dict or None, got {options!r}")
    if "reset_mask" not in options:
        return None, options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask.copy(), {key: value for key, value in options.items() if key != "reset_mask"}


def env_ids_of(env_ids: Any, num_envs: int) -> list[int]:
    """Indices of envs as a list.

    Raises:
        TypeError, ValueError: no ints, out of range, named twice, or none.
    """
    array = np.asarray(env_ids)
    if array.shape == (0,):
        raise ValueError("env_ids: expected at least one environment index, got none")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"env_ids: expected a sequence of environment indices, got {env_ids!r}")
    rows: list[int] = array.tolist()
    for row in rows:
        if not 0 <= row < num_envs:
            raise ValueError(f"env_ids: expected indices from 0 to {num_envs - 1}, got {row}")
    if len(set(rows)) < len(rows):
        raise ValueError(f"env_ids: expected every environment at most once, got {rows}")
    return rows


def out_like(out: Any, observations: Any, name: str = "out") -> Any:
    """Check that `out` can take a batch of observations.

    Raises:
        TypeError, ValueError: another structure, shape or dtype; the message names the part.
    """
    if isinstance(observations, dict):
        if not isinstance(out, dict) or out.keys() != observations.keys():
            raise ValueError(f"{name}: expected a dict with the keys {sorted(observations)}, got {out!r}")
        for key, part in observations.items():
            out_like(out[key], part, f"{name}[{key!r}]")
    elif isinstance(observations, tuple):
        if not isinstance(out, tuple) or len(out) != len(observations):
            raise ValueError(f"{name}: expected a tuple of {len(observations)} parts, got {out!r}")
        for index, part in enumerate(observations):
            out_like(out[index], part, f"{name}[{index}]")
    elif not isinstance(out, np.ndarray) or not isinstance(observations, np.ndarray):
        raise TypeError(f"{name}: expected a numpy array, got {type(out).__name__}")
    elif out.shape != observations.shape or out.dtype != observations.dtype or not out.flags.writeable:
        raise ValueError(
            f"{name}: expected a writable array {observations.dtype}{observations.shape}, got {out.dtype}{out.shape}"
        )
    return out


def values_per_env(name: str, values: Any, num_envs: int) -> list[Any]:
    """One value per env out of a list or tuple of them, or one for all.

    Raises:
        ValueError: a list or tuple of another length.
    """
    if not isinstance(values, (list, tuple)):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ValueError(
            f"set_attr({name!r}): Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {num_envs} environments."
        )
    return list(values)


def check_callable_name(name: str) -> None:
    """Refuse to call what would go round the vector env.

    Raises:
        ValueError: `reset`, `step` or `close`.
    """
    if name in ("reset", "step", "close"):
        raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
