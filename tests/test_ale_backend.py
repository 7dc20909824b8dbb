"""The `ale` back end: the contract, seeds, refusals by name, and no call that hangs."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from interrupted_engine import interrupt_a_step

from vecenv import AtariConfig, UnknownSetting, make_vec
from vecenv.testing import CountEnv, assert_same, check_vec_env

pytest.importorskip("ale_py")
PONG = "PongNoFrameskip-v4"
make_ale = functools.partial(make_vec, PONG, backend="ale", num_workers=1)


def test_keeps_the_contract() -> None:
    make = functools.partial(make_ale, preprocess=AtariConfig(noop_max=1))
    held = check_vec_env(lambda env_fns, **settings: make(len(env_fns), **settings), env_id=PONG)
    assert len(held) > 30


def test_metadata_stays_with_the_instance() -> None:
    """The engine itself writes its mode into the metadata of all vector envs."""
    before = dict(VectorEnv.metadata)
    with make_ale(1, autoreset_mode="SameStep") as same, make_ale(1, autoreset_mode="Disabled") as disabled:
        assert same.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert disabled.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        assert dict(VectorEnv.metadata) == before


def test_seeds_of_every_kind() -> None:
    with make_ale(3) as envs, make_vec(PONG, 3, "sync") as ours:
        for seed in (3, np.int64(3), [5, 5, 1], (2**31 - 1, 2**31, 2**64), np.array([4, 0, 2]), None, [9, None, 9]):
            if seed is None:
                envs.reset(seed=11)
                ours.reset(seed=11)
            got, expected = envs.reset(seed=seed), ours.reset(seed=seed)
            assert_same(got[0], expected[0], f"observations after seed={seed!r}")
            assert_same(got[1]["frame_number"], expected[1]["frame_number"], f"frames after seed={seed!r}")
        assert envs.np_random_seed == (9, 12, 9)
        mask = np.array([False, True, True])
        for seed in (50, [7, 8, None]):
            got, expected = (each.reset(seed=seed, options={"reset_mask": mask}) for each in (envs, ours))
            assert_same(got[0], expected[0], f"observations after seed={seed!r} under a mask")
        for wrong in ([1, 2], "ab", -1, [1, 2, -3], 1.5):
            with pytest.raises((TypeError, ValueError), match="seed"):
                envs.reset(seed=wrong)


def test_without_seeds_no_two_envs_are_alike() -> None:
    with make_ale(4) as one, make_ale(4) as two:
        one.reset()
        two.reset()
        assert len({*one.np_random_seed, *two.np_random_seed}) == 8


@pytest.mark.timeout(60, method="thread")  # a wait in C stops for no signal
def test_order_of_calls_that_would_hang_the_engine() -> None:
    with make_ale(2) as envs:
        with pytest.raises(ResetNeeded, match="reset"):
            envs.step([0, 0])
        with pytest.raises(ResetNeeded, match="reset_mask"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        envs.reset(seed=0)
        for wrong in ([0, 6], [0, -1], [0], 0, [0.5, 0.5]):
            with pytest.raises((TypeError, ValueError), match="action"):
                envs.step(wrong)
        wrong_masks: list[Any] = [np.zeros(2, np.bool_), np.array([1, 0]), [True, False], np.array([True])]
        for mask in wrong_masks:
            with pytest.raises((TypeError, ValueError), match="reset_mask"):
                envs.reset(options={"reset_mask": mask})
        with pytest.raises(NotImplementedError, match="timeout"):
            envs.recv(timeout=1.0)
        envs.step(np.array([0, 3], np.uint8))
        assert envs.episode_statistics().lengths.tolist() == [1, 1]


def test_actions_without_effect_may_be_anything() -> None:
    config = AtariConfig(max_episode_frames=8)
    with make_ale(2, preprocess=config) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            truncations = envs.step([0, 0])[3]
        assert truncations.all()
        assert not envs.step([99, -5])[3].any()
        assert envs.episode_statistics().lengths.tolist() == [0, 0]


def test_observations_as_views_and_into_arrays() -> None:
    with make_ale(2, copy=False, slots=3) as views, make_ale(2) as plain:
        kept, wanted = [views.reset(seed=1)[0]], [plain.reset(seed=1)[0].copy()]
        assert views.observation_slots.shape == (3, 2, 4, 84, 84)
        out = np.zeros((2, 4, 84, 84), np.uint8)
        for step in range(1, 8):
            kept.append(views.step([2, 3])[0])
            assert np.shares_memory(kept[-1], views.observation_slots[views.slot])
            assert plain.step([2, 3], out=out)[0] is out
            wanted.append(out.copy())
            for back in range(min(3, step + 1)):
                np.testing.assert_array_equal(kept[step - back], wanted[step - back])
        with pytest.raises(TypeError, match="copy=False"):
            plain.observation_slots  # noqa: B018
        with pytest.raises(ValueError, match="out"):
            plain.step([2, 3], out=out[:1])


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("conventions", {"preprocess": "envpool"}),
    ("next_life", {"preprocess": AtariConfig(episodic_life=True, next_life=True)}),
    ("life_loss_info", {"preprocess": AtariConfig(life_loss_info=True)}),
    ("gray", {"preprocess": AtariConfig(gray="opencv")}),
    ("channel_order", {"preprocess": AtariConfig(channel_order="last")}),
    ("channel_order", {"preprocess": AtariConfig(channel_order="first", grayscale=False)}),
    ("padding", {"preprocess": AtariConfig(padding="repeat")}),
    ("sticky_actions", {"preprocess": AtariConfig(sticky_actions="wrapper")}),
    ("mode", {"mode": 0}),
    ("difficulty", {"difficulty": 0}),
    ("count_start_frames", {"count_start_frames": True}),
    ("max_episode_steps", {"max_episode_steps": 9}),
    ("max_screen_height", {"max_screen_height": 210}),
    ("true_final_frame", {"true_final_frame": True}),
    ("preprocess", {"preprocess": "none"}),
    ("render_mode", {"render_mode": "rgb_array"}),
    ("batch_size", {"batch_size": 1}),
    ("wrappers", {"wrappers": [gym.wrappers.TimeLimit]}),
    ("per_env_kwargs", {"per_env_kwargs": [{}, {}]}),
]


@pytest.mark.parametrize(("name", "settings"), REFUSED, ids=str)
def test_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=name):
        make_ale(2, **settings)


def test_refused_ids_and_options() -> None:
    with pytest.raises(UnknownSetting, match="CartPole-v1"):
        make_vec("CartPole-v1", 2, "ale")
    with pytest.raises(NotImplementedError, match="ids"):
        make_vec(CountEnv, 2, "ale")
    with pytest.raises(UnknownSetting, match="num_threads"):
        make_ale(2, backend_options={"threads": 2})
    with pytest.raises(ValueError, match="contradict"):
        make_ale(2, backend_options={"num_threads": 2})
    with pytest.raises(TypeError, match="thread_affinity_offset"):
        make_ale(2, backend_options={"thread_affinity_offset": "a"})
    with make_vec(PONG, 2, "ale", backend_options={"num_threads": 2, "thread_affinity_offset": 0}) as envs:
        with pytest.raises(NotImplementedError, match="level"):
            envs.reset(options={"level": 3})
        envs.reset()
        for refused in (envs.get_state, envs.render, lambda: envs.call("lives"), lambda: envs.set_attr("lives", 1)):
            with pytest.raises(NotImplementedError, match="ale"):
                refused()


def test_send_and_receive_in_pieces_and_resets() -> None:
    with make_ale(3) as envs, make_ale(3) as reference:
        envs.send_reset(seed=4)
        first = envs.recv()
        assert first[4].pop("env_id").tolist() == [0, 1, 2]
        expected, infos = reference.reset(seed=4)
        np.testing.assert_array_equal(first[0], expected)
        assert_same(first[4]["lives"], infos["lives"], "lives")
        for _ in range(3):
            envs.send([2], [1])
            envs.send([3, 0], [2, 0])
            got, wanted = envs.recv(), reference.step([0, 2, 3])
            assert_same(got[:4], wanted[:4], "a step in pieces")
        assert_same(envs.episode_statistics().lengths, np.array([3, 3, 3]), "lengths")
        with pytest.raises(NotImplementedError, match="send_reset"):
            envs.send_reset(options={"reset_mask": np.array([True, False, True])})
        envs.send([1], [0])
        np.testing.assert_array_equal(envs.reset(seed=4)[0], expected)


@pytest.mark.timeout(60, method="thread")  # a wait in C stops for no signal
def test_closed_in_the_middle_of_a_step_arrays_stay() -> None:
    envs = make_ale(2)
    observations = envs.reset(seed=0)[0]
    before = observations.copy()
    envs.send([0, 0])
    envs.close()
    envs.close()
    np.testing.assert_array_equal(observations, before)


@pytest.mark.parametrize("ending", ["", "envs.send([0, 0])", "raise SystemExit(0)", "del envs"])
def test_processes_end_without_close(ending: str) -> None:
    script = f"import vecenv\nenvs = vecenv.make_vec({PONG!r}, 2, 'ale')\nenvs.reset()\nenvs.step([0, 0])\n{ending}"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.timeout(60, method="thread")  # a wait in C stops for no signal
def test_a_step_goes_on_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted step is played, its result dropped; the next step's is the next step's."""
    config = AtariConfig(frame_skip=1000, noop_max=0, max_episode_frames=None)
    with make_ale(2, preprocess=config) as envs:
        frames = envs.reset(seed=0)[1]["frame_number"]
        interrupt_a_step(envs, monkeypatch)
        got = envs.step([0, 0])[4]["frame_number"]
        np.testing.assert_array_equal(got, frames + 2000)
        np.testing.assert_array_equal(envs.step([0, 0])[4]["frame_number"], frames + 3000)
        assert envs.episode_statistics().lengths.tolist() == [3, 3]
