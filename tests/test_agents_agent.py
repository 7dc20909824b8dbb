"""The Python side of training and playing."""

from __future__ import annotations

import functools
import json
import warnings

import gymnasium
import numpy as np
import pytest

import vecenv
from vecenv.agents import train
from vecenv.agents.agent import Agent
from vecenv.agents.checkpoint import CheckpointError, load_checkpoint
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.es_config import ESConfig
from vecenv.agents.train_arguments import read_arguments
from vecenv.errors import UnknownSetting

SETTINGS = PPOConfig(num_envs=2, num_steps=16, total_steps=400)


def test_train_go_on_and_play(tmp_path, capsys):
    agent = Agent(RunConfig("CartPole-v1", backend="sync", settings=SETTINGS))
    with pytest.raises(UnknownSetting, match="train first"):
        agent.evaluate()
    summary = agent.train(run_dir=tmp_path / "run", stop_at_steps=200)
    assert summary["stopped_by"] == "stop_at_steps"
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    with pytest.raises(UnknownSetting, match="already holds a run"):
        Agent(agent.config).train(run_dir=tmp_path / "run")
    again = Agent.load(tmp_path / "run")
    assert again.config == agent.config
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.csv").write_text("another run's")
    with pytest.raises(UnknownSetting, match="other already holds a run"):
        again.train(run_dir=other)
    with pytest.raises(UnknownSetting, match="other already holds a run: go on with --resume"):
        train.main(["ppo", "--resume", str(tmp_path / "run"), "--run-dir", str(other)])
    assert [file.name for file in other.iterdir()] == ["metrics.csv"]
    summary = again.train(run_dir=tmp_path / "run", stop_at_steps=None)
    assert (summary["stopped_by"], summary["env_steps"] >= 400) == ("total_steps", True)
    assert load_checkpoint(tmp_path / "run")["learner"]["env_steps"] == summary["env_steps"]
    assert capsys.readouterr() == ("", "")  # quiet
    played = again.evaluate(episodes=3)
    assert len(played.episodes) == 3
    assert again.evaluate(episodes=3) == played
    with vecenv.make_vec("CartPole-v1", 5, "sync") as envs:
        observations, _ = envs.reset(seed=0)
        assert again.policy(envs).act(observations).actions.shape == (5,)
    with vecenv.make_vec("Acrobot-v1", 2, "sync") as envs, pytest.raises(CheckpointError, match="those of Acrobot-v1"):
        again.policy(envs)


def test_envs_of_ones_own_stay_open(tmp_path):
    class MyEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.t += 1
            return np.zeros(2, np.float32), -abs(float(action[0])), False, self.t == 9, {}

    agent = Agent(RunConfig("mine", settings=SETTINGS))
    with vecenv.make_vec(MyEnv, backend="sync", **agent.env_settings()) as envs:
        agent.train(envs, run_dir=tmp_path / "run")
        assert not envs.closed
        assert len(agent.evaluate(envs, episodes=4).episodes) == 4


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UnknownSetting, match="ppo needs settings of PPOConfig, got dict"):
        Agent(RunConfig("CartPole-v1", settings={"num_envs": 3}))
    with pytest.raises(UnknownSetting, match="no algorithm 'sarsa'"):
        Agent(RunConfig("CartPole-v1", algorithm="sarsa"))
    with pytest.raises(UnknownSetting, match="max_hours is no setting"):
        Agent(RunConfig("CartPole-v1")).train(run_dir=tmp_path / "run", max_hours=1)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        Agent.load(tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "env"),
    [("ppo", "CartPole-v1"), ("ppo", "HalfCheetah-v5"), ("dqn", "CartPole-v1"), ("es", "HalfCheetah-v5")],
)
def test_an_agent_for_an_env_has_the_settings_of_the_command(name, env):
    changed = {"seed": 3, "solve_at": 90.5, "total_steps": 1234}
    agent = Agent.for_env(env, name, **changed)
    flags = [word for key, value in changed.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    assert agent.config == read_arguments(name, ["--env", env, *flags])[0].run_config()
    assert agent.config.settings.total_steps == 1234


def test_an_agent_for_an_env_takes_presets_and_refuses_what_there_is_not():
    assert Agent.for_env("HalfCheetah-v5", "es").config.settings.engine == "processes"
    assert Agent.for_env("HalfCheetah-v5", "es").config.backend == "auto-fast"
    assert Agent.for_env("CartPole-v1", "dqn").config.checkpoint_seconds == 300.0
    plain = Agent.for_env("CartPole-v1", "dqn", preset="ladder-baseline", backend="sync")
    assert (plain.config.settings.double, plain.config.settings.num_envs, plain.config.backend) == (False, 1, "sync")
    for wrong, named in (
        ({"preset": "nine"}, "PPO has no preset 'nine'"),
        ({"algorithm": "sarsa"}, "no algorithm 'sarsa'"),
        ({"momentum": 0.9}, "unknown setting momentum; known are .*gamma, .*seed"),
        ({"settings": SETTINGS}, "unknown setting settings"),
        ({"gamma": 2.0}, "gamma must lie between 0 and 1, got 2.0"),
    ):
        with pytest.raises(UnknownSetting, match=named):
            Agent.for_env("CartPole-v1", **wrong)


SMALL = {
    "ppo": PPOConfig(num_envs=2, num_steps=8, total_steps=40),
    "dqn": DQNConfig(num_envs=2, total_steps=40, learning_starts=20, minibatch_size=4, replay_capacity=500),
    "es": ESConfig(num_pairs=1, total_steps=40, hidden_size=2),
}


@pytest.mark.parametrize(
    ("name", "made_with", "named"),
    [
        ("ppo", {"statistics": False}, "make envs with statistics=True"),
        ("dqn", {"statistics": False}, "make envs with statistics=True"),
        ("ppo", {"num_envs": 4}, "num_envs is 2, but envs has 4 environments"),
        ("dqn", {"num_envs": 4}, "num_envs is 2, but envs has 4 environments"),
        ("dqn", {"num_envs": 1}, "num_envs is 2, but envs has 1 environments"),
        ("ppo", {"autoreset_mode": "Disabled"}, "agents need autoreset_mode NextStep or SameStep"),
        ("dqn", {"autoreset_mode": "Disabled"}, "agents need autoreset_mode NextStep or SameStep"),
        ("es", {"autoreset_mode": "Disabled"}, "agents need autoreset_mode NextStep or SameStep"),
    ],
)
def test_envs_that_were_made_otherwise_are_refused(name, made_with, named, tmp_path):
    agent = Agent(RunConfig("CartPole-v1", algorithm=name, settings=SMALL[name]))
    with (
        vecenv.make_vec("CartPole-v1", backend="sync", **{**agent.env_settings(), **made_with}) as envs,
        pytest.raises(UnknownSetting, match=named),
    ):
        agent.train(envs, run_dir=tmp_path)


def test_playing_never_waits_for_episodes_that_nobody_tells_of(tmp_path):
    agent = Agent(RunConfig("CartPole-v1", algorithm="es", settings=SMALL["es"]))
    agent.train(run_dir=tmp_path)
    for made_with in ({}, {"statistics": True, "autoreset_mode": "Disabled"}):
        with (
            vecenv.make_vec("CartPole-v1", 2, backend="sync", **made_with) as envs,
            pytest.raises(UnknownSetting, match="agents "),
        ):
            agent.evaluate(envs, episodes=2)


def test_wrappers_around_vector_envs_are_played_in_where_somebody_tells_of_episodes(tmp_path):
    agent = Agent(RunConfig("CartPole-v1", algorithm="es", settings=SMALL["es"]))
    agent.train(run_dir=tmp_path)

    def envs(**made_with):
        return vecenv.make_vec("CartPole-v1", 2, backend="sync", **made_with)

    def wrapped(vector_env):
        return gymnasium.wrappers.vector.TransformReward(vector_env, lambda rewards: rewards)

    with envs(statistics=True) as plain:
        expected = agent.evaluate(plain, episodes=3)
    for telling in (wrapped(envs(statistics=True)), gymnasium.wrappers.vector.RecordEpisodeStatistics(envs())):
        assert agent.evaluate(telling, episodes=3) == expected
        telling.close()
    silent = wrapped(envs())
    with pytest.raises(UnknownSetting, match="make envs with statistics=True"):
        agent.evaluate(silent, episodes=3)
    silent.close()


class Sized(gymnasium.Env):
    """Episodes of three steps; observations of one shape."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape):
        self.observation_space = gymnasium.spaces.Box(-1, 1, shape)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(self.observation_space.shape, np.float32), 1.0, self.steps == 3, False, {}


@pytest.mark.parametrize("name", SMALL)
def test_observations_without_an_axis_are_refused_and_those_without_numbers_are_learnt_from(name, tmp_path):
    agent = Agent(RunConfig("none", algorithm=name, settings=SMALL[name]))
    with (
        vecenv.make_vec(functools.partial(Sized, ()), backend="sync", **agent.env_settings()) as envs,
        pytest.raises(ValueError, match="observations are single numbers without an axis"),
    ):
        agent.train(envs, run_dir=tmp_path)
    with (
        warnings.catch_warnings(),
        vecenv.make_vec(functools.partial(Sized, (0,)), backend="sync", **agent.env_settings()) as envs,
    ):
        warnings.simplefilter("ignore")  # torch's, about initial weights of nothing
        assert agent.train(envs, run_dir=tmp_path)["mean_return"] == 3.0
