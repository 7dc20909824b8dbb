"""The `ale` and `envpool` engines give the same bits as our own envs under the same preset, seeds and actions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from vecenv import AutoresetMode, VecEnv, make_vec
from vecenv.preprocess.config import AtariConfig, find_preset
from vecenv.testing import assert_same

pytest.importorskip("ale_py")
# What both report, and a limit that some random games reach and some do not.
INFOS = {"ale": ("lives", "frame_number", "episode_frame_number"), "envpool": ("lives",)}
LIMITS: dict[str, dict[str, Any]] = {"ale": {"max_episode_frames": 760}, "envpool": {"max_episode_steps": 190}}

STATISTICS = ("returns", "lengths", "episode_counts", "last_returns", "last_lengths")


def compare(ours: VecEnv, engine: VecEnv, steps: int, infos: tuple[str, ...], seed: Any = 5) -> tuple[int, int, int]:
    """Everything that both return, and their statistics, at every step.

    Returns:
        Numbers of terminations, truncations and steps with a reward.
    """
    assert engine.observation_space == ours.observation_space
    assert engine.action_space == ours.action_space
    generator = np.random.default_rng(3)
    counts = np.zeros(3, np.int64)
    expected: tuple[Any, ...] = ours.reset(seed=seed)
    got: tuple[Any, ...] = engine.reset(seed=seed)
    assert_same(got[0], expected[0], "first observations")
    for step in range(steps):
        for name in (*infos, "episode"):
            for key in (name, f"_{name}"):
                wanted = expected[-1].get(key)
                if name == "episode" and wanted is not None and key == name:
                    assert_same({**got[-1][key], "t": 0}, {**wanted, "t": 0}, f"step {step}: infos[{key!r}]")
                else:
                    assert_same(got[-1].get(key), wanted, f"step {step}: infos[{key!r}]")
        actions = generator.integers(0, ours.single_action_space.n, ours.num_envs)
        expected, got = ours.step(actions), engine.step(actions)
        for part, name in enumerate(("observations", "rewards", "terminations", "truncations")):
            assert_same(got[part], expected[part], f"step {step}: {name}")
        _compare_final(got[-1], expected[-1], step)
        for name in STATISTICS:
            assert_same(
                getattr(engine.episode_statistics(), name),
                getattr(ours.episode_statistics(), name),
                f"step {step}: statistics, {name}",
            )
        ends = expected[2] | expected[3]
        counts += (expected[2].sum(), expected[3].sum(), int(expected[1].any()))
        if engine.autoreset_mode is AutoresetMode.DISABLED and ends.any():
            expected, got = (envs.reset(options={"reset_mask": ends}) for envs in (ours, engine))
            assert_same(got[0], expected[0], f"step {step}: observations of the reset")
    terminations, truncations, rewards = counts.tolist()
    return terminations, truncations, rewards


def _compare_final(got: dict[str, Any], expected: dict[str, Any], step: int) -> None:
    """`final_obs` is dense where the engine gives it, objects elsewhere: the same under the mask, zero outside it."""
    assert_same(got.get("_final_obs"), expected.get("_final_obs"), f"step {step}: _final_obs")
    if "_final_obs" in expected:
        for row, ended in enumerate(expected["_final_obs"]):
            if ended:
                assert_same(got["final_obs"][row], expected["final_obs"][row], f"step {step}: final_obs[{row}]")
            else:
                assert not np.any(got["final_obs"][row])


def run(engine: str, env_id: str, config: AtariConfig, steps: int, *, ours: str = "subproc", **settings: Any) -> Any:
    """Compare an engine with our own back end."""
    pytest.importorskip({"ale": "ale_py", "envpool": "envpool"}[engine])
    workers = {"num_workers": 2} if ours == "subproc" else {}
    settings = {"preprocess": config, "statistics": True, **settings}
    seed = settings.pop("seeds", 5)
    with (
        make_vec(env_id, 2, ours, **workers, **settings) as own,
        make_vec(env_id, 2, engine, num_workers=1, **settings) as peer,
    ):
        assert peer.config == own.config
        assert peer.spec == own.spec
        return compare(own, peer, steps, INFOS[engine], seed)


GAMES = ("Breakout", "Seaquest", "MsPacman")
MODES = ("NextStep", "SameStep", "Disabled")
# Every game, mode and stickiness once; all of their combinations where there is time.
QUICK = {("Seaquest", "NextStep", 0.0), ("Breakout", "SameStep", 0.0), ("MsPacman", "Disabled", 0.25)}


@pytest.mark.parametrize("engine", ["ale", "envpool"])
@pytest.mark.parametrize(
    ("game", "mode", "sticky"),
    [
        pytest.param(game, mode, sticky, marks=[] if (game, mode, sticky) in QUICK else [pytest.mark.slow])
        for game in GAMES
        for mode in MODES
        for sticky in (0.0, 0.25)
    ],
)
def test_games_in_every_mode(engine: str, game: str, mode: str, sticky: float) -> None:
    config = dataclasses.replace(find_preset(engine), repeat_action_probability=sticky, **LIMITS[engine])
    terminations, truncations, _ = run(engine, f"{game}NoFrameskip-v4", config, 400, autoreset_mode=mode)
    assert terminations + truncations >= 2


def test_the_preset_is_the_default_and_the_id_brings_its_sticky_actions() -> None:
    for engine in ("ale", "envpool"):
        for env_id, sticky in (("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0.0), ("vecenv/Pong-v5", 0.0)):
            with make_vec(env_id, 1, engine) as envs:
                assert envs.config == dataclasses.replace(find_preset(engine), repeat_action_probability=sticky)


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ale", {"episodic_life": True, "clip_reward": False}),
    ("ale", {"grayscale": False, "screen_size": (64, 50)}),
    ("ale", {"full_action_space": True, "noop_max": 0, "max_pool": False, "stack_size": 1}),
    ("envpool", {"episodic_life": True, "next_life": True, "clip_reward": True}),
    ("envpool", {"grayscale": False, "channel_order": "first", "screen_size": (64, 50)}),
    ("envpool", {"full_action_space": True, "noop_max": 1, "mode": 4, "difficulty": 1}),
]
SLOW_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ale", {"frame_skip": 1}),
    ("ale", {"fire_reset": False, "noop_max": 5, "channel_order": "first", "frame_skip": 3}),
    ("ale", {"max_episode_frames": None, "count_start_frames": True}),
    ("envpool", {"frame_skip": 1}),
    ("envpool", {"frame_skip": 2, "stack_size": 1}),
    ("envpool", {"fire_reset": False, "noop_max": 5, "channel_order": "first"}),
    ("envpool", {"max_episode_steps": None}),
]


@pytest.mark.parametrize(
    ("engine", "settings"),
    [*SETTINGS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_SETTINGS)],
    ids=str,
)
def test_settings(engine: str, settings: dict[str, Any]) -> None:
    """Seeds beyond the range of the engines' own are folded into it in the same way."""
    config = dataclasses.replace(
        find_preset(engine), **{"repeat_action_probability": 0.25, **LIMITS[engine], **settings}
    )
    terminations, truncations, _ = run(engine, "BreakoutNoFrameskip-v4", config, 230, ours="sync", seeds=[7, 2**40 + 1])
    assert terminations + truncations >= 1 or config.frame_skip == 1


@pytest.mark.parametrize("engine", ["ale", "envpool"])
@pytest.mark.parametrize("mode", MODES)
def test_resets_by_mask_and_without_seeds(engine: str, mode: str) -> None:
    """Generators go on in resets of all, of some, and of envs whose episode has just ended."""
    pytest.importorskip({"ale": "ale_py", "envpool": "envpool"}[engine])
    config = dataclasses.replace(
        find_preset(engine), **({"max_episode_frames": 24} if engine == "ale" else {"max_episode_steps": 6})
    )
    settings: dict[str, Any] = {"preprocess": config, "autoreset_mode": mode}
    with (
        make_vec("BreakoutNoFrameskip-v4", 3, "sync", **settings) as ours,
        make_vec("BreakoutNoFrameskip-v4", 3, engine, num_workers=2, **settings) as theirs,
    ):
        for envs in (ours, theirs):
            envs.reset(seed=[1, 2, 3])
        alone = 0
        for step, mask in enumerate(([1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 0, 1], None, [0, 1, 0])):
            options = None if mask is None else {"reset_mask": np.array(mask, np.bool_)}
            expected, got = ours.reset(options=options), theirs.reset(options=options)
            assert_same(got[0], expected[0], f"reset {step}")
            for key in INFOS[engine]:
                assert_same(got[1][key], expected[1][key], f"reset {step}: {key}")
                assert_same(got[1][f"_{key}"], expected[1][f"_{key}"], f"reset {step}: _{key}")
            got[0][:] = 9  # the caller's own: no later result may change by it
            for _ in range(5):
                actions = np.array([1, 2, 3])
                expected_step, got_step = ours.step(actions), theirs.step(actions)
                assert_same(got_step[:4], expected_step[:4], f"after reset {step}")
                _compare_final(got_step[-1], expected_step[-1], step)
                got_step[0][:] = 9
                ended = expected_step[2] | expected_step[3]
                alone += int(ended.any() and not ended.all())
                if mode == "Disabled" and ended.any():
                    break
        assert alone >= 2
