"""Settings of the Atari pipeline: wrong ones are refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from vecenv.preprocess.config import PRESETS, AtariConfig, find_preset


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("frame_skip", 0, ValueError),
        ("frame_skip", 4.0, TypeError),
        ("frame_skip", True, TypeError),
        ("max_pool", 1, TypeError),
        ("noop_max", -1, ValueError),
        ("fire_reset", "yes", TypeError),
        ("episodic_life", None, TypeError),
        ("life_loss_info", True, ValueError),
        ("clip_reward", 0, TypeError),
        ("screen_size", 84, TypeError),
        ("screen_size", (84, 84, 1), TypeError),
        ("screen_size", (84.0, 84), TypeError),
        ("screen_size", (0, 84), ValueError),
        ("screen_size", (300, 84), ValueError),
        ("screen_size", (105, 80), ValueError),
        ("grayscale", False, ValueError),
        ("stack_size", 0, ValueError),
        ("repeat_action_probability", 1.5, ValueError),
        ("repeat_action_probability", float("nan"), ValueError),
        ("repeat_action_probability", "0.25", TypeError),
        ("full_action_space", 1, TypeError),
        ("max_episode_frames", 0, ValueError),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        AtariConfig(**{field: value})


def test_settings_are_frozen_and_plain() -> None:
    config = AtariConfig(frame_skip=np.int64(3), screen_size=[np.int32(60), 50], repeat_action_probability=0)
    assert json.loads(json.dumps(dataclasses.asdict(config)))["screen_size"] == [60, 50]
    assert type(config.frame_skip) is int
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.frame_skip = 2  # type: ignore[misc]


def test_the_only_preset_is_the_default() -> None:
    assert list(PRESETS) == ["ale"]
    assert PRESETS["ale"] == AtariConfig()
    assert find_preset("ale") is PRESETS["ale"]


@pytest.mark.parametrize("name", ["gymnasium", "sb3", "envpool", "fast"])
def test_planned_presets_are_refused_and_not_pretended(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*not available yet; available: 'ale'"):
        find_preset(name)


def test_an_unknown_preset_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no preset 'allee'; available: 'ale'"):
        find_preset("allee")
