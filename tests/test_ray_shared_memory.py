"""Rows of Ray actors on the caller's machine: read in their memory, the same as sent ones, and nothing is left."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from vecenv.buffers import Layout
from vecenv.errors import WorkerDied
from vecenv.sync_backend import SyncVecEnv
from vecenv.testing import CountEnv, assert_same

pytest.importorskip("ray", reason="Ray is not installed: pip install 'vecenv[ray]'")

from vecenv.ray_backend import RayVecEnv
from vecenv.ray_group import ActorGroup
from vecenv.ray_shared_block import BlockAddress, create_shared_block, open_shared_block
from vecenv.ray_shared_rows import SharedRows
from vecenv.ray_step_runs import ASKED, RUN, TOLD, RunAddress, ServedRuns, StepRun, wait_for_answers

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("one_ray_cluster"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is shared by Linux's means"),
]


def ray_envs(env_fns, **settings):
    return RayVecEnv(env_fns, **{"num_workers": 2, "num_cpus": 0.2, **settings})


def memory_files():
    """Memory files that this process maps or has open."""
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:vecenv" in line]
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    return len(mapped), sum(link.startswith("/memfd:vecenv") for link in links)


class NestedEnv(gym.Env):
    """A nest of observations and actions, infos of several kinds that come and go."""

    observation_space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (5, 7), np.uint8), "place": gym.spaces.Tuple([gym.spaces.Discrete(99)] * 2)}
    )
    action_space = gym.spaces.Dict({"push": gym.spaces.Box(-1, 1, (2,), np.float32), "key": gym.spaces.Discrete(3)})

    def __init__(self, uid):
        self.uid, self.steps = uid, 0

    def _observation(self):
        image = self.np_random.integers(0, 256, (5, 7), np.uint8)
        return {"image": image, "place": (self.uid, np.int64(self.steps))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {"lives": 3, "text": str(options)}

    def step(self, action):
        self.steps += 1
        info = {"push": action["push"].copy(), "lives": 3 - self.steps % 3}
        if self.steps % 4 == self.uid % 4:
            info["rare"] = np.arange(3) * self.uid
        reward = float(action["push"].sum()) + int(action["key"])
        return self._observation(), reward, self.steps == 5 + self.uid, self.steps == 6, info


def way(monkeypatch, ways):
    """Have only some workers' memory found, in the order in which they are attached."""
    of, order = SharedRows.of, iter(ways)
    monkeypatch.setattr(SharedRows, "of", lambda address, *rest: of(address if next(order) else None, *rest))


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, False)], ids=["shared", "mixed", "sent"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_same_results_whichever_way_rows_take(monkeypatch, ways, mode):
    fns = [functools.partial(NestedEnv, uid) for uid in range(5)]
    settings = {"autoreset_mode": mode, "statistics": True}
    way(monkeypatch, ways)
    with ray_envs(fns, **settings) as one, SyncVecEnv(fns, **settings) as two:
        assert sorted(one._shared) == [worker for worker, shared in enumerate(ways) if shared]
        assert_same(one.reset(seed=3), two.reset(seed=3))
        two.action_space.seed(0)
        kept = []
        for step in range(16):
            if step == 8:
                options = {"reset_mask": np.array([True, False, True, False, False]), "level": 2}
                assert_same(one.reset(seed=5, options=options), two.reset(seed=5, options=options))
            actions = two.action_space.sample()
            left, right = one.step(actions), two.step(actions)
            for infos in (left[4], right[4]):
                infos.get("episode", {}).pop("t", None)
            assert_same(left, right)
            kept.append((left[0], right[0]))
        for before, again in kept:  # what was returned is the caller's own
            assert_same(before, again)
        one.set_state(two.get_state())
        assert_same(one.step(actions)[:4], two.step(actions)[:4])


@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_are_sent_alone(monkeypatch, shared):
    way(monkeypatch, [shared] * 2)
    fns = [functools.partial(NestedEnv, uid) for uid in range(5)]
    with ray_envs(fns, batch_size=2) as one, SyncVecEnv(fns) as two:
        assert len(one._shared) == 2 * shared
        two.action_space.seed(1)
        actions = [two.action_space.sample() for _ in range(100)]
        expected = [two.reset(seed=1), *(two.step(each) for each in actions)]
        one.send_reset(seed=1)
        steps = dict.fromkeys(range(5), 0)
        while min(steps.values()) < 12:  # one actor may be far ahead of the other, but not for ever
            observations, *numbers, infos = one.recv(timeout=60)
            rows = infos["env_id"].tolist()
            for place, row in enumerate(rows):
                right = expected[steps[row]]
                np.testing.assert_array_equal(observations["image"][place], right[0]["image"][row])
                np.testing.assert_array_equal(infos["lives"][place], right[-1]["lives"][row])
                if "_rare" in right[-1] and right[-1]["_rare"][row]:
                    assert infos["_rare"][place]
                    np.testing.assert_array_equal(infos["rare"][place], right[-1]["rare"][row])
                if steps[row]:
                    assert [each[place] for each in numbers] == [each[row] for each in right[1:4]]
                steps[row] += 1
            key = [actions[steps[row] - 1]["key"][row] for row in rows]
            push = np.stack([actions[steps[row] - 1]["push"][row] for row in rows])
            one.send({"key": np.array(key), "push": push}, rows)


def test_rows_are_sent_where_that_is_asked_for():
    with ray_envs([CountEnv] * 2, share_memory=False) as envs:
        assert not envs._shared
        assert envs.reset(seed=0)[0].tolist() == [[0, 0, 0]] * 2
        assert envs.step([0, 0])[0].tolist() == [[0, 0, 1]] * 2


def test_actions_wider_than_their_space_arrive_unrounded():
    fns = [functools.partial(NestedEnv, uid) for uid in range(2)]
    actions = {"push": np.full((2, 2), 0.1), "key": np.array([1, 2])}
    with ray_envs(fns) as one, SyncVecEnv(fns) as two:
        one.reset(seed=0), two.reset(seed=0)
        assert_same(one.step(actions), two.step(actions))


class HalfwayEnv(CountEnv):
    """Steps, unless a file is there: then it waits, which leaves the actor in the middle of its step."""

    def __init__(self, uid, gate):
        super().__init__(uid, 100)
        self.gate = Path(gate)

    def step(self, action):
        if self.uid == 1 and self.gate.exists():
            self.gate.with_suffix(".reached").touch()
            time.sleep(60)
        return super().step(action)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_what_a_dying_actor_wrote_last_is_never_told(tmp_path, slots, alone):
    """Its first env had finished the step, its second had not: neither has made it."""
    gate = tmp_path / "gate"
    fns = [functools.partial(HalfwayEnv, uid, gate) for uid in range(2)]
    settings = {"on_worker_failure": "restart", "slots": slots, "copy": False, "batch_size": 2}
    with ray_envs(fns, num_workers=1, **settings) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            before = envs.step([0, 0])[0].copy()
        memory, lengths = envs._shared[0], envs.episode_statistics().lengths.copy()
        gate.touch()
        envs.send([0, 0], [1, 0] if alone else [0, 1])
        deadline = time.monotonic() + 30
        while not gate.with_suffix(".reached").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        np.testing.assert_array_equal(envs.observations, before)
        np.testing.assert_array_equal(envs.episode_statistics().lengths, lengths)
        gate.unlink()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        observations, rewards, _, truncations, _ = envs.recv(timeout=60)
        np.testing.assert_array_equal(observations, before)
        assert truncations.all()
        assert not rewards.any()
        assert envs._shared[0] is not memory
        envs.step([0, 0])
        np.testing.assert_array_equal(envs.step([0, 0])[0][:, 2], [1, 1])


def test_nothing_is_left_in_this_process():
    fns = [functools.partial(CountEnv, uid) for uid in range(4)]
    gc.collect()
    before = memory_files()
    envs = ray_envs(fns, on_worker_failure="restart")
    envs.reset()
    assert memory_files()[0] == before[0] + 2
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    for _ in range(3):
        envs.step([0] * 4)
    assert memory_files()[0] == before[0] + 2
    envs.close()
    assert memory_files() == before


def small_block():
    layout = Layout()
    layout.add("numbers", (3,), np.int64)
    return create_shared_block(layout)


def test_a_block_is_found_by_its_address_and_nothing_else_is_taken_for_it(tmp_path):
    before = memory_files()
    block, address = small_block()
    found = open_shared_block(address)
    found["numbers"][1] = 7
    assert block["numbers"].tolist() == [0, 7, 0]
    boot, namespace = address.place
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(2**16)
        others = {
            "another boot": {"place": ("0", namespace)},
            "another namespace": {"place": (boot, "pid:[1]")},
            "another process": {"pid": 2**22 + 1},
            "another token": {"token": bytes(16)},
            "a closed descriptor": {"descriptor": 10**5},
            "a file of another kind": {"descriptor": file.fileno()},
        }
        for what, change in others.items():
            assert open_shared_block(replace(address, **change)) is None, what
    larger = Layout()
    larger.add("numbers", (10**6,), np.int64)
    assert open_shared_block(replace(address, layout=larger)) is None
    os.close(address.descriptor)
    assert open_shared_block(address) is None
    assert isinstance(address, BlockAddress)
    del block, found
    assert memory_files() == before


def test_without_the_means_a_block_is_private(monkeypatch):
    _, address = small_block()
    monkeypatch.setenv("VECENV_PORTABLE", "1")
    assert open_shared_block(address) is None
    os.close(address.descriptor)
    block, address = small_block()
    assert address is None
    assert block["numbers"].tolist() == [0, 0, 0]


def test_without_room_a_block_is_private(monkeypatch):
    def refuses(descriptor, size):
        raise MemoryError("no room")

    before = memory_files()
    monkeypatch.setattr("vecenv.ray_shared_block.reserve_block", refuses)
    block, address = small_block()
    assert address is None
    assert block["numbers"].tolist() == [0, 0, 0]
    assert memory_files() == before


@pytest.fixture
def calls(monkeypatch):
    """Methods that actors are called for, as they are."""
    made, call = [], ActorGroup._call

    def note(group, worker, method, *arguments):
        made.append(method)
        return call(group, worker, method, *arguments)

    monkeypatch.setattr(ActorGroup, "_call", note)
    return made


def counts_of(envs):
    return envs.step([0] * envs.num_envs)[0][:, 2].tolist()


def test_steps_in_a_run_are_no_calls_of_ray(calls):
    fns = [functools.partial(CountEnv, uid, 100) for uid in range(3)]
    with ray_envs(fns) as envs:
        envs.reset(seed=0)
        del calls[:]
        assert [counts_of(envs)[0] for _ in range(20)] == list(range(1, 21))
        assert calls == ["run_steps"] * 2
        assert envs.get_attr("uid") == (0, 1, 2)  # ends the run
        assert counts_of(envs) == [21] * 3
    del calls[:]
    with ray_envs(fns, share_memory=False) as envs:
        envs.reset(seed=0)
        assert [counts_of(envs) for _ in range(3)] == [[1] * 3, [2] * 3, [3] * 3]
    assert calls.count("step") == 6
    assert "run_steps" not in calls


@pytest.mark.parametrize("told", ["not at all", "in the memory", "by the pipe too"])
def test_a_caller_interrupted_while_it_asks_goes_on(monkeypatch, told):
    fns = [functools.partial(CountEnv, uid, 100) for uid in range(2)]
    ask = StepRun.ask

    def interrupted(run):
        monkeypatch.setattr(StepRun, "ask", ask)
        if told == "in the memory":
            run._control[ASKED] += 1
        elif told == "by the pipe too":
            ask(run)
        raise KeyboardInterrupt

    with ray_envs(fns) as envs:
        envs.reset(seed=0)
        assert counts_of(envs) == [1, 1]
        monkeypatch.setattr(StepRun, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        first = 2 if told == "not at all" else 3
        assert counts_of(envs) == [first, 2]  # the second worker was never asked for the interrupted step
        assert counts_of(envs) == [first + 1, 3]


class ForkingEnv(CountEnv):
    """Leaves a child behind that keeps the pipes of its process open for a while; without Ray's sockets."""

    def reset(self, *, seed=None, options=None):
        if os.fork() == 0:
            for descriptor in range(1024):
                with contextlib.suppress(OSError):
                    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                        os.close(descriptor)
            time.sleep(30)
            os._exit(0)
        return super().reset(seed=seed, options=options)


def test_an_actor_that_dies_is_told_of_though_its_pipe_stays_open():
    with ray_envs([ForkingEnv], num_workers=1) as envs:
        envs.reset(seed=0)
        assert counts_of(envs) == [1]
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerDied):
            envs.step([0])
        assert time.monotonic() - start < 20


class LateKeyEnv(CountEnv):
    """Has a new info field from its second step on."""

    def step(self, action):
        observation, *rest, info = super().step(action)
        if self.time > 1:
            info["late"] = self.time
        return observation, *rest, info


def test_an_interrupt_loses_no_info_field_that_was_announced_to_it(monkeypatch):
    import ray

    get = ray.get

    def interrupted(*arguments, **settings):
        monkeypatch.setattr(ray, "get", get)
        raise KeyboardInterrupt

    with ray_envs([functools.partial(LateKeyEnv, 0, 100), functools.partial(CountEnv, 1, 100)]) as envs:
        envs.reset(seed=0)
        assert counts_of(envs) == [1, 1]
        monkeypatch.setattr(ray, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        infos = envs.step([0, 0])[4]
        assert infos["_late"].tolist() == [True, False]
        assert infos["late"][0] == 3


def pipes_of(process="self"):
    """Pipes that a process has open."""
    links = set()
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            links.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return {link for link in links if link.startswith("pipe:")}


def named(address):
    return {f"pipe:[{inode}]" for inode in address.inodes}


def test_pipes_are_found_by_their_address_and_nothing_else_is_taken_for_them():
    control = np.zeros(TOLD + 1, np.int64)
    served = ServedRuns(control)
    assert named(served.address) <= pipes_of()
    (write, read), (one, two) = served.address.descriptors, served.address.inodes
    for wrong in (RunAddress((write, read), (one, one)), RunAddress((write, 10**5), (one, two))):
        assert StepRun.of(control, os.getpid(), wrong) is None
    run = StepRun.of(control, os.getpid(), served.address)
    served.leave_far_ends()
    run.begin(lambda number: number)
    run.ask()
    assert served.next(int(control[RUN]))
    assert not run.is_answered
    run.ask()  # too early
    served.answer(tells=False)
    assert not run.is_answered, "it is another step that was made"
    assert served.next(int(control[RUN]))
    served.answer(tells=False)
    assert wait_for_answers({7: run}, 5.0) == ([7], False)
    assert not run.tells
    run.leave()
    assert not served.next(int(control[RUN]) - 1)
    run.begin(lambda number: number)
    current = int(control[RUN])
    run._signal.close()
    run.wake()
    del run
    assert not served.next(current)  # the caller is gone
    served.close()
    assert not named(served.address) & pipes_of()


def test_pipes_that_cannot_be_had_leave_none_behind(monkeypatch):
    pipe2, made = os.pipe2, []

    def one_pair(flags):
        if made:
            raise OSError(24, "no descriptors are left")
        made.extend(pipe2(flags))
        return made

    monkeypatch.setattr(os, "pipe2", one_pair)
    with pytest.raises(OSError, match="no descriptors"):
        ServedRuns(np.zeros(TOLD + 1, np.int64))
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_pipes_that_the_caller_cannot_open_are_closed(monkeypatch):
    told = []
    monkeypatch.setattr(StepRun, "of", lambda control, pid, address: told.append(address))
    with ray_envs([CountEnv], num_workers=1) as envs:
        envs.reset(seed=0)
        assert counts_of(envs) == [1]
        assert not named(told[0]) & pipes_of(envs.worker_pids[0])
