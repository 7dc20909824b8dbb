"""AtariEnv by itself: its protocol, what it reports, what it refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vecenv.atari
from vecenv.atari import AtariEnv, find_game, make_atari_env, resolve_config
from vecenv.atari_emulator import RomFacts, rom_facts
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.noop_starts import NoopStarts
from vecenv.preprocess.config import AtariConfig
from vecenv.registration import ROMS, game_name, register_envs

STACK = (4, 84, 84)


def play(env: AtariEnv, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    generator = np.random.default_rng(seed)
    results: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    ended = False
    for _ in range(steps):
        results.append(env.reset() if ended else env.step(generator.integers(0, env.action_space.n)))
        ended = len(results[-1]) == 5 and (results[-1][2] or results[-1][3])
    return results


def test_in_place_calls_overwrite_everything_and_need_nothing_of_the_array_before() -> None:
    config = AtariConfig(max_episode_frames=90)
    plain, in_place = AtariEnv("pong", config), AtariEnv("pong", config)
    for step, expected in enumerate(play(plain, 60)):
        out = np.full(STACK, step % 256, np.uint8)
        if step == 0:
            result: tuple[Any, ...] = (in_place.reset_into(out, seed=0),)
            generator = np.random.default_rng(0)
        elif len(expected) == 2:
            result = (in_place.reset_into(out),)
        else:
            result = in_place.step_into(generator.integers(0, 6), out)
        np.testing.assert_array_equal(out, expected[0])
        assert result == expected[1:]


def test_returned_arrays_share_no_memory_and_do_not_change() -> None:
    env = AtariEnv("breakout")
    results = play(env, 12)
    copies = [result[0].copy() for result in results]
    play(env, 12, seed=5)
    for index, (result, copy) in enumerate(zip(results, copies, strict=True)):
        np.testing.assert_array_equal(result[0], copy)
        assert not any(np.shares_memory(result[0], other[0]) for other in results[index + 1 :])
        assert result[0].flags.owndata
    infos = [result[-1] for result in results]
    assert len({id(info) for info in infos}) == len(infos)


def test_wrong_arrays_are_refused() -> None:
    env = AtariEnv("pong")
    for out in (np.zeros(STACK, np.float32), np.zeros((84, 84, 4), np.uint8).transpose(2, 0, 1)):
        with pytest.raises(TypeError):
            env.reset_into(out, seed=0)


def test_types_are_plain() -> None:
    env = AtariEnv("pong")
    env.reset(seed=0)
    _, reward, terminated, truncated, infos = env.step(np.int64(2))
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert {name: type(value) for name, value in infos.items()} == {
        "lives": int, "episode_frame_number": int, "frame_number": int
    }  # fmt: skip


def test_unclipped_rewards_and_whole_games_are_reported_behind_clipping_and_single_lives() -> None:
    raw = AtariEnv("space_invaders", AtariConfig(clip_reward=False))
    clipped = AtariEnv("space_invaders", AtariConfig())
    generator = np.random.default_rng(6)
    raw.reset(seed=6)
    clipped.reset(seed=6)
    largest = 0.0
    for _ in range(400):
        action = generator.integers(0, 6)
        _, reward, ended, *_ = raw.step(action)
        _, sign, _, *_ = clipped.step(action)
        assert clipped.unclipped_reward == raw.unclipped_reward == reward
        assert sign == np.sign(reward)
        largest = max(largest, reward)
        if ended:
            raw.reset()
            clipped.reset()
            assert raw.unclipped_reward == 0.0
    assert largest >= 5.0

    lives = AtariEnv("breakout", AtariConfig(episodic_life=True))
    lives.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, infos = lives.step(generator.integers(0, 4))
    assert infos["lives"] == 4
    assert not lives.game_over

    whole = AtariEnv("breakout")
    whole.reset(seed=0)
    terminated = False
    while not terminated:
        assert not whole.game_over
        _, _, terminated, _, infos = whole.step(generator.integers(0, 4))
    assert infos["lives"] == 0
    assert whole.game_over
    whole.reset()
    assert not whole.game_over

    limited = AtariEnv("pong", AtariConfig(max_episode_frames=4))
    limited.reset(seed=0)
    assert limited.step(0)[3]
    assert limited.game_over


def test_seeds_repeat_and_no_seed_goes_on() -> None:
    sticky = AtariConfig(repeat_action_probability=0.25, max_episode_frames=200)
    first, second = play(AtariEnv("breakout", sticky), 120, 11), play(AtariEnv("breakout", sticky), 120, 11)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    env = AtariEnv("breakout")
    starts = {env.reset(seed=1 if index == 0 else None)[1]["episode_frame_number"] for index in range(8)}
    assert len(starts) > 1
    assert env.reset(seed=2**40)[1] == env.reset(seed=2**40)[1]
    with pytest.raises(gymnasium.error.Error, match="greater or equal to zero"):
        env.reset(seed=-1)


def test_noop_starts_follow_the_standard_generator() -> None:
    """``std::mt19937`` gives 4123659995 as its 10,000th number from the default seed 5489 (C++ standard)."""
    starts = NoopStarts(2**32)
    starts.seed(5489)
    assert [starts.draw() for _ in range(10_000)][-1] == 4123659995
    starts = NoopStarts(30)
    starts.seed(0)
    draws = [starts.draw() for _ in range(3000)]
    assert draws[0] == 16
    assert set(draws) == set(range(30))
    assert NoopStarts(0).draw() == 0
    # With 3 * 2**30 values a quarter of the draws is rejected.
    count = 3 * 2**30
    starts = NoopStarts(count)
    starts.seed(1)
    bits = np.random.MT19937()
    np.random.RandomState(bits).seed(1)
    words = (bits.random_raw() * count for _ in iter(int, 1))
    expected = (word >> 32 for word in words if word % 2**32 >= 2**32 % count)
    assert [starts.draw() for _ in range(50)] == [next(expected) for _ in range(50)]


def test_a_game_with_colours_of_its_own_is_read_in_gray(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AtariConfig(max_episode_frames=52)
    expected = play(AtariEnv("king_kong", config), 40)
    facts = rom_facts("king_kong")
    assert facts.palette == "pal"
    monkeypatch.setattr(vecenv.atari, "rom_facts", lambda rom: RomFacts(facts.height, facts.minimal_actions, None))
    for one, other in zip(play(AtariEnv("king_kong", config), 40), expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    for settings in ({"grayscale": False}, {"gray": "opencv"}):
        with pytest.raises(ValueError, match="colours of its own"):
            AtariEnv("king_kong", AtariConfig(**settings))


@pytest.mark.parametrize("action", [6, -1, 2**40])
def test_actions_out_of_range_are_refused(action: int) -> None:
    env = AtariEnv("pong")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"from 0 to 5, got {action}"):
        env.step(action)


def test_misuse_is_refused() -> None:
    env = AtariEnv("pong")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    for options in ({"level": 3}, {"new_game": 1}):
        with pytest.raises(ValueError, match="the reset option new_game=True or False, got "):
            env.reset(options=options)
    env.reset(seed=0)
    with pytest.raises(TypeError):
        env.step(1.5)
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match=r"render_mode.*'human'"):
        AtariEnv("pong", render_mode="human")
    with pytest.raises(TypeError, match="config must be an AtariConfig, got 'ale'"):
        AtariEnv("pong", "ale")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no ROM 'Pong'"):
        AtariEnv("Pong")
    with pytest.raises(ValueError, match="mode of 'pong' must be one of 0, 1, got 7"):
        AtariEnv("pong", AtariConfig(mode=7))
    with pytest.raises(ValueError, match="difficulty of 'pong' must be one of 0, 1, 2, 3, got 4"):
        AtariEnv("pong", AtariConfig(difficulty=4))


@pytest.mark.parametrize("rom", ["pong", "ms_pacman", "freeway"])
@pytest.mark.parametrize("full", [False, True])
def test_ale_py_surface(rom: str, full: bool) -> None:
    import ale_py

    peer = ale_py.AtariEnv(rom, full_action_space=full, render_mode="rgb_array")
    env = AtariEnv(rom, AtariConfig(full_action_space=full), render_mode="rgb_array")
    assert env.get_action_meanings() == peer.get_action_meanings()
    assert env.get_keys_to_action() == peer.get_keys_to_action()
    assert env.action_space == peer.action_space
    assert isinstance(env.unwrapped.ale, ale_py.ALEInterface)
    env.reset(seed=0)
    picture = env.render()
    assert picture is not None
    np.testing.assert_array_equal(picture, env.ale.getScreenRGB())
    state = env.clone_state(include_rng=True)
    frame = env.step(0)[-1]["frame_number"]
    env.restore_state(state)
    assert env.step(0)[-1]["frame_number"] == frame


def test_metadata_belong_to_the_instance() -> None:
    assert AtariEnv("pong", AtariConfig(frame_skip=2)).metadata["render_fps"] == 30
    assert AtariEnv.metadata["render_fps"] == 15


def test_gymnasium_accepts_the_environment() -> None:
    register_envs()
    register_envs()
    env = gymnasium.make("vecenv/Pong-v5", render_mode="rgb_array", repeat_action_probability=0.1, frame_skip=2)
    assert env.unwrapped.config == AtariConfig(repeat_action_probability=0.1, frame_skip=2)
    check_env(env.unwrapped, skip_close_check=True)
    env.close()


def test_static_ids_are_those_of_ale_py() -> None:
    import ale_py  # noqa: F401

    register_envs()
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("ALE/")]
    assert sorted(ids) == sorted(f"ALE/{game_name(rom)}-v5" for rom in ROMS)
    checked = 0
    for env_id, spec in gymnasium.registry.items():
        if spec.entry_point != "ale_py.env:AtariEnv":
            continue
        if spec.kwargs["frameskip"] == (2, 5):
            with pytest.raises(ValueError, match="random number of frames"):
                find_game(env_id)
            continue
        game = find_game(env_id)
        assert game is not None
        assert game.rom == spec.kwargs["game"]
        assert game.repeat_action_probability == spec.kwargs["repeat_action_probability"]
        assert spec.kwargs["max_num_frames_per_episode"] == AtariConfig().max_episode_frames
        assert not spec.kwargs["full_action_space"]
        checked += 1
    assert checked > 200
    assert all(f"vecenv/{game_name(rom)}-v5" in gymnasium.registry for rom in ROMS)
    assert find_game("vecenv/Pong-v5").repeat_action_probability == 0  # type: ignore[union-attr]
    for other in ("CartPole-v1", "Pong-v5", "ALE/Nothing-v5", ""):
        assert find_game(other) is None


def test_the_id_fixes_the_game_and_settings_replace_the_preset() -> None:
    assert resolve_config("ALE/Pong-v5").repeat_action_probability == 0.25
    assert resolve_config("PongNoFrameskip-v4", "ale").repeat_action_probability == 0.0
    assert resolve_config("ALE/Pong-v5", AtariConfig(stack_size=2)).repeat_action_probability == 0.25
    assert resolve_config("ALE/Pong-v5", AtariConfig(repeat_action_probability=0.0)).repeat_action_probability == 0.0
    assert resolve_config("ALE/Pong-v5", repeat_action_probability=0.5).repeat_action_probability == 0.5
    config = resolve_config("ALE/Pong-v5", stack_size=2)
    assert pickle.loads(pickle.dumps(config)) == config
    assert make_atari_env("ALE/Pong-v5", config).observation_space.shape == (2, 84, 84)
    assert pickle.loads(pickle.dumps(make_atari_env)) is make_atari_env


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("CartPole-v1",), {}, UnknownSetting, "'CartPole-v1' is not the id of an Atari game"),
        (("ALE/Pong-v5", "alle"), {}, UnknownSetting, "available: 'ale'"),
        (("ALE/Pong-v5", 4), {}, TypeError, "preprocess must be"),
        (("ALE/Pong-v5",), {"frameskip": 4}, UnknownSetting, "use frame_skip"),
        (("ALE/Pong-v5",), {"obs_type": "ram"}, UnknownSetting, "preprocess='none' gives ale_py's own"),
        (("ALE/Pong-v5",), {"stack": 4}, UnknownSetting, "'stack'; available: frame_skip, max_pool"),
        (("ALE/Pong-v5",), {"stack_size": 0}, ValueError, "stack_size must be from 1"),
        (("Pong-v4",), {}, ValueError, "use 'PongNoFrameskip-v4'"),
        (
            ("PongDeterministic-v4",),
            {},
            ValueError,
            "4 frames per step, which every preset has; use 'PongNoFrameskip-v4'",
        ),
    ],
)
def test_unknown_names_are_refused(
    arguments: tuple[Any, ...], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        resolve_config(*arguments, **settings)
    assert message in str(caught.value)


def test_without_ale_py_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    rom_facts.cache_clear()
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtra, match=r"ale-py is not installed; run: pip install 'vecenv\[atari\]'"):
        AtariEnv("pong")


def test_the_emulator_prints_no_banner() -> None:
    code = "from vecenv.atari import AtariEnv; env = AtariEnv('pong'); env.reset(seed=0); env.step(0)"
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
