"""The replay: every rebuilt observation is the one the env returned, every n-step transition is what a log says."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import vecenv
from vecenv.agents import replay_files
from vecenv.agents.prioritized_replay import SMALLEST, Priorities
from vecenv.agents.replay_buffer import ReplayBuffer
from vecenv.agents.replay_memory import ReplayMemory, ReplaySpec
from vecenv.agents.replay_writer import ReplayWriter
from vecenv.errors import UnknownSetting
from vecenv.preprocess.config import find_preset
from vecenv.toy_envs import CountEnv

GAMMA = 0.9


class StackEnv(gymnasium.Env):
    """Stacks of four frames that say env, episode and step; every third episode is truncated, lengths differ.

    `padding`: what the stack shows before the first frame: zeros, the first frame, or frames of their own. With
    `breaks_at` the whole stack is another one at that step, as where frames are left out.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (4, 3, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, uid=0, padding="zero", breaks_at=None):
        self.uid, self.padding, self.breaks_at, self.episode = uid, padding, breaks_at, -1

    def frame(self, mark=0):
        return np.array([[self.uid, self.episode % 256], [self.t, mark], [7, 9]], np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        self.stack = np.zeros((4, 3, 2), np.uint8)
        if self.padding == "repeat":
            self.stack[:] = self.frame()
        elif self.padding == "own":
            self.stack[:] = [self.frame(mark) for mark in (1, 2, 3, 0)]
        self.stack[3] = self.frame()
        return self.stack.copy(), {}

    def step(self, action):
        self.t += 1
        if self.t == self.breaks_at:
            self.stack[:3] = [self.frame(mark) for mark in (1, 2, 3)]
        else:
            self.stack[:3] = self.stack[1:]
        self.stack[3] = self.frame()
        ended = self.t >= 1 + (self.episode * 5 + self.uid) % 7
        truncates = self.episode % 3 == 2
        reward = float(self.uid + 10 * self.t + int(action))
        return self.stack.copy(), reward, ended and not truncates, ended and truncates, {}


class Log:
    """A slow twin: what every env did, as plain lists of episodes."""

    def __init__(self, observations):
        self.episodes = [
            [[row.copy()]] for row in observations
        ]  # env -> episodes -> [obs, (a, r, obs, term, trunc)...]

    def step(self, actions, is_filler, result, mode):
        observations, rewards, terminations, truncations, infos = result
        for env, episodes in enumerate(self.episodes):
            if is_filler[env]:
                episodes.append([observations[env].copy()])
                continue
            ended = terminations[env] or truncations[env]
            same = ended and mode is AutoresetMode.SAME_STEP
            true_next = infos["final_obs"][env] if same else observations[env]
            episodes[-1].append(
                (int(actions[env]), float(rewards[env]), np.array(true_next), bool(terminations[env]), bool(ended))
            )
            if same:
                episodes.append([observations[env].copy()])

    def transitions(self, num_steps):
        """Every complete n-step transition of every env, oldest first."""
        return [[t for episode in episodes for t in self._of_episode(episode, num_steps)] for episodes in self.episodes]

    @staticmethod
    def _of_episode(episode, num_steps):
        steps, observation, found = episode[1:], episode[0], []
        for start, step in enumerate(steps):
            total, discount = 0.0, 1.0
            for end in steps[start : start + num_steps]:
                total += discount * end[1]
                discount *= GAMMA
                if end[4]:
                    break
            if end[4] or start + num_steps <= len(steps):
                found.append((observation, step[0], total, 0.0 if end[3] else discount, end[2]))
            observation = step[2]
        return found


def play(envs, writer, replay, num_steps, seed=0, log=None):
    """Play at random, write everything, and log it."""
    rng = np.random.default_rng(seed)
    observations, _ = envs.reset(seed=seed)
    log = Log(observations)
    writer.begin(observations)
    replay.publish(writer.written)
    is_filler = np.zeros(envs.num_envs, np.bool_)
    mode = AutoresetMode(envs.metadata["autoreset_mode"])
    for _ in range(num_steps):
        actions = rng.integers(0, envs.single_action_space.n, envs.num_envs)
        result = envs.step(actions)
        writer.record(actions, is_filler, result)
        replay.publish(writer.written)
        log.step(actions, is_filler, result, mode)
        is_filler = (result[2] | result[3]) & (mode is AutoresetMode.NEXT_STEP)
    return log


def make_replay(envs, capacity, stack_size, num_steps=1, alpha=None, **settings):
    spec = ReplaySpec.of(envs.single_observation_space, envs.num_envs, capacity, stack_size)
    memory = ReplayMemory(spec)
    priorities = None if alpha is None else Priorities(spec.num_streams * spec.num_slots, alpha)
    replay = ReplayBuffer(memory, num_steps, GAMMA, priorities=priorities, **settings)
    return replay, ReplayWriter(memory, 0, envs.num_envs, AutoresetMode(envs.metadata["autoreset_mode"]))


def key(observation, action):
    return observation.tobytes(), action


def assert_samples_are_the_log(replay, log, num_steps, num_samples=4000):
    """All that is sampled is a logged transition; all that should be sampled is, and nothing else."""
    expected = [list(own) for own in log.transitions(num_steps)]
    sizes = replay._sizes
    newest = [own[len(own) - size :] for own, size in zip(expected, sizes, strict=True)]
    wanted = {key(t[0], t[1]): t for own in newest for t in own}
    seen = set()
    for _ in range(num_samples // 50):
        batch = replay.sample(50)
        for row in range(50):
            found = key(batch.observations[row], batch.actions[row])
            assert found in wanted
            _, _, total, discount, last = wanted[found]
            assert abs(batch.returns[row] - total) < 1e-4
            assert abs(batch.discounts[row] - discount) < 1e-6
            assert batch.next_observations[row].tobytes() == last.tobytes()
            seen.add(found)
    assert seen == set(wanted)
    return newest


@pytest.mark.parametrize("padding", ["zero", "repeat", "own"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(("num_steps", "breaks_at"), [(1, None), (3, None), (3, 2)])
def test_sampled_rows_are_what_the_envs_returned(padding, mode, num_steps, breaks_at):
    fns = [lambda uid=uid: StackEnv(uid, padding, breaks_at) for uid in range(3)]
    envs = vecenv.SyncVecEnv(fns, autoreset_mode=mode)
    replay, writer = make_replay(envs, 3 * 120, 4, num_steps)
    log = play(envs, writer, replay, 25)
    newest = assert_samples_are_the_log(replay, log, num_steps)  # nothing is overwritten yet: every one is there
    assert [len(own) for own in newest] == [len(own) for own in log.transitions(num_steps)]
    log = play(envs, writer, replay, 250, seed=1)  # comes round the ring several times
    newest = assert_samples_are_the_log(replay, log, num_steps)
    assert all(20 < len(own) < 110 for own in newest)
    assert replay.size == sum(map(len, newest))


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_vectors_are_stored_as_they_are_and_modes_agree(truncates, num_steps):
    batches = []
    for mode in ("NextStep", "SameStep"):
        envs = vecenv.SyncVecEnv([lambda: CountEnv(3, 4, truncates=truncates, reuses=True)] * 2, autoreset_mode=mode)
        replay, writer = make_replay(envs, 200, 1, num_steps)
        steps = 15 if mode == "NextStep" else 12  # three episodes, with and without their filler rows
        play(envs, writer, replay, steps)
        order = np.concatenate(
            [np.flatnonzero(np.isin(own, (2, 3))) + 100 * e for e, own in enumerate(replay.memory.kinds)]
        )
        replay._draw = lambda count, beta, order=order: (order, np.ones(count, np.float32))
        batch = replay.sample(len(order))
        uid, episode, time = batch.observations.T
        after = np.minimum(time + num_steps, 4)
        np.testing.assert_array_equal(batch.next_observations, np.stack([uid, episode, after], axis=1))
        ends = after == 4
        gone = np.minimum(num_steps, 4 - time)
        np.testing.assert_allclose(batch.discounts, np.where(ends & (not truncates), 0.0, GAMMA**gone), rtol=1e-6)
        np.testing.assert_allclose(batch.returns, time + 1 + np.where(gone == 2, GAMMA * (time + 2), 0.0), rtol=1e-6)
        batches.append((time, batch.discounts.copy(), batch.returns.copy()))
    for of_next_step, of_same_step in zip(*batches, strict=True):
        np.testing.assert_array_equal(of_next_step, of_same_step)


@pytest.mark.parametrize("preset", ["ale", "gymnasium"])
def test_stacks_of_pong_are_rebuilt_bit_for_bit(preset):
    config = dataclasses.replace(find_preset(preset), max_episode_steps=60)
    envs = vecenv.make_vec("PongNoFrameskip-v4", 2, "sync", preprocess=config)
    replay, writer = make_replay(envs, 500, 4, 2)
    log = play(envs, writer, replay, 130)
    expected = log.transitions(2)
    assert [len(own) for own in expected] == replay._sizes.tolist()
    place = 0
    for env, own in enumerate(expected):  # in the order in which they were written
        rows = np.flatnonzero(np.isin(replay.memory.kinds[env], (2, 3)))[: len(own)] + env * 250
        replay._draw = lambda count, beta, rows=rows: (rows, np.ones(count, np.float32))
        batch = replay.sample(len(rows))
        for row, (observation, action, total, discount, last) in enumerate(own):
            np.testing.assert_array_equal(batch.observations[row], observation)
            np.testing.assert_array_equal(batch.next_observations[row], last)
            assert batch.actions[row] == action
            assert (batch.returns[row], batch.discounts[row]) == pytest.approx((total, discount))
            place += 1
    assert place == replay.size
    # Each frame once: the frames of the log, four per episode for its start, and no more.
    episodes = sum(len(own) for own in log.episodes)
    steps = sum(len(episode) - 1 for own in log.episodes for episode in own)
    assert writer.written.sum() == steps + 4 * episodes
    envs.close()


def test_a_million_transitions_of_atari_fit_into_7_5_gb():
    space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    spec = ReplaySpec.of(space, 1, 1_000_000, 4)
    assert spec.frame_nbytes == 84 * 84
    assert 7.05e9 < spec.nbytes < 7.1e9
    from_sixteen = ReplaySpec.of(space, 16, 1_000_000, 4)
    assert from_sixteen.nbytes < 7.1e9
    memory = ReplayMemory(ReplaySpec.of(space, 1, 1000, 4))
    assert (
        sum(array.nbytes for array in memory.arrays.values()) <= memory.spec.nbytes == pytest.approx(7.07e6, rel=0.01)
    )


def test_a_new_episode_before_the_end_of_the_last_one_cuts_it_as_a_truncation():
    envs = vecenv.SyncVecEnv([lambda: StackEnv(1, "own")])
    replay, writer = make_replay(envs, 200, 4)
    observations, _ = envs.reset()
    writer.begin(observations)
    first = envs.step(np.array([1]))
    writer.record(np.array([1]), np.zeros(1, bool), first)
    observations, _ = envs.reset()
    writer.begin(observations)
    replay.publish(writer.written)
    assert replay.size == 1
    batch = replay.sample(3)
    assert batch.discounts.tolist() == pytest.approx([GAMMA] * 3)
    np.testing.assert_array_equal(batch.next_observations[0], first[0][0])


def test_a_restart_in_place_of_a_reset_leaves_no_row():
    spec = ReplaySpec(1, 64, 1, (3,), "<f4")
    memory = ReplayMemory(spec)
    writer, replay = ReplayWriter(memory, 0, 1, AutoresetMode.NEXT_STEP), ReplayBuffer(memory, 1, GAMMA)

    def record(time, is_filler=False, terminated=False, truncated=False):
        result = np.full((1, 3), time, np.float32), np.ones(1), np.array([terminated]), np.array([truncated]), {}
        writer.record(np.zeros(1, np.int64), np.array([is_filler]), result)

    writer.begin(np.zeros((1, 3), np.float32))
    record(1, terminated=True)
    record(1, is_filler=True, truncated=True)  # the worker died before the reset
    record(2, is_filler=True, truncated=True)  # and once more
    record(10, is_filler=True)
    for time in range(11, 31):
        record(time)
    replay.publish(writer.written)
    assert writer.written == 2 + 21
    assert replay.size == 1 + 20
    batch = replay.sample(500)
    assert set(batch.observations[:, 0]) == {0.0, *map(float, range(10, 30))}
    np.testing.assert_array_equal(batch.next_observations[:, 0], batch.observations[:, 0] + 1)
    np.testing.assert_array_equal(batch.discounts == 0, batch.observations[:, 0] == 0)


def test_draws_are_uniform_and_repeat_with_the_seed():
    envs = vecenv.SyncVecEnv([lambda: CountEnv(0, 5)] * 2)
    replay, writer = make_replay(envs, 60, 1, seed=3)
    play(envs, writer, replay, 100)
    counts: dict[int, int] = {}
    for _ in range(400):
        for place in replay.sample(50).places.tolist():
            counts[place] = counts.get(place, 0) + 1
    assert len(counts) == replay.size
    mean = 20_000 / replay.size
    assert max(abs(count - mean) for count in counts.values()) < 6 * mean**0.5
    again, writer = make_replay(envs, 60, 1, seed=3)
    play(envs, writer, again, 100)
    other, writer = make_replay(envs, 60, 1, seed=4)
    play(envs, writer, other, 100)
    fresh, _ = make_replay(envs, 60, 1, seed=3)
    fresh._random[:] = again._random
    first = again.sample(20).places.tolist()
    assert first != other.sample(20).places.tolist()
    again._random[:] = fresh._random
    assert again.sample(20).places.tolist() == first


def test_refusals():
    images = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    with pytest.raises(NotImplementedError, match="Dict"):
        ReplaySpec.of(gymnasium.spaces.Dict({"a": images}), 1, 100, 1)
    with pytest.raises(UnknownSetting, match="stack_size=3"):
        ReplaySpec.of(images, 1, 100, 3)
    with pytest.raises(UnknownSetting, match="at least 29"):
        ReplayBuffer(ReplayMemory(ReplaySpec.of(images, 2, 50, 4)), 1, 0.99)
    with pytest.raises(UnknownSetting, match=r"GiB.*lower replay_capacity"):
        ReplayMemory(ReplaySpec.of(images, 1, 10**9, 4))
    for alpha in (None, 0.6):
        envs = vecenv.SyncVecEnv([CountEnv])
        with pytest.raises(RuntimeError, match="no row"):
            make_replay(envs, 100, 1, alpha=alpha)[0].sample(1)


# -- prioritized ------------------------------------------------------------------------------------------------------


def test_priorities_draw_in_proportion_and_weigh_as_in_the_paper():
    priorities = Priorities(5, exponent=0.5)
    priorities.apply(np.array([0, 1, 2, 3]))
    priorities.update(np.array([0, 1, 2, 3]), np.array([1.0, 4.0, 9.0, 16.0], np.float32))
    chances = np.array([1.0, 2.0, 3.0, 4.0]) / 10.0  # p ** 0.5 over their sum
    numbers = np.random.default_rng(0).random(10_000)
    places, weights = priorities.draw(numbers, 4, beta=0.5)
    counts = np.bincount(places, minlength=5)
    np.testing.assert_allclose(counts, [*np.round(10_000 * chances), 0], atol=1)  # one from each of 10,000 parts
    expected = (4 * chances) ** -0.5
    np.testing.assert_allclose(weights, (expected / expected.max())[places], rtol=1e-5)
    assert priorities.largest == pytest.approx(16.0 + SMALLEST)


def test_new_rows_get_the_largest_priority_and_old_ones_leave_for_good():
    priorities = Priorities(8, exponent=1.0)
    priorities.apply(np.array([2]))
    priorities.update(np.array([2]), np.array([7.0], np.float32))
    priorities.apply(np.array([5, -1 - 2]))
    places, _ = priorities.draw(np.linspace(0, 0.999, 20), 1, 1.0)
    assert set(places.tolist()) == {5}
    assert priorities._leaves[5] == pytest.approx(7.0)
    priorities.update(np.array([2]), np.array([3.0], np.float32))  # drawn before it left
    assert priorities._leaves[2] == 0.0
    copy = Priorities(8, exponent=1.0)
    copy.apply(np.array([5]))  # which rows may be drawn is known before
    copy.load_state_dict(priorities.state_dict())
    np.testing.assert_array_equal(copy._tree, priorities._tree)
    assert copy.largest == priorities.largest


def test_sum_tree_against_a_plain_list():
    rng = np.random.default_rng(1)
    priorities = Priorities(37, exponent=1.0)
    plain = np.zeros(37)
    for _ in range(200):
        places = rng.integers(0, 37, 6)
        values = rng.random(6) * 10
        from vecenv.agents.prioritized_kernels import set_leaves

        set_leaves(priorities._tree, places, values)
        plain[places] = values  # NumPy too lets the later one count
        assert priorities._tree[1] == pytest.approx(plain.sum())
        np.testing.assert_allclose(priorities._leaves, plain)
        number = rng.random()
        drawn, _ = priorities.draw(np.array([number]), 37, 1.0)
        assert drawn[0] == np.searchsorted(np.cumsum(plain), number * plain.sum(), side="right")


def test_a_prioritized_replay_draws_only_fit_rows():
    fns = [lambda uid=uid: StackEnv(uid) for uid in range(2)]
    envs = vecenv.SyncVecEnv(fns)
    replay, writer = make_replay(envs, 240, 4, 3, alpha=0.7)
    log = play(envs, writer, replay, 400)
    assert_samples_are_the_log(replay, log, 3, num_samples=8000)
    assert np.count_nonzero(replay.priorities._leaves) == replay.size


def test_rows_that_change_while_they_are_saved_do_not_spoil_the_file(tmp_path, monkeypatch):
    """Actor processes go on writing while the learner saves: into rows that have expired, once the replay is full."""
    memory = ReplayMemory(ReplaySpec(2, 8, 1, (3,), "|u1"))
    written = np.array([20, 5])

    def disturbed(data, value=0, summed=replay_files.zlib.crc32):
        memory.frames += 1
        return summed(data, value)

    with monkeypatch.context() as patched:
        patched.setattr(replay_files.zlib, "crc32", disturbed)
        record = replay_files.save_rows(memory, written, tmp_path / "rows")
    assert memory.frames.any()
    replay_files.load_rows(memory, written, tmp_path / "rows", record)
    assert not memory.frames[0].any()
    memory.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("says_expired", [True, False])
def test_a_full_replay_that_was_saved_while_its_writer_was_ahead_is_what_the_learner_knew(mode, says_expired, tmp_path):
    """Actors write beyond what was told; a state saved in between holds rows of which the learner knows nothing."""
    endings = set()
    for unheard in (1, 2, 3):
        for told in range(60, 64):
            envs = vecenv.SyncVecEnv([lambda uid=uid: StackEnv(uid) for uid in range(3)], autoreset_mode=mode)
            with envs:
                replay, writer = make_replay(envs, 3 * 80, 4, 3, steps_ahead=3)
                play(envs, writer, replay, told)
                newest = np.arange(3), (replay.written - 1) % replay.spec.num_slots
                before = replay.memory.kinds[newest]
                for _ in range(unheard):
                    is_filler = replay.memory.kinds[np.arange(3), (writer.written - 1) % replay.spec.num_slots] == 4
                    writer.record(np.zeros(3, np.int64), is_filler, envs.step(np.zeros(3, np.int64)))
                endings |= set(replay.memory.kinds[newest].tolist())
                record = replay_files.save_rows(replay.memory, replay.written, tmp_path / "rows")
                state = replay.state_dict(with_rows=True)
                if not says_expired:
                    del state["expired"]
                loaded, again = make_replay(envs, 3 * 80, 4, 3, steps_ahead=3)
            replay_files.load_rows(loaded.memory, state["written"], tmp_path / "rows", record)
            loaded.load_state_dict(state)
            for name in ("_ready", "_expired", "_sizes"):
                np.testing.assert_array_equal(getattr(loaded, name), getattr(replay, name))
            np.testing.assert_array_equal(loaded.memory.kinds[newest], before)
            again.written[:] = loaded.written
            again.begin(np.zeros((3, 4, 3, 2), np.uint8))
            loaded.publish(again.written)
            kinds = loaded.memory.kinds
            for stream, size in enumerate(loaded._sizes):
                rows = np.arange(loaded._expired[stream], loaded._ready[stream]) % loaded.spec.num_slots
                assert size == np.isin(kinds[stream, rows], (2, 3)).sum() > 0
    assert {2, 3} <= endings
    assert (replay._expired > 0).all()
