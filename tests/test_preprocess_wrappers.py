"""The stand-alone wrappers on environments of their own, beside Gymnasium's and SB3's where these do the same."""

from __future__ import annotations

import functools
import pickle
import sys
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv, WarpFrame

from vecenv.atari import AtariEnv
from vecenv.preprocess.images import ImageResizer
from vecenv.preprocess.wrappers import (
    ClipReward,
    EpisodicLife,
    FireReset,
    FrameSkip,
    FrameStack,
    GrayscaleResize,
    NoopReset,
)


class Pictures(gymnasium.Env[np.ndarray, int]):
    """Frame t of episode e shows bright pixel t, over a background of e; the array is the same at every call.

    An episode lasts `length` frames; lives are lost at `deaths`; the reward of frame t is t - 2.
    """

    def __init__(
        self, length: int = 10, deaths: tuple[int, ...] = (), shape: tuple[int, ...] = (30, 40, 3), actions: str = ""
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.length, self.deaths = length, deaths
        self.picture = np.zeros(shape, np.uint8)
        self.episode = self.frame = 0
        self.actions: list[int] = []
        self.resets: list[tuple[int | None, Any]] = []
        if actions:
            self.get_action_meanings = actions.split  # type: ignore[method-assign]

    def draw(self) -> np.ndarray:
        self.picture[:] = self.episode
        self.picture.reshape(-1)[self.frame % self.picture.size] = 200
        return self.picture

    def infos(self) -> dict[str, Any]:
        return {"lives": 3 - sum(self.frame >= death for death in self.deaths), "frame": self.frame}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets.append((seed, options))
        self.episode, self.frame = 1 if seed is not None else self.episode + 1, 0
        return self.draw(), self.infos()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.frame < self.length, "stepped after the end"
        self.actions.append(action)
        self.frame += 1
        return self.draw(), self.frame - 2.0, self.frame == self.length, False, self.infos()


def bright(observation: np.ndarray) -> list[int]:
    return np.flatnonzero(observation.reshape(-1) == 200).tolist()


@pytest.mark.parametrize("skip", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("max_pool", [True, False])
def test_frame_skip_pools_frames_of_this_step_only(skip: int, max_pool: bool) -> None:
    env = FrameSkip(Pictures(length=11), skip, max_pool=max_pool)
    for _ in range(2):
        env.reset()
        frame, terminated = 0, False
        while not terminated:
            observation, reward, terminated, _, infos = env.step(1)
            frames = list(range(frame + 1, min(frame + skip, 11) + 1))
            assert bright(observation) == frames[-2 if max_pool else -1 :]
            assert reward == sum(played - 2 for played in frames)
            frame = frames[-1]
            assert infos["frame"] == frame


def test_frame_skip_equals_sb3_while_games_last() -> None:
    ours, theirs = (ale_py.AtariEnv("breakout", frameskip=1, repeat_action_probability=0.25) for _ in range(2))
    mine, peer = FrameSkip(ours, 4), MaxAndSkipEnv(theirs, 4)
    mine.reset(seed=0)
    peer.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(60):
        action = generator.integers(4)
        got, expected = mine.step(action), peer.step(action)
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1:] == expected[1:]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ale_py.AtariEnv("pong"), "AtariEnv already plays 4 frames per step, so skip=4 would multiply them"),
        (lambda: ale_py.AtariEnv("pong", frameskip=(2, 5)), r"already plays \(2, 5\) frames"),
        (lambda: FrameSkip(Pictures(), 2), "FrameSkip already plays 2 frames"),
        (lambda: AtariEnv("pong"), "AtariEnv already plays 4 frames"),
        (lambda: MaxAndSkipEnv(Pictures(), 3), "MaxAndSkipEnv already plays 3 frames"),
        (lambda: gymnasium.wrappers.MaxAndSkipObservation(Pictures(), 3), "MaxAndSkipObservation already plays 3"),
    ],
)
def test_frames_are_never_skipped_twice(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClipReward(FrameSkip(ClipReward(build()), 4))


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(3, 90), st.integers(3, 90)),
    st.tuples(st.integers(1, 120), st.integers(1, 120)),
    st.sampled_from([(), (1,), (3,)]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_resized_images_are_opencvs(
    source: tuple[int, int], size: tuple[int, int], channels: tuple[int, ...], grayscale: bool, seed: int
) -> None:
    """Shrinking by any factor, by whole ones, and enlarging; gray and RGB."""
    image = np.random.default_rng(seed).integers(0, 256, (*source, *channels)).astype(np.uint8)
    resizer = ImageResizer(image.shape, size, grayscale)
    expected = image[..., 0] if channels == (1,) else image
    if grayscale and channels == (3,):
        expected = cv2.cvtColor(expected, cv2.COLOR_RGB2GRAY)
    expected = cv2.resize(expected, size[::-1], interpolation=cv2.INTER_AREA)
    result = resizer(image)
    assert result.shape == resizer.shape
    np.testing.assert_array_equal(result, expected)


def test_grayscale_resize_equals_sb3_and_takes_any_array() -> None:
    ours, theirs = (ale_py.AtariEnv("pong", frameskip=1) for _ in range(2))
    mine, peer = GrayscaleResize(ours, keep_channel=True), WarpFrame(theirs)
    assert mine.observation_space == peer.observation_space
    np.testing.assert_array_equal(mine.reset(seed=0)[0], peer.reset(seed=0)[0])
    for _ in range(30):
        np.testing.assert_array_equal(mine.step(2)[0], peer.step(2)[0])
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3)).astype(np.uint8)
    read_only = image.copy()
    read_only.flags.writeable = False
    resizer = ImageResizer((40, 30, 3), (9, 7))
    expected = resizer(image)
    for other in (read_only, np.asfortranarray(image), image[::-1][::-1]):
        np.testing.assert_array_equal(resizer(other), expected)
    kept = ImageResizer((40, 30), None)(image[..., 0])
    np.testing.assert_array_equal(kept, image[..., 0])
    assert not np.shares_memory(kept, image)
    np.testing.assert_array_equal(ImageResizer((40, 30), (20, 15))(read_only[..., 1]), cv2.resize(
        np.ascontiguousarray(image[..., 1]), (15, 20), interpolation=cv2.INTER_AREA))  # fmt: skip
    for wrong in (image[:-1], image.astype(np.float32), [1, 2]):
        with pytest.raises(TypeError, match=r"expected a uint8 image of shape \(40, 30, 3\), got"):
            resizer(wrong)  # type: ignore[arg-type]


def test_enlarging_without_opencv_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"height 30 cannot become 31; .*pip install 'vecenv\[opencv\]'"):
        GrayscaleResize(Pictures(), (31, 40))
    GrayscaleResize(Pictures(), (15, 20)).reset()


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_frame_stack_holds_frames_of_this_episode_and_shares_nothing(padding: str) -> None:
    inner = Pictures(length=6)
    env = FrameStack(inner, 3, padding=padding)
    returned = []
    for episode in (1, 2):
        frames = [0]
        observation, _ = env.reset()
        returned.append((observation, observation.copy()))
        terminated = False
        while True:
            assert env.observation_space.contains(observation)
            expected = frames[-3:]
            empty = 3 - len(expected)
            padded = expected[:1] * empty if padding == "repeat" else [None] * empty
            assert [bright(frame) for frame in observation] == [[] if f is None else [f] for f in padded + expected]
            shown = observation[:, -1, -1, -1]
            assert shown.tolist() == [0 if frame is None else episode for frame in padded + expected]
            if terminated:
                break
            observation, _, terminated, _, _ = env.step(0)
            frames.append(frames[-1] + 1)
            returned.append((observation, observation.copy()))
    for index, (observation, copy) in enumerate(returned):
        np.testing.assert_array_equal(observation, copy)
        assert not np.shares_memory(observation, inner.picture)
        assert not any(np.shares_memory(observation, other) for other, _ in returned[index + 1 :])


@pytest.mark.parametrize(("padding", "theirs"), [("repeat", "reset"), ("zero", "zero")])
def test_frame_stack_equals_gymnasium(padding: str, theirs: str) -> None:
    mine = FrameStack(Pictures(), 4, padding=padding)
    copying = gymnasium.wrappers.TransformObservation(Pictures(), np.copy, None)  # the peer keeps what it is given
    peer = gymnasium.wrappers.FrameStackObservation(copying, 4, padding_type=theirs)
    assert mine.observation_space == peer.observation_space
    for _ in range(2):
        np.testing.assert_array_equal(mine.reset()[0], peer.reset()[0])
        for _ in range(9):
            np.testing.assert_array_equal(mine.step(0)[0], peer.step(0)[0])


def test_clipped_rewards_keep_the_reward_in_the_infos() -> None:
    env = ClipReward(Pictures())
    env.reset()
    rows = [env.step(0) for _ in range(5)]
    assert [row[1] for row in rows] == [-1.0, 0.0, 1.0, 1.0, 1.0]
    assert [row[4]["unclipped_reward"] for row in rows] == [-1.0, 0.0, 1.0, 2.0, 3.0]


def test_noop_reset_draws_from_the_environment_and_survives_an_end() -> None:
    env = NoopReset(Pictures(length=50, actions="NOOP FIRE UP"), 20)
    frames = {env.reset(seed=seed)[1]["frame"] for seed in range(60)}
    assert frames <= set(range(1, 21))
    assert len(frames) > 10
    assert env.reset(seed=3)[1] == env.reset(seed=3)[1]
    assert len({env.reset()[1]["frame"] for _ in range(30)}) > 5  # the generator goes on
    short = Pictures(length=5)
    NoopReset(short, 30).reset(seed=1)
    assert short.frame < 5
    assert [seed for seed, _ in short.resets] == [1] + [None] * (len(short.resets) - 1)
    with pytest.raises(ValueError, match="action 0 must be NOOP, but it is 'FIRE'"):
        NoopReset(Pictures(actions="FIRE NOOP UP"))


def test_fire_reset() -> None:
    inner = Pictures(actions="NOOP UP FIRE")
    assert FireReset(inner).reset()[1]["frame"] == 1
    assert inner.actions == [2]
    short = Pictures(length=1, actions="NOOP FIRE UP")
    assert FireReset(short).reset(seed=4)[1]["frame"] == 0
    assert short.resets == [(4, None), (None, None)]
    with pytest.raises(ValueError, match="no FIRE among the actions NOOP, UP; required=False"):
        FireReset(Pictures(actions="NOOP UP"))
    assert FireReset(Pictures(actions="NOOP UP"), required=False).reset()[1]["frame"] == 0
    with pytest.raises(ValueError, match="get_action_meanings"):
        FireReset(Pictures())


def test_episodic_life() -> None:
    inner = Pictures(length=10, deaths=(3, 6, 9))
    env = EpisodicLife(inner)
    env.reset()
    ends = [env.step(1)[2] for _ in range(3)]
    assert ends == [False, False, True]
    assert not env.game_over
    assert env.reset()[1]["frame"] == 4  # one step without an action
    assert inner.actions[-1] == 0
    assert [env.step(1)[2] for _ in range(2)] == [False, True]
    assert env.reset(options={"new_game": True})[1]["frame"] == 0
    assert inner.resets[-1] == (None, None)
    for _ in range(3):
        env.step(1)
    assert env.reset(seed=5)[1]["frame"] == 0
    # No lives are left at frame 9; the game itself ends at 10.
    for _ in range(2):
        while not env.step(1)[2]:
            pass
        env.reset()
    assert [env.step(1)[2] for _ in range(3)] == [False, False, True]
    assert env.game_over
    assert env.reset()[1]["frame"] == 0


def test_a_life_that_ends_with_the_step_after_it_begins_a_new_game() -> None:
    inner = Pictures(length=4, deaths=(3,))
    env = EpisodicLife(inner)
    env.reset(options={"level": 1})
    for _ in range(3):
        env.step(1)
    assert env.reset(options={"level": 2})[1]["frame"] == 0
    assert inner.resets == [(None, {"level": 1}), (None, {"level": 2})]
    assert not env.game_over


def test_lives_come_from_the_emulator_where_infos_have_none() -> None:
    env = EpisodicLife(gymnasium.wrappers.TransformObservation(Pictures(), lambda x: x, None))
    env.env.unwrapped.infos = dict  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="neither the infos nor env"):
        env.reset()
    env.env.unwrapped.ale = type("Ale", (), {"lives": lambda self: 3})()  # type: ignore[attr-defined]
    env.reset()


def whole_pipeline(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    env = FireReset(EpisodicLife(FrameSkip(NoopReset(env, 5), 4)))
    return FrameStack(ClipReward(GrayscaleResize(env, (20, 16))), 4)


def test_wrappers_go_together_with_gymnasium() -> None:
    env = whole_pipeline(Pictures(length=60, deaths=(20, 40), actions="NOOP FIRE UP"))
    with pytest.warns(UserWarning, match="different from the unwrapped version"):
        check_env(env, skip_render_check=True)
    assert env.observation_space.shape == (4, 20, 16)
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, infos = env.step(2)
    assert infos["episode"]["l"] > 0
    envs = gymnasium.vector.SyncVectorEnv([lambda: whole_pipeline(Pictures(actions="NOOP FIRE UP"))] * 2)
    assert envs.reset(seed=0)[0].shape == (2, 4, 20, 16)
    factory = functools.partial(FrameStack, stack_size=2)
    assert pickle.loads(pickle.dumps(factory))(Pictures()).observation_space.shape == (2, 30, 40, 3)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: FrameSkip(Pictures(), 0), ValueError, "skip must be at least 1, got 0"),
        (lambda: FrameSkip(Pictures(), 2.0), TypeError, "skip must be an int, got 2.0"),  # type: ignore[arg-type]
        (lambda: FrameStack(Pictures(), 0), ValueError, "stack_size must be at least 1"),
        (lambda: FrameStack(Pictures(), padding="reset"), ValueError, "padding must be 'zero' or 'repeat'"),
        (lambda: NoopReset(Pictures(), 0), ValueError, "noop_max must be at least 1"),
        (lambda: GrayscaleResize(Pictures(), (0, 5)), ValueError, "size must be"),
        (lambda: GrayscaleResize(Pictures(shape=(30, 40, 4))), ValueError, r"got \(30, 40, 4\)"),
        (lambda: GrayscaleResize(gymnasium.make("CartPole-v1")), ValueError, "must be uint8 images"),
        (lambda: FrameStack(gymnasium.make("Blackjack-v1")), ValueError, "must be arrays"),
        (lambda: FrameSkip(gymnasium.make("Blackjack-v1")), ValueError, "max_pool=True needs"),
    ],
)
def test_wrong_arguments_are_refused_by_name(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_images_without_a_pixel_are_refused():
    for shape in ((0, 5), (5, 0, 3)):
        with pytest.raises(ValueError, match="and a pixel"):
            ImageResizer(shape)
