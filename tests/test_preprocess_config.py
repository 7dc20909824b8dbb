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
        ("life_loss_info", 1, TypeError),
        ("next_life", 0, TypeError),
        ("clip_reward", 0, TypeError),
        ("screen_size", 84, TypeError),
        ("screen_size", (84, 84, 1), TypeError),
        ("screen_size", (84.0, 84), TypeError),
        ("screen_size", (0, 84), ValueError),
        ("screen_size", (300, 84), ValueError),
        ("grayscale", 0, TypeError),
        ("gray", "blue", ValueError),
        ("gray", None, TypeError),
        ("channel_order", "middle", ValueError),
        ("padding", 0, TypeError),
        ("sticky_actions", "agent", ValueError),
        ("conventions", "gym", ValueError),
        ("mode", -1, ValueError),
        ("difficulty", 1.0, TypeError),
        ("max_episode_steps", 0, ValueError),
        ("max_screen_height", 2, ValueError),
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


def test_presets() -> None:
    assert list(PRESETS) == ["ale", "gymnasium", "sb3", "envpool", "fast"]
    assert PRESETS["ale"] == AtariConfig()
    assert find_preset("sb3") is PRESETS["sb3"]
    shapes = {name: config.observation_shape for name, config in PRESETS.items()}
    assert shapes == {
        "ale": (4, 84, 84),
        "gymnasium": (4, 84, 84),
        "sb3": (84, 84, 4),
        "envpool": (4, 84, 84),
        "fast": (2, 84, 84),
    }


@pytest.mark.parametrize(
    ("grayscale", "order", "shape"),
    [
        (True, "frames", (3, 60, 50)),
        (True, "first", (3, 60, 50)),
        (True, "last", (60, 50, 3)),
        (False, "frames", (3, 60, 50, 3)),
        (False, "first", (9, 60, 50)),
        (False, "last", (60, 50, 9)),
    ],
)
def test_shape_of_an_observation(grayscale: bool, order: str, shape: tuple[int, ...]) -> None:
    config = AtariConfig(grayscale=grayscale, channel_order=order, stack_size=3, screen_size=(60, 50))
    assert config.observation_shape == shape


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"next_life": True}, "next_life=True needs episodic_life=True"),
        ({"life_loss_info": True, "episodic_life": True}, "life_loss_info=True and episodic_life=True contradict"),
        ({"max_screen_height": 50}, r"screen_size \(84, 84\).*height 50 cannot become 84"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AtariConfig(**settings)


def test_an_unknown_preset_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no preset 'allee'; available: 'ale', 'gymnasium', 'sb3', 'envpool', 'fast'"):
        find_preset("allee")
