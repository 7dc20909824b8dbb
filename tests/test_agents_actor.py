"""Actor processes: what they write, how far they run ahead, and how they end."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from forking_env import ForkingEnv, end_left_behind, has_sockets
from waiting import is_gone, wait_until

import vecenv
from vecenv.agents.actor_process import PlayedMessage
from vecenv.agents.dqn import DQN, env_settings
from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.learner import Episode
from vecenv.errors import EnvError, WorkerDied
from vecenv.pickling import dumps
from vecenv.toy_envs import CountEnv

pytestmark = pytest.mark.timeout(120)

CONFIG = DQNConfig(
    num_envs=4,
    num_actors=2,
    total_steps=100_000,
    replay_capacity=4_000,
    learning_starts=100,
    minibatch_size=8,
    steps_per_update=16.0,
    hidden_size=8,
    double=False,
    num_return_steps=1,
    report_steps=200,
)


class UnpicklableError(Exception):
    """An exception that no pickle brings over whole."""

    def __init__(self):
        super().__init__("cannot travel")
        self.lock = threading.Lock()


class FailingEnv(CountEnv):
    """`CountEnv` that raises an exception of its own class."""

    def step(self, action):
        if self.time == 3:
            raise UnpicklableError
        return super().step(action)


ONE = dataclasses.replace(CONFIG, num_actors=1)
"""Starting a process costs seconds: what needs one only gets one."""


@pytest.fixture
def make_learner():
    """Builds learners, and ends their processes after the test."""
    made = []

    def make(env_fns, config=CONFIG, start=True):
        envs = vecenv.SyncVecEnv(env_fns, copy=False, slots=2, statistics=True)
        learner = DQN(envs, config, precision="float32")
        made.append(learner)
        if start:
            learner.reset(0)
        return learner

    yield make
    for learner in made:
        learner.close()
        learner.envs.close()


def counters(num_envs=4, **settings):
    return [lambda uid=uid: CountEnv(uid, 6 + uid, **settings) for uid in range(num_envs)]


def train_on(learner, stop_requested=lambda: False):
    """Train far longer than it takes until something goes wrong."""
    for _ in range(1000):
        learner.train_once(stop_requested)


def test_rows_are_what_the_environments_did_and_updates_keep_the_ratio(make_learner):
    learner = make_learner(counters())
    reports = []

    def every_environment_has_ended_an_episode():  # an actor may begin long after the other
        reports.append(learner.train_once())
        ended = {episode.length for report in reports for episode in report.episodes}
        return learner.env_steps >= 800 and len(ended) == 4

    wait_until(every_environment_has_ended_an_episode, 90.0)
    assert learner.learning.updates == int((learner.env_steps - 100) / 16)
    batch = learner.replay.sample(10_000)
    uid, episode, now = batch.observations.T
    assert set(uid) == {0, 1, 2, 3}
    np.testing.assert_array_equal(batch.next_observations[:, :2], np.stack([uid, episode], axis=1))
    np.testing.assert_array_equal(batch.next_observations[:, 2], now + 1)
    np.testing.assert_array_equal(batch.returns, now + 1)
    np.testing.assert_array_equal(batch.discounts == 0, now + 1 == 6 + uid)
    streams = batch.places // learner.replay.spec.num_slots
    np.testing.assert_array_equal(streams, uid)
    episodes = [episode for report in reports for episode in report.episodes]
    assert {episode.length for episode in episodes} == {6, 7, 8, 9}
    assert all(episode.total_reward == episode.length * (episode.length + 1) / 2 for episode in episodes)
    figures = reports[-1].figures
    assert figures["updates"] == learner.learning.updates
    assert 0 <= figures["updates_behind"] <= learner.learning.updates
    assert figures["queued_steps"] > 0


def test_actors_do_not_run_away_from_a_learner_that_is_busy(make_learner):
    learner = make_learner(counters())
    steps = 0
    wait_until(lambda: all(actor.channel.fileno() >= 0 for actor in learner.actors._actors), 90.0)

    def all_permits_are_used():
        nonlocal steps
        steps += learner.actors.receive().env_steps  # and nothing is sent: no new permits
        return sum(actor.owed for actor in learner.actors._actors) == 2 * CONFIG.actor_steps_ahead

    wait_until(all_permits_are_used, 90.0)
    for _ in range(5):
        assert learner.actors.receive().env_steps == 0
    assert steps == 4 * CONFIG.actor_steps_ahead  # no episode has ended yet, so every row is a real step
    learner.actors.send(learner.learning.network, steps, 0, "float32")
    wait_until(all_permits_are_used, 90.0)


def test_messages_are_small_whatever_the_observations_are():
    message = PlayedMessage(np.zeros(8, np.int64), 8, [Episode(1.0, 2)], 5)
    assert len(pickle.dumps(message)) < 600


def test_one_constructor_serves_all_environments():
    envs = vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(CONFIG))
    assert envs.num_envs == 1
    learner = DQN(envs, CONFIG, precision="float32")
    learner.reset(0)
    # One process may start much later than the other, and a report ends when nothing has come for long.
    while not (learner.replay.written.all() and learner.env_steps >= 200):
        learner.train_once()
    starts = {tuple(row) for row in learner.replay.memory.frames[:, 0].tolist()}
    assert len(starts) == 4  # each environment has a seed of its own
    learner.close()
    envs.close()


def test_a_killed_actor_is_reported_and_close_still_works(make_learner):
    learner = make_learner(counters(seconds=0.01))
    learner.train_once()
    victim, other = learner.actors.pids
    os.kill(victim, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match=r"environments 0, 1\).*SIGKILL") as caught:
        train_on(learner)
    assert time.monotonic() - started < 10
    assert caught.value.pid == victim
    assert caught.value.env_indices == (0, 1)
    learner.close()
    assert is_gone(other)
    learner.close()


@pytest.mark.parametrize("natively", [False, True])
def test_a_death_is_noticed_though_an_environment_has_left_a_process_behind(natively, make_learner, tmp_path):
    path = tmp_path / "pid"
    learner = make_learner([lambda: ForkingEnv(path, natively)], ONE)
    try:
        learner.train_once()
        if not natively:
            wait_until(lambda: not has_sockets(path), 20.0)
        [victim] = learner.actors.pids
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 20
        with pytest.raises(WorkerDied, match="SIGKILL"):  # a stop would end it by another error
            train_on(learner, lambda: time.monotonic() > deadline)
    finally:
        end_left_behind(path)


class MarkingEnv(CountEnv):
    """`CountEnv` that leaves a file when it is closed."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        self.path.touch()


def test_actors_close_their_environments(make_learner, tmp_path, monkeypatch):
    monkeypatch.setattr("vecenv.agents.dqn_actors.END_SECONDS", 60.0)  # then they are ended, whatever they are at
    paths = [tmp_path / str(index) for index in range(2)]
    config = dataclasses.replace(CONFIG, num_envs=2, num_actors=1)
    learner = make_learner([lambda path=path: MarkingEnv(path) for path in paths], config)
    learner.train_once()
    learner.actors.close()
    assert all(path.exists() for path in paths)


def test_an_actor_that_ends_before_it_plays_is_reported(make_learner):
    learner = make_learner(counters(dies_at=1), ONE)
    with pytest.raises(WorkerDied):
        train_on(learner)


def test_an_environments_error_comes_with_its_number_and_class(make_learner):
    fns = counters()
    fns[3] = lambda: CountEnv(3, 9, fails_at=4)
    learner = make_learner(fns, ONE)
    with pytest.raises(ValueError, match=r"environment 3 .*boom from env 3") as caught:
        train_on(learner)
    assert isinstance(caught.value, EnvError)
    fns[3] = FailingEnv
    learner = make_learner(fns, ONE)
    with pytest.raises(EnvError, match=r"environment 3 .*UnpicklableError.*cannot travel"):
        train_on(learner)

    def broken():
        raise OSError("no such device")

    learner = make_learner([CountEnv], dataclasses.replace(ONE, num_envs=2), start=False)
    learner.actors._functions = [dumps(broken)] * 2
    learner.reset(0)
    with pytest.raises(EnvError, match="no such device"):
        train_on(learner)


def test_environments_that_take_long_are_played_side_by_side_and_a_stop_is_noticed(make_learner):
    config = dataclasses.replace(CONFIG, num_envs=2, learning_starts=1_000, report_steps=1_000)
    learner = make_learner(counters(2, seconds=0.3), config)
    wait_until(lambda: learner.train_once(lambda: learner.env_steps > 0).episodes is not None, 90.0)
    asked, before = time.monotonic(), learner.env_steps
    report = learner.train_once(lambda: time.monotonic() > asked + 0.5 and learner.env_steps > before)
    assert time.monotonic() - asked < 8  # of the 10 s after which a report ends by itself
    assert learner.env_steps < 1_000
    assert report.figures["loss"] is None
    pids = learner.actors.pids
    started = time.monotonic()
    learner.close()
    assert time.monotonic() - started < 10
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.slow
def test_a_second_reset_begins_new_episodes_with_new_processes(make_learner):
    learner = make_learner(counters(), ONE)
    learner.train_once()
    before, size, steps = learner.actors.pids, learner.replay.size, learner.env_steps
    learner.reset(7)
    assert all(is_gone(pid) for pid in before)
    while learner.env_steps < steps + 200:  # a report ends when nothing has come for long
        learner.train_once()
    assert learner.replay.size - size >= learner.env_steps - steps - 4
    batch = learner.replay.sample(500)
    np.testing.assert_array_equal(batch.next_observations[:, 2], batch.observations[:, 2] + 1)


@pytest.mark.slow
def test_a_run_with_actors_resumes_with_its_weights_and_its_replay(make_learner, tmp_path):
    config = dataclasses.replace(ONE, num_return_steps=3, prioritized=True, noisy=True)
    learner = make_learner(counters(), config)
    for _ in range(3):
        learner.train_once()
    assert learner.env_states() is None
    learner.save_files(tmp_path)
    state, size = learner.state_dict(), learner.replay.size
    learner.close()
    again = make_learner(counters(), config, start=False)
    again.load_state_dict(state, tmp_path)
    assert again.replay.size == size
    again.reset(3)
    while again.env_steps < state["env_steps"] + 200:
        again.train_once()
    assert again.learning.updates > state["learning"]["updates"]
    batch = again.replay.sample(500)
    assert (batch.next_observations[:, 2] > batch.observations[:, 2]).all()
    for name, tensor in state["learning"]["network"].items():
        assert torch.isfinite(tensor).all(), name


def test_back_ends_without_constructors_are_refused():
    envs = vecenv.SyncVecEnv([CountEnv], copy=False, statistics=True)
    del envs.env_fns
    with pytest.raises(NotImplementedError, match="backend sync or subproc"):
        DQN(envs, CONFIG)
    envs = vecenv.SyncVecEnv([CountEnv] * 3, copy=False, statistics=True)
    with pytest.raises(ValueError, match="1 or num_envs=4"):
        DQN(envs, CONFIG)


SCRIPT = """
import os, sys, time, torch, vecenv
from vecenv.agents.dqn import DQN, env_settings
from vecenv.agents.dqn_config import DQNConfig
config = DQNConfig(num_envs=2, num_actors=1, learning_starts=100, minibatch_size=8, hidden_size=8, report_steps=50)
envs = vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(config))
learner = DQN(envs, config)
learner.reset(0)
learner.train_once()
if os.fork() == 0:  # a child of the learner's own, which outlives it
    time.sleep(20)
    os._exit(0)
print(*learner.actors.pids, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["time.sleep(60)", "raise ValueError('planted')"])
def test_actors_end_with_the_learners_process_however_it_ends(ending):
    process = subprocess.Popen(  # an unguarded script, as people write them
        [sys.executable, "-c", SCRIPT.format(ending=ending)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 1, process.stderr.read()
        if "sleep" in ending:
            assert not any(is_gone(pid) for pid in pids)
            process.kill()
        code = process.wait(timeout=20)
        assert code == (-signal.SIGKILL if "sleep" in ending else 1)
        wait_until(lambda: all(is_gone(pid) for pid in pids), 5.0)
    finally:
        process.kill()
        process.wait(timeout=20)
