"""Constructors that call `gymnasium.make` find, in a worker, the ids that only the user's process has registered."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import gymnasium as gym
import pytest

from vecenv import EnvError, SubprocVecEnv, pickling
from vecenv.registered_ids import call_with_ids, pickled_specs
from vecenv.testing import CountEnv

METHODS = ["forkserver", "spawn", "fork"]

#: Seconds that a script may take, far above what one needs: it starts several interpreters. Only a hang comes near.
LONG = 150

SCRIPT = """
    import gymnasium as gym
    from vecenv import SubprocVecEnv
    from vecenv.testing import CountEnv

    class Mine(CountEnv):
        pass

    gym.register("Mine-v0", entry_point=Mine, kwargs={"length": 5})
    gym.register("LongCartPole-v7", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9999)
    envs = SubprocVecEnv([lambda: gym.make("Mine-v0"), lambda: gym.make("Mine-v0", length=3)], context=METHOD)
    print(envs.get_attr("length"))
    envs = SubprocVecEnv([lambda: gym.make("LongCartPole-v7")] * 2, context=METHOD)
    print([spec.max_episode_steps for spec in envs.get_attr("spec")])
    gym.register("FrozenLake-v0", entry_point=Mine, kwargs={"length": 6})  # Gymnasium knows a later version
    gym.register("CartPole-v1", entry_point=Mine, kwargs={"length": 7})
    gym.register("Taxi-v3", entry_point="gymnasium.envs.toy_text.taxi:TaxiEnv", max_episode_steps=8)
    fns = [lambda: gym.make("FrozenLake-v0"), lambda: gym.make("CartPole-v1")]
    print(SubprocVecEnv(fns, context=METHOD).get_attr("length"))
    envs = SubprocVecEnv([lambda: gym.make("Taxi-v3")], context=METHOD)
    print([spec.max_episode_steps for spec in envs.get_attr("spec")])
"""

ATARI = """
    import ale_py
    import gymnasium as gym
    from vecenv import SubprocVecEnv

    gym.register_envs(ale_py)
    envs = SubprocVecEnv([lambda: gym.make("ALE/Pong-v5")] * 2, num_workers=1)
    print(envs.reset()[0].shape)
"""


@pytest.fixture
def registry(monkeypatch):
    """Gymnasium's registry, as long as the test runs."""
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    return gym.registry


@pytest.mark.parametrize("context", METHODS)
def test_ids_of_a_script(context, tmp_path):
    code = textwrap.dedent(SCRIPT).replace("METHOD", repr(context))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.stdout.splitlines() == ["(5, 3)", "[9999, 9999]", "(6, 7)", "[8]"], done.stderr


def test_ids_of_a_package_that_only_the_script_imports(tmp_path):
    pytest.importorskip("ale_py")
    code = textwrap.dedent(ATARI)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.stdout.splitlines() == ["(2, 210, 160, 3)"], done.stderr
    assert "Overriding" not in done.stderr


def test_an_id_that_nobody_knows_is_named():
    with pytest.raises(EnvError, match="Nowhere") as caught:
        SubprocVecEnv([lambda: gym.make("Nowhere-v0")] * 2)
    assert isinstance(caught.value, gym.error.UnregisteredEnv)


def test_ids_that_do_not_help_are_no_reason_to_build_again(registry):
    gym.register("Kept-v0", entry_point=CountEnv)
    specs = pickled_specs()
    del registry["Kept-v0"]
    built = []

    def build():
        built.append(None)
        return gym.make("Nowhere-v0")

    with pytest.raises(gym.error.UnregisteredEnv):
        call_with_ids(build, specs)
    assert len(built) == 1
    assert "Kept-v0" in registry


def test_modules_are_looked_through_once_for_all_ids(registry, monkeypatch):
    for number in range(3):
        gym.register(f"Kept-v{number}", entry_point=CountEnv)
    looked = []
    monkeypatch.setattr(pickling, "_only_here", looked.append)
    pickled_specs()
    assert looked.count(sys) == 1


def test_ids_that_cannot_be_sent_are_left_out(registry):
    """A spec that holds what no pickle can does not keep the others from the workers."""
    gym.register("Kept-v0", entry_point=CountEnv, kwargs={"length": 4})
    gym.register("Unsent-v0", entry_point=CountEnv, kwargs={"length": (number for number in range(3))})
    specs = pickled_specs()
    del registry["Kept-v0"], registry["Unsent-v0"]
    assert call_with_ids(lambda: gym.make("Kept-v0"), specs).get_wrapper_attr("length") == 4
    with pytest.raises(gym.error.UnregisteredEnv):
        call_with_ids(lambda: gym.make("Unsent-v0"), specs)
