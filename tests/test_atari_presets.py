"""The presets beside the peers they are named after, bit for bit, and the switches that differ from the peers."""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from typing import Any

import numpy as np
import pytest

from vecenv.atari import AtariEnv
from vecenv.atari_emulator import load_emulator
from vecenv.benchmarks.parity import compare, parity_config
from vecenv.benchmarks.parity_peers import PEERS
from vecenv.preprocess.config import PRESETS, AtariConfig, find_preset
from vecenv.preprocess.palette import load_palette
from vecenv.preprocess.reference import resize_area_opencv
from vecenv.sticky_actions import StickyActions

GAMES = ("pong", "breakout", "seaquest", "king_kong")
# Every peer with two games and every game with two peers; all pairs where there is time.
PAIRS = [
    pytest.param(peer, rom, marks=[] if (place - row) % len(GAMES) < 2 else [pytest.mark.slow], id=f"{peer}-{rom}")
    for row, peer in enumerate(PEERS)
    for place, rom in enumerate(GAMES)
]


@pytest.mark.parametrize(("peer", "rom"), PAIRS)
def test_presets_equal_the_peer(peer: str, rom: str) -> None:
    result = compare(peer, rom, parity_config(peer, 0.25), seed=0, steps=1500)
    assert result.difference == ""
    assert result.terminations + result.truncations >= 1


RGB_FIRST: dict[str, Any] = {"grayscale": False, "channel_order": "first"}
LIVES: dict[str, Any] = {"episodic_life": True, "next_life": True}
QUICK_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ale", {"grayscale": False, "screen_size": (64, 50), "episodic_life": True, "max_episode_frames": 403}),
    ("ale", {"life_loss_info": True, "max_episode_frames": 403}),
    ("gymnasium", {"grayscale": False, "episodic_life": True, "max_episode_frames": 405}),
    ("gymnasium", {"noop_max": 500, "max_episode_frames": 300}),
    ("sb3", {"max_episode_frames": 40}),
    ("sb3", {"noop_max": 300, "max_episode_frames": 200}),
    ("envpool", {**LIVES, **RGB_FIRST, "screen_size": (64, 50), "max_episode_steps": 60}),
    ("envpool", {**LIVES, "max_episode_steps": 24}),
]
MORE_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ale", {"screen_size": (105, 80)}),
    ("ale", {"screen_size": (70, 40)}),
    ("ale", {"grayscale": False, "frame_skip": 1}),
    ("ale", {"grayscale": False, "max_pool": False, "stack_size": 1, "max_episode_frames": 401}),
    *(("gymnasium", {"max_episode_frames": limit}) for limit in (402, 403, 404)),
    ("gymnasium", {"episodic_life": True}),
    ("gymnasium", {"frame_skip": 1}),
    ("gymnasium", {"frame_skip": 3, "padding": "zero"}),
    ("gymnasium", {"noop_max": 0}),
    ("gymnasium", {"screen_size": (64, 50), "stack_size": 2}),
    ("gymnasium", {"full_action_space": True, "mode": 4, "difficulty": 1}),
    *(("sb3", {"max_episode_frames": limit}) for limit in (402, 403, 404, 405, 30)),
    ("sb3", {"episodic_life": False, "next_life": False, "clip_reward": False}),
    ("sb3", {"frame_skip": 1, "noop_max": 0}),
    ("sb3", {"frame_skip": 3, "screen_size": (64, 64), "stack_size": 2}),
    ("sb3", {"full_action_space": True, "mode": 4, "difficulty": 1}),
    ("sb3", {"sticky_actions": "emulator"}),
    ("envpool", {"max_episode_steps": 20}),
    ("envpool", {**LIVES, "max_episode_steps": 23}),
    ("envpool", {"frame_skip": 1}),
    ("envpool", {"frame_skip": 3, "clip_reward": True, "stack_size": 1}),
    ("envpool", {"fire_reset": False, "noop_max": 1}),
    ("envpool", {"full_action_space": True, "mode": 4, "difficulty": 1}),
    ("envpool", {"noop_max": 5000, "max_episode_steps": 50}),
]


@pytest.mark.parametrize(
    ("peer", "settings", "seed"),
    [pytest.param(*row, 0, id=str(row)) for row in QUICK_SETTINGS]
    + [pytest.param(*row, 3, id=f"{row}, seed 3", marks=pytest.mark.slow) for row in QUICK_SETTINGS + MORE_SETTINGS],
)
def test_settings_equal_the_peer(peer: str, settings: dict[str, Any], seed: int) -> None:
    limit = {"max_episode_steps": 130} if peer == "envpool" else {"max_episode_frames": 301}
    sticky = 0.25 if seed == 0 else 0.0
    config = dataclasses.replace(find_preset(peer), repeat_action_probability=sticky, **{**limit, **settings})
    result = compare(peer, "breakout", config, seed=seed, steps=350)
    assert result.difference == ""
    assert result.terminations + result.truncations >= 1


def end_of_an_episode(env: AtariEnv, seed: int) -> tuple[np.ndarray, int]:
    """Play until the game is over; the last observation and the frames that its step played."""
    generator = np.random.default_rng(seed)
    _, infos = env.reset(seed=seed)
    frame, terminated, truncated = infos["frame_number"], False, False
    while not (terminated or truncated):
        observation, _, terminated, truncated, infos = env.step(generator.integers(env.action_space.n))
        played, frame = infos["frame_number"] - frame, infos["frame_number"]
    return observation, played


@pytest.mark.parametrize("conventions", ["ale", "gymnasium", "sb3", "envpool"])
@pytest.mark.parametrize("played", [1, 2, 3, 4])
@pytest.mark.parametrize("max_pool", [True, False])
def test_true_final_frame_shows_the_frames_played_last(conventions: str, played: int, max_pool: bool) -> None:
    """A frame limit ends the third step after so many of its frames."""
    config = AtariConfig(
        conventions=conventions,
        true_final_frame=True,
        noop_max=0,
        fire_reset=False,
        max_pool=max_pool,
        max_episode_frames=8 + played,
        stack_size=1,
    )
    env = AtariEnv("breakout", config)
    emulator = load_emulator("breakout", 0.0, 0)
    env.reset(seed=0)
    emulator.reset_game()
    screens = [emulator.getScreen()]
    codes = [1, 3, 4]
    for step, code in enumerate(codes):
        observation, _, terminated, truncated, _ = env.step(codes[step] if code == 1 else code - 1)
        for _ in range(4 if step < 2 else played):
            emulator.act(code)
            screens.append(emulator.getScreen())
    assert (terminated, truncated) == (False, True)
    pooled = screens[-min(played, 2) :] if max_pool else screens[-1:]
    expected = resize_area_opencv(load_palette("ntsc").gray[np.stack(pooled)].max(axis=0), (84, 84))
    np.testing.assert_array_equal(observation[0], expected)


def test_the_switch_changes_what_a_peer_shows_at_an_end_inside_a_step() -> None:
    changed = 0
    for conventions in ("ale", "gymnasium", "sb3", "envpool"):
        config = AtariConfig(conventions=conventions, max_episode_frames=None if conventions == "envpool" else 202)
        faithful, played = end_of_an_episode(AtariEnv("breakout", config), 2)
        true, _ = end_of_an_episode(AtariEnv("breakout", dataclasses.replace(config, true_final_frame=True)), 2)
        np.testing.assert_array_equal(faithful[:3], true[:3])
        changed += played < 4 and not np.array_equal(faithful, true)
    assert changed >= 3


@pytest.mark.parametrize("preset", ["sb3", "envpool"])
def test_next_life_goes_on_unless_a_new_game_is_asked_for(preset: str) -> None:
    config = dataclasses.replace(find_preset(preset), episodic_life=True, next_life=True)
    env = AtariEnv("breakout", config)
    generator = np.random.default_rng(0)

    def lose_a_life() -> None:
        terminated = False
        while not terminated:
            terminated = env.step(generator.integers(4))[2]

    env.reset(seed=0)
    lose_a_life()
    assert not env.game_over
    assert env.reset()[1]["lives"] == 4
    lose_a_life()
    assert env.reset(options={"new_game": True})[1]["lives"] == 5
    lose_a_life()
    assert env.reset(seed=1)[1]["lives"] == 5
    only_lives = dataclasses.replace(config, next_life=False)
    env = AtariEnv("breakout", only_lives)
    env.reset(seed=0)
    lose_a_life()
    assert env.reset()[1]["lives"] == 5


def test_a_life_start_that_ends_the_game_begins_a_new_one() -> None:
    """The frames of a life's start may reach the limit of the game: the next life is then that of a new game."""
    config = dataclasses.replace(find_preset("sb3"), max_episode_frames=230, noop_max=0)
    env = AtariEnv("breakout", config)
    generator = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(300):
        _, _, terminated, truncated, infos = env.step(generator.integers(4))
        assert infos["episode_frame_number"] <= 230
        if terminated or truncated:
            _, infos = env.reset()
            assert infos["episode_frame_number"] < 230


def test_a_reported_life_goes_on_with_or_without_a_reset() -> None:
    config = AtariConfig(life_loss_info=True)
    plain, resetting = AtariEnv("breakout", config), AtariEnv("breakout", config)
    generator = np.random.default_rng(0)
    plain.reset(seed=0)
    resetting.reset(seed=0)
    ends = 0
    while ends < 3:
        action = generator.integers(4)
        expected, got = plain.step(action), resetting.step(action)
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1:] == expected[1:]
        if expected[2]:
            ends += 1
            assert not plain.game_over
            observation, infos = resetting.reset()
            np.testing.assert_array_equal(observation, expected[0])
            assert infos == expected[4]
    assert expected[4]["lives"] == 2
    assert resetting.reset()[1]["lives"] == 5  # the second reset in a row begins a game


@pytest.mark.parametrize("grayscale", [True, False])
def test_orders_of_channels_hold_the_same_pixels(grayscale: bool) -> None:
    plain = AtariConfig(grayscale=grayscale, stack_size=3, screen_size=(60, 50))
    orders = {
        order: AtariEnv("pong", dataclasses.replace(plain, channel_order=order))
        for order in ("frames", "first", "last")
    }
    generator = np.random.default_rng(0)
    seen = {order: env.reset(seed=0)[0] for order, env in orders.items()}
    for _ in range(6):
        frames = seen["frames"] if not grayscale else seen["frames"][..., None]
        np.testing.assert_array_equal(seen["first"], frames.transpose(0, 3, 1, 2).reshape(-1, 60, 50))
        np.testing.assert_array_equal(seen["last"], frames.transpose(1, 2, 0, 3).reshape(60, 50, -1))
        action = generator.integers(6)
        seen = {order: env.step(action)[0] for order, env in orders.items()}


def test_wrong_arrays_are_refused_in_every_order() -> None:
    for config in (find_preset("sb3"), AtariConfig(grayscale=False)):
        env = AtariEnv("pong", config)
        shape = config.observation_shape
        for out in (np.zeros(shape, np.float32), np.zeros(shape[1:], np.uint8), np.zeros(shape[::-1], np.uint8).T):
            with pytest.raises(TypeError, match=r"C-contiguous uint8 array"):
                env.reset_into(out, seed=0)


STATES: list[AtariConfig] = [
    *(
        dataclasses.replace(config, repeat_action_probability=0.25, max_episode_frames=403)
        for config in PRESETS.values()
    ),
    AtariConfig(grayscale=False, repeat_action_probability=0.25, conventions="gymnasium", max_episode_frames=403),
    AtariConfig(true_final_frame=True, conventions="envpool", max_episode_steps=30),
    AtariConfig(life_loss_info=True, channel_order="last"),
]


def play_on(env: AtariEnv, actions: np.ndarray, ended: bool) -> tuple[list[Any], bool]:
    results: list[Any] = []
    for action in actions:
        results.append(env.reset() if ended else env.step(action))
        ended = len(results[-1]) == 5 and (results[-1][2] or results[-1][3])
    return results, ended


@pytest.mark.parametrize("config", STATES, ids=lambda config: f"{config.conventions} {config.channel_order}")
def test_states_and_pickles_go_on_bit_for_bit(config: AtariConfig) -> None:
    env = AtariEnv("breakout", config)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=700)
    ended, position, ends = False, 0, 0
    for length in (0, 37, 111, 200):  # saved after a reset, in the midst of episodes, perhaps at their ends
        _, ended = play_on(env, actions[position : position + length], ended)
        position += length
        state = env.get_state()
        copy = pickle.loads(pickle.dumps(env))
        other = AtariEnv("breakout", config)
        other.set_state(state)
        expected, expected_end = play_on(env, actions[position : position + 130], ended)
        ends += sum(len(result) == 2 for result in expected)
        for twin in (copy, other):
            assert twin.np_random_seed == env.np_random_seed == 0
            got, got_end = play_on(twin, actions[position : position + 130], ended)
            assert got_end == expected_end
            for one, two in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one[0], two[0])
                assert one[1:] == two[1:]
            assert (twin.unclipped_reward, twin.game_over) == (env.unclipped_reward, env.game_over)
        env.set_state(state)  # back to where it was saved
    assert ends > 0


def test_states_that_earlier_versions_saved_without_the_seed_keep_their_generator() -> None:
    config = AtariConfig(conventions="gymnasium")
    env, other = AtariEnv("pong", config), AtariEnv("pong", config)
    env.reset(seed=0)
    values = pickle.loads(zlib.decompress(env.get_state()))
    del values["generator_seed"]
    other.set_state(zlib.compress(pickle.dumps(values)))
    assert other.np_random_seed == -1
    np.testing.assert_array_equal(other.reset()[0], env.reset()[0])
    assert other.np_random.bit_generator.state == env.np_random.bit_generator.state


def test_states_of_other_games_and_settings_are_refused() -> None:
    env = AtariEnv("pong")
    with pytest.raises(Exception, match="call reset before get_state"):
        env.get_state()
    env.reset(seed=0)
    assert len(env.get_state()) < 30_000
    for other in (AtariEnv("breakout"), AtariEnv("pong", AtariConfig(stack_size=2))):
        with pytest.raises(ValueError, match="the state belongs to"):
            other.set_state(env.get_state())
    fresh = pickle.loads(pickle.dumps(AtariEnv("pong")))
    np.testing.assert_array_equal(fresh.reset(seed=0)[0], AtariEnv("pong").reset(seed=0)[0])


def test_states_are_refused_where_sticky_actions_cannot_be_followed() -> None:
    env = AtariEnv("breakout", AtariConfig(repeat_action_probability=0.25))
    env.reset(seed=0)
    state = env.clone_state(include_rng=True)
    env.get_state()
    env.restore_state(state)
    with pytest.raises(ValueError, match="the emulator must not be restored or played directly"):
        env.get_state()
    env.reset(seed=0)
    env.get_state()
    env.ale.act(0)
    with pytest.raises(ValueError, match="the emulator must not be restored or played directly"):
        pickle.dumps(env)
    plain = AtariEnv("breakout")
    plain.reset(seed=0)
    plain.restore_state(plain.clone_state())
    plain.get_state()


def test_restoring_the_emulator_loses_no_life() -> None:
    env = AtariEnv("breakout", AtariConfig(episodic_life=True))
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    while not env.step(generator.integers(4))[2]:
        pass
    state = env.clone_state()
    assert env.reset(seed=0)[1]["lives"] == 5
    env.restore_state(state)
    assert env.ale.lives() == 4
    assert not env.step(0)[2]


def test_the_held_action_is_found_again() -> None:
    """Against the emulator itself: where a frame's two candidates differ in memory, the right one was played."""
    probability = 0.5
    emulator, plain = load_emulator("seaquest", probability, 5), load_emulator("seaquest", 0.0, 5)
    emulator.reset_game()
    plain.reset_game()
    sticky = StickyActions(probability)
    sticky.load(5)
    generator = np.random.default_rng(0)
    told = 0
    for frame in range(600):
        action = int(generator.choice([0, 2, 3]))
        before, held = emulator.cloneState(), sticky.held_action(frame)
        emulator.act(action)
        sticky.note(action, 1)
        outcomes = {}
        for candidate in {action, held}:
            plain.restoreState(before)
            plain.act(candidate)
            outcomes[candidate] = plain.getRAM().tobytes()
        if len(set(outcomes.values())) == 2:
            told += 1
            assert outcomes[sticky.held_action(frame + 1)] == emulator.getRAM().tobytes()
    assert told > 300


def test_a_tall_screen_is_seen_whole_where_that_is_asked_for() -> None:
    """Air Raid has 250 lines, of which the preset of EnvPool sees 210."""
    seen = {}
    for height in (210, None):
        config = dataclasses.replace(find_preset("envpool"), max_screen_height=height, max_pool=False)
        env = AtariEnv("air_raid", config)
        env.reset(seed=0)
        for _ in range(20):
            observation, *_ = env.step(1)
        screen = env.ale.getScreenGrayscale()
        assert len(screen) == 250
        seen[height] = observation[-1]
        np.testing.assert_array_equal(seen[height], resize_area_opencv(screen[:height], (84, 84)))
    assert not np.array_equal(seen[210], seen[None])
