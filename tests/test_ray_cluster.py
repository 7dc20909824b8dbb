"""The `ray` back end on a cluster of two nodes that dies in part, and with little room for observations."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'vecenv[ray]'")

from vecenv.ray_backend import RayVecEnv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Runs in a process of its own: a test run that is connected to one cluster cannot join another.
SCRIPT = """
import functools, os, sys, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only
os.environ["RAY_health_check_period_ms"] = "500"
os.environ["RAY_health_check_timeout_ms"] = "2000"
import numpy as np
import ray
from ray.cluster_utils import Cluster
from vecenv import WorkerDied, make_vec
from vecenv.testing import CountEnv

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
second = cluster.add_node(**NODE, resources={"away": 1})
os.environ["RAY_ADDRESS"] = cluster.address
settings = dict(num_workers=2, per_env_kwargs=[{"uid": uid, "length": 50} for uid in range(4)])


def until_truncated(envs):
    for _ in range(1000):
        before = envs.observations.copy()
        observations, _, _, truncations, infos = envs.step([0] * 4)
        if truncations.any():
            np.testing.assert_array_equal(infos["worker_restarted"], truncations)
            np.testing.assert_array_equal(observations[truncations], before[truncations])
            return truncations
        time.sleep(0.05)


def kill(node):
    cluster.remove_node(node, allow_graceful=False)


options = {"on_worker_failure": "restart", "start_timeout": 20, "scheduling_strategy": "SPREAD"}
with make_vec(CountEnv, 4, "ray", backend_options=options, **settings) as envs:
    envs.reset(seed=1)
    envs.step([0] * 4)
    third = cluster.add_node(**NODE)
    kill(second)
    lost = until_truncated(envs)
    assert lost.sum() == 2, lost
    envs.step([0] * 4)
    assert envs.get_attr("uid") == (0, 1, 2, 3)
    kill(third)
    try:
        until_truncated(envs)
    except WorkerDied as error:
        assert "There is no room for another one" in str(error), error
        assert error.env_indices == tuple(np.flatnonzero(lost))
    else:
        raise SystemExit("there is no room, but the run went on")
assert not ray.is_initialized()

second = cluster.add_node(**NODE)
with make_vec(CountEnv, 4, "ray", **settings) as envs:
    envs.reset(seed=1)
    kill(second)
    try:
        for _ in range(1000):
            envs.step([0] * 4)
            time.sleep(0.05)
    except WorkerDied as error:
        assert len(error.env_indices) == 2
    else:
        raise SystemExit("the death was not noticed")
cluster.shutdown()
print("done")
"""


def test_nodes_that_die(tmp_path):
    path = Path(tmp_path / "script.py")
    path.write_text(SCRIPT)
    finished = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=280, check=False)
    assert finished.stdout.strip().endswith("done"), finished.stdout + finished.stderr


class LargeEnv(gym.Env):
    """Observations that do not fit into the object store."""

    observation_space = gym.spaces.Box(0, 255, (60 * 2**20,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, uid):
        self.uid, self.steps = uid, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(self.observation_space.shape, self.uid, np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full(self.observation_space.shape, 10 * self.steps + self.uid, np.uint8), 0.0, False, False, {}


def test_an_object_store_that_is_full():
    """Ray then keeps objects on disk: slower, never wrong, and nothing is kept after a step."""
    fns = [functools.partial(LargeEnv, uid) for uid in range(2)]
    with RayVecEnv(fns, num_workers=1, object_store_memory=80 * 2**20, copy=False, slots=1) as envs:
        assert envs.reset()[0][:, -1].tolist() == [0, 1]
        for step in range(1, 4):
            observations = envs.step([0, 0])[0]
            assert observations[:, 0].tolist() == observations[:, -1].tolist() == [10 * step, 10 * step + 1]
