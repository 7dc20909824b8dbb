"""The table of capabilities: the README shows it, and every cell is true: the feature works, or is refused by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import vecenv
from vecenv import cli
from vecenv.capabilities import EMULATED, FEATURES, LEVELS, NATIVE, REFUSED, capabilities, markdown_table
from vecenv.errors import UnknownSetting
from vecenv.testing import CountEnv
from vecenv.toy_envs import EchoEnv

ROOT = Path(__file__).resolve().parent.parent
MARKERS = ("<!-- capabilities: vecenv doctor --capabilities -->", "<!-- end of capabilities -->")
TABLE = capabilities()
#: What an engine runs where toy environments cannot be built.
ENGINE_ENVS = {"compiled": "CartPole-v1", "envpool": "CartPole-v1", "ale": "PongNoFrameskip-v4"}
PACKAGES = {"compiled": "numba", "envpool": "envpool", "ale": "ale_py", "ray": "ray"}
REFUSALS = (NotImplementedError, UnknownSetting)


class Bench:
    """Builds vector envs of one back end: of toy environments where it can run them.

    Args:
        backend: name of the back end.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.env: Any = ENGINE_ENVS.get(backend, CountEnv)
        self.toys = backend not in ENGINE_ENVS

    def make(self, num_envs: int = 3, env: Any = None, **settings: Any) -> Any:
        """A vector env, already reset."""
        if self.backend in ("subproc", "ray"):
            settings.setdefault("num_workers", 2)
        envs = vecenv.make_vec(self.env if env is None else env, num_envs, self.backend, **settings)
        try:
            envs.reset(seed=3)
        except BaseException:
            envs.close()
            raise
        return envs

    def ends(self, envs: Any, most: int = 2500) -> tuple[Any, Any]:
        """Step until an episode ends: the result of that step, and the mask of the envs that ended."""
        actions = np.zeros(envs.num_envs, envs.single_action_space.dtype)
        for _ in range(most):
            result = envs.step(actions)
            done = result[2] | result[3]
            if done.any():
                return result, done
        raise AssertionError(f"no episode ended within {most} steps")


def next_step(bench: Bench) -> None:
    with bench.make() as envs:
        assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
        _, done = bench.ends(envs)
        _, rewards, terminations, truncations, _ = envs.step(np.zeros(3, np.int64))
        assert not (terminations | truncations)[done].any()
        assert not rewards[done].any()


def same_step(bench: Bench) -> None:
    with bench.make(autoreset_mode="SameStep") as envs:
        (observations, *_, infos), done = bench.ends(envs)
        np.testing.assert_array_equal(infos["_final_obs"], done)
        row = int(np.flatnonzero(done)[0])
        assert not np.array_equal(infos["final_obs"][row], observations[row])


def disabled(bench: Bench) -> None:
    with bench.make(autoreset_mode="Disabled") as envs:
        _, done = bench.ends(envs)
        with pytest.raises(gym.error.ResetNeeded):
            envs.step(np.zeros(3, np.int64))
        envs.reset(options={"reset_mask": done})
        envs.step(np.zeros(3, np.int64))


def partial_reset(bench: Bench) -> None:
    with bench.make() as envs:
        for _ in range(3):
            before = envs.step(np.zeros(3, np.int64))[0]
        after, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
        assert not np.array_equal(after[1], before[1])


def played(envs: Any, seeds: list[int]) -> Any:
    """Observations some steps after a seeded reset: a game's first frames may all be alike."""
    envs.reset(seed=seeds)
    for _ in range(40 if envs.single_observation_space.dtype == np.uint8 else 2):
        observations = envs.step(np.zeros(len(seeds), np.int64))[0]
    return observations


def per_env_seeds(bench: Bench) -> None:
    with bench.make(env="CartPole-v1" if bench.toys else None) as envs:
        first, second = played(envs, [7, 8, 9]), played(envs, [9, 8, 7])
        np.testing.assert_array_equal(first, second[::-1])
        assert not np.array_equal(first[0], first[1])


def batch_size(bench: Bench) -> None:
    with bench.make(4, batch_size=2) as envs:
        envs.send(np.zeros(4, np.int64), np.arange(4))
        seen = []
        for _ in range(2):
            observations, *_, infos = envs.recv()
            assert len(observations) == 2
            seen += infos["env_id"].tolist()
        assert sorted(seen) == [0, 1, 2, 3]


def statistics(bench: Bench) -> None:
    with bench.make(statistics=True) as envs:
        (*_, infos), done = bench.ends(envs)
        np.testing.assert_array_equal(infos["_episode"], done)
        assert (infos["episode"]["l"][done] > 0).all()
        assert envs.episode_statistics().episode_counts.sum() == done.sum()


def copy_false(bench: Bench) -> None:
    with bench.make(copy=False, slots=3) as envs:
        actions = np.zeros(3, np.int64)
        views = [envs.step(actions)[0] for _ in range(3)]
        kept = [view.copy() for view in views]
        assert all(np.shares_memory(view, envs.observation_slots) for view in views)
        assert not np.shares_memory(views[0], views[1])
        for view, values in zip(views, kept, strict=True):
            np.testing.assert_array_equal(view, values)  # valid until the ring comes round
        assert np.shares_memory(envs.step(actions)[0], views[0])


def out(bench: Bench) -> None:
    with bench.make() as envs:
        array = np.empty((3, *envs.single_observation_space.shape), envs.single_observation_space.dtype)
        assert envs.step(np.zeros(3, np.int64), out=array)[0] is array
        np.testing.assert_array_equal(array, envs.observations)


def get_state(bench: Bench) -> None:
    with bench.make(env="CartPole-v1" if bench.toys else None) as envs:
        actions = np.zeros(3, np.int64)
        envs.step(actions)
        states = envs.get_state()
        expected = [envs.step(actions)[0] for _ in range(12)]
        envs.set_state(states)
        np.testing.assert_array_equal([envs.step(actions)[0] for _ in range(12)], expected)


def call(bench: Bench) -> None:
    with bench.make() as envs:
        name, expected = ("length", 5) if bench.toys else ("gravity", 9.8)
        assert envs.get_attr(name) == (expected,) * 3
        assert envs.call(name) == (expected,) * 3


def set_attr(bench: Bench) -> None:
    with bench.make() as envs:
        if bench.backend == "compiled":
            states = [[place, 0.5, 0.0, 0.0] for place in (-1.0, 0.0, 1.0)]
            envs.set_attr("state", states)
            np.testing.assert_array_equal(envs.get_attr("state"), states)
            envs.step(np.zeros(3, np.int64))  # moves on from there
            np.testing.assert_allclose([state[0] for state in envs.get_attr("state")], [-0.99, 0.01, 1.01])
            return
        name = "length" if bench.toys else "gravity"
        envs.set_attr(name, [3, 4, 6])
        assert envs.get_attr(name) == (3, 4, 6)


def render(bench: Bench) -> None:
    with bench.make(env=EchoEnv if bench.toys else None, render_mode="rgb_array") as envs:
        frames = envs.render()
        assert len(frames) == 3
        assert np.asarray(frames[0]).ndim == 3


def per_env_kwargs(bench: Bench) -> None:
    each = [{"length": 3}, {}, {"length": 4}] if bench.toys else [{}, {}, {}]
    with bench.make(per_env_kwargs=each) as envs:
        assert envs.get_attr("length") == (3, 5, 4)


def wrappers(bench: Bench) -> None:
    with bench.make(wrappers=[HalfReward]) as envs:
        rewards = envs.step(np.zeros(3, np.int64))[1]
        np.testing.assert_array_equal(rewards, 0.5)


class HalfReward(gym.RewardWrapper):  # type: ignore[type-arg]
    """Halves rewards; the first of `CountEnv` is 1."""

    def reward(self, reward: Any) -> float:
        return float(reward) / 2


def worker_restart(bench: Bench) -> None:
    with bench.make(backend_options={"on_worker_failure": "restart"}, **({"dies_at": 2} if bench.toys else {})) as envs:
        envs.step(np.zeros(3, np.int64))
        *_, truncations, infos = envs.step(np.zeros(3, np.int64))
        assert truncations.all()
        assert infos["worker_restarted"].all()


class TextEnv(CountEnv):
    """Observations are words."""

    def __init__(self, uid: int = 0) -> None:
        super().__init__(uid)
        self.observation_space: Any = gym.spaces.Text(9)

    def _observation(self) -> Any:
        return f"step{self.time}"


def custom_spaces(bench: Bench) -> None:
    with bench.make(env=TextEnv) as envs:
        assert tuple(envs.step(np.zeros(3, np.int64))[0]) == ("step1",) * 3


PROBES: dict[str, Callable[[Bench], None]] = {
    "NextStep": next_step,
    "SameStep": same_step,
    "Disabled": disabled,
    "partial reset": partial_reset,
    "per-env seeds": per_env_seeds,
    "batch_size": batch_size,
    "statistics": statistics,
    "copy=False": copy_false,
    "out=": out,
    "get_state": get_state,
    "call": call,
    "set_attr": set_attr,
    "render": render,
    "per_env_kwargs": per_env_kwargs,
    "wrappers": wrappers,
    "worker restart": worker_restart,
    "custom spaces": custom_spaces,
}


def cells() -> list[Any]:
    """Every cell; Ray starts slowly, so its cells are for the long run."""
    return [
        pytest.param(backend, feature, marks=[pytest.mark.slow] if backend == "ray" else [], id=f"{backend}-{feature}")
        for backend in TABLE
        for feature in FEATURES
    ]


@pytest.fixture(scope="module")
def _ray_cluster() -> Iterator[None]:
    """One cluster for all cells of Ray: starting one takes seconds."""
    connection = importlib.import_module("vecenv.ray_cluster").RayConnection("local", num_cpus=2)
    yield
    connection.release()


@pytest.mark.parametrize(("backend", "feature"), cells())
def test_cell_is_true(backend: str, feature: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(PACKAGES.get(backend, "gymnasium"))
    if backend == "ray":
        request.getfixturevalue("_ray_cluster")
    if TABLE[backend][feature] != REFUSED:
        PROBES[feature](Bench(backend))
        return
    with pytest.raises(REFUSALS) as caught:
        PROBES[feature](Bench(backend))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) > 20


def test_every_feature_has_a_probe() -> None:
    assert list(PROBES) == list(FEATURES)


def test_a_table_that_says_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("vecenv.compiled_backend")
    for wrong in ({}, {**module.CAPABILITIES, "render": "perhaps"}, {**module.CAPABILITIES, "flying": NATIVE}):
        monkeypatch.setattr(module, "CAPABILITIES", wrong)
        with pytest.raises(ValueError, match="CAPABILITIES of 'compiled'"):
            capabilities()


def test_readme_shows_the_table() -> None:
    """Else: replace what stands between the markers by the output of `vecenv doctor --capabilities`."""
    readme = (ROOT / "README.md").read_text()
    begin, end = (readme.index(marker) for marker in MARKERS)
    assert readme[begin + len(MARKERS[0]) : end].strip() == markdown_table()


def test_doctor_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--capabilities"]) == 0
    text = capsys.readouterr().out
    assert text.strip() == markdown_table()
    assert re.findall(r"^\| out= \| native \| native \|", text, re.MULTILINE)
    assert set(LEVELS) == {NATIVE, EMULATED, REFUSED}
