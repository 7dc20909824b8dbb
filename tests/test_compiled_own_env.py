"""Compiled envs of users, uncompiled runs, the cache on disk, the pool of arrays, and the benchmark."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from vecenv import CompiledEnv, register_compiled_env
from vecenv.array_pool import KEPT, ArrayPool, aligned_empty, aligned_zeros
from vecenv.benchmarks import compiled as benchmark
from vecenv.compiled_env import find_compiled_env

ROOT = Path(__file__).resolve().parent.parent


def run(*command, timeout=300, cwd=None, **environment):
    finished = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


# -- registration -----------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    size: float = 1.0


def start(state, row, generators, bounds, parameters):
    state[0, row] = bounds[0]


def advance(state, row, actions, generators, parameters):
    state[1, row] += 1.0 if state[0, row] >= 50.0 else 0.0  # calls for episodes that have ended
    state[0, row] += actions[row]
    return parameters.size, state[0, row] >= 50.0


def observe(state, row, observations, parameters):
    observations[row, 0] = state[0, row]


def own_env(**changes):
    env = CompiledEnv(
        observation_space=spaces.Box(-99.0, 99.0, (1,), np.float32),
        action_space=spaces.Discrete(3, start=-1),
        state_size=2,
        parameters=Numbers(),
        start=start,
        advance=advance,
        observe=observe,
        bounds=(2.0,),
        max_episode_steps=4,
    )
    return replace(env, **changes)


def test_an_env_of_ones_own():
    """Actions that do not begin at 0, a limit, options without a reader."""
    register_compiled_env("own/Count-v0", own_env())
    envs = vecenv.make_vec("own/Count-v0", 2, "compiled", statistics=True)
    assert envs.spec is None
    assert envs.reset(seed=0, options={"low": 5})[0].tolist() == [[2.0], [2.0]]
    for wrong in (np.array([0, 2]), np.array([0, -2])):
        with pytest.raises(ValueError, match="environment 1 is not in Discrete"):
            envs.step(wrong)
    for _ in range(4):
        observations, rewards, _, truncations, infos = envs.step(np.array([-1, 1]))
    assert observations.tolist() == [[-2.0], [6.0]]
    assert rewards.tolist() == [1.0, 1.0]
    assert truncations.all()
    assert infos["episode"]["r"].tolist() == [4.0, 4.0]
    assert envs.step(np.array([9, -9]))[0].tolist() == [[2.0], [2.0]]  # ignored: these envs begin anew
    with pytest.raises(vecenv.UnknownSetting, match="own/Count-v0"):
        vecenv.make_vec("own/Other-v0", 2, "compiled")


def test_an_env_that_was_never_registered_is_played_too():
    class NumbersOfItsOwn(NamedTuple):
        size: float = 1.0

    def other_start(state, row, generators, bounds, parameters):
        state[0, row] = 0.0

    envs = vecenv.CompiledVecEnv(own_env(parameters=NumbersOfItsOwn()), 2)
    envs.reset(seed=0)
    assert envs.step(np.array([1, 0]))[0].shape == (2, 1)
    with pytest.raises(ValueError, match=r"CompiledVecEnv: NumbersOfItsOwn.*NamedTuple class of its own"):
        vecenv.CompiledVecEnv(own_env(parameters=NumbersOfItsOwn(), start=other_start), 2)


@pytest.mark.parametrize("allowed", [False, True])
def test_ended_episodes_are_advanced_only_where_that_is_allowed(allowed):
    env = own_env(bounds=(49.0,), advances_ended=allowed)
    envs = vecenv.CompiledVecEnv(env, 2)
    envs.reset(seed=0)
    assert envs.step(np.array([1, 0]))[2].tolist() == [True, False]
    observations, rewards, terminations, *_ = envs.step(np.array([1, 1]))
    assert observations.tolist() == [[49.0], [50.0]]
    assert rewards.tolist() == [0.0, 1.0]
    assert terminations.tolist() == [False, True]
    assert [state[1] for state in envs.get_attr("state")] == [float(allowed), 0.0]


def test_compiled_functions_are_taken_too():
    assert own_env(start=numba.njit(start)).start is start


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"start": lambda state, row: None}, TypeError, "start.*generators, bounds"),
        ({"advance": None}, TypeError, "advance"),
        ({"observation_space": spaces.Box(0, 1, (2, 2))}, TypeError, "observation_space"),
        ({"observation_space": spaces.Discrete(2)}, TypeError, "observation_space"),
        ({"action_space": spaces.MultiDiscrete([2, 2])}, TypeError, "action_space"),
        ({"parameters": {"size": 1.0}}, TypeError, "parameters"),
        ({"parameters": (1.0,)}, TypeError, "parameters"),
        ({"state_size": 0}, ValueError, "state_size"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_once(changes, error, words):
    with pytest.raises(error, match=words):
        own_env(**changes)


def test_a_class_of_parameters_belongs_to_one_env():
    def other(state, row, observations, parameters):
        observations[row, 0] = 1.0

    register_compiled_env("own/Count-v0", own_env())
    with pytest.raises(ValueError, match="NamedTuple class of its own"):
        register_compiled_env("own/Other-v0", own_env(observe=other))
    assert find_compiled_env("own/Other-v0") is None
    with pytest.raises(TypeError, match="CompiledEnv"):
        register_compiled_env("own/Other-v0", start)


def test_the_example():
    finished = run(str(ROOT / "examples" / "compiled_env.py"), "--short")
    assert "million steps/s, mean return -" in finished.stdout
    assert finished.stderr == ""


# -- uncompiled, cached -----------------------------------------------------------------------------------------------

COURSE = """
import sys, numpy as np, vecenv
for env_id in ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "MountainCar-v0", "Acrobot-v1"):
    for mode in ("NextStep", "SameStep"):
        envs = vecenv.make_vec(env_id, 3, "compiled", autoreset_mode=mode, statistics=True, max_episode_steps=9)
        rows = [envs.reset(seed=[1, 7, 2**64 + 1])[0]]
        envs.action_space.seed(0)
        for _ in range(25):
            observations, rewards, *_, infos = envs.step(envs.action_space.sample())
            rows += [observations, rewards[:, None]]
            if "final_obs" in infos:
                rows.append(infos["final_obs"])
        print(env_id, mode, [part.tolist() for part in rows])
"""


def test_without_compilation():
    """Numba told not to compile: the same results to the last bit, and no warnings."""
    plain = run("-W", "error", "-c", COURSE, NUMBA_DISABLE_JIT="1")
    compiled = run("-W", "error", "-c", COURSE)
    assert plain.stdout == compiled.stdout
    assert plain.stdout.count("NextStep") == 5
    assert plain.stderr == ""


ONE_STEP = """
import sys, numpy as np, vecenv
from vecenv.compiled_kernels import kernels_of
from vecenv.classic_control import PendulumParameters
envs = vecenv.make_vec("Pendulum-v1", 2, "compiled")
envs.reset(seed=0)
rewards = envs.step(np.zeros((2, 1), np.float32))[1]
kernel = kernels_of(PendulumParameters).step
print(rewards.tolist(), sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_the_cache_sees_edits_in_every_file(tmp_path):
    """A second process loads the kernel; one after an edit of another file than the kernel's compiles anew."""
    tree = tmp_path / "tree" / "vecenv"
    tree.mkdir(parents=True)
    for file in (ROOT / "vecenv").glob("*.py"):
        (tree / file.name).write_bytes(file.read_bytes())
    (tree / "preprocess").symlink_to(ROOT / "preprocess")
    where = {"cwd": tree.parent, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first, second = run("-c", ONE_STEP, **where).stdout, run("-c", ONE_STEP, **where).stdout
    assert first.split("]")[1].split() == ["0", "1"]
    assert second.split("]")[1].split() == ["1", "0"]
    file = tree / "classic_control.py"
    text = file.read_text()
    assert "return -costs, False" in text
    file.write_text(text.replace("return -costs, False", "return -costs - 100.0, False"))
    third = run("-c", ONE_STEP, **where).stdout
    assert third.split("]")[1].split() == ["0", "1"]
    before, after = (json.loads(line.split("]")[0] + "]") for line in (first, third))
    np.testing.assert_allclose(np.array(before) - 100.0, after)


def test_importing_compiles_nothing():
    script = "import sys, vecenv; vecenv.register_compiled_env; vecenv.CompiledEnv; print('numba' in sys.modules)"
    assert run("-c", script).stdout.strip() == "False"


class UsualNumbers(NamedTuple):
    size: float = 1.0


def is_usual(state, row, parameters):
    return state[0, row] < 10.0


def advance_usual(state, row, actions, generators, parameters):
    state[0, row] += actions[row]
    return 2.0 * parameters.size, False


def test_the_usual_way_is_taken_where_all_rows_are_usual():
    env = own_env(parameters=UsualNumbers(), is_usual=is_usual, advance_usual=advance_usual, max_episode_steps=None)
    vecenv.register_compiled_env("own/Usual-v0", env)
    envs = vecenv.make_vec("own/Usual-v0", 5, "compiled")
    envs.reset()
    assert envs.step([1] * 5)[1].tolist() == [2.0] * 5
    envs.set_attr("state", [[9.5, 0], [3, 0], [3, 0], [3, 0], [3, 0]])
    assert envs.step([1] * 5)[1].tolist() == [2.0] * 5
    observations, rewards, *_ = envs.step([1] * 5)  # the first is at 10.5 now
    assert rewards.tolist() == [1.0] * 5
    assert observations[:, 0].tolist() == [11.5, 5, 5, 5, 5]


def test_the_usual_way_needs_both_functions():
    for changes in ({"is_usual": is_usual}, {"advance_usual": advance_usual}):
        with pytest.raises(TypeError, match="is_usual and advance_usual: expected both or none"):
            own_env(**changes)
    with pytest.raises(TypeError, match="is_usual: expected a function with the arguments state, row, parameters"):
        own_env(is_usual=lambda state: True, advance_usual=advance_usual)


# -- the pool ---------------------------------------------------------------------------------------------------------


def make_arrays():
    return aligned_zeros((64, 4), np.float32), aligned_zeros(64)


def memory(arrays):
    return {array.__array_interface__["data"][0] for array in arrays}


def test_memory_is_used_again_once_it_is_let_go():
    pool = ArrayPool(make_arrays)
    arrays = pool.take()
    where = memory(arrays)
    assert memory(pool.take()).isdisjoint(where)
    del arrays
    assert memory(pool.take()) == where


@pytest.mark.parametrize(
    "keep",
    [
        lambda arrays: arrays[0],
        lambda arrays: arrays[1][3:5],
        lambda arrays: arrays[0][2].reshape(2, 2).T,
        lambda arrays: memoryview(arrays[0]),
        lambda arrays: {"nested": [arrays]},
        lambda arrays: np.frombuffer(arrays[1], np.uint8),
        lambda arrays: arrays[0].view(np.int32),
        lambda arrays: iter(arrays[1]),
    ],
)
def test_memory_that_anyone_refers_to_is_left_alone(keep):
    pool = ArrayPool(make_arrays)
    arrays = pool.take()
    where = memory(arrays)
    kept = keep(arrays)
    del arrays
    gc.collect()
    for _ in range(2 * KEPT):
        assert memory(pool.take()).isdisjoint(where)
    assert kept is not None


def test_tensors_keep_memory():
    torch = pytest.importorskip("torch")
    pool = ArrayPool(make_arrays)
    tensor = torch.from_numpy(pool.take()[0])
    tensor[:] = 7
    for _ in range(KEPT):
        pool.take()[0][:] = 1
    assert (tensor == 7).all()


def test_a_changed_view_does_not_change_the_pool():
    pool = ArrayPool(make_arrays)
    arrays = pool.take()
    where = memory(arrays)
    arrays[0].shape = (4, 64)
    arrays[1].flags.writeable = False
    del arrays
    again = pool.take()
    assert memory(again) == where
    assert again[0].shape == (64, 4)
    assert again[1].flags.writeable


def test_a_pool_does_not_grow():
    pool = ArrayPool(make_arrays)
    kept = [pool.take() for _ in range(5 * KEPT)]
    assert len(set.union(*map(memory, kept))) == 2 * len(kept)
    assert len(pool._kept) == KEPT


@pytest.mark.parametrize("shape", [0, 1, 7, (3, 5), (0, 4), (1000, 3)])
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64])
def test_arrays_begin_at_a_cache_line(shape, dtype):
    kept = []  # so that the next one lies elsewhere
    for _ in range(5):
        array = aligned_empty(shape, dtype)
        kept.append(array)
        assert array.ctypes.data % 64 == 0 or array.size == 0
        assert array.shape == np.empty(shape).shape
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
        assert array.base.dtype == np.uint8  # the memory, whose references the pool counts
    assert not aligned_zeros(shape, dtype).any()


# -- the benchmark ----------------------------------------------------------------------------------------------------


def test_benchmark(tmp_path, capsys):
    path = tmp_path / "result.json"
    assert benchmark.main(["--num-envs", "16", "--rounds", "1", "--seconds", "0.02", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    ratios = document["results"]["16"]["ratios"]
    assert set(ratios) == {"compiled", "compiled, statistics", "compiled, SameStep"}
    assert all(ratio > 0 for against in ratios.values() for ratio in against.values())
    assert "CartPoleVectorEnv" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        benchmark.main(["--rounds", "0"])
