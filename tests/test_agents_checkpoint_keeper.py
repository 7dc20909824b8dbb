"""The best checkpoint is the one of the update with the best mean return, whenever it is written."""

from __future__ import annotations

import pytest
import torch
from gymnasium.error import AlreadyPendingCallError

import vecenv
from vecenv.agents import checkpoint_keeper
from vecenv.agents.checkpoint import load_checkpoint
from vecenv.agents.checkpoint_keeper import CheckpointKeeper
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.learner import Episode
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.stopping import EpisodeWindow
from vecenv.errors import WorkerDied


class Counting:
    """A learner whose only weight is the number of its updates, changed in place."""

    def __init__(self, envs):
        self.envs, self.weight = envs, torch.zeros(3)

    def state_dict(self):
        return {"weight": self.weight}

    def env_states(self):
        return None


def play(returns, checkpoint_seconds, folder, before_saving=None):
    """A run with one episode of each of these returns per update, in a window of one; what was told."""
    told = []
    with vecenv.make_vec("CartPole-v1", num_envs=1, backend="sync") as envs:
        learner, window = Counting(envs), EpisodeWindow(size=1)
        config = RunConfig("CartPole-v1", settings=PPOConfig(), checkpoint_seconds=checkpoint_seconds)
        keeper, directory = CheckpointKeeper(config, learner, window), RunDirectory(folder)
        for number, total in enumerate(returns, 1):
            learner.weight.fill_(number)
            window.add([Episode(total, 1)])
            if before_saving is not None:
                before_saving(number, keeper, directory)
            keeper.save_when_due(keeper.due(), directory, float(number), told.append)
    return keeper, directory, told


CURVE = [1.0, 2.0, 9.0, 8.0, 8.9, 3.0]


def test_a_peak_between_two_moments_of_writing_is_kept(tmp_path):
    keeper, directory, _ = play(CURVE, 1e9, tmp_path / "run")
    assert not directory.best.exists()  # it was not yet time
    keeper.write_best(directory)
    best = load_checkpoint(directory.best)
    assert (best["best_mean_return"], best["seconds"]) == (9.0, 3.0)
    assert best["learner"]["weight"].tolist() == [3.0] * 3  # of that update, though the learner went on in place
    assert best["window"]["recent"] == [(9.0, 1)]
    directory.best.unlink()
    keeper.write_best(directory)
    assert not directory.best.exists()  # nothing new


def test_with_no_time_between_every_better_state_is_written(tmp_path):
    seen = []

    def look(number, keeper, directory):
        seen.append(load_checkpoint(directory.best)["best_mean_return"] if number > 1 else None)

    play(CURVE, 0, tmp_path / "run", look)
    assert seen == [None, 1.0, 2.0, 9.0, 9.0, 9.0]


def test_the_last_checkpoint_never_knows_a_best_return_that_has_no_file(tmp_path):
    def make_due(number, keeper, directory):
        if number == 5:
            keeper._last_save -= 1e10

    _, directory, _ = play(CURVE, 1e9, tmp_path / "run", make_due)
    last, best = load_checkpoint(directory.checkpoint), load_checkpoint(directory.best)
    assert last["learner"]["weight"].tolist() == [5.0] * 3
    assert last["best_mean_return"] == best["best_mean_return"] == 9.0
    assert best["learner"]["weight"].tolist() == [3.0] * 3


def test_a_best_state_that_finds_the_disk_full_is_written_later(tmp_path, monkeypatch):
    save, is_full = checkpoint_keeper.save_checkpoint, True

    def save_or_fail(path, content):
        if is_full:
            raise OSError(28, "No space left on device")
        save(path, content)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", save_or_fail)
    keeper, directory, told = play(CURVE, 0, tmp_path / "run")
    assert len(told) == len(CURVE)
    assert "the one before stays" in told[0]
    keeper.rescue_best(directory)  # says nothing
    is_full = False
    keeper.rescue_best(directory)
    assert load_checkpoint(directory.best)["learner"]["weight"].tolist() == [3.0] * 3


def test_a_rank_without_a_folder_keeps_and_writes_nothing():
    with vecenv.make_vec("CartPole-v1", num_envs=1, backend="sync") as envs:
        window = EpisodeWindow(size=1)
        keeper = CheckpointKeeper(RunConfig("CartPole-v1", settings=PPOConfig()), Counting(envs), window, num_ranks=2)
        window.add([Episode(1.0, 1)])
        keeper.keep_best(None, 1.0)
        keeper.write_best(None)
        assert (keeper.best_mean_return, keeper.is_better) == (1.0, False)


@pytest.mark.parametrize(
    "error", [WorkerDied([0], 1, -15, "get_state"), AlreadyPendingCallError("rows are outstanding", "send")]
)
def test_a_worker_that_has_ended_does_not_keep_the_rest_from_being_saved(error, tmp_path):
    def fail():
        raise error

    with vecenv.make_vec("CartPole-v1", num_envs=1, backend="sync") as envs:
        learner = Counting(envs)
        learner.env_states = fail
        keeper = CheckpointKeeper(RunConfig("CartPole-v1", settings=PPOConfig()), learner, EpisodeWindow())
        keeper.save_last(RunDirectory(tmp_path / "run"), 1.0)
    content = load_checkpoint(tmp_path / "run")
    assert content["learner"]["weight"].tolist() == [0.0] * 3
    assert (content["env_states"], content["has_files"]) == (None, True)
    assert content["without_env_states"] == "their workers had ended when they were to be saved"
