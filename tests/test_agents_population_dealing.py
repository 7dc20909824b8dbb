"""Dealing the pairs of a generation: late workers cut off, workers that hang, what the update makes of fewer pairs."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import vecenv
from vecenv.agents.es import ES, env_settings
from vecenv.agents.es_config import ESConfig
from vecenv.agents.perturbation import centered_ranks, draw_noise, estimate_gradient
from vecenv.agents.population_dealing import Deal, WorkersNotReady
from vecenv.agents.population_evaluation import PairResult
from vecenv.agents.population_processes import ProcessEngine
from vecenv.errors import UnknownSetting

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CONFIG = ESConfig(num_pairs=6, hidden_size=8)


def report(pair: int) -> bytes:
    return PairResult(0, pair, (float(pair), -float(pair)), (1, 2), None).pack()


def test_pairs_are_dealt_once_and_again_after_a_death() -> None:
    deal = Deal(CONFIG, 4)
    assert deal.next() == [0, 1, 2, 3]
    assert deal.next() == [4, 5]
    assert deal.next() is None
    deal.give_back([0, 1, 2, 3])
    assert deal.next() == [0, 1, 2, 3]
    deal.take(report(5) + report(4))
    assert not deal.is_enough
    deal.take(b"".join(report(pair) for pair in range(4)))
    assert deal.is_enough
    assert [result.pair for result in deal.results()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_pairs", "share", "needed"), [(30, 0.1, 3), (30, 0.101, 4), (4, 0.01, 1), (4, 1.0, 4), (7, 0.99, 7)]
)
def test_the_share_is_rounded_up(num_pairs: int, share: float, needed: int) -> None:
    deal = Deal(ESConfig(num_pairs=num_pairs, engine="processes", report_share=share), 1)
    for pair in range(needed):
        assert not deal.is_enough
        deal.take(report(pair))
    assert deal.is_enough


def test_pairs_without_noise_have_a_share_of_their_own() -> None:
    deal = Deal(ESConfig(num_pairs=2, unperturbed_pairs=2, engine="processes", report_share=0.5), 1)
    deal.take(report(0) + report(1))
    assert not deal.is_enough  # nothing yet to judge the parameters by
    deal.take(report(3))
    assert deal.is_enough
    deal = Deal(ESConfig(num_pairs=2, unperturbed_pairs=2, engine="processes", report_share=0.5), 1)
    deal.take(report(2) + report(3))
    assert not deal.is_enough


def test_the_gradient_of_some_pairs_takes_their_own_noise() -> None:
    weights, noise_std, size, pairs = np.array([0.5, -0.2, -0.3, 0.1]), 0.1, 40, [1, 4]
    expected = ((0.5 + 0.2) * draw_noise(4, 2, 1, size) + (-0.3 - 0.1) * draw_noise(4, 2, 4, size)) / (4 * noise_std)
    assert estimate_gradient(4, 2, weights, noise_std, size, pairs) == pytest.approx(expected, rel=1e-6)
    assert estimate_gradient(4, 2, weights, noise_std, size) != pytest.approx(expected, rel=1e-2)


def test_the_update_of_a_generation_of_which_some_pairs_were_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(CONFIG, unperturbed_pairs=2)
    es = ES(vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(config)), config, seed=6)
    before = es.parameters.detach().clone()
    original, kept, played = es.engine.evaluate, [0, 2, 3, 7], list[PairResult]()

    def evaluate(broadcast: Any, stop_requested: Any) -> list[PairResult]:
        played[:] = [result for result in original(broadcast, stop_requested) if result.pair in kept]
        return played

    monkeypatch.setattr(es.engine, "evaluate", evaluate)
    figures = es.train_once().figures
    es.envs.close()
    returns = np.array([total for result in played[:3] for total in result.returns])
    weights = centered_ranks(returns)
    assert len(set(weights)) > 2  # otherwise wrong noise would not show
    gradient = torch.zeros(len(before))
    for place, pair in enumerate([0, 2, 3]):
        difference = float(weights[2 * place] - weights[2 * place + 1])
        gradient += difference * torch.from_numpy(draw_noise(6, 0, pair, len(before)))
    gradient /= 6 * config.noise_std
    expected = nn.Parameter(before.clone())
    expected.grad = -gradient
    torch.optim.Adam([expected], config.learning_rate).step()
    torch.testing.assert_close(es.parameters.detach(), expected.detach(), rtol=0, atol=1e-6)
    assert figures["pairs_used"] == 3
    assert figures["population_mean"] == pytest.approx(returns.mean())
    assert figures["unperturbed_mean"] == pytest.approx(np.mean(played[3].returns))
    assert es.env_steps == sum(sum(result.lengths) for result in played)


def test_a_share_needs_workers_that_can_be_late() -> None:
    with pytest.raises(UnknownSetting, match="engine processes or ray"):
        ESConfig(report_share=0.5)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(UnknownSetting, match="report_share"):
            ESConfig(engine="processes", report_share=share)


class FirstLateEnv(gym.Env[Any, Any]):
    """One step. The first to make the file ``late`` waits in it until there is a file ``open``, and raises if told."""

    def __init__(self, folder: Path, fails: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.folder, self.fails = folder, fails

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([0.5, -0.5], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            os.close(os.open(self.folder / "late", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            deadline = time.monotonic() + 60.0
            while not (self.folder / "open").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            if self.fails:
                raise OSError("too late to matter")
        return np.array([0.5, -0.5], np.float32), float(action[0]), True, False, {}


@pytest.fixture
def gated(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ES]:
    """Two workers, of which one is late, and fails then if the parameter says so."""
    config = dataclasses.replace(CONFIG, engine="processes", workers=2, pairs_at_once=1, report_share=0.8)
    env_fn = functools.partial(FirstLateEnv, tmp_path, fails=getattr(request, "param", False))
    envs = vecenv.make_vec(env_fn, backend="sync", **env_settings(config))
    es = ES(envs, config, seed=1)
    yield es
    es.close()
    envs.close()


def test_a_late_worker_is_cut_off_and_what_it_says_later_is_not_looked_at(gated: ES, tmp_path: Path) -> None:
    assert isinstance(gated.engine, ProcessEngine)
    for generation in range(1, 21):  # its channel does not fill up meanwhile
        figures = gated.train_once().figures
        assert figures["pairs_used"] == 5, generation
    received = gated.engine.bytes_received
    assert received == 20 * 5 * 36
    assert gated.env_steps == 20 * 5 * 2
    (tmp_path / "open").touch()
    deadline = time.monotonic() + 20.0
    while any(worker.work is not None and worker.work.call < gated.generation for worker in gated.engine._workers):
        assert time.monotonic() < deadline
        before = gated.engine.bytes_received
        pairs_used = gated.train_once().figures["pairs_used"]
        assert pairs_used in (5, 6)
        assert gated.engine.bytes_received == before + 36 * pairs_used


@pytest.mark.parametrize("gated", [True], indirect=True)
def test_the_error_of_a_worker_that_was_cut_off_does_not_end_the_run(gated: ES, tmp_path: Path) -> None:
    assert isinstance(gated.engine, ProcessEngine)
    gated.train_once()
    gated.train_once()
    late = [worker for worker in gated.engine._workers if worker.work is not None and worker.work.call == 1]
    assert len(late) == 1
    (tmp_path / "open").touch()
    deadline = time.monotonic() + 20.0

    def train_until_it_reports() -> None:
        while late[0].work is not None and late[0].work.call == 1:
            assert time.monotonic() < deadline
            assert gated.train_once().figures["pairs_used"] in (5, 6)

    with pytest.warns(RuntimeWarning, match=rf"{late[0].name} failed in .* no longer waits for: .*too late to matter"):
        train_until_it_reports()
    assert len(gated.engine.pids) == 2


class HangingEnv(FirstLateEnv):
    """Building it takes for ever in every process but one."""

    def __init__(self, process: int) -> None:
        super().__init__(Path())
        if os.getpid() != process:
            time.sleep(60.0)


def test_workers_that_hang_in_building_environments_end_in_an_error() -> None:
    config = dataclasses.replace(CONFIG, engine="processes", workers=2, start_timeout=1.0)
    envs = vecenv.make_vec(functools.partial(HangingEnv, os.getpid()), backend="sync", **env_settings(config))
    started = time.monotonic()
    with pytest.raises(
        WorkersNotReady, match=r"worker process \d+, worker process \d+ have not .* within 1 s; .*start_timeout"
    ):
        ES(envs, config)
    assert time.monotonic() - started < 30.0
    envs.close()


def test_what_cannot_be_sent_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.agents.population_processes.PopulationWorker", None)
    config, lock = dataclasses.replace(CONFIG, engine="processes", workers=1), threading.Lock()
    envs = vecenv.make_vec("CartPole-v1", 1, "sync")
    with pytest.raises(TypeError, match=r"cannot be sent to a worker: .*lock"):
        ES(envs, config, make_envs=lambda num_envs: lock)  # type: ignore[arg-type, return-value]
    envs.close()
