"""Evolution strategies as a learner: update, best parameters, resume, learning, refusals, the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import vecenv
from vecenv.agents import evaluation, train
from vecenv.agents.agent import Agent
from vecenv.agents.algorithms import find_algorithm, preset_for, run_config_from_dict
from vecenv.agents.checkpoint import load_checkpoint, save_checkpoint, to_plain
from vecenv.agents.config import RunConfig
from vecenv.agents.es import ALGORITHM, ES, env_settings, evaluation_policy
from vecenv.agents.es_config import ES_PRESETS, ESConfig
from vecenv.agents.metrics import read_metrics
from vecenv.agents.perturbation import centered_ranks, draw_noise
from vecenv.agents.population_engine import ENGINES, EngineRequest
from vecenv.agents.train_arguments import read_arguments
from vecenv.errors import UnknownSetting

SMALL = ESConfig(num_pairs=4, hidden_size=8, noise_std=0.5)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class PushEnv(gym.Env[Any, Any]):
    """One step: the reward is what ``score`` makes of the action. The observation is the same every time."""

    def __init__(self, score: str = "action", reward: float | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([0.5, -0.5], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action[0]) if self.reward is None else self.reward
        return np.array([0.5, -0.5], np.float32), reward, True, False, {}


def push_learner(config: ESConfig, seed: int = 0, reward: float | None = None) -> ES:
    envs = vecenv.SyncVecEnv([lambda: PushEnv(reward=reward)] * config.num_envs)
    return ES(envs, config, seed=seed)


def cartpole_learner(config: ESConfig, seed: int = 0) -> ES:
    return ES(vecenv.make_vec("CartPole-v1", backend="sync", **env_settings(config)), config, seed=seed)


def bits(es: ES) -> bytes:
    return es.parameters.detach().numpy().tobytes()


def test_one_update_is_adam_on_the_estimated_gradient() -> None:
    config = dataclasses.replace(SMALL, weight_decay=0.1, learning_rate=0.01)
    es = push_learner(config, seed=6)
    before = es.parameters.detach().clone()
    noises = [torch.from_numpy(draw_noise(6, 0, pair, len(before))) for pair in range(4)]
    report = es.train_once()
    returns = np.array([episode.total_reward for episode in report.episodes])
    gradient = torch.zeros(len(before))
    for member, weight in enumerate(centered_ranks(returns)):
        gradient += float(weight) * (-1) ** member * noises[member // 2]
    gradient /= len(returns) * config.noise_std
    expected = nn.Parameter(before.clone())
    expected.grad = -gradient
    torch.optim.Adam([expected], 0.01, weight_decay=0.1).step()
    torch.testing.assert_close(es.parameters.detach(), expected.detach(), rtol=0, atol=1e-6)
    assert report.figures["gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)
    network_shapes = [8 * 2, 8, 8 * 8, 8, 8, 1]
    norms = [float(part.norm()) for part in torch.split(expected.detach() - before, network_shapes)]
    assert report.figures["mean_update_norm"] == pytest.approx(np.mean(norms), rel=1e-4)


def test_figures_tell_of_the_population_and_name_the_same_columns_every_time() -> None:
    es = push_learner(SMALL)
    reports = [es.train_once() for _ in range(3)]
    assert len({tuple(report.figures) for report in reports}) == 1
    returns = np.array([episode.total_reward for episode in reports[0].episodes])
    figures = reports[0].figures
    assert len(returns) == 8
    assert figures["population_mean"] == pytest.approx(returns.mean())
    assert figures["population_std"] == pytest.approx(returns.std())
    assert figures["population_max"] == pytest.approx(returns.max())
    assert figures["unperturbed_mean"] is None
    for name in ("gather_seconds", "train_seconds", "gather_steps_per_second"):
        assert isinstance(figures[name], float)
        assert figures[name] > 0
    assert es.env_steps == 3 * 8


def test_returns_rise() -> None:
    es = push_learner(dataclasses.replace(SMALL, num_pairs=10, learning_rate=0.05), seed=1)
    means = [es.train_once().figures["population_mean"] for _ in range(40)]
    assert means[0] is not None
    assert means[-1] is not None
    assert means[-1] > means[0] + 0.5


@pytest.mark.parametrize("fitness", ["centered-ranks", "normalised"])
def test_flat_fitness_changes_nothing(fitness: Any) -> None:
    es = push_learner(dataclasses.replace(SMALL, fitness=fitness), reward=7.0)
    before = bits(es)
    for _ in range(3):
        assert es.train_once().figures["gradient_norm"] == 0.0
    assert bits(es) == before


def test_the_best_parameters_are_kept_and_a_fall_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    es = push_learner(SMALL)
    scores = iter([1.0, 5.0, 3.0, 4.0])
    original = es.engine.evaluate

    def evaluate(broadcast: Any, stop_requested: Any) -> Any:
        score = next(scores)
        return [result._replace(returns=(score - 0.5, score + 0.5)) for result in original(broadcast, stop_requested)]

    monkeypatch.setattr(es.engine, "evaluate", evaluate)
    played, falls = [], []
    for _ in range(4):
        played.append(bits(es))
        falls.append(es.train_once().figures["below_best"])
    assert falls == [0.0, 0.0, 2.0, 1.0]
    assert es.best is not None
    assert (es.best["score"], es.best["generation"]) == (5.0, 1)
    assert es.best["parameters"].numpy().tobytes() == played[1]


def test_pairs_without_noise_are_the_ones_that_count() -> None:
    config = dataclasses.replace(SMALL, unperturbed_pairs=2)
    es = cartpole_learner(config)
    report = es.train_once()
    assert len(report.episodes) == 4
    mean = np.mean([episode.total_reward for episode in report.episodes])
    assert report.figures["unperturbed_mean"] == pytest.approx(mean)
    assert report.figures["best_score"] == pytest.approx(mean)
    assert es.env_steps > sum(episode.length for episode in report.episodes)
    plain = cartpole_learner(SMALL)  # the same population: watching it changes nothing
    plain.train_once()
    assert bits(plain) == bits(es)


def test_two_and_two_generations_are_four(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, normalise_observations=True, weight_decay=0.01)
    whole = cartpole_learner(config, seed=2)
    for _ in range(4):
        last = whole.train_once()
    first = cartpole_learner(config, seed=2)
    for _ in range(2):
        first.train_once()
    save_checkpoint(tmp_path / "checkpoint.pt", {"learner": first.state_dict(), "states": first.env_states()})
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    second = cartpole_learner(config, seed=2)
    second.train_once()  # whatever it did before does not count
    second.load_state_dict(saved["learner"])
    second.set_env_states(saved["states"])
    for _ in range(2):
        report = second.train_once()
    assert bits(second) == bits(whole)
    assert second.env_steps == whole.env_steps
    timings = ("gather_seconds", "train_seconds", "gather_steps_per_second")
    assert {name: value for name, value in report.figures.items() if name not in timings} == {
        name: value for name, value in last.figures.items() if name not in timings
    }
    assert report.episodes == last.episodes
    state, expected = second.state_dict(), whole.state_dict()
    assert torch.equal(state["best"].pop("parameters"), expected["best"].pop("parameters"))
    assert state["best"] == expected["best"]
    assert state["observation_statistics"] == expected["observation_statistics"]


def test_a_state_is_not_changed_by_going_on() -> None:
    es = push_learner(SMALL)
    es.train_once()
    state = es.state_dict()
    copies = state["parameters"].clone(), state["optimizer"]["state"][0]["exp_avg"].clone()
    other = push_learner(SMALL)
    other.load_state_dict(state)
    other.train_once()
    assert torch.equal(state["parameters"], copies[0])
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], copies[1])


def test_states_that_do_not_fit_are_refused() -> None:
    es = push_learner(SMALL)
    wide = push_learner(dataclasses.replace(SMALL, hidden_size=9))
    with pytest.raises(ValueError, match=r"expected .* parameters"):
        wide.load_state_dict(es.state_dict())
    normalising = push_learner(dataclasses.replace(SMALL, normalise_observations=True))
    with pytest.raises(ValueError, match="normalise_observations"):
        normalising.load_state_dict(es.state_dict())


def test_a_return_that_is_no_number_stops_with_its_member() -> None:
    es = push_learner(SMALL, reward=float("nan"))
    before = bits(es)
    with pytest.raises(FloatingPointError, match=r"generation 0, pair 0, member \+: .* nan"):
        es.train_once()
    assert bits(es) == before


def test_evaluation_plays_the_best_parameters_and_sampling_the_last() -> None:
    config = dataclasses.replace(SMALL, normalise_observations=True)
    es = push_learner(config)
    for _ in range(3):
        es.train_once()
    assert es.best is not None
    es.best["parameters"] = es.best["parameters"] + 1.0
    observations = np.array([[0.5, -0.5]] * es.envs.num_envs, np.float32)
    actions = {}
    for sample in (False, True):
        policy = evaluation_policy(es.envs, config, es.state_dict(), sample=sample, seed=0, device="cpu")
        actions[sample] = policy.act(observations).actions
        assert actions[sample].shape == (8, 1)
    assert not np.array_equal(actions[False], actions[True])


def test_cartpole_is_learnt() -> None:
    config = dataclasses.replace(ES_PRESETS["classic-control"], num_pairs=16, max_episode_steps=200)
    es = ES(vecenv.make_vec("CartPole-v1", backend="compiled", **env_settings(config)), config, seed=0)
    means: list[float] = []
    for _ in range(25):
        means.append(es.train_once().figures["population_mean"] or 0.0)
    assert means[0] < 80
    assert max(means) > 150


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"num_pairs": 0}, "num_pairs must be a whole number of at least 1, got 0"),
        ({"num_pairs": True}, "num_pairs"),
        ({"workers": -1}, "workers"),
        ({"pairs_at_once": 1.5}, "pairs_at_once"),
        ({"total_steps": 0}, "total_steps"),
        ({"noise_std": 0.0}, "noise_std must be"),
        ({"noise_std": float("nan")}, "noise_std must be"),
        ({"learning_rate": float("inf")}, "learning_rate must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"fitness": "ranks"}, "fitness must be one of centered-ranks, normalised"),
        ({"engine": "threads"}, "engine must be one of inline, processes"),
        ({"network": "cnn"}, "network must be one of"),
        ({"workers": 2}, "workers needs engine processes or ray, got engine inline"),
        ({"start_timeout": 5.0}, "start_timeout needs engine processes or ray, got engine inline"),
        ({"ray_address": "auto"}, "ray_address needs engine ray, got engine inline"),
        ({"ray_address": "auto", "engine": "processes"}, "ray_address needs engine ray, got engine processes"),
        ({"ray_cpus": 0.5}, "ray_cpus needs engine ray, got engine inline"),
        ({"ray_cpus": 0.5, "engine": "processes"}, "ray_cpus needs engine ray, got engine processes"),
        ({"ray_address": 6379, "engine": "ray"}, "ray_address must be 'host:port', 'auto' or 'local', got 6379"),
    ],
)
def test_wrong_settings_are_refused_by_name(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownSetting, match=words):
        ESConfig(**setting)


IDLE = {"workers": 4, "start_timeout": 5.0, "ray_cpus": 0.5}


def test_what_counted_for_nothing_in_a_run_of_before_does_not_keep_it_from_being_loaded(tmp_path: Path) -> None:
    plain = to_plain(RunConfig("CartPole-v1", algorithm="es", settings=ESConfig(num_pairs=3)))
    plain["settings"] |= IDLE
    assert run_config_from_dict(plain).settings == ESConfig(num_pairs=3)
    plain["settings"]["engine"] = "processes"
    loaded = run_config_from_dict(plain).settings
    assert loaded == ESConfig(num_pairs=3, engine="processes", workers=4, start_timeout=5.0)
    (tmp_path / "config.json").write_text(json.dumps(plain))
    words = ["--config", str(tmp_path)]
    assert read_arguments("es", words)[0].settings == loaded
    assert read_arguments("es", [*words, "--engine", "inline"])[0].settings == ESConfig(num_pairs=3)
    assert read_arguments("es", [*words, "--engine=ray"])[0].settings == ESConfig(num_pairs=3, engine="ray", **IDLE)
    with pytest.raises(UnknownSetting, match="workers needs engine processes or ray, got engine inline"):
        read_arguments("es", [*words, "--engine", "inline", "--workers", "2"])
    with pytest.raises(UnknownSetting, match="engine must be one of inline, processes, ray, got 'threads'"):
        read_arguments("es", [*words, "--engine", "threads"])


def test_what_a_learner_cannot_do_is_refused() -> None:
    envs = vecenv.SyncVecEnv([PushEnv] * 8)
    with pytest.raises(NotImplementedError, match="float32 only"):
        ES(envs, SMALL, precision="bfloat16")
    with pytest.raises(ValueError, match=r"below 2\*\*64"):
        ES(envs, SMALL, seed=2**64)


def test_presets_suit_the_kind_of_environment() -> None:
    assert find_algorithm("es") is ALGORITHM
    assert preset_for(ALGORITHM, "CartPole-v1") is ES_PRESETS["classic-control"]
    assert preset_for(ALGORITHM, "HalfCheetah-v5") is ES_PRESETS["mujoco"]
    assert preset_for(ALGORITHM, "PongNoFrameskip-v4") is ES_PRESETS["atari"]
    for preset in ES_PRESETS.values():
        assert ALGORITHM.env_settings(preset)["num_envs"] in (1, preset.num_envs)


def test_the_command_trains_resumes_and_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-pairs", "4", "--hidden-size", "8", "--total-steps", "400", "--run-dir", str(tmp_path / "whole")]
    assert train.main(["es", "--env", "CartPole-v1", "--backend", "sync", *flags]) == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["stopped_by"] == "total_steps"
    rows = read_metrics(tmp_path / "whole" / "metrics.csv")
    assert rows["env_steps"][-1] == summary["env_steps"] >= 400
    assert train.main(["es", "--resume", str(tmp_path / "whole"), "--total-steps", "900"]) == 0
    longer = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert longer["env_steps"] >= 900
    assert evaluation.main([str(tmp_path / "whole" / "checkpoint.pt"), "--episodes", "3"]) == 0
    assert "mean return" in capsys.readouterr().out


def test_pong_is_played_with_a_mean_image_that_is_kept() -> None:
    pytest.importorskip("ale_py")
    config = dataclasses.replace(
        ES_PRESETS["atari"], num_pairs=2, hidden_size=8, pairs_at_once=1, max_episode_steps=30, engine="inline"
    )
    learners = []
    for at_once in (1, 2):
        config = dataclasses.replace(config, pairs_at_once=at_once)
        es = ES(vecenv.make_vec("PongNoFrameskip-v4", backend="sync", **env_settings(config)), config)
        assert es.prepare() == []
        report = es.train_once()
        assert [episode.length for episode in report.episodes] == [30] * 4
        learners.append(es)
    first, second = learners
    try:
        assert bits(first) == bits(second)
        assert first.mean_image is not None
        assert torch.equal(first.mean_image, second.mean_image)  # type: ignore[arg-type]
        assert 50 < float(first.mean_image.mean()) < 150
        image = first.mean_image.numpy().reshape(1, 4, 84, 84).astype(np.uint8)
        policy = evaluation_policy(first.envs, config, first.state_dict(), sample=True, seed=0, device="cpu")
        assert float(policy.network.scaling(torch.from_numpy(image)).abs().max()) == 0.0  # type: ignore[operator]
        second.mean_image = None
        second.load_state_dict(first.state_dict())
        for es in learners:
            es.train_once()
        assert bits(first) == bits(second)
    finally:
        for es in learners:
            es.envs.close()


def test_auto_is_the_cpu_where_the_engine_plays_on_cpus_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def note_and_refuse(request: EngineRequest) -> NoReturn:
        devices.append(request.device)
        raise NotImplementedError("seen")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for engine in ("ray", "processes"):
        monkeypatch.setitem(ENGINES, engine, note_and_refuse)
    for words in (["ray"], ["ray", "--device", "cuda"], ["processes"]):
        with pytest.raises(UnknownSetting, match="seen"):
            train.main(
                ["es", "--env", "CartPole-v1", "--run-dir", str(tmp_path), "--backend", "sync", "--engine", *words]
            )
    with pytest.raises(NotImplementedError, match="seen"):
        Agent(RunConfig("CartPole-v1", algorithm="es", settings=ESConfig(engine="ray"))).train(run_dir=tmp_path)
    assert devices == ["cpu", "cuda", "cuda", "cpu"]  # a GPU that was asked for is the engine's to refuse
