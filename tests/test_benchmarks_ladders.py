"""The ladders of PPO and ES: their simple rungs give the same results as what they are compared with."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecenv.agents.config import PPO_PRESETS, RunConfig
from vecenv.agents.es_config import ESConfig
from vecenv.agents.learner import CollectionInterrupted, Episode, UpdateReport
from vecenv.agents.population_evaluation import Broadcast
from vecenv.agents.population_network import build_policy_network
from vecenv.agents.train_arguments import read_arguments
from vecenv.benchmarks import bare_engine, ladder_es, ladder_ppo
from vecenv.benchmarks.ladder import CONTEXT_ONLY, LADDERS, find_ladder
from vecenv.benchmarks.ladder_training import TrainingContestant, TrainingSetup, train_to_mark
from vecenv.benchmarks.learner_watch import ReturnCurve, Stopwatch, roughness
from vecenv.benchmarks.one_by_one import OneByOneProcesses, OneByOneSetup


def small_ppo(backend="sync"):
    """Four envs, three updates of 32 steps, few enough to be quick."""
    config = ladder_ppo.config_of(4, backend)
    settings = dataclasses.replace(config.settings, num_steps=8, num_epochs=2, minibatch_size=16)
    return dataclasses.replace(config, settings=settings, device="cpu", precision="float32")


def rungs_of(key):
    return {rung.name: rung for table in find_ladder(key).tables for rung in table.rungs}


@pytest.mark.parametrize("key", LADDERS)
def test_notes_say_what_is_known_of_every_account_that_is_quoted(key):
    ladder = find_ladder(key)
    sources = {theirs.source for table in ladder.tables for rung in table.rungs for theirs in rung.documents}
    assert sources
    for source in sources:
        notes = [note for note in ladder.notes if source in note]
        assert any("written account" in note and CONTEXT_ONLY in note for note in notes), source


def trained_weights(config, make_envs=None):
    contestant = TrainingContestant(TrainingSetup(config, make_envs), warm_up_steps=90)
    try:
        learner = contestant.run.learner
        assert learner.env_steps >= 90
        return torch.cat([weights.detach().flatten() for weights in learner.network.parameters()])
    finally:
        contestant.close()


@pytest.mark.parametrize("backend", ["sync", "subproc"])
def test_copied_storage_trains_to_the_same_bits_as_storage_in_place(backend):
    config = small_ppo(backend)
    copied = trained_weights(config, ladder_ppo.make_copying_envs)
    assert torch.equal(copied, trained_weights(config))


def test_copied_storage_copies_and_what_is_in_place_does_not():
    config = small_ppo()
    for make_envs, is_shared in ((ladder_ppo.make_copying_envs, False), (None, True)):
        contestant = TrainingContestant(TrainingSetup(config, make_envs), warm_up_steps=0)
        try:
            run = contestant.run
            run.learner.train_once(lambda: False)
            ring = run.envs.observation_slots if is_shared else run.envs._envs.observation_slots
            storage = run.learner.rollout.observations
            assert (storage.data_ptr() == ring.ctypes.data) is is_shared
            assert len(storage) == config.settings.num_steps + 1
            assert len(ring) == (len(storage) if is_shared else 2)
        finally:
            contestant.close()


def test_every_rung_of_ppo_learns_equally_often_from_as_many_steps():
    rungs = rungs_of("ppo")
    assert list(rungs) == [
        "serial",
        "one-process",
        "worker-per-env",
        "worker-per-core",
        "in-place",
        "two-groups",
        "default",
    ]
    for rung in rungs.values():
        settings = rung.settings["settings"]
        assert settings["num_envs"] * settings["num_steps"] == ladder_ppo.ROWS
        rest = {name: value for name, value in settings.items() if name not in ("num_envs", "num_steps", "overlap")}
        default = dataclasses.asdict(PPO_PRESETS["classic-control"])
        assert rest == {name: default[name] for name in rest}
    assert rungs["two-groups"].settings["settings"]["overlap"] is True
    assert rungs["serial"].settings["copied_storage"] is True
    assert rungs["in-place"].settings["copied_storage"] is False


def test_the_last_rung_of_ppo_is_what_the_command_runs():
    arguments, _ = read_arguments("ppo", ["--env", "CartPole-v1", "--solve-at", "475"])
    config = dataclasses.replace(arguments.run_config(), seed=0)
    assert ladder_ppo.default_config() == config
    assert rungs_of("ppo")["default"].settings["settings"] == dataclasses.asdict(config.settings)


def test_shares_of_the_time_are_measured():
    contestant = ladder_ppo.WatchedPPO(TrainingSetup(small_ppo()))
    try:
        assert contestant.figures() == {}
        assert contestant.measure(0.05) > 0
        figures = contestant.figures()
    finally:
        contestant.close()
    assert set(figures) == {"busy share", "learning alone", "process on CPU"}
    assert 0.0 < figures["learning alone"] < figures["busy share"] <= 1.0
    assert figures["process on CPU"] > 0.0


def test_a_training_to_the_mark_tells_shares_and_roughness():
    config = dataclasses.replace(small_ppo(), solve_at=None)
    config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, total_steps=400))
    result = ladder_ppo.solve(TrainingSetup(config), seed=1, max_seconds=60.0)
    assert (result.solved, result.env_steps >= 400) == (False, True)
    assert set(result.figures) == {"busy share", "learning alone", "process on CPU", "roughness"}
    assert 0.0 < result.figures["roughness"] <= 1.0


def test_a_training_that_fails_has_not_reached_the_mark(capsys):
    def fail_after_one_update(run):
        def fail(stop_requested):
            train_once(lambda: False)
            raise FloatingPointError("the loss is nan")

        train_once, run.learner.train_once = run.learner.train_once, fail

    setup = TrainingSetup(dataclasses.replace(small_ppo(), solve_at=None), change=fail_after_one_update)
    result = train_to_mark(setup, seed=1, max_seconds=60.0)
    assert (result.solved, result.env_steps, result.mean_return) == (False, 32, None)
    assert 0.0 < result.seconds < 60.0
    assert "seed 1 failed: the loss is nan" in capsys.readouterr().err


def test_a_stopwatch_counts_one_method_of_one_object(monkeypatch):
    class Worker:
        def work(self, units, *, factor=1):
            clock[0] += units
            return units * factor

    clock, stopwatch, watched, other = [0.0], Stopwatch(), Worker(), Worker()
    monkeypatch.setattr("vecenv.benchmarks.learner_watch.time.perf_counter", lambda: clock[0])
    stopwatch.attach(watched, "work")
    assert watched.work(3, factor=2) == 6
    assert other.work(5) == 5
    assert stopwatch.seconds == 3.0


def test_roughness():
    assert roughness([0.0, 10.0, 20.0, 30.0]) == 0.0
    assert roughness([0.0, 10.0, 0.0, 10.0, 0.0]) == pytest.approx(1.0)
    assert roughness([0.0, 6.0, 4.0, 10.0]) == pytest.approx((128 / 9) ** 0.5 / 10.0)
    assert roughness([1.0, 2.0]) is None
    assert roughness([2.0, 2.0, 2.0]) is None


def test_a_curve_has_one_point_per_report_with_episodes():
    curve = ReturnCurve()
    curve.add(UpdateReport([Episode(1.0, 5), Episode(3.0, 5)], {}))
    curve.add(UpdateReport([], {}))
    assert curve.means == [2.0]
    assert curve.figures() == {}


def small_es(env_id, **changes):
    """Three pairs, short episodes."""
    settings = {"num_pairs": 3, "max_episode_steps": 12, "hidden_size": 8, "pairs_at_once": 1, **changes}
    return RunConfig(env_id, backend="sync", device="cpu", algorithm="es", settings=ESConfig(**settings))


def played(config, generations=2, **how):
    """Results of every generation, the parameters after the last one, and the bytes per pair that were counted."""
    change = partial(ladder_es.put_one_by_one, **how) if how else None
    contestant = ladder_es.PayloadCounted(TrainingSetup(config, change=change))
    try:
        learner, results = contestant.run.learner, []
        evaluate = learner.engine.evaluate
        learner.engine.evaluate = lambda *arguments: results.append(evaluate(*arguments)) or results[-1]
        for _ in range(generations):
            learner.train_once()
        return results, learner.parameters.detach().numpy().copy(), contestant.figures().get("bytes per pair")
    finally:
        contestant.close()


@pytest.mark.parametrize(
    ("env_id", "normalise"), [("CartPole-v1", False), ("CartPole-v1", True), ("Pendulum-v1", False)]
)
def test_one_by_one_plays_what_the_population_plays(env_id, normalise):
    config = small_es(env_id, normalise_observations=normalise, noise_std=0.5)
    ours, parameters, _ = played(config)
    theirs, their_parameters, _ = played(config, num_workers=0)
    for our_generation, their_generation in zip(ours, theirs, strict=True):
        assert [result.pair for result in their_generation] == [0, 1, 2]
        for our, their in zip(our_generation, their_generation, strict=True):
            assert their.lengths == our.lengths
            assert (their.generation, their.pair) == (our.generation, our.pair)
            np.testing.assert_allclose(their.returns, our.returns, rtol=1e-4)
            assert (their.moments is not None) is normalise
            if normalise:
                np.testing.assert_allclose(their.moments, our.moments, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(their_parameters, parameters, rtol=1e-4, atol=1e-5)


def test_processes_send_keys_or_noise_and_nothing_else_differs():
    config = small_es("CartPole-v1", normalise_observations=True)
    inline, parameters, _ = played(config, num_workers=0)
    seeds, seeds_parameters, seeds_bytes = played(config, num_workers=2)
    noise, noise_parameters, noise_bytes = played(config, num_workers=1, sends_noise=True)
    assert np.array_equal(parameters, seeds_parameters)
    assert np.array_equal(parameters, noise_parameters)
    returns = [[[result.returns for result in generation] for generation in run] for run in (inline, seeds, noise)]
    assert returns[0] == returns[1] == returns[2]
    assert seeds_bytes == 36 + 2 * 4 * 4  # and mean and variance of four numbers
    assert noise_bytes == seeds_bytes + 4 * len(parameters)


def test_payload_of_our_own_workers():
    config = small_es("CartPole-v1", engine="processes", workers=2)
    _, parameters, payload = played(config)
    inline = dataclasses.replace(config, settings=dataclasses.replace(config.settings, engine="inline", workers=0))
    _, inline_parameters, nothing = played(inline)
    assert payload == 36
    assert nothing is None
    assert np.array_equal(parameters, inline_parameters)


def test_rungs_of_es_are_named_and_say_what_they_need(monkeypatch):
    tables = {table.key: table for table in find_ladder("es").tables}
    assert [rung.name for rung in tables["cumulative"].rungs] == [
        "one-network",
        "noise-sent",
        "seeds-sent",
        "population-inline",
        "population",
        "envpool",
        "cuda",
    ]
    bases = {(table.key, rung.name): rung.base for table in tables.values() for rung in table.rungs}
    assert bases["cumulative", "envpool"] == "seeds-sent"
    assert bases["engines", "envpool"] == "bare-envpool"
    assert bases["engines", "population"] == "bare-gymnasium"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rungs = rungs_of("es")
    assert "no CUDA device" in rungs["cuda"].not_applicable()
    monkeypatch.setattr(ladder_es, "find_spec", lambda name: None)
    assert "EnvPool is not installed" in rungs["envpool"].not_applicable()
    assert rungs["population"].not_applicable() is None


def test_the_population_of_es_is_what_the_command_runs():
    arguments, _ = read_arguments("es", ["--env", "HalfCheetah-v5", "--solve-at", "1500", "--device", "cpu"])
    assert ladder_es.config_of("auto-fast") == arguments.run_config()


def test_a_bare_engine_steps_and_begins_again():
    player = bare_engine._make_player("CartPole-v1", 0)
    env, resets = player.args[0], []
    env.reset = lambda reset=env.reset, **keywords: resets.append(reset(**keywords)) or resets[-1]
    assert player() == bare_engine.STEPS_AT_ONCE
    assert 2 <= len(resets) <= bare_engine.STEPS_AT_ONCE // 5  # random play of CartPole ends after 10 to 50 steps
    players = bare_engine.bare_gymnasium("CartPole-v1", 1)
    try:
        assert players.measure(0.02) > 0
    finally:
        players.close()


def test_one_by_one_stops_when_asked():
    change = partial(ladder_es.put_one_by_one, num_workers=0)
    contestant = ladder_es.PayloadCounted(TrainingSetup(small_es("CartPole-v1"), change=change))
    try:
        learner = contestant.run.learner
        with pytest.raises(CollectionInterrupted):
            learner.train_once(lambda: True)
        assert (learner.generation, learner.env_steps) == (0, 0)
    finally:
        contestant.close()


@pytest.mark.timeout(120)
def test_processes_forget_a_generation_that_was_given_up_and_tell_their_end():
    config = small_es("CartPole-v1").settings
    space, actions = Box(-1.0, 1.0, (4,)), Discrete(2)
    weights = torch.nn.utils.parameters_to_vector(build_policy_network(space, actions, config, 0).parameters()).numpy()
    engine = OneByOneProcesses(OneByOneSetup("CartPole-v1", config, 0), 1)
    try:
        with pytest.raises(CollectionInterrupted):
            engine.evaluate(Broadcast(0, weights, None, None), lambda: True)
        results = engine.evaluate(Broadcast(1, weights, None, None), lambda: False)
        assert [(result.generation, result.pair) for result in results] == [(1, 0), (1, 1), (1, 2)]
        engine._processes.processes[0].kill()
        engine._processes.processes[0].join(30)
        with pytest.raises(RuntimeError, match="process 0 has ended with exit code -9"):
            engine.evaluate(Broadcast(2, weights, None, None), lambda: False)
    finally:
        engine.close()
