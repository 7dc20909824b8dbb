"""The `envpool` back end: the contract, batches as envs finish, seeds, physics, refusals by name, nothing hangs."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from interrupted_engine import interrupt_a_step

from vecenv import UnknownSetting, make_vec, true_next_obs
from vecenv.envpool_tasks import envpool_id
from vecenv.preprocess.config import find_preset
from vecenv.registration import ROMS
from vecenv.testing import CountEnv, assert_same, check_vec_env

envpool = pytest.importorskip("envpool")
PONG = "PongNoFrameskip-v4"
ENVPOOL = find_preset("envpool")
make_pool = functools.partial(make_vec, backend="envpool", num_workers=1)


# Of Pong one mode, an emulated one, and all of them where there is time: starting a game is expensive.
CONTRACTS = [
    ("CartPole-v1", None),
    ("Pendulum-v1", None),
    (PONG, "SameStep"),
    *(pytest.param(PONG, mode, marks=pytest.mark.slow) for mode in ("NextStep", "Disabled")),
]


@pytest.mark.parametrize(("env_id", "mode"), CONTRACTS)
def test_keeps_the_contract(env_id: str, mode: str | None) -> None:
    make = functools.partial(make_pool, env_id, **({"noop_max": 1} if env_id == PONG else {}))
    modes = {} if mode is None else {"autoreset_modes": [mode]}
    held = check_vec_env(lambda env_fns, **settings: make(len(env_fns), **settings), env_id=env_id, **modes)
    assert len(held) > (30 if mode is None else 10)


def test_envpool_has_every_game() -> None:
    assert {envpool_id(rom) for rom in ROMS} <= set(envpool.list_all_envs())


# -- physics ----------------------------------------------------------------------------------------------------------


def test_cartpole_is_gymnasiums() -> None:
    """Same spaces, and the same next state from the same state and action; the time limit too."""
    env = gym.make("CartPole-v1").unwrapped
    with make_pool("CartPole-v1", 4, max_episode_steps=30) as envs:
        assert envs.single_observation_space == env.observation_space
        assert envs.single_action_space == env.action_space
        assert envs.spec.id == "CartPole-v1"
        assert envs.config is None
        observations, infos = envs.reset(seed=0)
        assert infos["_elapsed_step"].all()
        env.reset()
        generator = np.random.default_rng(0)
        ended = np.zeros(4, np.bool_)
        truncated = 0
        for _ in range(120):
            actions = generator.integers(0, 2, 4)
            following, rewards, terminations, truncations, infos = envs.step(actions)
            assert rewards.dtype == np.float64
            for row in np.flatnonzero(~ended):
                env.state = observations[row].astype(np.float64)
                env.steps_beyond_terminated = None
                expected, reward, terminated, *_ = env.step(int(actions[row]))
                np.testing.assert_allclose(following[row], expected, atol=2e-6)
                assert (rewards[row], terminations[row]) == (reward, terminated)
                assert truncations[row] == (infos["elapsed_step"][row] == 30 and not terminated)
            truncated += int(truncations.sum())
            observations, ended = following, terminations | truncations
        assert truncated > 0


def test_halfcheetah_is_gymnasiums() -> None:
    pytest.importorskip("mujoco")
    env = gym.make("HalfCheetah-v5").unwrapped
    with make_pool("HalfCheetah-v5", 2) as envs:
        assert envs.single_observation_space == env.observation_space
        assert envs.single_action_space == env.action_space
        observations, _ = envs.reset(seed=0)
        envs.action_space.seed(0)
        actions = envs.action_space.sample()
        following, rewards, *_, infos = envs.step(actions)
        assert_same(infos["_x_velocity"], np.ones(2, np.bool_), "mask of an info")
        for row in range(2):
            env.reset()
            env.set_state(np.concatenate([[0.0], observations[row, :8]]), observations[row, 8:])
            expected, reward, *_ = env.step(actions[row])
            np.testing.assert_allclose(following[row], expected, atol=1e-6)
            np.testing.assert_allclose(rewards[row], reward, atol=1e-3)  # the unseen start position is not 0


CLASSIC = ("Acrobot-v1", "CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
MUJOCO = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum")
MORE_MUJOCO = ("Reacher", "Swimmer", "Walker2d")


@pytest.mark.parametrize(
    "env_id",
    [
        *CLASSIC,
        *(
            pytest.param(f"{name}-{version}", marks=[] if name == "Reacher" else [pytest.mark.slow])
            for name in (*MUJOCO, *MORE_MUJOCO)
            for version in ("v4", "v5")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_spaces_and_limits_are_gymnasiums(env_id: str) -> None:
    if env_id not in CLASSIC:
        pytest.importorskip("mujoco")
    env = gym.make(env_id)
    with make_pool(env_id, 2) as envs:
        assert envs.single_observation_space == env.observation_space
        assert envs.single_action_space == env.action_space
        assert envs.reset(seed=0)[0] in envs.observation_space
        envs.action_space.seed(0)
        truncated = np.zeros(2, np.bool_)
        steps = 0
        while not truncated.any() and steps < 60:
            observations, _, _, truncated, _ = envs.step(envs.action_space.sample())
            steps += 1
        assert observations in envs.observation_space
        assert truncated.any() == (env.spec.max_episode_steps <= 60)


def test_bounds_that_only_stand_for_none() -> None:
    with make_pool("LunarLander-v3", 2) as envs:
        assert np.isinf(envs.single_observation_space.low).all()
        assert envs.reset(seed=0)[0] in envs.observation_space


# -- autoreset --------------------------------------------------------------------------------------------------------


def test_same_step_is_the_same_run_as_next_step() -> None:
    """The rows that NEXT_STEP fills in fall into the step before; `final_obs` and `final_info` are the end's."""
    with make_pool("CartPole-v1", 3) as following, make_pool("CartPole-v1", 3, autoreset_mode="SameStep") as same:
        rows: dict[str, list[list[Any]]] = {"following": [[], [], []], "same": [[], [], []]}
        for name, envs in (("following", following), ("same", same)):
            envs.reset(seed=3)
            ended = np.zeros(3, np.bool_)
            for _ in range(120):
                observations, rewards, terminations, truncations, infos = envs.step([1, 1, 1])
                true = true_next_obs(observations, infos, envs.autoreset_mode)
                for row in np.flatnonzero(~ended):
                    rows[name][row].append((true[row].tolist(), rewards[row], terminations[row], truncations[row]))
                if name == "following":
                    ended = terminations | truncations
                elif "_final_obs" in infos:
                    mask = terminations | truncations
                    assert_same(infos["_final_obs"], mask, "_final_obs")
                    assert_same(infos["_final_info"], mask, "_final_info")
                    assert not infos["final_obs"][~mask].any()
                    assert (infos["final_info"]["elapsed_step"][mask] > 5).all()
                    assert not infos["elapsed_step"][mask].any()
        for row in range(3):
            count = min(len(rows["following"][row]), len(rows["same"][row]))
            assert count > 100
            assert rows["following"][row][:count] == rows["same"][row][:count]


EPISODIC = dataclasses.replace(ENVPOOL, episodic_life=True, next_life=True)


@pytest.mark.parametrize("settings", [{"preprocess": EPISODIC}, {"batch_size": 1}], ids=["episodic_life", "batch_size"])
def test_resets_of_single_envs_that_are_not_exact_are_refused(settings: dict[str, Any]) -> None:
    name = next(iter({"preprocess": "episodic_life", "batch_size": "batch_size"}[key] for key in settings))
    for mode in ("SameStep", "Disabled"):
        with pytest.raises(NotImplementedError, match=name):
            make_pool(PONG, 2, autoreset_mode=mode, **settings)
    with make_pool(PONG, 2, **settings) as envs:
        envs.reset()
        with pytest.raises(NotImplementedError, match=name):
            envs.reset(options={"reset_mask": np.array([True, False])})
        assert not envs.step([0, 0])[2].any()


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds() -> None:
    with make_pool("CartPole-v1", 3, seed=5) as envs, make_pool("CartPole-v1", 3) as other:
        first = envs.reset()[0]
        assert envs.np_random_seed == (5, 6, 7)
        np.testing.assert_array_equal(other.reset(seed=[5, 6, 7])[0], first)
        second = envs.reset()[0]
        assert not np.array_equal(second, first)
        np.testing.assert_array_equal(other.reset()[0], second)
        for seed in (np.int64(5), (5, 6, 7), np.array([5, 6, 7])):
            np.testing.assert_array_equal(envs.reset(seed=seed)[0], first)
        assert not np.array_equal(envs.reset(seed=2**40)[0], envs.reset(seed=2**41)[0])
        with pytest.raises(NotImplementedError, match="None"):
            envs.reset(seed=[1, None, 3])
        with pytest.raises(NotImplementedError, match="reset_mask"):
            envs.reset(seed=1, options={"reset_mask": np.array([True, False, True])})
        assert not envs.step([0, 0, 0])[2].any()  # what was refused left the envs as they were


def test_without_seeds_no_two_envs_are_alike() -> None:
    with make_pool("CartPole-v1", 4) as one, make_pool("CartPole-v1", 4) as two:
        starts = np.concatenate([one.reset()[0], two.reset(seed=[None, None, 7, 7])[0]])
        assert len(np.unique(starts, axis=0)) == 7


# -- batches as envs finish -------------------------------------------------------------------------------------------


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(("num_envs", "batch_size"), [(6, 2), (5, 3), (6, 4)])
def test_rows_by_env_id_are_those_of_step(num_envs: int, batch_size: int) -> None:
    with (
        make_pool("CartPole-v1", num_envs, batch_size=batch_size, num_workers=2, statistics=True) as envs,
        make_pool("CartPole-v1", num_envs, statistics=True) as reference,
    ):
        expected: list[list[Any]] = [[] for _ in range(num_envs)]
        reference.reset(seed=1)
        for _ in range(120):
            *result, infos = reference.step(np.ones(num_envs, np.int64))
            for row in range(num_envs):
                episode = infos["episode"]["r"][row] if infos.get("_episode", np.zeros(num_envs))[row] else None
                expected[row].append([*(part[row].tolist() for part in result), episode])
        np.testing.assert_array_equal(envs.reset(seed=1)[0], reference.reset(seed=1)[0])
        seen = [0] * num_envs
        envs.send(np.ones(num_envs, np.int64), np.arange(num_envs))
        while min(seen) < 40:
            *result, infos = envs.recv()
            ids = infos["env_id"]
            assert len(ids) == batch_size == len(set(ids.tolist()))
            for place, row in enumerate(ids):
                episode = infos["episode"]["r"][place] if infos.get("_episode", np.zeros(batch_size))[place] else None
                got = [*(part[place].tolist() for part in result), episode]
                if seen[row] < 120:  # it may be stepped any number of times while the others are waited for
                    assert got == expected[row][seen[row]], (row, seen[row])
                seen[row] += 1
            envs.send(np.ones(batch_size, np.int64), ids)


@pytest.mark.timeout(120, method="thread")
def test_whole_resets_and_steps_are_in_env_order() -> None:
    """Random starts of different lengths: several threads finish in another order."""
    with make_pool(PONG, 6, batch_size=1, num_workers=3) as envs, make_pool(PONG, 6) as reference:
        for seed in (1, None, None):
            got, expected = envs.reset(seed=seed), reference.reset(seed=seed)
            assert_same(got[0], expected[0], "observations")
            assert_same(got[1]["ram"], expected[1]["ram"], "an info")
            assert_same(envs.step([1, 2, 3, 4, 5, 0])[:4], reference.step([1, 2, 3, 4, 5, 0])[:4], "a step")
        assert_same(envs.observations, reference.observations, "the newest observations")


@pytest.mark.timeout(120, method="thread")
def test_order_of_sends_and_receipts() -> None:
    with make_pool("CartPole-v1", 4, batch_size=2, num_workers=2) as envs, make_pool("CartPole-v1", 4) as reference:
        with pytest.raises(ResetNeeded):
            envs.send([0, 0], [0, 1])
        first, _ = envs.reset(seed=2)
        with pytest.raises(NoAsyncCallError):
            envs.recv()
        envs.send([1, 1], [3, 0])
        with pytest.raises(AlreadyPendingCallError):
            envs.send([1], [3])
        with pytest.raises(AlreadyPendingCallError):
            envs.step([1] * 4)
        with pytest.raises(ValueError, match="environment 1"):
            envs.send([1, 2], [2, 1])
        received = envs.recv()
        assert sorted(received[4]["env_id"]) == [0, 3]
        envs.send([1, 1], [1, 2])
        envs.recv()
        assert_same(envs.episode_statistics().lengths, np.ones(4, np.int64), "lengths")
        reference.reset(seed=2)
        reference.step([1] * 4)
        assert_same(envs.step([0] * 4)[:4], reference.step([0] * 4)[:4], "a whole step, in env order")
        envs.send([1], [2])
        with pytest.raises(NotImplementedError, match="outstanding"):
            envs.reset()
        envs.send([1], [1])
        np.testing.assert_array_equal(envs.reset(seed=2)[0], first)  # drops both
        envs.send_reset(seed=2)
        with pytest.raises(AlreadyPendingCallError):
            envs.send_reset()
        for _ in range(2):
            observations, rewards, *_, infos = envs.recv()
            np.testing.assert_array_equal(observations, first[infos["env_id"]])
            assert not rewards.any()
        assert_same(envs.episode_statistics().lengths, np.zeros(4, np.int64), "lengths after resets")


# -- rewards and statistics -------------------------------------------------------------------------------------------


def test_statistics_count_rewards_unclipped() -> None:
    config = dataclasses.replace(ENVPOOL, clip_reward=True, max_episode_steps=100)
    with make_pool("MsPacmanNoFrameskip-v4", 2, preprocess=config, statistics=True) as envs:
        envs.reset(seed=0)
        envs.action_space.seed(0)
        clipped, raw = np.zeros(2), np.zeros(2)
        for _ in range(100):
            _, rewards, _, truncations, infos = envs.step(envs.action_space.sample())
            clipped += rewards
            raw += infos["reward"]
        assert truncations.all()
        assert set(np.unique(rewards)) <= {-1.0, 0.0, 1.0}
        assert_same(infos["episode"]["r"], raw, "returns")
        assert (raw >= 10 * clipped).all()
        assert clipped.all()
        assert infos["episode"]["l"].tolist() == [100, 100]


# -- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [PONG, "CartPole-v1"])
def test_frames(env_id: str) -> None:
    with make_pool(env_id, 2, render_mode="rgb_array") as envs:
        assert envs.render_mode == "rgb_array"
        assert "rgb_array" in envs.metadata["render_modes"]
        with pytest.raises(ResetNeeded):
            envs.render()
        envs.reset(seed=0)
        frames = envs.render()
        assert len(frames) == 2
        assert frames[0].ndim == 3
        assert frames[0].dtype == np.uint8
        assert frames[0].max() > 0


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("conventions", {"preprocess": "ale"}),
    ("max_pool", {"max_pool": False}),
    ("noop_max", {"noop_max": 0}),
    ("next_life", {"episodic_life": True}),
    ("life_loss_info", {"life_loss_info": True}),
    ("gray", {"gray": "opencv"}),
    ("channel_order", {"channel_order": "last"}),
    ("channel_order", {"grayscale": False}),
    ("padding", {"padding": "zero"}),
    ("sticky_actions", {"sticky_actions": "wrapper"}),
    ("max_episode_frames", {"max_episode_frames": 9}),
    ("max_screen_height", {"max_screen_height": None}),
    ("true_final_frame", {"true_final_frame": True}),
    ("preprocess", {"preprocess": "none"}),
    ("render_mode", {"render_mode": "human"}),
    ("wrappers", {"wrappers": [gym.wrappers.TimeLimit]}),
    ("per_env_kwargs", {"per_env_kwargs": [{}, {}]}),
]


@pytest.mark.parametrize(("name", "settings"), REFUSED, ids=str)
def test_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=name):
        make_pool(PONG, 2, **settings)


def test_refused_ids_options_and_arguments() -> None:
    for env_id in ("NoSuchEnv-v0", "Pong-v5"):
        with pytest.raises(UnknownSetting, match=env_id):
            make_pool(env_id, 2)
    with pytest.raises(NotImplementedError, match="ids"):
        make_pool(CountEnv, 2)
    for wrong in ({"gravity": 1.0}, {"num_threads": 2}, {"seed_": 1}):
        with pytest.raises(UnknownSetting, match=next(iter(wrong))):
            make_pool("CartPole-v1", 2, **wrong)
    with pytest.raises(UnknownSetting, match="preprocess"):
        make_pool("CartPole-v1", 2, preprocess="envpool")
    with pytest.raises(UnknownSetting, match="threads"):
        make_pool("CartPole-v1", 2, backend_options={"threads": 1})
    with pytest.raises(TypeError, match="max_episode_steps"):
        make_pool("CartPole-v1", 2, max_episode_steps="many")
    with pytest.raises(NotImplementedError, match="renders"):
        make_pool("HalfCheetah-v5", 2, render_mode="rgb_array")
    with pytest.raises(NotImplementedError, match="Blackjack"):
        make_pool("Blackjack-v1", 2, render_mode="rgb_array")
    options = {"num_threads": 2, "thread_affinity_offset": 0}
    with make_vec(PONG, 2, "envpool", backend_options=options) as envs:
        with pytest.raises(NotImplementedError, match="low"):
            envs.reset(options={"low": 0.0})
        envs.reset(options={"new_game": True})
        for refused in (envs.get_state, envs.render, lambda: envs.call("lives"), lambda: envs.set_attr("lives", 1)):
            with pytest.raises(NotImplementedError, match="envpool"):
                refused()


@pytest.mark.timeout(60, method="thread")  # a wait in C stops for no signal
def test_closed_in_the_middle_of_a_step_arrays_stay() -> None:
    for batch_size in (2, 4):
        envs = make_pool(PONG, 4, batch_size=batch_size)
        observations = envs.reset(seed=0)[0]
        before = observations.copy()
        envs.send([0] * 4, range(4))
        envs.close()
        envs.close()
        np.testing.assert_array_equal(observations, before)


@pytest.mark.parametrize("ending", ["", "envs.send([0, 0], [0, 1])", "raise SystemExit(0)"])
@pytest.mark.parametrize("batch_size", [2, 1])
def test_processes_end_without_close(ending: str, batch_size: int) -> None:
    script = (
        f"import vecenv\nenvs = vecenv.make_vec('CartPole-v1', 2, 'envpool', batch_size={batch_size})\n"
        f"envs.reset()\nenvs.step([0, 0])\n{ending}"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_an_interrupt_while_another_pool_is_built_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    with make_pool("CartPole-v1", 2) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])
        with monkeypatch.context() as patch:
            patch.setattr("envpool.make", interrupted)
            with pytest.raises(KeyboardInterrupt):
                envs.reset(seed=1)
        with pytest.raises(gym.error.ResetNeeded):
            envs.step([0, 1])
        envs.reset()
        envs.step([0, 1])


def test_an_interrupted_reset_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the pool's sending and receiving: what it still holds must not become the result of a later step."""
    with make_pool("CartPole-v1", 2, seed=0) as envs, make_pool("CartPole-v1", 2, seed=5) as fresh:
        envs.reset()

        def interrupted(*arguments: Any) -> None:
            envs._pool._reset(envs._pool.all_env_ids)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(envs._pool, "reset", interrupted, raising=False)
            with pytest.raises(KeyboardInterrupt):
                envs.reset()
        with pytest.raises(ResetNeeded):
            envs.step(np.zeros(2, np.int64))
        assert_same(envs.reset(seed=5), fresh.reset())
        for action in (0, 1, 1):
            assert_same(envs.step(np.full(2, action)), fresh.step(np.full(2, action)))


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.timeout(60, method="thread")  # a wait in C stops for no signal
@pytest.mark.parametrize("batch_size", [2, 1])
def test_a_step_goes_on_after_an_interrupt(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted step is played, its result dropped; the next step's is the next step's."""
    config = dataclasses.replace(ENVPOOL, frame_skip=1000, noop_max=1)
    with make_pool(PONG, 2, preprocess=config, batch_size=batch_size) as envs:
        envs.reset(seed=0)
        interrupt_a_step(envs, monkeypatch)
        assert envs.step([0, 0])[4]["elapsed_step"].tolist() == [2, 2]
        assert envs.step([0, 0])[4]["elapsed_step"].tolist() == [3, 3]
        assert envs.episode_statistics().lengths.tolist() == [3, 3]
