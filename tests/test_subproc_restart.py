"""`on_worker_failure="restart"` and `step_timeout`: the run goes on, the other envs do not notice."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from waiting import wait_until

from vecenv import EnvError, SubprocVecEnv, SyncVecEnv, UnknownSetting, WorkerDied, make_vec
from vecenv.recovery import derived_seed
from vecenv.testing import CountEnv, DrawEnv


def kill(envs, worker):
    pid = envs.worker_pids[worker]
    os.kill(pid, signal.SIGKILL)
    return pid


def restarting(fns, num_workers=2, **settings):
    return SubprocVecEnv(fns, num_workers=num_workers, on_worker_failure="restart", **settings)


def count_fns(count=4, **settings):
    return [functools.partial(CountEnv, uid=uid, length=6 + uid, **settings) for uid in range(count)]


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_killed_worker_truncates_its_envs(mode, pending):
    with restarting(count_fns(), autoreset_mode=mode, statistics=True) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            before = envs.step([0] * 4)[0]
        if pending:
            envs.step_async([0] * 4)
        old = kill(envs, 1)
        if not pending:
            envs.step_async([0] * 4)
        observations, rewards, terminations, truncations, infos = envs.step_wait(timeout=30)
        if truncations[2]:  # else the step was finished before the signal came, and the death shows in the next one
            hit = slice(2, 4)
            assert envs.worker_pids[1] != old
            np.testing.assert_array_equal(observations[:2, 2], [4, 4])
            np.testing.assert_array_equal(rewards, [4, 4, 0, 0])
            np.testing.assert_array_equal(terminations, [False] * 4)
            np.testing.assert_array_equal(truncations, [False, False, True, True])
            np.testing.assert_array_equal(infos["worker_restarted"], [False, False, True, True])
            np.testing.assert_array_equal(infos["_worker_restarted"], [False, False, True, True])
            assert "episode" not in infos
            if mode == "SameStep":
                np.testing.assert_array_equal(observations[hit], [[2, 0, 0], [3, 0, 0]])
                np.testing.assert_array_equal(np.stack(infos["final_obs"][hit]), before[hit])
            else:
                np.testing.assert_array_equal(observations[hit], before[hit])
            if mode == "Disabled":
                with pytest.raises(gym.error.ResetNeeded, match=r"\[2, 3\]"):
                    envs.step([0] * 4)
                observations, _ = envs.reset(options={"reset_mask": truncations})
                np.testing.assert_array_equal(observations, [[0, 0, 4], [1, 0, 4], [2, 0, 0], [3, 0, 0]])
            observations, *_, infos = envs.step([0] * 4)
            assert "worker_restarted" not in infos
            time_of_new = 0 if mode == "NextStep" else 1
            np.testing.assert_array_equal(observations[:, 2], [5, 5, time_of_new, time_of_new])
        else:
            assert pending


def test_idle_workers_that_die_are_replaced_at_the_next_call():
    with restarting(count_fns()) as envs:
        envs.reset()
        kill(envs, 0)
        envs.processes[0].join(10)
        observations, _ = envs.reset(seed=3)
        np.testing.assert_array_equal(observations, [[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 1, 0]])
        kill(envs, 0)
        with pytest.raises(WorkerDied):
            envs.call("uid")
        truncations = envs.step([0] * 4)[3]
        np.testing.assert_array_equal(truncations, [True, True, False, False])
        assert envs.call("uid") == (0, 1, 2, 3)


def test_what_a_dead_worker_has_answered_is_not_taken_for_an_answer_of_the_one_in_its_place(monkeypatch):
    """The new one was not waited for, and answered late, for the next call."""
    with restarting(count_fns()) as envs:
        envs.reset(seed=1)
        replace, seen = envs._group.replace, []

        def noted(worker, *arguments):
            replace(worker, *arguments)
            seen.append(int(envs._control.answered[worker]))

        monkeypatch.setattr(envs._group, "replace", noted)
        kill(envs, 1)
        envs.processes[1].join(10)
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})  # does not ask the dead one
        envs.step([0] * 4)
        assert seen == [0]


class DeadlyEnv(CountEnv):
    """Kills its process in every step."""

    def step(self, action):
        os.kill(os.getpid(), signal.SIGKILL)


def test_three_deaths_without_a_step_are_final():
    with restarting([CountEnv, DeadlyEnv]) as envs:
        envs.reset()
        deaths = 0
        with pytest.raises(WorkerDied, match="3 times in a row"):  # noqa: PT012
            for _ in range(10):
                truncations = envs.step([0, 0])[3]
                deaths += bool(truncations[1])
        assert deaths == 2


class FragileEnv(CountEnv):
    """Can be built and reset once only: later processes die in reset."""

    def reset(self, **arguments):
        if arguments.get("options"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**arguments)


def test_deaths_in_reset_are_bounded():
    with restarting([CountEnv, FragileEnv]) as envs:
        envs.reset()
        with pytest.raises(WorkerDied, match="3 times in a row"):
            envs.reset(options={"die": True})


def test_a_step_that_takes_too_long():
    fns = [functools.partial(CountEnv, uid=uid, seconds=1000.0 if uid == 1 else 0.0) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=2, step_timeout=1.5) as envs:
        envs.reset()
        start = time.monotonic()
        with pytest.raises(WorkerDied, match=r"environments 1.*step_timeout.*SIGKILL"):
            envs.step([0, 0])
        assert time.monotonic() - start < 10
    with SubprocVecEnv(fns, num_workers=2, step_timeout=1.5, on_worker_failure="restart") as envs:
        envs.reset()
        for _ in range(2):
            observations, _, _, truncations, infos = envs.step([0, 0])
            np.testing.assert_array_equal(truncations, [False, True])
            np.testing.assert_array_equal(infos["worker_restarted"], [False, True])
            np.testing.assert_array_equal(observations[1], [1, 0, 0])
            envs.reset()


class HangingEnv(CountEnv):
    """Hangs in every step, in a reset without options, and in its constructor where the file `hang_if` exists."""

    def __init__(self, hang_if="", **settings):
        if os.path.exists(hang_if):
            time.sleep(15)
        super().__init__(**settings)

    def reset(self, *, options=None, **arguments):
        if not options:
            time.sleep(15)
        return super().reset(options=options, **arguments)

    def step(self, action):
        time.sleep(15)
        return super().step(action)


@pytest.mark.parametrize("doing", ["reset", "step"])
def test_the_time_limit_holds_for_the_call_that_is_repeated_after_a_restart(doing):
    """The step of SAME_STEP mode is repeated as a reset."""
    with restarting([CountEnv, HangingEnv], step_timeout=0.5, autoreset_mode="SameStep") as envs:
        envs.reset(options={"go": True})
        with pytest.raises(WorkerDied, match=rf"{doing} \(longer than step_timeout\), 3 times in a row"):
            envs.reset() if doing == "reset" else envs.step([0, 0])
        observations, _ = envs.reset(options={"go": True})  # the vector env is of use still
        np.testing.assert_array_equal(observations[:, 2], [0, 0])


def test_building_in_a_replacement_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("vecenv.recovery.BUILD_SECONDS", 1.5)
    mark = tmp_path / "hang"
    fns = [CountEnv, functools.partial(HangingEnv, hang_if=str(mark))]
    with restarting(fns, step_timeout=0.5) as envs:
        envs.reset(options={"go": True})
        mark.touch()
        kill(envs, 1)
        with pytest.raises(WorkerDied, match=r"construction \(longer than step_timeout\), 3 times in a row"):
            envs.step([0, 0])
        mark.unlink()
        envs.reset(options={"go": True})


class SometimesSlowEnv(CountEnv):
    """`CountEnv` whose sixth step takes 0.4 seconds."""

    def step(self, action):
        if self.time == 5:
            time.sleep(0.4)
        return super().step(action)


def test_each_row_that_is_sent_alone_has_the_limit_to_itself():
    with SubprocVecEnv(
        [functools.partial(SometimesSlowEnv, length=9)] * 4, num_workers=1, batch_size=1, step_timeout=1.2
    ) as envs:
        envs.reset()
        for _ in range(8):
            envs.send([0, 0, 0, 0], range(4))
            for _ in range(4):
                envs.recv()


def test_bad_settings():
    with pytest.raises(UnknownSetting, match="perhaps"):
        SubprocVecEnv([CountEnv], on_worker_failure="perhaps")
    for limit in (0, -1, "3", True):
        with pytest.raises(ValueError, match="step_timeout"):
            SubprocVecEnv([CountEnv], step_timeout=limit)
    for name, value in (("balance", "no"), ("balance", 1), ("preload", "abc"), ("preload", [3]), ("preload", 3)):
        with pytest.raises(TypeError, match=f"{name}: expected"):
            SubprocVecEnv([CountEnv], **{name: value})


def test_the_seed_of_a_restart_is_part_of_the_state():
    with restarting([DrawEnv] * 2) as envs, SyncVecEnv([DrawEnv] * 2) as others:
        envs.reset(seed=1)
        kill(envs, 1)
        envs.processes[1].join(10)
        assert envs.step([0, 0])[3].tolist() == [False, True]
        states = envs.get_state()
        expected = envs.step([0, 0])[0]
        np.testing.assert_array_equal(expected[1], DrawEnv().reset(seed=derived_seed(1, 1, 1))[0])
        for each in (envs, others):
            each.set_state(states)
            np.testing.assert_array_equal(each.step([0, 0])[0], expected)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_restart_that_was_not_told_of_yet_is_part_of_the_state(shared_memory):
    """The env was stepped without ever having been reset. Where observations are objects, the worker ended."""
    with restarting(count_fns(), shared_memory=shared_memory) as envs:
        envs.reset(seed=1)
        last = envs.step([0] * 4)[0]
        kill(envs, 1)
        envs.processes[1].join(10)
        envs.reset(options={"reset_mask": np.array([False, False, True, False])})
        states = envs.get_state()
        for _ in range(2):
            observations, _, _, truncations, infos = envs.step([0] * 4)
            np.testing.assert_array_equal(observations[2:], [[2, 0, 1], last[3]])
            assert truncations.tolist() == infos["worker_restarted"].tolist() == [False, False, False, True]
            envs.set_state(states)


def test_a_state_that_was_saved_before_restarts_were_part_of_it_is_taken_up():
    with SyncVecEnv([CountEnv]) as envs:
        envs.reset(seed=1)
        envs.step([0])
        env, (standing, *rest) = pickle.loads(envs.get_state()[0])
        assert standing == (False, None, False)
        envs.step([0])
        envs.set_state([pickle.dumps((env, (False, *rest)))])
        assert envs.step([0])[0].tolist() == [[0, 0, 2]]


def run_with_kills(seed, steps, kills, record):
    """CartPole on 8 workers; workers 4 to 7 are killed at given steps, between calls."""
    with make_vec(
        "CartPole-v1", 8, "subproc", num_workers=8, backend_options={"on_worker_failure": "restart"}, slots=2
    ) as envs:
        envs.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for step in range(steps):
            for worker in kills.get(step, ()):
                os.kill(envs.worker_pids[worker], signal.SIGKILL)
                envs.processes[worker].join(10)
            result = envs.step(rng.integers(0, 2, 8))
            record.append([part.copy() for part in result[:4]])


def random_kills(steps, count):
    rng = np.random.default_rng(0)
    return {int(step): [int(rng.integers(4, 8))] for step in rng.choice(np.arange(1, steps), count, replace=False)}


@pytest.mark.parametrize(
    ("steps", "count"), [(600, 20), pytest.param(20_000, 200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_random_kills(steps, count):
    """Workers that are not killed equal an undisturbed run; restarted ones are the same every time."""
    kills = random_kills(steps, count)
    one, two, calm = [], [], []
    run_with_kills(5, steps, kills, one)
    run_with_kills(5, steps, kills, two)
    with make_vec("CartPole-v1", 8, "sync") as envs:
        envs.reset(seed=5)
        rng = np.random.default_rng(5)
        for _ in range(steps):
            calm.append(envs.step(rng.integers(0, 2, 8))[:4])
    restarts = 0
    for step in range(steps):
        for part in range(4):
            np.testing.assert_array_equal(one[step][part], two[step][part])
            np.testing.assert_array_equal(one[step][part][:4], calm[step][part][:4])
        for worker in kills.get(step, ()):
            assert one[step][3][worker], "a killed worker's episode is truncated"
            restarts += 1
    assert restarts == count


def test_rows_sent_alone():
    with restarting(count_fns(4, seconds=0.05), num_workers=4, batch_size=2) as envs, SyncVecEnv(count_fns()) as calm:
        envs.reset(seed=0)
        calm.reset(seed=0)
        envs.send([0] * 4, range(4))
        kill(envs, 2)
        seen = {}
        for _ in range(2):
            observations, rewards, _, truncations, infos = envs.recv(timeout=30)
            for place, row in enumerate(infos["env_id"].tolist()):
                seen[row] = (observations[place].tolist(), float(rewards[place]), bool(truncations[place]))
        assert seen[0] == ([0, 0, 1], 1.0, False)
        assert seen[2] in (([2, 0, 0], 0.0, True), ([2, 0, 1], 1.0, False))
        envs.send([0] * 2, [2, 3])
        ids = envs.recv(timeout=30)[4]["env_id"].tolist()
        assert sorted(ids) == [2, 3]


def test_rows_of_a_worker_that_died_idle_are_truncated_when_sent():
    with restarting(count_fns(), num_workers=2, batch_size=1) as envs:
        envs.reset()
        kill(envs, 0)
        envs.processes[0].join(10)
        envs.send([0], [0])
        observations, _, _, truncations, infos = envs.recv(timeout=30)
        assert infos["worker_restarted"].all()
        assert truncations.all()
        np.testing.assert_array_equal(observations, [[0, 0, 0]])
        envs.send([0], [1])
        assert envs.recv(timeout=30)[3].all()
        for row in (0, 1):
            envs.send([0], [row])
            observations, _, _, truncations, infos = envs.recv(timeout=30)
            assert not truncations.any()
            assert "worker_restarted" not in infos


class SlowResetEnv(CountEnv):
    def reset(self, **arguments):
        time.sleep(0.4)
        return super().reset(**arguments)


def test_resets_of_single_rows_survive_a_death():
    """The new worker is told again what the dead one had read: it used to wait for that for ever."""
    fns = [functools.partial(SlowResetEnv, uid=uid) for uid in range(4)]
    with restarting(fns, batch_size=4) as envs:
        envs.send_reset(options={"level": 7})
        time.sleep(0.2)
        kill(envs, 1)
        observations, _, _, truncations, infos = envs.recv(timeout=30)
        assert not truncations.any()
        np.testing.assert_array_equal(observations[:, 0], range(4))
        assert infos["options"].tolist() == ["{'level': 7}"] * 4


class OnceHangingEnv(CountEnv):
    """Hangs in a reset with options, where the file `gate` is not there yet, and puts down the file `mark`."""

    def __init__(self, folder, **settings):
        super().__init__(**settings)
        self.gate, self.mark = folder / "gate", folder / str(self.uid)

    def reset(self, *, options=None, **arguments):
        if options and not self.gate.exists():
            self.mark.touch()
            time.sleep(60)
        return super().reset(options=options, **arguments)


def test_rows_of_one_worker_are_asked_for_again_though_another_one_is_given_up(tmp_path):
    """They were waited for for ever, in the very reset that the error advises."""
    fns = [functools.partial(OnceHangingEnv, tmp_path, uid=uid) for uid in range(2)]
    with restarting(fns) as envs:
        envs.reset(seed=1)
        envs.send_reset(options={"level": 7})
        wait_until(lambda: all((tmp_path / str(uid)).exists() for uid in range(2)), 30.0)
        (tmp_path / "gate").touch()
        envs._recovery._strikes[1] = 2
        for worker in range(2):
            kill(envs, worker)
            envs.processes[worker].join(10)
        with pytest.raises(WorkerDied, match=r"environments 1.*3 times in a row"):
            envs.recv(timeout=30)
        envs._recovery.forgive()  # as reset does, which has no time limit
        observations, _, _, _, infos = envs.recv(timeout=30)
        np.testing.assert_array_equal(observations, [[0, 0, 0], [1, 0, 0]])
        assert infos["options"].tolist() == ["{'level': 7}"] * 2


class TextActionEnv(CountEnv):
    """Puts down the file `mark` as soon as it has been given an action."""

    def __init__(self, mark, **settings):
        super().__init__(**settings)
        self.action_space = gym.spaces.Text(5)
        self.mark = mark

    def step(self, action):
        assert isinstance(action, str)
        self.mark.touch()
        return super().step(0)


def test_a_worker_is_not_late_because_the_one_before_it_was():
    """The time limit begins anew: the new workers used to be killed one after the other."""
    fns = [functools.partial(SlowResetEnv, uid=uid, seconds=30 * uid) for uid in range(2)]
    with restarting(fns, num_workers=1, batch_size=1, step_timeout=3.0, autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        envs.send([0], [1])
        _, _, _, truncations, infos = envs.recv(timeout=30)
        assert truncations.all()
        assert infos["worker_restarted"].all()


def test_actions_sent_as_objects_survive_a_death(tmp_path):
    """The worker dies when it has read the actions of both its rows and finished neither."""
    marks = [tmp_path / str(uid) for uid in range(4)]
    fns = [functools.partial(TextActionEnv, marks[uid], uid=uid, seconds=30.0 if uid == 2 else 0.0) for uid in range(4)]
    with restarting(fns, batch_size=2) as envs:
        envs.reset(seed=1)
        envs.send(["a", "b", "c", "d"], range(4))
        wait_until(marks[2].exists, 30.0)
        kill(envs, 1)
        told = {}
        for _ in range(2):
            _, _, _, truncations, infos = envs.recv(timeout=30)
            told.update(zip(infos["env_id"].tolist(), truncations.tolist(), strict=True))
        assert told == {0: False, 1: False, 2: True, 3: True}


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_message_that_a_hanging_worker_does_not_take_is_not_waited_for_without_end(policy, tmp_path):
    """`send_reset` waited for the end of the step, where `recv` would have ended the worker."""
    marks = [tmp_path / str(uid) for uid in range(2)]
    fns = [functools.partial(TextActionEnv, marks[uid], uid=uid, seconds=60.0 * (1 - uid)) for uid in range(2)]
    with SubprocVecEnv(fns, num_workers=1, on_worker_failure=policy, step_timeout=3.0) as envs:
        envs.reset(seed=1)
        envs.send(["a"], [0])
        wait_until(marks[0].exists, 30.0)
        start = time.monotonic()
        envs.send_reset(options={"reset_mask": np.array([False, True]), "load": "x" * 4_000_000})
        assert time.monotonic() - start < 20
        if policy == "raise":
            with pytest.raises(WorkerDied, match=r"send \(longer than step_timeout\)"):
                envs.recv(timeout=30)
        else:
            observations, _, _, truncations, _ = envs.recv(timeout=30)
            np.testing.assert_array_equal(observations, [[0, 0, 0], [1, 0, 0]])
            assert truncations.tolist() == [True, False]


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_rows_that_always_come_at_once_do_not_hide_a_death(policy):
    with SubprocVecEnv(count_fns(), num_workers=2, on_worker_failure=policy, batch_size=2) as envs:
        envs.reset()
        kill(envs, 1)
        deadline = time.monotonic() + 20
        try:
            envs.send([0] * 2, [2, 3])
            envs.send([0] * 2, [0, 1])
            while time.monotonic() < deadline:
                ids = envs.recv(timeout=30)[4]["env_id"]
                if {2, 3} & set(ids.tolist()):
                    break
                envs.send([0] * 2, ids)
            seen = time.monotonic() < deadline and policy == "restart"
        except WorkerDied as error:
            seen = policy == "raise" and error.env_indices == (2, 3)
        assert seen


def test_rows_that_a_worker_has_finished_are_reported_as_they_were():
    """Its death afterwards takes away neither a failure nor infos."""
    fns = [
        functools.partial(CountEnv, uid=0, seconds=0.5),
        functools.partial(CountEnv, uid=1, seconds=0.5),
        functools.partial(CountEnv, uid=2, fails_at=2),
        functools.partial(CountEnv, uid=3),
    ]
    with restarting(fns, batch_size=3) as envs:
        envs.reset(seed=1)
        envs.step([0] * 4)
        envs.send([0] * 4, range(4))
        control = envs._control
        wait_until(lambda: (control.completed[2:] == control.requested[2:]).all(), 30.0)
        kill(envs, 1)
        with pytest.raises(EnvError, match="boom from env 2"):
            envs.recv(timeout=30)
        observations, rewards, _, truncations, infos = envs.recv(timeout=30)
        place = infos["env_id"].tolist().index(3)
        assert observations[place].tolist() == [3, 0, 2]
        assert (rewards[place], truncations[place], infos["time"][place]) == (2.0, False, 2)


class DiesAfterWritingEnv(CountEnv):
    """Writes its observations in place, as games do, and takes its process with it after some of them."""

    def reset_into(self, out, **arguments):
        observation, info = self.reset(**arguments)
        out[...] = observation
        return info

    def step_into(self, action, out):
        self.time += 1
        out[...] = self._observation()
        if self.time == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(self.time), False, False, {}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_last_known_observation_is_one_that_the_caller_saw(mode):
    """Neither what a step that never finished had written, nor what a row stepped just before it had."""
    fns = [functools.partial(CountEnv, uid=uid, length=99) for uid in range(3)]
    fns.append(functools.partial(DiesAfterWritingEnv, uid=3, dies_at=12))
    with restarting(fns, num_workers=1, batch_size=2, autoreset_mode=mode) as envs:
        last = dict(enumerate(envs.reset()[0].tolist()))
        envs.send([0] * 4, range(4))
        cut_off = set()
        for _ in range(60):
            observations, _, _, truncations, infos = envs.recv(timeout=30)
            for place, row in enumerate(infos["env_id"].tolist()):
                told = observations[place].tolist()
                if "worker_restarted" in infos and infos["worker_restarted"][place]:
                    final = told if mode == "NextStep" else infos["final_obs"][place].tolist()
                    assert final == last[row]
                    assert truncations[place]
                    cut_off.add(row)
                last[row] = told
            envs.send([0, 0], infos["env_id"])
        assert 3 in cut_off


class Deadly:
    """Takes the process with it that pickles it."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesAfterTellingEnv(CountEnv):
    """Its second step gives an info over which the process dies, after the observation was told."""

    def step(self, action):
        observation, *rest, info = super().step(action)
        return observation, *rest, {**info, "deadly": Deadly()} if self.time == 2 else info


def test_the_last_known_observation_is_one_that_the_caller_saw_where_those_are_objects():
    fns = [functools.partial(DiesAfterTellingEnv, uid=0), functools.partial(CountEnv, uid=1)]
    with restarting(fns, num_workers=1, batch_size=1, shared_memory=False) as envs:
        envs.reset(seed=1)
        for cut_off in (False, True):
            envs.send([0], [0])
            observations, _, _, truncations, _ = envs.recv(timeout=30)
            assert truncations.tolist() == [cut_off]
            np.testing.assert_array_equal(observations, [[0, 0, 1]])


def test_what_a_worker_has_finished_is_heard_though_its_death_shows_while_it_is_sent_something():
    """Where observations are objects, the row had its old one together with the new reward."""
    fns = [functools.partial(CountEnv, uid=uid, seconds=60.0 if uid == 4 else 0.0) for uid in range(6)]
    with restarting(fns, batch_size=3, shared_memory=False) as envs:
        envs.reset(seed=1)
        for row in (3, 4):
            envs.send([0], [row])
        control = envs._control
        wait_until(lambda: control.completed[3] == control.requested[3], 30.0)
        kill(envs, 1)
        envs.processes[1].join(10)
        envs.send_reset(options={"reset_mask": np.arange(6) == 5})
        observations, rewards, _, truncations, infos = envs.recv(timeout=30)
        order = np.argsort(infos["env_id"])
        np.testing.assert_array_equal(observations[order], [[3, 0, 1], [4, 0, 0], [5, 0, 0]])
        assert rewards[order].tolist() == [1, 0, 0]
        assert truncations[order].tolist() == [False, True, False]


def test_deaths_far_apart_do_not_add_up_where_rows_are_sent_alone():
    with restarting(count_fns(), batch_size=4) as envs:
        envs.reset(seed=1)
        for step in range(40):
            envs.send([0] * 2, [0, 1])
            envs.send([0] * 2, [2, 3])
            truncations = envs.recv(timeout=30)[3]
            assert truncations[2:].all() == (step > 0 and step % 8 == 0)
            if step % 8 == 7:
                kill(envs, 1)
                time.sleep(0.05)


def test_an_env_that_kills_its_worker_is_given_up_though_others_are_stepped():
    fns = [CountEnv, functools.partial(CountEnv, dies_at=1)]
    with restarting(fns, num_workers=1, batch_size=1) as envs:
        envs.reset()
        envs.send([0, 0], [0, 1])

        def go_on():
            for _ in range(100):
                envs.send([0], envs.recv(timeout=30)[4]["env_id"])

        for _ in range(2):
            with pytest.raises(WorkerDied, match=r"3 times in a row.*Call reset\(\) to try again"):
                go_on()
            np.testing.assert_array_equal(envs.reset(seed=3)[0][:, 2], [0, 0])
            envs.send([0, 0], [0, 1])
