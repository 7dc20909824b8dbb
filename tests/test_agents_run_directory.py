"""The folder of a run: one training at a time writes to it, and what a killed one left half-written goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vecenv.agents import train
from vecenv.agents.agent import Agent
from vecenv.agents.checkpoint import load_checkpoint
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.display import ProgressDisplay
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.training_run import TrainingRun
from vecenv.errors import UnknownSetting

CONFIG = RunConfig("CartPole-v1", backend="sync", settings=PPOConfig(num_envs=2, num_steps=16, total_steps=400))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that may go on."""
    Agent(CONFIG).train(run_dir=tmp_path / "run", stop_at_steps=100, quiet=True)
    return tmp_path / "run"


def test_a_run_is_not_resumed_while_another_training_writes_to_it(folder: Path) -> None:
    words = ["ppo", "--resume", str(folder), "--stop-at-steps", "200"]
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with RunDirectory(folder).held():
        with pytest.raises(UnknownSetting, match="run is being written by another training"):
            train.main(words)
        with pytest.raises(UnknownSetting, match="is being written"):
            Agent.load(folder).train(run_dir=folder, quiet=True)
        # also where the other one begins only after the first look
        with TrainingRun(CONFIG) as run, pytest.raises(UnknownSetting, match="is being written"):
            run.train(RunDirectory(folder), ProgressDisplay(400, None))
    assert files == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert train.main(words) == 0
    assert load_checkpoint(folder)["learner"]["env_steps"] >= 200


def test_a_killed_training_leaves_nothing_in_the_way(folder: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from vecenv.agents.run_directory import RunDirectory\n"
        "directory = RunDirectory(sys.argv[1])\n"
        "with directory.held():\n"
        "    for name in ('checkpoint.pt', 'summary.json', 'metrics.csv', 'replay-400.bin'):\n"
        "        (directory.path / f'.{name}.{os.getpid()}').write_text('half')\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UnknownSetting, match="is being written"), RunDirectory(folder).held():
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
    (folder / ".checkpoint.pt.notes").write_text("somebody's own")
    assert len(list(folder.glob(".*"))) == 5
    with RunDirectory(folder).held():
        assert [path.name for path in folder.glob(".*")] == [".checkpoint.pt.notes"]
