"""RLlib's EnvRunner steps our vector envs, and RLlib learns from them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from vecenv import SyncVecEnv, UnknownSetting
from vecenv.ray_rllib import make_env

ROOT = Path(__file__).resolve().parent.parent
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
needs_rllib = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ray", "torch", "lz4", "ormsgpack", "pandas", "pyarrow")),
    reason="RLlib is not installed: pip install 'vecenv[rllib]'",
)


def test_one_env_or_many():
    settings = {"env_id": "CartPole-v1", "max_episode_steps": 7}
    with make_env({**settings, "num_envs": 3}) as envs:
        assert isinstance(envs, SyncVecEnv) or envs.num_envs == 3
    with make_env({**settings, "num_envs": 2, "backend": "sync"}) as envs:
        assert isinstance(envs, SyncVecEnv)
        env = make_env({**settings, "backend": "subproc", "num_workers": 2})
        assert isinstance(env, gym.Env)
        np.testing.assert_array_equal(env.reset(seed=3)[0], envs.reset(seed=3)[0][0])
        env.close()


def test_what_is_refused():
    with pytest.raises(ValueError, match="env_id"):
        make_env({"num_envs": 2})
    with pytest.raises(ValueError, match="NextStep"):
        make_env({"env_id": "CartPole-v1", "num_envs": 2, "autoreset_mode": "SameStep"})
    with pytest.raises(UnknownSetting, match="backend"):
        make_env({"env_id": "CartPole-v1", "num_envs": 2, "backend": "no such"})


#: Samples with an EnvRunner in a process of its own, which starts no cluster.
SCRIPT = """
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.tune.registry import register_env
from vecenv.ray_rllib import make_env
register_env("vecenv", make_env)
for env, settings, steps in (
    ("vecenv", {"env_id": "CartPole-v1", "backend": "sync"}, 200),
    ("vecenv:vecenv/Pong-v5", {"backend": "sync"}, 20),
):
    config = PPOConfig().environment(env, env_config=settings).env_runners(
        num_envs_per_env_runner=4, gym_env_vectorize_mode="vector_entry_point"
    )
    runner = SingleAgentEnvRunner(config=config)
    print(type(runner.env.unwrapped).__name__, runner.num_envs)
    episodes = runner.sample(num_timesteps=4 * steps, random_actions=True)
    assert sum(map(len, episodes)) >= 4 * steps, episodes
    for episode in episodes:
        observations = episode.get_observations()
        assert len(observations) == len(episode) + 1
        if env == "vecenv":
            # CartPole's position moves by 0.02 s times its velocity: no row is a reset that was taken for a step
            moved = observations[:-1, 0] + 0.02 * observations[:-1, 1]
            assert abs(moved - observations[1:, 0]).max() < 1e-5
            assert (episode.get_rewards() == 1.0).all()
    runner.stop()
"""


@pytest.mark.slow
@needs_rllib
@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_an_env_runner_samples_our_vector_envs(tmp_path):
    path = Path(tmp_path / "script.py")
    path.write_text(SCRIPT)
    finished = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={**os.environ, **QUIET},
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.split("\n")[:2] == ["SyncVecEnv 4", "SyncVecEnv 4"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_rllib
def test_rllib_learns_cart_pole():
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "rllib_cartpole.py"), "--iterations", "5"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env={**os.environ, **QUIET},
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    returns = [float(value) for value in re.findall(r"mean return ([\d.]+)", finished.stdout)]
    assert len(returns) == 5
    assert returns[-1] > 1.5 * returns[0], returns
