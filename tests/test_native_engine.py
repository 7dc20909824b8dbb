"""Steps of native engines: the short way of steps in which nothing ends gives what the general way gives."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import numpy as np
import pytest

from vecenv import make_vec
from vecenv.native_engine import NativeVecEnv
from vecenv.testing import assert_same

PONG = "PongNoFrameskip-v4"
MODES = ("NextStep", "SameStep", "Disabled")
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")
# Back end, env and settings, such that episodes end by themselves and by a limit within some tens of steps.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ale": ("ale", PONG, {"noop_max": 1, "max_episode_frames": 60}),
    "envpool": ("envpool", PONG, {"noop_max": 1, "max_episode_steps": 12}),
    "cartpole": ("envpool", "CartPole-v1", {"max_episode_steps": 25}),
    "pendulum": ("envpool", "Pendulum-v1", {"max_episode_steps": 9}),
}


def make(case: str, num_envs: int = 3, **settings: Any) -> NativeVecEnv:
    backend, env_id, fixed = CASES[case]
    pytest.importorskip({"ale": "ale_py", "envpool": "envpool"}[backend])
    envs = make_vec(env_id, num_envs, backend, num_workers=1, statistics=True, **{**fixed, **settings})
    assert isinstance(envs, NativeVecEnv)
    return envs


def without_the_short_way(envs: NativeVecEnv) -> NativeVecEnv:
    envs._plain.learn = lambda infos, places: None  # type: ignore[method-assign]
    return envs


def without_seconds(infos: dict[str, Any]) -> dict[str, Any]:
    return {**infos, "episode": {**infos["episode"], "t": 0}} if "episode" in infos else infos


def scribble(value: Any) -> None:
    """Change everything that was handed out, as its owner may."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
        scribble(part)
    if isinstance(value, np.ndarray):
        value[...] = 1 if value.dtype == np.bool_ else 77


@pytest.mark.parametrize("settings", [{}, {"copy": False, "slots": 2}], ids=["copy", "ring"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_both_ways_give_the_same(case: str, mode: str, settings: dict[str, Any]) -> None:
    """Bits, dtypes, keys and their order, statistics; whatever the caller does to what it was given."""
    with make(case, autoreset_mode=mode, **settings) as envs, make(case, autoreset_mode=mode, **settings) as general:
        without_the_short_way(general)
        assert_same(envs.reset(seed=3), general.reset(seed=3), "reset")
        envs.action_space.seed(0)
        held: tuple[Any, ...] = ()
        short_way, plain, ends = mock.Mock(wraps=envs._plain.result), 0, 0
        envs._plain.result = short_way  # type: ignore[method-assign]
        for step in range(30):
            actions = envs.action_space.sample()
            got, expected = envs.step(actions), general.step(actions)
            ended = expected[2] | expected[3]
            plain += not ended.any()
            ends += int(ended.sum())
            assert list(got[4]) == list(expected[4]), f"step {step}: keys"
            got, expected = (*got[:4], without_seconds(got[4])), (*expected[:4], without_seconds(expected[4]))
            for name, one, other in zip(PARTS, got, expected, strict=True):
                assert_same(one, other, f"step {step}: {name}")
            for name in ("returns", "lengths", "episode_counts", "last_returns", "last_lengths"):
                one, other = (getattr(each.episode_statistics(), name) for each in (envs, general))
                assert_same(one, other, f"step {step}: {name}")
            assert envs.slot == general.slot
            assert not any(np.shares_memory(part, earlier) for part in got[1:4] for earlier in held)
            held = got[1:4]
            if envs.copy:
                scribble(got)
                scribble(expected)
            if mode == "Disabled" and ended.any():
                options = {"reset_mask": ended}
                assert_same(envs.reset(options=options)[0], general.reset(options=options)[0], f"step {step}: reset")
        assert 8 < short_way.call_count < plain  # not the first step, nor steps that begin the next episode
        assert ends > 0
        assert not general._plain.is_ready


@pytest.mark.parametrize("case", ["ale", "cartpole"])
def test_actions_are_checked_on_the_short_way(case: str) -> None:
    with make(case) as envs, make(case) as reference:
        envs.reset(seed=1)
        reference.reset(seed=1)
        count = int(envs.single_action_space.n)  # type: ignore[attr-defined]
        forms = [
            np.array([0, 1, 0]),
            [0, 1, 0],
            np.array([0, 1, 0], np.uint8),
            np.array([0, 9, 1, 9, 0, 9])[::2],
            np.array([count - 1, 0, 0]),
        ]
        for actions in forms:
            wanted = reference.step([int(action) for action in actions])
            for wrong in ([0, count, 0], [-1, 0, 0], [0, 0], [0.5, 0, 0], [2**62, 0, 0]):
                with pytest.raises((TypeError, ValueError), match="action"):
                    envs.step(np.array(wrong))
            assert_same(envs.step(actions)[:4], wanted[:4], f"after {actions!r}")


def test_results_by_send_and_recv_and_into_an_array() -> None:
    with make("cartpole") as envs, make("cartpole") as reference:
        out = envs.reset(seed=2)[0].copy()
        reference.reset(seed=2)
        for step in range(30):
            actions = np.full(3, step % 2)
            envs.send(actions)
            got, wanted = envs.recv(out=out), reference.step(actions)
            assert got[0] is out
            assert got[4]["env_id"].tolist() == [0, 1, 2]
            assert_same(got[:4], wanted[:4], f"step {step}")
            assert_same(envs.observations, reference.observations, f"step {step}: the newest observations")


def test_options_that_are_refused_cost_no_row_that_was_sent() -> None:
    with make("ale") as envs:
        envs.reset(seed=0)
        envs.send([0], [1])
        with pytest.raises(NotImplementedError, match="no reset options"):
            envs.reset(options={"level": 1})
        envs.send([0, 0], [0, 2])
        assert envs.recv()[4]["env_id"].tolist() == [0, 1, 2]


def test_a_result_that_an_interrupt_left_is_not_that_of_a_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what the engine gave and the general way that reads it."""

    def interrupted(timeout: float | None) -> None:
        raise KeyboardInterrupt

    with make("pendulum") as envs:
        envs.reset(seed=0)
        play = functools.partial(envs.step, np.zeros((3, 1), np.float32))
        for _ in range(8):
            play()
        with monkeypatch.context() as patched:
            patched.setattr(envs, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                play()
        assert envs._raw is not None
        envs._done[:] = True
        for elapsed in (0, 1, 2):
            assert play()[4]["elapsed_step"].tolist() == [elapsed] * 3
