"""What a vector env can be told, and what envs say about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces

from vecenv.arguments import check_positive_int
from vecenv.autoreset import autoreset_mode_of
from vecenv.errors import UnknownSetting
from vecenv.spaces import same_layout

#: "same", "different", or (batched space, single space).
ObservationMode = str | tuple[gym.Space[Any], gym.Space[Any]]


@dataclass(frozen=True)
class VectorSettings:
    """What every back end can be told.

    Attributes:
        autoreset_mode: what happens when an episode ends.
        copy: whether returned observations belong to the caller. False: those of `reset` and `step` are views of the
            ring, valid for `slots - 1` further calls of the two: the one after those writes there again. Rows that are
            sent alone are written into the newest slot, which changes what was returned last.
        slots: length of the ring of observation batches, at least 1; 1: every call writes over the one before.
        statistics: whether ended episodes are reported in ``infos["episode"]``.
        seed: for the first `reset` that gets none; where envs fail in it, the next try gets it again.
        observation_mode: how observation spaces are batched. ``"same"``: all are equal. ``"different"``: shapes and
            dtypes are equal, bounds may differ. A pair of spaces: the batched and the single one, taken as they are.
        shared_memory: None: observations lie in arrays where the space allows it. False: they travel as objects. True:
            as None, and what Gymnasium cannot hold in shared memory is refused (in worker processes).
        batch_size: how many environments `recv` returns; None: all.
    """

    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    copy: bool = True
    slots: int = 2
    statistics: bool = False
    seed: int | Sequence[int | None] | None = None
    observation_mode: ObservationMode = "same"
    shared_memory: bool | None = None
    batch_size: int | None = None

    @classmethod
    def checked(cls, **settings: Any) -> VectorSettings:
        """Read settings as users give them.

        Raises:
            UnknownSetting: a name or an autoreset mode that does not exist.
            TypeError, ValueError: a value that does not fit; the message names it.
        """
        settings["autoreset_mode"] = autoreset_mode_of(settings.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise UnknownSetting(f"setting {name!r} does not exist; there are: {', '.join(known)}")
        result = cls(**settings)
        check_positive_int("slots", result.slots)
        _check_observation_mode(result.observation_mode)
        return result

    def checked_batch_size(self, num_envs: int) -> int:
        """The batch size for a number of envs.

        Raises:
            TypeError, ValueError: no int, or not in 1 to `num_envs`.
        """
        if self.batch_size is None:
            return num_envs
        size = check_positive_int("batch_size", self.batch_size)
        if size > num_envs:
            raise ValueError(f"batch_size: expected at most num_envs={num_envs}, got {size}")
        return size


def _check_observation_mode(mode: Any) -> None:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gym.Space) for space in mode):
            kinds = " and ".join(str(type(space)) for space in mode)
            raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {kinds}")
    elif mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


@dataclass(frozen=True)
class EnvDescription:
    """What built envs say about themselves.

    Attributes:
        observation_spaces: of each env.
        action_space: of the first env; all are equal.
        metadata: of the first env.
        render_mode: of the first env.
    """

    observation_spaces: tuple[gym.Space[Any], ...]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None


def describe_env(env: gym.Env[Any, Any]) -> EnvDescription:
    """What one env says about itself."""
    metadata = {key: value for key, value in (env.metadata or {}).items() if key != "autoreset_mode"}
    return EnvDescription((env.observation_space,), env.action_space, metadata, env.render_mode)


def joined_descriptions(descriptions: Sequence[EnvDescription], observation_mode: ObservationMode) -> EnvDescription:
    """One description out of one per env.

    Raises:
        RuntimeError: spaces do not go together; the message names the envs.
    """
    first = descriptions[0]
    spaces = tuple(space for description in descriptions for space in description.observation_spaces)
    expected = observation_mode[1] if isinstance(observation_mode, tuple) else spaces[0]
    if observation_mode == "different":
        batch_differing_spaces(list(spaces))  # refuses spaces that cannot be batched, in Gymnasium's words
    for index, (space, description) in enumerate(zip(spaces, descriptions, strict=True)):
        if observation_mode == "same":
            if space != expected:
                raise RuntimeError(
                    f"the observation spaces of environments 0 and {index} differ, {expected} and {space}: some of the "
                    "sub-environments observation spaces are not equivalent. If this is intentional, use "
                    "`observation_mode='different'` instead."
                )
        elif not same_layout(space, expected):
            raise RuntimeError(
                f"the observation space of environment {index} is {space}, expected one like {expected}: the "
                "sub-environment's observation spaces do not share a common shape and dtype."
            )
        if description.action_space != first.action_space:
            raise RuntimeError(
                f"the action spaces of environments 0 and {index} differ, the latter is {description.action_space}: "
                f"Some environments have an action space different from `{first.action_space}`. In order to batch "
                "actions, the action spaces from all environments must be equal."
            )
    return EnvDescription(spaces, first.action_space, first.metadata, first.render_mode)
