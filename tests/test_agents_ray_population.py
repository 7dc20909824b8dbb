"""ES on a real local Ray cluster: the same bits as without it, deaths survived, refusals, nothing left behind."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from es_learners import bits, end, learner, stop_after, trained
from gymnasium.error import ClosedEnvironmentError
from waiting import is_gone, wait_until

import vecenv
from vecenv.agents.es import ES
from vecenv.agents.es_config import ESConfig
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.population_dealing import WorkersNotReady
from vecenv.cores import usable_cores
from vecenv.errors import MissingExtra, WorkerDied
from vecenv.toy_envs import CountEnv

pytest.importorskip("ray", reason="Ray is not installed: pip install 'vecenv[ray]'")

from vecenv.agents.ray_population import MOST_REPLACEMENTS, RayEngine, Replacement
from vecenv.ray_backend import RayVecEnv
from vecenv.ray_cluster import NotEnoughResources
from vecenv.ray_group import WorkerRefused

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("one_ray_cluster", "one_torch_thread")]

#: A small share of a CPU: several engines fit on the cluster at a time.
CONFIG = ESConfig(num_pairs=3, hidden_size=8, normalise_observations=True, engine="ray", workers=2, ray_cpus=0.2)
INLINE = dataclasses.replace(CONFIG, engine="inline", workers=0, ray_cpus=1.0)


def engine_of(es: ES) -> RayEngine:
    assert isinstance(es.engine, RayEngine)
    return es.engine


@pytest.fixture(scope="module")
def inline() -> Iterator[tuple[bytes, bytes, dict[str, Any]]]:
    """Parameters after two and three generations inline, and the state between."""
    es = learner(INLINE)
    two = trained(es)
    state = es.state_dict()
    yield two, trained(es, 1), state
    end(es)


@pytest.fixture(scope="module")
def shared() -> Iterator[ES]:
    """A learner that tests use which leave its actors as they are."""
    es = learner(CONFIG)
    yield es
    end(es)


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_parameters_are_the_same_bits_for_any_number_of_actors(workers: int, inline: Any) -> None:
    es = learner(dataclasses.replace(CONFIG, workers=workers, pairs_at_once=2 if workers == 1 else 0))
    try:
        assert len(engine_of(es).pids) == workers
        assert trained(es) == inline[0]
    finally:
        end(es)


def test_a_run_goes_on_with_another_engine(shared: ES, inline: Any) -> None:
    before = shared.state_dict()
    shared.load_state_dict(inline[2])
    assert trained(shared, 1) == inline[1]
    shared.load_state_dict(before)
    assert trained(shared) == inline[0]
    back = learner(INLINE)
    back.load_state_dict(shared.state_dict())
    assert trained(back, 1) == inline[1]
    end(back)


def test_actors_of_a_cluster_of_our_own_do_not_give_way_to_other_processes(shared: ES) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in engine_of(shared).pids] == [own, own]


def test_little_comes_back(shared: ES) -> None:
    before = engine_of(shared).bytes_received
    assert shared.train_once().figures["pairs_used"] == 3
    assert engine_of(shared).bytes_received - before == 3 * (36 + 2 * 4 * 4)  # mean and variance of 4 components
    assert 36 + 2 * 4 * 4 <= 200


def test_a_stop_gives_the_generation_up_and_leaves_no_trace(shared: ES) -> None:
    state = shared.state_dict()
    expected = trained(shared, 1)
    shared.load_state_dict(state)
    with pytest.raises(CollectionInterrupted):
        shared.train_once(lambda: True)
    assert bits(shared) == state["parameters"].numpy().tobytes()
    assert trained(shared, 1) == expected


def test_a_dead_actor_is_named_its_pairs_played_and_its_place_taken(
    inline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    es = learner(CONFIG)
    engine = engine_of(es)
    try:
        es.train_once()
        first, second = engine.pids
        os.kill(first, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=rf"worker process {first} on .* died .*; the 1 other worker play its"):
            es.train_once()
        assert bits(es) == inline[0]
        assert engine.pids == [second]

        def is_replaced() -> bool:
            es.train_once()
            return len(engine.pids) == 2

        wait_until(is_replaced, 110.0)
        assert first not in engine.pids
        state = es.state_dict()
        wait = engine._group.wait

        def wait_for_those_in_their_places(references: dict[Any, Any], seconds: float) -> Any:
            return wait({one: of for one, of in references.items() if one not in engine._replacements}, seconds)

        monkeypatch.setattr(engine._group, "wait", wait_for_those_in_their_places)  # so that it comes too late
        os.kill(second, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=rf"worker process {second} on"):
            alone = trained(es, 1)  # by the new one
        es.load_state_dict(state)
        assert trained(es, 1) == alone
        replacements = engine._replacements
        assert len(replacements) == 1
        for reference, replacement in replacements.items():
            replacements[reference] = dataclasses.replace(replacement, deadline=0.0)
        with pytest.warns(RuntimeWarning, match=r"not replaced: there was no room for it within 120 s; 1 go on"):
            es.train_once()
        assert not replacements
    finally:
        end(es)


def test_without_any_actor_the_death_is_told_and_the_cluster_stays() -> None:
    import ray

    es = learner(dataclasses.replace(CONFIG, workers=1))
    (pid,) = engine_of(es).pids
    try:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"It ran on .*; no worker is left to play its pairs") as caught:
            es.train_once()
        assert caught.value.pid == pid
        assert caught.value.env_indices == (0, 1, 2, 3, 4, 5)
        assert es.generation == 0
        with pytest.raises(WorkerDied, match=r"no worker is left"):  # instead of a wait for nobody
            es.train_once(stop_after())
    finally:
        end(es)
    es.close()
    assert ray.is_initialized()


def test_an_actor_that_only_dies_is_not_replaced_for_ever(shared: ES) -> None:
    engine = engine_of(shared)
    worker = dataclasses.replace(engine._workers[0], replacements=MOST_REPLACEMENTS)
    engine._replace(worker)
    assert not engine._replacements


def test_after_an_answer_that_could_not_be_fetched_its_actor_plays_on(
    shared: ES, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise MemoryError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(engine_of(shared)._group, "fetch", refuse)
        with pytest.raises(MemoryError, match="planted"):
            shared.train_once(stop_after())
    assert shared.train_once(stop_after()).figures["pairs_used"] == 3
    # The other may still be at the generation given up while this one plays the next alone.
    is_over = stop_after()
    while any(worker.work is not None for worker in engine_of(shared)._workers):
        shared.train_once(is_over)


def test_a_replacement_that_dies_while_it_is_built_is_told(shared: ES, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(shared)
    group = SimpleNamespace(introduced=lambda *_: None, fetch=lambda *_: None, note_death=lambda *_: None)
    monkeypatch.setattr(engine, "_group", group)
    with pytest.warns(RuntimeWarning, match=r"not replaced: .* died .* built its environments; 2 go on"):
        engine._add_replacement(Replacement(dataclasses.replace(engine._workers[0]), None, 0.0), None)
    assert len(engine.pids) == 2


class FailingEnv(CountEnv):
    """Cannot be built where there is a number, otherwise refuses to count further than 3."""

    def __init__(self, process: int = 0) -> None:
        super().__init__(fails_at=3)
        if process not in (0, os.getpid()):
            raise OSError("no such device")


def test_an_environment_that_fails_is_told_with_its_own_error() -> None:
    es = learner(dataclasses.replace(CONFIG, workers=1), FailingEnv)
    try:
        with pytest.raises(ValueError, match="boom from env 0") as caught:
            es.train_once()
        assert isinstance(caught.value, vecenv.EnvError)
        with pytest.raises(ValueError, match="boom from env 0"):  # its actor is asked again
            es.train_once(stop_after())
        pids = engine_of(es).pids
    finally:
        end(es)
    assert len(pids) == 1
    with pytest.raises(ClosedEnvironmentError, match="after `close`"):
        es.train_once(stop_after())
    wait_until(lambda: all(is_gone(pid) for pid in pids), 60.0)


@pytest.mark.slow
def test_an_environment_that_cannot_be_built_is_told_with_its_own_error() -> None:
    with pytest.raises(OSError, match="no such device"):
        learner(dataclasses.replace(CONFIG, workers=1), functools.partial(FailingEnv, os.getpid()))


class HangingEnv(CountEnv):
    """Building it takes for ever in every process but one."""

    def __init__(self, process: int) -> None:
        super().__init__()
        if os.getpid() != process:
            time.sleep(100.0)


@pytest.mark.slow
def test_actors_that_hang_in_building_environments_end_in_an_error() -> None:
    config = dataclasses.replace(CONFIG, workers=1, start_timeout=15.0)
    with pytest.raises(WorkersNotReady, match=r"worker process \d+ on .* has not built .* within 15 s"):
        learner(config, functools.partial(HangingEnv, os.getpid()))


class LateEnv(CountEnv):
    """Its episode ends at once; the first process to make the file waits in its first one for another file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(length=1)
        self.folder = folder

    def step(self, action: Any) -> Any:
        try:
            os.close(os.open(self.folder / "late", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().step(action)
        deadline = time.monotonic() + 100.0
        while not (self.folder / "open").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().step(action)


@pytest.mark.slow
def test_a_late_actor_is_cut_off(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, pairs_at_once=1, report_share=0.6, normalise_observations=False)
    es = learner(config, functools.partial(LateEnv, tmp_path))
    engine = engine_of(es)
    try:
        for _ in range(3):
            assert es.train_once().figures["pairs_used"] == 2
        assert engine.bytes_received == 3 * 2 * 36
        (tmp_path / "open").touch()

        def is_back() -> bool:
            before, figures = engine.bytes_received, es.train_once().figures
            assert engine.bytes_received == before + 36 * figures["pairs_used"]
            return all(worker.work is None or worker.work.call == es.generation for worker in engine._workers)

        wait_until(is_back, 60.0)
    finally:
        end(es)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find_spec(name, *rest)
    )
    with pytest.raises(MissingExtra, match=r"vecenv\[ray\]"):
        learner(CONFIG)


def test_more_cpus_than_there_are_and_than_are_free() -> None:
    config = dataclasses.replace(CONFIG, num_pairs=8, workers=5, ray_cpus=1.0)
    with pytest.raises(NotEnoughResources, match=r"ask for 5 of 'CPU', .* has 2; use fewer workers.* ray_cpus, which"):
        learner(config)
    with RayVecEnv([CountEnv], num_workers=1, num_cpus=1.5):
        config = dataclasses.replace(config, workers=1, start_timeout=1.0)
        with pytest.raises(NotEnoughResources, match=r"not started within 1 s; it waits for 1 of 'CPU'"):
            learner(config)


@pytest.mark.slow
def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vecenv, "__version__", "99.1")
    with pytest.raises(WorkerRefused, match=r"worker 0 on .* has vecenv .*99\.1"):
        learner(dataclasses.replace(CONFIG, workers=1))


def test_what_cannot_be_sent_or_does_not_play_on_a_gpu_is_refused_before_ray_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vecenv.agents.ray_population.RayConnection", None)
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to a worker: .*lock"):
        learner(CONFIG, make_envs=lambda num_envs: lock)
    with pytest.raises(NotImplementedError, match=r"CPUs only: device must be cpu, got 'meta'"):
        learner(CONFIG, device="meta")


# -- in processes of their own, with clusters of their own ------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vecenv", "train", "es", "--env", "CartPole-v1", "--engine", "ray", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_an_address_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    finished = command("--run-dir", str(tmp_path / "run"), "--ray-address", "127.0.0.1:9")
    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert "no Ray cluster answers at 127.0.0.1:9" in finished.stderr


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_command_starts_a_cluster_and_ends_it(tmp_path: Path) -> None:
    words = ["--run-dir", str(tmp_path / "run"), "--total-steps", "400", "--num-pairs", "4"]
    finished = command(*words, "--workers", "4")
    if usable_cores() < 4:
        assert finished.returncode == 1
        assert "use fewer workers, or set aside less for each with ray_cpus" in finished.stderr
    finished = command(*words, "--workers", "2", "--ray-cpus", "0.1")
    assert finished.returncode == 0, finished.stderr
    assert "Ray" not in finished.stderr, finished.stderr
    (row, *_) = csv.DictReader((tmp_path / "run" / "metrics.csv").open())
    assert row["pairs_used"] == "4"


#: Two nodes, of which one dies; in a process of its own, since this one is connected already.
NODE_SCRIPT = """
import dataclasses, os, time, warnings
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only
os.environ["RAY_health_check_period_ms"] = "500"
import ray, torch
from ray.cluster_utils import Cluster
import vecenv
from vecenv.agents.es import ES, env_settings
from vecenv.agents.es_config import ESConfig

torch.set_num_threads(1)
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
config = ESConfig(num_pairs=4, hidden_size=8, engine="ray", ray_address=cluster.address, pairs_at_once=1)

def learner(config):
    envs = vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(config))
    return ES(envs, config, seed=3)

inline = learner(dataclasses.replace(config, engine="inline", ray_address=None))
es = learner(config)
assert len(es.worker_pids) == 2  # one per free CPU
es.train_once(), inline.train_once()
cluster.remove_node(second, allow_graceful=False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    deadline = time.monotonic() + 110
    while len(es.worker_pids) == 2 and time.monotonic() < deadline:
        es.train_once(), inline.train_once()
    es.train_once(), inline.train_once()
assert any("died" in str(one.message) for one in caught), [str(one.message) for one in caught]
assert torch.equal(es.parameters, inline.parameters)
third = cluster.add_node(**node)
deadline = time.monotonic() + 110
while len(es.worker_pids) < 2 and time.monotonic() < deadline:
    es.train_once(), inline.train_once()
assert len(es.worker_pids) == 2, "not replaced on the new node"
es.train_once(), inline.train_once()
assert torch.equal(es.parameters, inline.parameters)
es.close()
assert not ray.is_initialized()
cluster.shutdown()
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_that_dies(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(NODE_SCRIPT)
    finished = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=380, check=False)
    assert finished.stdout.strip().endswith("done"), finished.stdout + finished.stderr
