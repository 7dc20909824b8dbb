"""Processes that play a population: the same bits as without them, deaths survived, nothing left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from es_learners import end, learner, stop_after, trained
from forking_env import ForkingEnv, end_left_behind, has_sockets
from gymnasium.error import ClosedEnvironmentError
from waiting import is_gone, wait_until

import vecenv
from vecenv.agents.es import ES, env_settings
from vecenv.agents.es_config import ESConfig
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.population_processes import ProcessEngine
from vecenv.errors import UnknownSetting, WorkerDied
from vecenv.toy_envs import CountEnv

CONFIG = ESConfig(num_pairs=3, hidden_size=8, normalise_observations=True, engine="processes", workers=2)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def engine_of(es: ES) -> ProcessEngine:
    assert isinstance(es.engine, ProcessEngine)
    return es.engine


@pytest.fixture(scope="module")
def inline_parameters() -> bytes:
    es = learner(ESConfig(num_pairs=3, hidden_size=8, normalise_observations=True))
    try:
        return trained(es)
    finally:
        end(es)


@pytest.fixture
def processes() -> Iterator[ES]:
    es = learner(CONFIG)
    yield es
    end(es)


@pytest.mark.parametrize(("workers", "pairs_at_once", "started"), [(1, 2, 1), (9, 0, 3)])
def test_parameters_are_the_same_bits_for_any_number_of_workers(
    workers: int, pairs_at_once: int, started: int, inline_parameters: bytes
) -> None:
    config = ESConfig(
        num_pairs=3,
        hidden_size=8,
        normalise_observations=True,
        engine="processes",
        workers=workers,
        pairs_at_once=pairs_at_once,
    )
    es = learner(config)
    try:
        assert len(engine_of(es).pids) == started  # never more than there are pairs
        assert trained(es) == inline_parameters
        assert engine_of(es).bytes_received <= 2 * 3 * 200
    finally:
        end(es)


def test_pairs_of_a_dead_worker_are_played_by_the_others(processes: ES, inline_parameters: bytes) -> None:
    processes.train_once()
    os.kill(engine_of(processes).pids[0], signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="SIGKILL.*; the 1 other worker play its pairs"):
        processes.train_once()
    assert len(engine_of(processes).pids) == 1
    assert processes.parameters.detach().numpy().tobytes() == inline_parameters


@pytest.mark.filterwarnings("ignore:worker process:RuntimeWarning")
def test_without_any_worker_the_death_is_told(processes: ES) -> None:
    pids = engine_of(processes).pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="ended by SIGKILL") as caught:
        processes.train_once()
    assert caught.value.pid in pids
    assert processes.generation == 0
    with pytest.raises(WorkerDied, match="no worker is left") as again:  # instead of a wait for nobody
        processes.train_once(stop_after())
    assert again.value.pid == caught.value.pid


@pytest.mark.parametrize("natively", [False, True])
def test_a_death_is_noticed_though_an_environment_has_left_a_process_behind(natively: bool, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    # The parameters are more than a socket takes that nobody reads.
    config = ESConfig(num_pairs=2, hidden_size=512, engine="processes", workers=1)
    es = learner(config, functools.partial(ForkingEnv, path, natively))
    try:
        es.train_once()
        if not natively:
            wait_until(lambda: not has_sockets(path), 20.0)
        os.kill(engine_of(es).pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="ended by SIGKILL"):
            es.train_once(stop_after(20.0))
    finally:
        end(es)
        end_left_behind(path)


def test_a_stop_gives_the_generation_up_and_leaves_no_trace(processes: ES, inline_parameters: bytes) -> None:
    processes.train_once()
    with pytest.raises(CollectionInterrupted):
        processes.train_once(lambda: True)
    assert processes.generation == 1
    processes.train_once()
    assert processes.parameters.detach().numpy().tobytes() == inline_parameters


def test_after_an_interrupt_in_the_middle_of_a_message_nobody_waits_for_its_answer(
    processes: ES, inline_parameters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.train_once()
    worker = engine_of(processes)._workers[0]
    send_part = worker.channel.send_part

    def send_and_interrupt(data: memoryview) -> int:
        send_part(data[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(worker.channel, "send_part", send_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        processes.train_once(stop_after())
    assert worker.process.join(20.0)
    with pytest.warns(RuntimeWarning, match="SIGKILL.*; the 1 other worker play its pairs"):
        processes.train_once(stop_after())
    assert processes.parameters.detach().numpy().tobytes() == inline_parameters


def test_closing_ends_the_workers_and_may_be_repeated() -> None:
    es = learner(CONFIG)
    pids = engine_of(es).pids
    es.close()
    es.close()
    es.envs.close()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(ClosedEnvironmentError, match="after `close`"):
        es.train_once(stop_after())


def test_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            import vecenv
            from vecenv.agents.es import ES, env_settings
            from vecenv.agents.es_config import ESConfig
            config = ESConfig(num_pairs=4, hidden_size=8, engine="processes", workers=1)
            es = ES(vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(config)), config)
            if os.fork() == 0:  # a child of the learner's own, which outlives it
                time.sleep(30)
                os._exit(0)
            print(*es.engine.pids, flush=True)
            while True:
                es.train_once()
            """
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 1
    finally:
        process.kill()
        process.wait(timeout=20)
    wait_until(lambda: all(is_gone(pid) for pid in pids), 10.0)


class Failing(CountEnv):
    """Refuses to count further than 3."""

    def __init__(self) -> None:
        super().__init__(fails_at=3)


class FailingOnce(CountEnv):
    """The first to make the file raises; the others play."""

    def __init__(self, folder: Path) -> None:
        super().__init__(length=1)
        self.folder = folder

    def step(self, action: Any) -> Any:
        try:
            os.close(os.open(self.folder / "failed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().step(action)
        raise ValueError("not yet")


class Unbuildable(gym.Env[Any, Any]):
    """Can be built in one process only."""

    def __init__(self, process: int) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2)
        if os.getpid() != process:
            raise OSError("no such device")


def test_an_environment_that_fails_is_told_with_its_own_error() -> None:
    es = learner(ESConfig(num_pairs=2, hidden_size=8, engine="processes", workers=1), Failing)
    try:
        with pytest.raises(ValueError, match="boom from env 0") as caught:
            es.train_once()
        assert isinstance(caught.value, vecenv.errors.EnvError)
    finally:
        end(es)


@pytest.mark.parametrize("workers", [1, 2])
def test_after_an_error_of_an_environment_its_worker_plays_on(workers: int, tmp_path: Path) -> None:
    config = ESConfig(num_pairs=2, hidden_size=8, engine="processes", workers=workers)
    es = learner(config, functools.partial(FailingOnce, tmp_path))
    try:
        with pytest.raises(ValueError, match="not yet"):
            es.train_once(stop_after())
        assert es.train_once(stop_after()).figures["pairs_used"] == 2
        # The one that did not fail may still be at the generation given up while the other plays this one alone.
        is_over = stop_after()
        while any(worker.work is not None for worker in engine_of(es)._workers):
            es.train_once(is_over)
    finally:
        end(es)


def test_an_environment_that_cannot_be_built_is_told_with_its_own_error() -> None:
    config = ESConfig(num_pairs=2, hidden_size=8, engine="processes", workers=1)
    with pytest.raises(OSError, match="no such device"):
        learner(config, functools.partial(Unbuildable, os.getpid()))


def test_engines_that_cannot_know_their_environments_ask_for_a_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ESConfig(num_pairs=2, hidden_size=8, engine="processes", workers=1)
    envs = vecenv.make_vec("CartPole-v1", 1, "sync")
    monkeypatch.setattr(envs, "env_fns", None)
    try:
        with pytest.raises(UnknownSetting, match="pass make_envs"):
            ES(envs, config)
        made = []

        def make_envs(num_envs: int) -> vecenv.VecEnv:
            made.append(num_envs)  # in the worker, on its own copy
            return vecenv.make_vec("CartPole-v1", num_envs, "sync")

        es = ES(envs, config, make_envs=make_envs)
        try:
            assert es.train_once().figures["generation"] == 1
            assert made == []
        finally:
            es.close()
    finally:
        envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["envpool", "compiled"])
def test_workers_step_on_the_engine_of_the_environments(backend: str) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool")
    parameters = []
    for engine in ("inline", "processes"):
        config = ESConfig(num_pairs=3, hidden_size=8, engine=engine, workers=int(engine == "processes"))  # type: ignore[arg-type]
        envs = vecenv.make_vec("CartPole-v1", backend=backend, **env_settings(config))
        es = ES(envs, config, seed=1)
        try:
            parameters.append(trained(es))
        finally:
            end(es)
    assert parameters[0] == parameters[1]
    assert np.isfinite(np.frombuffer(parameters[0], np.float32)).all()
