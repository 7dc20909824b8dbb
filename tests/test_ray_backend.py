"""The `ray` back end on a real local cluster: the contract, deaths, what is refused, what is left behind."""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import gymnasium as gym
import numpy as np
import pytest

import vecenv
from vecenv import EnvError, MissingExtra, UnknownSetting, WorkerDied, make_vec
from vecenv.testing import CountEnv, assert_same, check_vec_env

pytest.importorskip("ray", reason="Ray is not installed: pip install 'vecenv[ray]'")

from vecenv import ray_cluster
from vecenv.ray_backend import RayVecEnv
from vecenv.ray_cluster import NotEnoughResources
from vecenv.ray_group import WorkerRefused

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("one_ray_cluster")]

#: Small enough for several vector envs at a time on two CPUs.
SHARE = {"num_cpus": 0.2}
#: What is tried in every run; the whole contract takes minutes, since every check starts processes of its own.
QUICK_CHECKS = [
    "final_obs_is_the_end",
    "mask_with_seeds",
    "seed_sequence_with_none",
    "frames_of_all_envs",
    "infos_of_some_envs",
    "failing_envs_are_named_and_the_others_spared",
    "statistics_in_infos",
    "views_of_the_ring",
    "send_and_receive",
    "nested_observations_into_the_callers_arrays",
]


def ray_envs(env_fns, **settings):
    return RayVecEnv(env_fns, **{"num_workers": 2, **SHARE, **settings})


def count_fns(count=4, **settings):
    return [functools.partial(CountEnv, uid=uid, length=6 + uid, **settings) for uid in range(count)]


def kill(envs, worker):
    pid = envs.worker_pids[worker]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_quick_checks_of_the_contract():
    held = check_vec_env(ray_envs, only=QUICK_CHECKS, autoreset_modes=["SameStep"])
    assert len(held) == len(QUICK_CHECKS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_whole_contract(mode):
    assert len(check_vec_env(ray_envs, autoreset_modes=[mode])) > 45


def test_same_results_as_in_one_process():
    settings = {"wrappers": [functools.partial(gym.wrappers.TimeLimit, max_episode_steps=15)], "statistics": True}
    with (
        make_vec("CartPole-v1", 5, "ray", num_workers=2, backend_options=SHARE, **settings) as one,
        make_vec("CartPole-v1", 5, "sync", **settings) as two,
    ):
        assert one.num_workers == 2
        assert one.spec == two.spec
        assert_same(one.reset(seed=3), two.reset(seed=3))
        one.action_space.seed(0)
        for _ in range(40):
            actions = one.action_space.sample()
            left, right = one.step(actions), two.step(actions)
            for infos in (left[4], right[4]):
                infos.get("episode", {}).pop("t", None)
            assert_same(left, right)
        states = one.get_state()
        ahead = [one.step(actions)[:4] for _ in range(20)]
        one.set_state(states)
        assert_same([one.step(actions)[:4] for _ in range(20)], ahead)
        two.set_state(states)
        assert_same([two.step(actions)[:4] for _ in range(20)], ahead)
        one.set_attr("mark", [1, 2, 3, 4, 5])
        assert one.get_attr("mark") == (1, 2, 3, 4, 5)


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_atari_ids_run_through_our_own_pipeline():
    settings = {"num_envs": 2, "repeat_action_probability": 0.25}
    with (
        make_vec("PongNoFrameskip-v4", backend="ray", backend_options=SHARE, **settings) as one,
        make_vec("PongNoFrameskip-v4", backend="sync", **settings) as two,
    ):
        assert one.config == two.config
        assert_same(one.reset(seed=1), two.reset(seed=1))
        for _ in range(30):
            actions = two.action_space.sample()
            assert_same(one.step(actions), two.step(actions))


class TextEnv(gym.Env):
    """Observations without a fixed layout; actions likewise."""

    observation_space = gym.spaces.Text(8)
    action_space = gym.spaces.Text(8)

    def __init__(self, word="a"):
        self.word = word

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.word, {"odd": object, "length": np.float32(len(self.word))}

    def step(self, action):
        return action, 1.0, action == "end", False, {"said": action}


def test_custom_spaces_and_envs_that_are_built_differently():
    with make_vec(
        TextEnv,
        3,
        "ray",
        num_workers=2,
        backend_options=SHARE,
        autoreset_mode="SameStep",
        per_env_kwargs=[{"word": word} for word in ("a", "bb", "ccc")],
    ) as envs:
        observations, infos = envs.reset()
        assert observations == ("a", "bb", "ccc")
        np.testing.assert_array_equal(infos["length"], np.array([1, 2, 3], np.float32))
        assert infos["odd"].tolist() == [object] * 3
        observations, _, terminations, _, infos = envs.step(("x", "end", "z"))
        assert observations == ("x", "bb", "z")
        assert infos["final_obs"].tolist() == [None, "end", None]
        assert terminations.tolist() == [False, True, False]


class AnnouncingGateEnv(CountEnv):
    """Its steps last until a file is there; another one tells that the first has begun."""

    def __init__(self, uid, gate):
        super().__init__(uid, 1000)
        self.gate = gate

    def step(self, action):
        with open(f"{self.gate}.reached", "w"):
            pass
        for _ in range(6000):
            if os.path.exists(self.gate):
                break
            time.sleep(0.01)
        return super().step(action)


def test_what_is_ready_first_is_received_first(tmp_path):
    gate, reached = tmp_path / "open", tmp_path / "open.reached"
    fns = [functools.partial(AnnouncingGateEnv, 0, str(gate)), *count_fns()[1:]]
    with ray_envs(fns, batch_size=1) as envs:
        envs.reset()
        for _ in range(2):  # nothing is known of the envs at first, and what takes long afterwards
            for file in (gate, reached):
                file.unlink(missing_ok=True)
            envs.send([0] * 4, [1, 0, 2, 3])
            assert {envs.recv(timeout=60)[4]["env_id"].item() for _ in range(3)} == {1, 2, 3}
            deadline = time.monotonic() + 60
            while not reached.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with pytest.raises(multiprocessing.TimeoutError, match="nothing is lost"):
                envs.recv(timeout=0.05)
            gate.touch()
            assert envs.recv(timeout=60)[4]["env_id"].item() == 0
        assert envs._row_seconds[0] > 0.04
        envs._row_seconds[1:] = 1e-4  # whatever else the machine was at
        assert envs._split([1, 2, 3]) == [(0, [1]), (1, [2, 3])], "rows whose steps are short share a message"
        np.testing.assert_array_equal(envs.step([0] * 4)[0][:, 2], [3] * 4)


def test_a_failure_takes_nothing_from_the_rows_it_would_have_been_received_with():
    fns = [functools.partial(CountEnv, uid=uid, fails_at=1 if uid == 2 else None) for uid in range(4)]
    with ray_envs(fns, batch_size=4) as envs:
        envs.reset()
        envs.send([0] * 3, [3, 2, 1])
        envs.send([0], [0])
        with pytest.raises(EnvError, match="boom from env 2"):
            envs.recv(timeout=60)
        envs.send_reset(options={"reset_mask": np.array([False, False, True, False])})
        observations, *_, infos = envs.recv(timeout=60)
        np.testing.assert_array_equal(observations, [[0, 0, 1], [1, 0, 1], [2, 1, 0], [3, 0, 1]])
        assert infos["_time"].all()


def test_a_masked_reset_does_not_hide_the_failure_of_a_row_that_it_drops():
    fns = [functools.partial(CountEnv, uid=uid, fails_at=1 if uid == 1 else None) for uid in range(4)]
    with ray_envs(fns, batch_size=1) as envs:
        envs.reset()
        envs.send([0, 0], [1, 2])
        with pytest.raises(gym.error.ResetNeeded, match=r"\[1\] failed before; select") as caught:
            envs.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert "boom from env 1" in str(caught.value.__cause__)
        observations, _ = envs.reset(options={"reset_mask": np.array([True, True, False, False])})
        np.testing.assert_array_equal(observations, [[0, 1, 0], [1, 1, 0], [2, 0, 1], [3, 0, 0]])


def test_options_that_cannot_be_sent_are_refused_before_anything_is_dropped():
    with ray_envs(count_fns(), batch_size=2) as envs:
        envs.reset()
        envs.send([0, 0], [1, 3])
        with pytest.raises(TypeError, match="options: cannot be sent"):
            envs.reset(options={"lock": threading.Lock()})
        assert sorted(envs.recv(timeout=60)[4]["env_id"].tolist()) == [1, 3]


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_a_reset_after_an_actor_was_given_up_works_though_rows_are_outstanding():
    fns = [CountEnv, functools.partial(CountEnv, dies_at=1)]
    with ray_envs(fns, num_workers=1, batch_size=1, on_worker_failure="restart") as envs:
        envs.reset()
        envs.send([0, 0], [0, 1])

        def go_on():
            for _ in range(60):
                envs.send([0], envs.recv(timeout=60)[4]["env_id"])

        with pytest.raises(WorkerDied, match="3 times in a row"):
            go_on()
        np.testing.assert_array_equal(envs.reset(seed=3)[0][:, 2], [0, 0])


def test_a_dead_actor_is_named_and_close_works():
    with ray_envs(count_fns()) as envs:
        envs.reset()
        pid = kill(envs, 1)
        start = time.monotonic()
        with pytest.raises(WorkerDied, match=r"environments 2-3|environments 2, 3") as caught:  # noqa: PT012
            for _ in range(2):  # the signal may come after the first step was finished
                envs.step([0] * 4)
        assert time.monotonic() - start < 20
        assert caught.value.env_indices == (2, 3)
        assert caught.value.pid == pid
        with pytest.raises(WorkerDied):
            envs.reset()
        with pytest.raises(WorkerDied):
            envs.call("uid")
    assert envs.closed


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_dead_actor_is_replaced(mode):
    with ray_envs(count_fns(), autoreset_mode=mode, statistics=True, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        for _ in range(8):
            before = envs.step([0] * 4)[0]
        counts = envs.episode_statistics().episode_counts
        kill(envs, 1)
        observations, rewards, terminations, truncations, infos = envs.step([0] * 4)
        if not truncations[2]:  # the signal came after the step
            before, counts = observations, envs.episode_statistics().episode_counts
            observations, rewards, terminations, truncations, infos = envs.step([0] * 4)
        np.testing.assert_array_equal(truncations, [False, False, True, True])
        np.testing.assert_array_equal(terminations[2:], [False] * 2)
        np.testing.assert_array_equal(rewards[2:], [0.0, 0.0])
        np.testing.assert_array_equal(infos["worker_restarted"], [False, False, True, True])
        assert "episode" not in infos or not infos["_episode"][2:].any()
        if mode == "SameStep":
            np.testing.assert_array_equal(np.stack(infos["final_obs"][2:]), before[2:])
            np.testing.assert_array_equal(observations[2:], [[2, 0, 0], [3, 0, 0]])
        else:
            np.testing.assert_array_equal(observations[2:], before[2:])
        np.testing.assert_array_equal(envs.episode_statistics().episode_counts[2:], counts[2:])
        observations, *_, infos = envs.step([0] * 4)
        assert "worker_restarted" not in infos
        np.testing.assert_array_equal(observations[2:, 2], [0, 0] if mode == "NextStep" else [1, 1])
        assert envs.get_attr("np_random_seed")[2] not in (3, None)


def test_rows_of_a_dead_actor_are_asked_for_again():
    with ray_envs(count_fns(seconds=0.05), batch_size=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        envs.send([0] * 4, range(4))
        kill(envs, 1)
        seen = {}
        for _ in range(2):
            _, rewards, _, truncations, infos = envs.recv(timeout=60)
            for place, row in enumerate(infos["env_id"].tolist()):
                seen[row] = (float(rewards[place]), bool(truncations[place]))
        assert seen[0] == seen[1] == (1.0, False)
        assert {seen[2], seen[3]} <= {(0.0, True), (1.0, False)}
        envs.send([0] * 2, [2, 3])
        assert sorted(envs.recv(timeout=60)[4]["env_id"].tolist()) == [2, 3]


def test_rows_of_one_actor_are_asked_for_again_though_another_one_is_given_up():
    """It was replaced a second time: what was asked of the one before it told of another death."""
    with ray_envs(count_fns(seconds=1.0), batch_size=2, on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        envs.send([0, 0], [0, 2])
        envs._replacements._strikes[1] = 2
        for worker in range(2):
            envs._group.note_death(worker, "recv")
        with pytest.raises(WorkerDied, match=r"environments 2, 3|environments 2-3"):
            envs.recv(timeout=60)
        envs._replacements.forgive()
        assert envs.recv(timeout=60)[3].tolist() == [True, True]
        assert envs._replacements._restarts[0] == 1


class DeadlyEnv(CountEnv):
    """Ends its process in every step."""

    def step(self, action):
        os._exit(3)


def test_three_deaths_without_a_step_are_final():
    with ray_envs([CountEnv, DeadlyEnv], on_worker_failure="restart") as envs:
        envs.reset()
        deaths = 0
        with pytest.raises(WorkerDied, match="3 times in a row"):  # noqa: PT012
            for _ in range(10):
                deaths += bool(envs.step([0, 0])[3][1])
        assert deaths == 2


def test_a_step_that_is_interrupted_while_an_actor_is_replaced_leaves_that_to_the_next(monkeypatch):
    """The new actor was asked for steps though it had no envs."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with ray_envs(count_fns(), on_worker_failure="restart") as envs:
        envs.reset(seed=1)
        kill(envs, 1)
        for _ in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(envs._group, "introduced", interrupted)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                    for _ in range(2):  # the signal may come after the first step was finished
                        envs.step([0] * 4)
        np.testing.assert_array_equal(envs.step([0] * 4)[3], [False, False, True, True])


def test_a_step_that_takes_too_long(tmp_path):
    fns = [CountEnv, functools.partial(AnnouncingGateEnv, 1, str(tmp_path / "never"))]
    with ray_envs(fns, step_timeout=3.0, on_worker_failure="restart") as envs:
        envs.reset()
        np.testing.assert_array_equal(envs.step([0, 0])[3], [False, True])
        envs.send([0, 0], [1, 0])
        envs.recv()


class HangingResetEnv(CountEnv):
    """Hangs in a reset without options."""

    def reset(self, *, options=None, **arguments):
        if not options:
            time.sleep(20)
        return super().reset(options=options, **arguments)


def test_the_time_limit_holds_for_the_call_that_is_repeated_after_a_restart():
    with ray_envs([CountEnv, HangingResetEnv], step_timeout=2.0, on_worker_failure="restart") as envs:
        envs.reset(options={"go": True})
        with pytest.raises(WorkerDied, match=r"reset \(longer than step_timeout\), 3 times in a row"):
            envs.reset()


# -- errors of envs ---------------------------------------------------------------------------------------------------


class Unpicklable(Exception):
    """Its constructor takes more than its message, and it holds a lock."""

    def __init__(self, number, text):
        super().__init__(text)
        self.lock = threading.Lock()


class FailingEnv(CountEnv):
    """Raises in every step."""

    def step(self, action):
        raise Unpicklable(3, "boom") if self.uid == 2 else KeyError("bang")


def test_exceptions_of_envs_come_with_index_and_traceback():
    with ray_envs([CountEnv, functools.partial(FailingEnv, 1), functools.partial(FailingEnv, 2)]) as envs:
        envs.reset()
        with pytest.raises(EnvError) as caught:
            envs.step([0] * 3)
        assert isinstance(caught.value, KeyError)
        assert [failure.env_index for failure in caught.value.failures] == [1, 2]
        assert caught.value.failures[1].type_name == "Unpicklable"
        assert caught.value.worker_pid == envs.worker_pids[1]
        assert 'raise Unpicklable(3, "boom")' in caught.value.failures[1].traceback
        envs.reset(options={"reset_mask": np.array([False, True, True])})
        assert isinstance(envs.get_attr("uid"), tuple)
        with pytest.raises(AttributeError):
            envs.call("no_such_method")


def test_what_one_side_cannot_load_is_the_failure_of_envs():
    from secretive_env import LoadsOnlyIn, SecretiveEnv  # here: actors import this module, and do not find that one

    with ray_envs([functools.partial(SecretiveEnv, uid) for uid in range(4)]) as envs:
        envs.reset()
        envs.step([0] * 4)
        with pytest.raises(EnvError, match="loaded elsewhere") as caught:
            envs.step([0] * 4)
        assert [failure.env_index for failure in caught.value.failures] == [1]
        envs.reset()
        value = LoadsOnlyIn(os.getpid())
        for ask in (
            lambda: envs.set_attr("level", value),
            lambda: envs.call("set_wrapper_attr", "level", value),
            lambda: envs.reset(options={"level": value}),
        ):
            with pytest.raises(EnvError, match="loaded elsewhere"):
                ask()
        with pytest.raises(TypeError, match="options: cannot be sent"):
            envs.reset(options={"lock": threading.Lock()})
        assert len(envs.reset()[0]) == len(envs.step([0] * 4)[0]) == 4


# -- bad input --------------------------------------------------------------------------------------------------------


def test_ray_is_missing(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find_spec(name, *rest)
    )
    with pytest.raises(MissingExtra, match=r"vecenv\[ray\]"):
        make_vec("CartPole-v1", 2, "ray")


def test_more_cpus_than_there_are():
    with pytest.raises(NotEnoughResources, match=r"ask for 3 of 'CPU', the Ray cluster has 2; use fewer workers"):
        make_vec("CartPole-v1", 3, "ray", num_workers=3)
    with pytest.raises(NotEnoughResources, match="'quantum'"):
        make_vec("CartPole-v1", 3, "ray", backend_options={**SHARE, "resources": {"quantum": 1}})


def test_cpus_that_others_hold_are_waited_for_in_bounded_time():
    with (
        ray_envs([CountEnv], num_workers=1, num_cpus=2),
        pytest.raises(NotEnoughResources, match=r"not started within 1 s.*'CPU'"),
    ):
        ray_envs([CountEnv], num_workers=1, num_cpus=1, start_timeout=1)


def test_settings_that_do_not_exist():
    for name in ("balance", "context", "shared_memory", "num_workers"):
        with pytest.raises(UnknownSetting, match="address"):
            make_vec("CartPole-v1", 2, "ray", backend_options={name: 1})
    for name, value, kind in (
        ("num_cpus", -1, ValueError),
        ("num_cpus", "two", TypeError),
        ("start_timeout", 0, ValueError),
        ("step_timeout", True, TypeError),
        ("share_memory", 1, TypeError),
        ("resources", [1], TypeError),
        ("address", 6379, TypeError),
        ("address", "nowhere", ValueError),
        ("on_worker_failure", "perhaps", UnknownSetting),
        ("scheduling_strategy", "anywhere", UnknownSetting),
    ):
        with pytest.raises(kind, match=name):
            make_vec("CartPole-v1", 2, "ray", backend_options={name: value})


def test_constructors_that_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"env_fns\[1\] cannot be sent to a worker process"):
        ray_envs([CountEnv, lambda: lock])


def test_another_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(vecenv, "__version__", "99.1")
    with pytest.raises(WorkerRefused, match=rf"has vecenv .*{vecenv.__version__}"):
        ray_envs([CountEnv], num_workers=1)


# -- the cluster ------------------------------------------------------------------------------------------------------


def run_script(script, tmp_path, **environment):
    """A user's script in a process of its own, not connected to the cluster of these tests."""
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **environment},
        check=False,
    )


def test_addresses_that_do_not_answer(tmp_path):
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        script = f"""
import time
from vecenv import make_vec
from vecenv.ray_cluster import RayUnreachable
for address in ("127.0.0.1:{silent.getsockname()[1]}", "127.0.0.1:{closed.getsockname()[1]}", None, "auto"):
    start = time.monotonic()
    try:
        make_vec("CartPole-v1", 2, "ray", backend_options={{"address": address, "start_timeout": 2}})
    except RayUnreachable as error:
        assert "127.0.0.1:" in str(error), error
        assert time.monotonic() - start < 30
    else:
        raise SystemExit("not refused")
try:
    make_vec("CartPole-v1", 2, "ray", backend_options={{"address": "ray://127.0.0.1:10001"}})
except NotImplementedError:
    print("done")
"""
        finished = run_script(script, tmp_path, RAY_ADDRESS=f"127.0.0.1:{silent.getsockname()[1]}")
    assert finished.stdout.strip() == "done", finished.stdout + finished.stderr


STALE_RECORD = """
import os, time
from ray._private import services
from vecenv import make_vec
from vecenv.ray_cluster import RayUnreachable
services.find_gcs_addresses = frozenset  # the cluster of these tests is not to be found
for record in RECORDS:
    if record is not None:
        os.makedirs(os.path.join(os.environ["RAY_TMPDIR"], "ray"), exist_ok=True)
        with open(os.path.join(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster"), "w") as file:
            file.write(record)
    start = time.monotonic()
    try:
        make_vec("CartPole-v1", 2, "ray", backend_options={"address": "auto", "start_timeout": 2})
    except RayUnreachable as error:
        assert "no Ray cluster runs on this machine" in str(error), error
        assert record is None or record in str(error), error
        assert time.monotonic() - start < 20
    else:
        raise SystemExit("not refused")
print("done")
"""


def test_a_record_of_a_cluster_that_is_gone_is_not_waited_for(tmp_path):
    """``address="auto"`` means what Ray has written down of the last cluster, which may have been killed."""
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        records = [None, *(f"127.0.0.1:{one.getsockname()[1]}" for one in (silent, closed))]
        script = STALE_RECORD.replace("RECORDS", repr(records))
        finished = run_script(script, tmp_path, RAY_TMPDIR=str(tmp_path), RAY_ADDRESS="")
    assert finished.stdout.strip() == "done", finished.stdout + finished.stderr


SCRIPT = """
import os, psutil, socket, time
from vecenv import make_vec
from vecenv.testing import CountEnv
class Env(CountEnv):
    def close(self):
        with open(FILE, "a") as file:
            file.write("closed ")
one = make_vec(Env, 2, "ray", num_workers=1, backend_options={"num_cpus": 0.2, "object_store_memory": 80 * 2**20})
two = make_vec("CartPole-v1", 2, "ray", num_workers=1, backend_options={"num_cpus": 0.2})
import ray
everyone = psutil.Process().children(recursive=True)
listening = []
for process in everyone:
    try:
        listening += [c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"]
    except psutil.NoSuchProcess:
        pass
assert listening and {ip.rpartition(":")[2] for ip in listening} == {"127.0.0.1"}, listening
for envs in (one, two):
    assert ray.is_initialized()
    envs.reset(seed=0)
    envs.step([0, 0])
    if CLOSE:
        envs.close()
        envs.close()
if CLOSE:
    assert not ray.is_initialized()
    gone, alive = psutil.wait_procs(everyone, 20)
    assert not alive, alive
print("done")
"""


@pytest.mark.parametrize("closes", [True, False])
def test_a_cluster_of_our_own_ends_with_its_last_user(tmp_path, closes):
    file = tmp_path / "file"
    finished = run_script(SCRIPT.replace("CLOSE", str(closes)).replace("FILE", repr(str(file))), tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "done"
    assert finished.stderr.strip() == ""
    assert file.read_text() == "closed closed ", "envs are closed even where nobody closes the vector env"


USER_CONNECTS_ANEW = """
import os
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only
import ray
from vecenv import make_vec

def build():
    return make_vec("CartPole-v1", 2, "ray", num_workers=1, backend_options={"num_cpus": 0.2})

first = build()
ray.shutdown()
ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
second = build()
second.reset(seed=0)
first.close()
assert ray.is_initialized()
second.step([0, 0])
second.close()
assert ray.is_initialized()
print("done")
"""


def test_a_connection_that_the_user_made_later_is_not_ended(tmp_path):
    """Neither by a vector env of the cluster of before, whose actors are gone, nor by one that came after."""
    finished = run_script(USER_CONNECTS_ANEW, tmp_path, RAY_USAGE_STATS_ENABLED="0")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "done"


@pytest.mark.parametrize("address", ["127.0.0.1:43995", "localhost:43995", "192.0.2.2:43995", "as.joined:1", "auto"])
def test_the_same_cluster_by_another_address(monkeypatch, address):
    """Ray tells the address of this node where a loopback address was given."""
    context = types.SimpleNamespace(gcs_address="192.0.2.2:43995")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "192.0.2.2")
    monkeypatch.setattr("vecenv.ray_cluster._current", lambda: ("session", "1"))
    monkeypatch.setattr("vecenv.ray_cluster._ours", ("session", "1"))
    monkeypatch.setattr("vecenv.ray_cluster._joined", "as.joined:1")
    ray_cluster._check_same(address)
    for other in ("127.0.0.1:43996", "192.0.2.3:43995", "nowhere.invalid:43995", "nowhere"):
        with pytest.raises(ValueError, match="connected to the Ray cluster"):
            ray_cluster._check_same(other)


def test_actors_end_with_the_vector_env_and_the_cluster_stays():
    import ray

    envs = ray_envs(count_fns())
    pids = envs.worker_pids
    envs.close()
    dropped = ray_envs(count_fns())
    pids += dropped.worker_pids
    del dropped
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert ray.is_initialized()
    with pytest.raises(ValueError, match="connected to the Ray cluster"):
        ray_envs(count_fns(), address="127.0.0.1:1")


def test_failed_construction_leaves_no_actor():
    import ray

    def fails():
        raise ValueError("no such level")

    with pytest.raises(EnvError, match="no such level") as caught:
        ray_envs([CountEnv, CountEnv, fails])
    assert caught.value.env_index == 2
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ray.available_resources()["CPU"] == 2


def test_an_interrupt_waits_until_the_connection_is_made(monkeypatch):
    """Half-way it has ended the interpreter by SIGSEGV."""
    import ray

    done, before = [], signal.getsignal(signal.SIGINT)

    def init(**settings):
        signal.raise_signal(signal.SIGINT)
        done.append(settings["address"])

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(KeyboardInterrupt):
        ray_cluster._connect("local", None, 5.0, 1)
    assert done == ["local"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("failing", ["init", "_current"])
def test_a_connection_that_is_not_taken_over_is_ended(monkeypatch, failing):
    """Else it would belong to nobody: later connections take it for the user's own."""
    connections = []

    def interrupt(**settings):
        connections.append("local")
        if failing == "init":
            signal.raise_signal(signal.SIGINT)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("ray.init", interrupt)
    monkeypatch.setattr("ray.shutdown", connections.clear)
    monkeypatch.setattr(ray_cluster, "_is_connected", lambda: bool(connections))
    monkeypatch.setattr(ray_cluster, "_current", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ray_cluster.RayConnection("local")
    assert not connections
