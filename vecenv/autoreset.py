"""The rules of autoreset, stated once."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from vecenv.errors import UnknownSetting

__all__ = ["AutoresetMode", "autoreset_mode_of", "true_next_obs"]


def autoreset_mode_of(mode: str | AutoresetMode) -> AutoresetMode:
    """Read an autoreset mode from its enum member, value (``"NextStep"``) or name (``"NEXT_STEP"``).

    Raises:
        UnknownSetting: the mode does not exist.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    for member in AutoresetMode:
        if mode in (member.value, member.name):
            return member
    known = ", ".join(repr(member.value) for member in AutoresetMode)
    raise UnknownSetting(f"autoreset_mode={mode!r} does not exist; expected one of {known}")


def true_next_obs(observations: Any, infos: dict[str, Any], autoreset_mode: str | AutoresetMode) -> Any:
    """The observations that the last actions led to, also where an episode ended.

    In SAME_STEP the returned observation of an ended episode already belongs to the next one, and the last one of the
    episode stands in ``infos["final_obs"]``. In the other modes the returned observations are the true ones.

    Args:
        observations: what `step` returned, `[num_envs, ...]` or a nest of such arrays.
        infos: what `step` returned.
        autoreset_mode: the mode that the vector env runs in.

    Returns:
        `observations` itself where no row differs, else a copy with the final observations filled in.

    Examples:
        >>> import vecenv
        >>> from vecenv.testing import CountEnv
        >>> with vecenv.make_vec(CountEnv, 2, "sync", autoreset_mode="SameStep", length=1) as envs:
        ...     _ = envs.reset(seed=0)
        ...     observations, *_, infos = envs.step([0, 0])
        >>> observations[0].tolist(), true_next_obs(observations, infos, "SameStep")[0].tolist()
        ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    """
    mask: npt.NDArray[np.bool_] | None = infos.get("_final_obs")
    if autoreset_mode_of(autoreset_mode) is not AutoresetMode.SAME_STEP or mask is None or not mask.any():
        return observations
    result = copy.deepcopy(observations)
    final = infos["final_obs"]
    for row in np.flatnonzero(mask).tolist():
        result = _with_row(result, row, _row_of(final, row))
    return result


def _row_of(final: Any, row: int) -> Any:
    """Row of an object array of observations, or of a nest of dense arrays."""
    if isinstance(final, dict):
        return {key: _row_of(value, row) for key, value in final.items()}
    if isinstance(final, tuple):
        return tuple(_row_of(value, row) for value in final)
    return final[row]


def _with_row(batch: Any, row: int, value: Any) -> Any:
    """Put one env's observation into a batch; a batch without a fixed layout is a tuple of observations."""
    if isinstance(batch, dict):
        return {key: _with_row(batch[key], row, value[key]) for key in batch}
    if isinstance(batch, tuple):
        if isinstance(value, tuple) and len(value) == len(batch) and all(_is_batch(part) for part in batch):
            return tuple(_with_row(part, row, item) for part, item in zip(batch, value, strict=True))
        return (*batch[:row], value, *batch[row + 1 :])
    batch[row] = value
    return batch


def _is_batch(part: Any) -> bool:
    return isinstance(part, (np.ndarray, dict, tuple))
