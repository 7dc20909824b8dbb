"""From an environment id, a preset and single settings to the settings that a game is played with."""

from __future__ import annotations

import dataclasses
from typing import Any

from vecenv.errors import UnknownSetting
from vecenv.preprocess.config import AtariConfig, find_preset
from vecenv.registration import find_game

# Settings of ale_py's own environments and what to say about them.
_ALE_PY_SETTINGS = {
    "frameskip": "use frame_skip",
    "max_num_frames_per_episode": "use max_episode_frames",
    "obs_type": "observations are preprocessed screens; preprocess='none' gives ale_py's own environment",
    "continuous": "actions are whole numbers; preprocess='none' gives ale_py's own environment",
    "continuous_action_threshold": "actions are whole numbers; preprocess='none' gives ale_py's own environment",
    "sound_obs": "observations are screens; preprocess='none' gives ale_py's own environment",
}


def resolve_config(env_id: str, preprocess: str | AtariConfig | None = None, **env_kwargs: Any) -> AtariConfig:
    """Put together what an id, a preset and single settings say about an Atari game.

    Args:
        env_id: an id that `find_game` knows.
        preprocess: None (the preset ``"ale"``), a preset's name or the settings themselves.
        **env_kwargs: fields of `AtariConfig` that replace the preset's.

    Returns:
        The settings with every field filled in: ``repeat_action_probability`` is the id's unless it was given.

    Raises:
        UnknownSetting: an unknown id, preset or field; the message lists what exists.
        TypeError: a value of the wrong type.
        ValueError: a value out of range or not available.
    """
    game = find_game(env_id)
    if game is None:
        raise UnknownSetting(f"{env_id!r} is not the id of an Atari game")
    if preprocess is None or isinstance(preprocess, str):
        try:
            config = find_preset("ale" if preprocess is None else preprocess)
        except ValueError as error:
            raise UnknownSetting(str(error)) from None
    elif isinstance(preprocess, AtariConfig):
        config = preprocess
    else:
        raise TypeError(f"preprocess must be None, a preset's name or an AtariConfig, got {preprocess!r}")
    fields = [field.name for field in dataclasses.fields(AtariConfig)]
    for name in env_kwargs:
        if name in _ALE_PY_SETTINGS:
            raise UnknownSetting(f"there is no Atari setting {name!r}: {_ALE_PY_SETTINGS[name]}")
        if name not in fields:
            raise UnknownSetting(f"there is no Atari setting {name!r}; available: {', '.join(fields)}")
    config = dataclasses.replace(config, **env_kwargs)
    if config.repeat_action_probability is None:
        config = dataclasses.replace(config, repeat_action_probability=game.repeat_action_probability)
    return config
