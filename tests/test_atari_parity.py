"""Bit for bit what ale_py's AtariVectorEnv returns, with no-op starts, ends of games and autoresets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vecenv
from vecenv.atari import AtariEnv
from vecenv.benchmarks.parity_peers import make_ale_envs
from vecenv.preprocess.config import AtariConfig

INFOS = ("lives", "frame_number", "episode_frame_number")


class NextStepDriver:
    """Environments side by side under NEXT_STEP autoreset, writing into one batch."""

    def __init__(self, rom: str, config: AtariConfig, num_envs: int) -> None:
        self.envs = [AtariEnv(rom, config) for _ in range(num_envs)]
        self.observations = np.empty((num_envs, *self.envs[0].observation_space.shape), np.uint8)
        self.ended = [False] * num_envs

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, list[int]]]:
        self.observations[:] = 77
        infos = [env.reset_into(self.observations[i], seed=seed + i) for i, env in enumerate(self.envs)]
        return self.observations, {name: [info[name] for info in infos] for name in INFOS}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.observations[:] = 77  # whatever is not written shows
        rows = []
        for index, env in enumerate(self.envs):
            out = self.observations[index]
            if self.ended[index]:
                rows.append((0.0, False, False, env.reset_into(out)))
            else:
                rows.append(env.step_into(actions[index], out))
        rewards, terminations, truncations, infos = zip(*rows, strict=True)
        self.ended = [a or b for a, b in zip(terminations, truncations, strict=True)]
        return self.observations, rewards, terminations, truncations, {k: [i[k] for i in infos] for k in INFOS}


def count_ends(rom: str, steps: int, num_envs: int = 1, seed: int = 0, **settings: Any) -> tuple[int, int, int]:
    """Compare every array at every step; return the numbers of terminations, truncations and lost lives."""
    config = AtariConfig(**settings)
    ours, theirs = NextStepDriver(rom, config, num_envs), make_ale_envs(rom, config, num_envs)
    try:
        assert theirs.single_action_space == ours.envs[0].action_space
        generator = np.random.default_rng(seed + 1)
        expected: tuple[Any, ...] = theirs.reset(seed=seed)
        got: tuple[Any, ...] = ours.reset(seed)
        ends = np.zeros(3, np.int64)
        lives = expected[-1]["lives"]
        for step in range(steps):
            np.testing.assert_array_equal(got[0], expected[0], err_msg=f"observations before step {step}")
            for name in INFOS:
                assert got[-1][name] == expected[-1][name].tolist(), (step, name)
            actions = generator.integers(0, theirs.single_action_space.n, num_envs)
            expected, got = theirs.step(actions), ours.step(actions)
            for index, name in ((1, "rewards"), (2, "terminations"), (3, "truncations")):
                assert list(got[index]) == expected[index].tolist(), (step, name)
            ends += (expected[2].sum(), expected[3].sum(), (expected[-1]["lives"] < lives).sum())
            lives = expected[-1]["lives"]
    finally:
        theirs.close()
    return int(ends[0]), int(ends[1]), int(ends[2])


# Random play ends these games within 2,000 steps. king_kong is PAL with 250 lines and carnival has 214 lines.
GAMES = ("pong", "breakout", "ms_pacman", "king_kong", "seaquest", "qbert", "space_invaders", "carnival")
QUICK = {(rom, 0.0 if index < 4 else 0.25) for index, rom in enumerate(GAMES)}


@pytest.mark.parametrize(
    ("rom", "sticky"),
    [
        pytest.param(rom, sticky, marks=[] if (rom, sticky) in QUICK else [pytest.mark.slow])
        for rom in GAMES
        for sticky in (0.0, 0.25)
    ],
)
def test_games_equal_the_peer(rom: str, sticky: float) -> None:
    terminations, truncations, _ = count_ends(rom, 2000, seed=3, repeat_action_probability=sticky)
    assert terminations >= 1
    assert truncations == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "rom", ["air_raid", "adventure", "pooyan", "journey_escape", "enduro", "freeway", "beam_rider"]
)
def test_more_games_equal_the_peer(rom: str) -> None:
    count_ends(rom, 2000, num_envs=2, repeat_action_probability=0.25, max_episode_frames=5000)


def test_odd_pixel_values_equal_the_peer() -> None:
    count_ends("air_raid", 60)


@pytest.mark.parametrize("limit", [50, 51, 52, 53])
def test_a_frame_limit_inside_a_step_equals_the_peer(limit: int) -> None:
    """The frame at the limit is not seen; at 52 the one before it is pooled with what the step before showed."""
    assert count_ends("pong", 60, num_envs=2, max_episode_frames=limit)[1] >= 6


def test_an_end_at_the_frame_limit_is_a_termination() -> None:
    env = AtariEnv("breakout", AtariConfig())
    env.reset(seed=0)
    generator = np.random.default_rng(1)
    terminated = False
    while not terminated:
        _, _, terminated, _, infos = env.step(generator.integers(0, 4, 1)[0])
    frames = infos["episode_frame_number"] - 16  # FIRE and 15 no-ops come first with this seed
    steps = frames // 4 + 1
    assert count_ends("breakout", steps, max_episode_frames=frames)[:2] == (1, 0)
    assert count_ends("breakout", steps, max_episode_frames=frames - 1)[:2] == (0, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"frame_skip": 1},
        {"frame_skip": 2, "stack_size": 2},
        {"frame_skip": 3, "max_pool": False},
        {"frame_skip": 5, "stack_size": 1, "clip_reward": False},
        {"episodic_life": True},
        {"noop_max": 1},
        {"noop_max": 7, "fire_reset": False},
        {"full_action_space": True},
        {"screen_size": (64, 50)},
    ],
    ids=str,
)
def test_settings_equal_the_peer(settings: dict[str, Any]) -> None:
    """Breakout: FIRE is in its action set, and rewards of 4 and 7 are there to be clipped."""
    terminations, truncations, lost = count_ends(
        "breakout", 250, num_envs=2, repeat_action_probability=0.25, max_episode_frames=402, **settings
    )
    assert terminations + truncations + lost >= 1


def test_full_action_space_brings_fire_to_a_game_without_it() -> None:
    count_ends("freeway", 30, full_action_space=True)
    count_ends("freeway", 30)


def test_a_game_that_ends_within_its_noop_start_equals_the_peer() -> None:
    """Pong without actions ends after some 3,000 frames, before the longest of these starts."""
    driver = NextStepDriver("pong", AtariConfig(noop_max=7000), 2)
    _, infos = driver.reset(0)
    assert any(a != b for a, b in zip(infos["frame_number"], infos["episode_frame_number"], strict=True))
    count_ends("pong", 5, num_envs=2, noop_max=7000)


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_make_vec_equals_the_peer(backend: str) -> None:
    num_envs, seed = 3, 5
    config = AtariConfig(repeat_action_probability=0.25, max_episode_frames=400)
    theirs = make_ale_envs("breakout", config, num_envs)
    with vecenv.make_vec("BreakoutNoFrameskip-v4", num_envs, backend=backend, preprocess=config) as ours:
        expected: tuple[Any, ...] = theirs.reset(seed=seed)
        got: tuple[Any, ...] = ours.reset(seed=seed)
        generator = np.random.default_rng(seed)
        ends = 0
        for step in range(250):
            np.testing.assert_array_equal(got[0], expected[0], err_msg=f"observations before step {step}")
            for name in INFOS:
                np.testing.assert_array_equal(got[-1][name], expected[-1][name])
            actions = generator.integers(0, 4, num_envs)
            expected, got = theirs.step(actions), ours.step(actions)
            for index in (1, 2, 3):
                np.testing.assert_array_equal(got[index], expected[index])
            ends += int(expected[2].sum() + expected[3].sum())
    theirs.close()
    assert ends >= 3
