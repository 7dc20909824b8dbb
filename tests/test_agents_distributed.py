"""PPO in two ranks: equal to one process with all environments, agreed stops, and ends that leave nothing behind.

The ranks are two processes for the whole file (importing torch takes seconds): each runs this file as a script, act by
act, over gloo on loopback, and writes down what came of it.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import vecenv
from vecenv import cli
from vecenv.agents import ppo, training_run
from vecenv.agents.checkpoint import load_checkpoint
from vecenv.agents.collector import RolloutCollector
from vecenv.agents.config import PPOConfig
from vecenv.agents.distributed import ALONE, Place, RankLost, World, connect, find_place, refuse_shared_gpus
from vecenv.errors import UnknownSetting

pytestmark = pytest.mark.timeout(330)

SECONDS = 240
"""Longest that anything may take here."""
NUM_RANKS = 2
NUM_UPDATES = 3
SMALL = PPOConfig(num_envs=2, num_steps=16, num_epochs=2, minibatch_size=24, total_steps=1000)
CONTINUOUS = dataclasses.replace(
    SMALL, normalise_observations=True, normalise_rewards=True, lr_schedule="kl", lr_scaling="linear", kl_limit=2e-3
)
CASES = {
    "discrete": ("CartPole-v1", SMALL),
    "a rank without rows": ("CartPole-v1", dataclasses.replace(SMALL, num_envs=1, num_steps=4, minibatch_size=2)),
    "overlap": ("CartPole-v1", dataclasses.replace(SMALL, overlap=True)),
    "async": ("CartPole-v1", dataclasses.replace(SMALL, async_collect=True)),
    "continuous, normalised": ("Pendulum-v1", CONTINUOUS),
}
"""Name -> environment, settings of one rank."""
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""float32 sums over two halves differ from one sum in the last bit (6e-8); up to 24 steps of Adam make at most 5e-6 of
that here. Whatever is not shared between ranks (advantages, statistics, noise, shares of rows) makes more than 1e-3."""
RUN = ["train", "ppo", "--env", "CartPole-v1", "--num-steps", "16", "--seed", "3", "--total-steps", "900"]
TWO_RANKS = [*RUN, "--backend", "sync", "--num-envs", "4"]


def learn(env, config, world):
    """What a learner did in a few updates, as plain values."""
    torch.set_num_threads(1)
    with vecenv.make_vec(env, backend="sync", **ppo.env_settings(config)) as envs:
        learner = ppo.PPO(envs, config, seed=5, precision="float32", **({} if world is None else {"world": world}))
        learner.reset(seed=7)
        episodes = learner.prepare()
        reports = []
        for _ in range(NUM_UPDATES):
            reports.append(learner.train_once())
            episodes += reports[-1].episodes
            if len(reports) == 1:
                actions = learner.rollout.actions.copy()
        state = learner.state_dict()
        learner.close()
    figures = [report.figures for report in reports]
    return {
        "actions": torch.from_numpy(actions),
        "figures": figures,
        "episodes": [tuple(episode) for episode in episodes],
        "env_steps": learner.env_steps,
        "network": state["network"],
        "is_filler": state["is_filler"],
        "rewards": state["reward_statistics"],
        "shuffle": state["shuffle_generator"],
        "noise": state["action_generator"],
    }


# ---------------------------------------------------------------------------------------------- acts of the two ranks


def act_learn(folder, place):
    with connect(place, "cpu", SECONDS) as world:
        learnt = {name: learn(env, config, world) for name, (env, config) in CASES.items()}
    torch.save(learnt, folder / f"learnt-{place.rank}.pt")


def act_half(folder, place):
    return cli.main([*TWO_RANKS, "--run-dir", str(folder / "run"), "--stop-at-steps", "400"])


def act_resume(folder, place):
    return cli.main(["train", "ppo", "--resume", str(folder / "run"), "--stop-at-steps", "None"])


def act_interrupt(folder, place):
    """Ctrl-C reaches rank 1 alone, in its third rollout."""
    at_third_rollout(place, before=lambda rollout: os.kill(os.getpid(), signal.SIGINT))
    return cli.main([*TWO_RANKS, "--run-dir", str(folder / "interrupted")])


def act_not_finite(folder, place):
    """A reward of rank 1 is not finite."""

    def spoil(rollout):
        rollout.rewards[:] = np.nan

    at_third_rollout(place, after=spoil)
    return cli.main([*TWO_RANKS, "--run-dir", str(folder / "spoilt")])


def act_failing_env(folder, place):
    """An environment of rank 1 raises."""

    def fail(rollout):
        raise ZeroDivisionError("planted")

    at_third_rollout(place, before=fail)
    try:
        return cli.main([*TWO_RANKS, "--run-dir", str(folder / "failed")])
    except ZeroDivisionError:
        return "planted"


def act_killed(folder, place):
    """Rank 1 is killed, with worker processes of its own; the last act, since it does not come back."""
    at_third_rollout(place, before=lambda rollout: os.kill(os.getpid(), signal.SIGKILL))
    workers = ["--num-envs", "2", "--backend", "subproc", "--num-workers", "1"]
    return cli.main([*RUN, *workers, "--checkpoint-seconds", "0", "--run-dir", str(folder / "killed")])


ACTS = (act_learn, act_half, act_resume, act_interrupt, act_not_finite, act_failing_env, act_killed)


def nothing(rollout):
    pass


def at_third_rollout(place, *, before=nothing, after=nothing):
    """Let something happen on rank 1 before or after it collects the third rollout of the next run."""
    collect, rollouts = ORIGINAL_COLLECT, []

    def collect_and_more(self, stop_requested):
        rollouts.append(None)
        if len(rollouts) == 1 and place.rank == 1:
            pids = getattr(self.envs, "worker_pids", ())
            Path(sys.argv[1], "workers.json").write_text(json.dumps(list(pids)))
        is_now = len(rollouts) == 3 and place.rank == 1
        if is_now:
            before(self.rollout)
        episodes = collect(self, stop_requested)
        if is_now:
            after(self.rollout)
        return episodes

    RolloutCollector.collect = collect_and_more


ORIGINAL_COLLECT = RolloutCollector.collect


def main():
    """One rank: all acts, each with its exit code and how long it took."""
    folder, place = Path(sys.argv[1]), find_place()
    for act in ACTS:
        RolloutCollector.collect = ORIGINAL_COLLECT
        started = time.monotonic()
        print(f"\n--- {act.__name__}", flush=True)
        print(f"\n--- {act.__name__}", file=sys.stderr, flush=True)
        code = act(folder, place)
        note = {"code": code, "seconds": time.monotonic() - started}
        (folder / f"{act.__name__}-{place.rank}.json").write_text(json.dumps(note))


# ------------------------------------------------------------------------------------------------------------- tests


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank, port, size=NUM_RANKS):
    return {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Folder of what two ranks did, act by act."""
    folder, port = tmp_path_factory.mktemp("ranks"), free_port()
    ranks = []
    try:
        for rank in range(NUM_RANKS):
            with (folder / f"out-{rank}.txt").open("w") as out, (folder / f"err-{rank}.txt").open("w") as err:
                command = [sys.executable, __file__, str(folder)]
                ranks.append(subprocess.Popen(command, env=rank_environment(rank, port), stdout=out, stderr=err))
        deadline = time.monotonic() + SECONDS
        codes = [rank.wait(timeout=max(1.0, deadline - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait(timeout=10)
    assert codes == [0, -signal.SIGKILL], said(folder, "err", 0)[-3000:] + said(folder, "err", 1)[-3000:]
    return folder


def said(folder, stream, rank, act=None):
    """Everything that a rank printed, or what it printed in one act."""
    text = (folder / f"{stream}-{rank}.txt").read_text()
    if act is None:
        return text
    return text.split(f"--- {act}\n", 1)[1].split("\n---", 1)[0].strip()


def note(folder, act, rank):
    return json.loads((folder / f"{act}-{rank}.json").read_text())


@pytest.fixture(scope="module")
def learnt(played):
    return [torch.load(played / f"learnt-{rank}.pt") for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process_with_all_environments(learnt, case):
    env, config = CASES[case]
    threads = torch.get_num_threads()
    one = learn(env, dataclasses.replace(config, num_envs=NUM_RANKS * config.num_envs), None)
    torch.set_num_threads(threads)
    first, second = (rank[case] for rank in learnt)
    actions = torch.cat([first["actions"], second["actions"]], dim=1)
    np.testing.assert_allclose(actions, one["actions"], **(TOLERANCE if actions.is_floating_point() else {"rtol": 0}))
    for rank in (first, second):
        assert rank["env_steps"] == one["env_steps"]
        assert rank["is_filler"] == one["is_filler"]
        assert torch.equal(rank["shuffle"], one["shuffle"])
        assert torch.equal(rank["noise"], one["noise"])
        np.testing.assert_allclose(np.array(rank["episodes"]), np.array(one["episodes"]), **TOLERANCE)
        for mine, theirs in zip(rank["figures"], one["figures"], strict=True):
            assert mine.keys() == theirs.keys()
            assert mine["gradient_steps"] == theirs["gradient_steps"]
            mine, theirs = (np.array(list(figures.values()), np.float64) for figures in (mine, theirs))  # None is NaN
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
        for name, tensor in one["network"].items():
            np.testing.assert_allclose(rank["network"][name], tensor, **TOLERANCE, err_msg=name)
            assert torch.equal(first["network"][name], second["network"][name]), name
        if one["rewards"] is not None:
            for name, value in one["rewards"].items():
                np.testing.assert_allclose(rank["rewards"][name], value, **TOLERANCE, err_msg=name)


def test_a_run_of_two_ranks_and_its_second_half(played, tmp_path, capsys):
    """The command, stopped half-way and resumed, beside one process with as many environments that never stopped."""
    for act in ("act_half", "act_resume"):
        assert [note(played, act, rank)["code"] for rank in range(NUM_RANKS)] == [0, 0]
        assert "files in" in said(played, "out", 0, act)
        assert (said(played, "out", 1, act), said(played, "err", 1, act)) == ("", "")  # rank 0 alone speaks
    assert "4 environments side by side on each of 2 ranks" in said(played, "out", 0, "act_half")
    assert "the environments go on in the middle of their episodes" in said(played, "out", 0, "act_resume")
    one = tmp_path / "one"
    assert cli.main([*RUN, "--backend", "sync", "--num-envs", "8", "--run-dir", str(one)]) == 0
    capsys.readouterr()
    rows, expected = (list(csv.DictReader((path / "metrics.csv").open())) for path in (played / "run", one))
    assert len(rows) == len(expected) > 4
    for row, other in zip(rows, expected, strict=True):
        for name in row.keys() - {"seconds", "steps_per_second"}:
            assert float(row[name] or 0) == pytest.approx(float(other[name] or 0), rel=1e-3, abs=1e-4), name
    summary = json.loads((played / "run" / "summary.json").read_text())
    alone = json.loads((one / "summary.json").read_text())
    assert (summary["world_size"], alone["world_size"]) == (2, 1)
    for name in ("env_steps", "episodes", "mean_return", "stopped_by"):
        assert summary[name] == alone[name], name
    checkpoint, other = load_checkpoint(played / "run"), load_checkpoint(one)
    assert len(checkpoint["env_states"]) == len(other["env_states"]) == 8
    for name, tensor in other["learner"]["network"].items():
        np.testing.assert_allclose(checkpoint["learner"]["network"][name], tensor, rtol=1e-3, atol=1e-5)
    names = {file.name.partition(".tfevents")[0] for file in (played / "run").iterdir()}
    assert names == {"config.json", "metrics.csv", "checkpoint.pt", "summary.json", "curve.png", "events.out"}


def test_its_checkpoint_goes_on_in_one_process_with_all_environments(played, tmp_path, capsys):
    """What is saved does not depend on how many ranks there were."""
    run = ["train", "ppo", "--resume", str(played / "run"), "--run-dir", str(tmp_path / "on"), "--total-steps", "1100"]
    assert cli.main([*run, "--num-envs", "8"]) == 0
    assert "the environments go on in the middle of their episodes" in capsys.readouterr().out
    assert cli.main([*run[:-3], str(tmp_path / "fewer"), *run[-2:]]) == 0
    assert "new episodes, because there were 8 and are 4 now" in capsys.readouterr().out


def test_ctrl_c_on_one_rank_stops_all_in_the_same_update(played):
    assert [note(played, "act_interrupt", rank)["code"] for rank in range(NUM_RANKS)] == [130, 130]
    summary = json.loads((played / "interrupted" / "summary.json").read_text())
    rows = list(csv.DictReader((played / "interrupted" / "metrics.csv").open()))
    assert (summary["stopped_by"], len(rows)) == ("interrupted", 2)
    assert load_checkpoint(played / "interrupted")["learner"]["env_steps"] == summary["env_steps"]
    assert int(rows[-1]["env_steps"]) == summary["env_steps"]


def test_a_loss_that_is_not_finite_on_one_rank_ends_all(played):
    assert [note(played, "act_not_finite", rank)["code"] for rank in range(NUM_RANKS)] == [1, 1]
    assert json.loads((played / "spoilt" / "summary.json").read_text())["stopped_by"] == "not_finite"
    assert "no longer finite" in said(played, "err", 0, "act_not_finite")
    assert said(played, "err", 1, "act_not_finite") == ""


def test_an_error_on_one_rank_ends_the_others_at_once(played):
    assert [note(played, "act_failing_env", rank)["code"] for rank in range(NUM_RANKS)] == [1, "planted"]
    assert note(played, "act_failing_env", 0)["seconds"] < SECONDS / 2
    assert said(played, "err", 0, "act_failing_env").startswith("vecenv train: rank 0 of 2 lost another rank")
    assert len(said(played, "err", 0, "act_failing_env").splitlines()) == 1


def test_a_killed_rank_ends_the_run_and_leaves_a_checkpoint_and_no_worker(played):
    killed = note(played, "act_killed", 0)
    assert killed["code"] == 1
    assert killed["seconds"] < SECONDS / 2
    assert "lost another rank" in said(played, "err", 0, "act_killed")
    assert "Traceback" not in said(played, "err", 0, "act_killed")
    assert load_checkpoint(played / "killed")["learner"]["env_steps"] > 0  # that of the second update, whole
    pids = json.loads((played / "workers.json").read_text())
    assert pids
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": None}, "sets RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT but not WORLD_SIZE: torchrun sets all"),
        ({"MASTER_PORT": ""}, "but not MASTER_PORT"),
        ({"RANK": None, "LOCAL_RANK": None, "MASTER_ADDR": None, "MASTER_PORT": None}, "sets WORLD_SIZE but not RANK"),
        ({"RANK": "first"}, "RANK=first in the environment must be a whole number of at least 0"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"RANK": "2"}, "RANK=2 in the environment must be below WORLD_SIZE=2"),
        ({"WORLD_SIZE": "0"}, "RANK=1 in the environment must be below WORLD_SIZE=0"),
        ({"LOCAL_RANK": "5"}, "LOCAL_RANK=5 in the environment must not be above RANK=1"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999 in the environment must be from 1 to 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0 in the environment must be from 1 to 65535"),
    ],
)
def test_half_set_environments_are_refused(changes, message):
    environ = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(UnknownSetting) as refused:
        find_place(environ)
    assert message in str(refused.value)


def test_places():
    assert find_place(TORCHRUN) == Place(rank=1, world_size=2, local_rank=1)
    assert find_place({"MASTER_ADDR": "127.0.0.1"}) == Place()
    assert find_place({}) == Place()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dqn"], "DQN does not learn in the 2 ranks of torchrun, only PPO does: start it without"),
        (["es"], "ES spreads by --engine processes or ray"),
        (["ppo", "--device", "cuda:1"], "cuda:1"),
        (["ppo", "--num-envs", "none"], "num-envs"),
    ],
)
def test_refused_under_torchrun_before_ranks_meet(words, message, monkeypatch, capsys, tmp_path):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", words[0], "--env", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *words[1:]]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_every_rank_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert training_run.choose_device("auto", Place(3, 4, 1)) == "cuda:1"
    assert training_run.choose_device("cuda", Place(2, 4, 0)) == "cuda:0"
    assert training_run.choose_device("auto", Place()) == "cuda"
    assert training_run.choose_device("cpu", Place(3, 4, 1)) == "cpu"
    with pytest.raises(UnknownSetting, match="local rank 2 has no GPU of its own: torch finds 2 here"):
        training_run.choose_device("auto", Place(2, 4, 2))
    with pytest.raises(UnknownSetting, match="cuda:0' would be that of every rank"):
        training_run.choose_device("cuda:0", Place(3, 4, 1))


def test_a_rank_that_is_shown_one_gpu_takes_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UnknownSetting, match="local rank 1 has no GPU of its own: torch finds 1 here"):
        training_run.choose_device("auto", Place(3, 4, 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # by a launcher that does so for each rank
    for name in ("auto", "cuda", "cuda:0"):
        assert training_run.choose_device(name, Place(3, 4, 1)) == "cuda:0"
    with pytest.raises(UnknownSetting, match="cuda:1' would be that of every rank"):
        training_run.choose_device("cuda:1", Place(3, 4, 1))


def test_ranks_that_were_shown_the_same_gpu_are_refused():
    refuse_shared_gpus([("one", "a"), ("one", "b"), ("two", "a")])
    with pytest.raises(UnknownSetting, match=r"ranks 0 and 2 have the same GPU of one: .* CUDA_VISIBLE_DEVICES"):
        refuse_shared_gpus([("one", "a"), ("one", "b"), ("one", "a")])


LOST = [
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"),
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms"),
    RuntimeError("NCCL communicator was aborted on rank 1."),
    torch.distributed.DistNetworkError("Connection reset by peer"),
    torch.distributed.DistStoreError("Socket Timeout"),
]
OWN = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0"),
    RuntimeError("[enforce fail at pair.cc:416] op.preamble.length <= op.nbytes. 28 vs 16"),
    RuntimeError("Tensors must be contiguous"),
]


@pytest.mark.parametrize("error", [*LOST, *OWN], ids=str)
def test_only_what_is_about_another_rank_is_told_as_one_that_is_lost(error, monkeypatch):
    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    with pytest.raises(RuntimeError) as caught:
        World(Place(0, 2, 0)).all_reduce(torch.zeros(3))
    if error in LOST:
        assert isinstance(caught.value, RankLost)
        assert "rank 0 of 2 lost another rank" in str(caught.value)
    else:
        assert caught.value is error


def test_minibatches_smaller_than_the_number_of_ranks_are_refused():
    world = World(Place(0, 5, 0))  # which never gets to speak
    config = dataclasses.replace(SMALL, minibatch_size=4)
    envs = vecenv.make_vec("CartPole-v1", backend="sync", **ppo.env_settings(config))
    with envs, pytest.raises(UnknownSetting, match="4 is fewer than the 5 ranks"):
        ppo.PPO(envs, config, world=world)


def test_ranks_that_do_not_come_are_not_waited_for_long(monkeypatch):
    for name, value in {**TORCHRUN, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    with (
        pytest.raises(RankLost, match=r"rank 1 of 2 did not meet the others at 127\.0\.0\.1"),
        connect(Place(1, 2, 1), "cpu", timeout_seconds=1.0),
    ):
        pass
    assert time.monotonic() - started < SECONDS / 2


def test_one_process_alone_touches_no_process_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")  # nobody listens there
    with connect(find_place(), "cpu") as world:
        assert world is ALONE
        assert not torch.distributed.is_initialized()
        assert world.gather("mine") == ["mine"]
        assert world.broadcast_object(3) == 3


@pytest.mark.slow
def test_torchrun_itself_ends_a_run_whose_rank_is_killed(tmp_path):
    """The documented command, to the end of its process tree."""
    folder = tmp_path / "run"
    command = ["torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "vecenv", *RUN]
    command[0] = str(Path(sys.executable).with_name("torchrun"))
    command += ["--num-envs", "2", "--num-workers", "1", "--total-steps", "10000000", "--checkpoint-seconds", "0"]
    with (tmp_path / "out.txt").open("w") as out:
        torchrun = subprocess.Popen([*command, "--run-dir", str(folder)], stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + SECONDS
        while not (folder / "checkpoint.pt").exists():
            assert torchrun.poll() is None, (tmp_path / "out.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ranks = [int(pid) for pid in Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()]
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert torchrun.wait(timeout=60) == 1
    finally:
        if torchrun.poll() is None:
            torchrun.send_signal(signal.SIGTERM)
            torchrun.wait(timeout=60)
    assert load_checkpoint(folder)["learner"]["env_steps"] > 0
    assert "SIGKILL" in (tmp_path / "out.txt").read_text()  # the root cause, as torchrun tells it
    deadline = time.monotonic() + 10
    while (left := processes_in_groups(ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def processes_in_groups(groups):
    """Processes, zombies aside, of the groups that torchrun makes for its ranks; env workers are in them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        if int(group) in groups and state != "Z":
            found.append(stat.parent.name)
    return found


if __name__ == "__main__":
    main()
