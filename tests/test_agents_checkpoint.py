"""Checkpoint files: what is in them, and what an interrupted write leaves."""

from __future__ import annotations

import dataclasses
import enum
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import vecenv
from vecenv.agents import checkpoint, checkpoint_keeper
from vecenv.agents.algorithms import run_config_from_dict
from vecenv.agents.checkpoint import CheckpointError, load_checkpoint, save_checkpoint, to_plain
from vecenv.agents.checkpoint_keeper import CheckpointKeeper, Due
from vecenv.agents.config import PPOConfig, RunConfig
from vecenv.agents.dqn_config import DQNConfig
from vecenv.agents.es_config import ESConfig
from vecenv.agents.learner import Episode
from vecenv.agents.run_directory import RunDirectory
from vecenv.agents.stopping import EpisodeWindow
from vecenv.errors import UnknownSetting
from vecenv.preprocess.config import AtariConfig


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    THREE = 3


def odd_pieces(value, where="checkpoint"):
    """Everything in ``value`` that is neither a tensor nor one of Python's own plain types."""
    if type(value) in (dict, list, tuple):
        items = value.items() if type(value) is dict else enumerate(value)
        keys = [key for key, _ in items if type(key) not in (str, int)] if type(value) is dict else []
        inner = value.items() if type(value) is dict else enumerate(value)
        return [f"{where} key {key!r}" for key in keys] + [
            piece for key, item in inner for piece in odd_pieces(item, f"{where}[{key!r}]")
        ]
    plain = type(value) in (bool, int, float, str, bytes, type(None), torch.Tensor)
    return [] if plain else [f"{where}: {type(value).__name__}"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.bool_(True), True),
        (np.int64(-7), -7),
        (np.uint8(200), 200),
        (np.float32(0.5), 0.5),
        (np.str_("text"), "text"),
        (Colour.RED, "red"),
        (Number.THREE, 3),
        (Path("a/b"), "a/b"),
        ((1, np.int32(2)), (1, 2)),
        ([np.float64(1.5), None, b"raw"], [1.5, None, b"raw"]),
        ({np.int64(3): np.bool_(False)}, {3: False}),
    ],
)
def test_to_plain(value, expected):
    plain = to_plain(value)
    assert plain == expected
    assert type(plain) is type(expected)
    assert odd_pieces(plain) == []


def test_to_plain_turns_arrays_into_tensors_and_dataclasses_into_dicts():
    plain = to_plain({"array": np.arange(3), "config": PPOConfig(), "weight": torch.nn.Parameter(torch.ones(2))})
    assert torch.equal(plain["array"], torch.arange(3))
    assert plain["config"] == dataclasses.asdict(PPOConfig())
    assert type(plain["weight"]) is torch.Tensor
    assert not plain["weight"].requires_grad


@pytest.mark.parametrize("value", [object(), {1, 2}, np.random.default_rng(), lambda: None, PPOConfig, 1j])
def test_to_plain_refuses_anything_else_and_says_where(value):
    with pytest.raises(TypeError, match=r"checkpoint\['a'\]\[1\] is a"):
        to_plain({"a": [0, value]})


def test_odd_pieces_finds_what_does_not_belong():
    assert odd_pieces({"a": [np.float64(1)]}) == ["checkpoint['a'][0]: float64"]
    assert odd_pieces({np.str_("a"): 1}) != []


def test_round_trip(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"steps": np.int64(5), "weights": {"w": torch.arange(4.0)}})
    content = load_checkpoint(tmp_path)  # the folder finds its checkpoint.pt
    assert content["steps"] == 5
    assert torch.equal(content["weights"]["w"], torch.arange(4.0))
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"steps": 1})

    def half_a_file(content, file):
        file.write(b"PK half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.torch, "save", half_a_file)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {"steps": 2})
    assert load_checkpoint(path)["steps"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_missing_damaged_and_foreign_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*none\.pt"):
        load_checkpoint(tmp_path / "none.pt")
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"damaged.pt is not a readable checkpoint"):
        load_checkpoint(damaged)
    foreign = tmp_path / "foreign.pt"
    torch.save({"weights": torch.ones(1)}, foreign)
    with pytest.raises(CheckpointError, match=r"foreign.pt is not a checkpoint of this package"):
        load_checkpoint(foreign)
    other = tmp_path / "other.pt"
    torch.save({"format": 1, "weights": torch.ones(1)}, other)
    with pytest.raises(CheckpointError, match=r"other.pt is a checkpoint of format 1; this version reads 3"):
        load_checkpoint(other)


def test_a_truncated_file_is_one_line_wherever_it_ends(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"weights": torch.randn(1000)})
    whole = path.read_bytes()
    for length in (0, 1, 10, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is not a readable checkpoint") as refused:
            load_checkpoint(path)
        assert len(str(refused.value).splitlines()) == 1
        assert "weights_only=False" not in str(refused.value)  # torch's own message advises to run the pickle


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"steps": 1})

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, {"steps": 2})
    assert load_checkpoint(path)["steps"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_pickled_code_in_a_file_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    trap = tmp_path / "trap.pt"
    with trap.open("wb") as file:
        pickle.dump({"format": 3, "trap": Trap()}, file, protocol=2)
    with pytest.raises(CheckpointError):
        load_checkpoint(trap)
    assert not (tmp_path / "ran").exists()


def test_settings_survive_and_unknown_ones_are_refused():
    config = RunConfig("CartPole-v1", solve_at=475.0, settings=PPOConfig(num_envs=3))
    plain = to_plain(config)
    assert run_config_from_dict(plain) == config
    plain["settings"]["momentum"] = 0.9
    with pytest.raises(UnknownSetting, match="unknown setting momentum"):
        run_config_from_dict(plain)


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (PPOConfig, {"overlap": 0}, "overlap must be true or false, got 0"),
        (DQNConfig, {"double": 1}, "double must be true or false, got 1"),
        (DQNConfig, {"save_replay": "yes"}, "save_replay must be true or false or null, got 'yes'"),
        (ESConfig, {"normalise_observations": None}, "normalise_observations must be true or false, got None"),
        (RunConfig, {"env": 5}, "env must be text, got 5"),
        (RunConfig, {"env": "x", "num_workers": 1.5}, "num_workers must be a whole number or null, got 1.5"),
        (RunConfig, {"env": "x", "preprocess": AtariConfig()}, "preprocess must be the name of a preset, got Atari"),
    ],
)
def test_settings_that_could_be_trained_with_but_not_loaded_are_refused_at_once(kind, settings, named):
    with pytest.raises(UnknownSetting, match=named):
        kind(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        PPOConfig(kl_limit=None, learning_rate=1, gamma=np.float64(0.5), overlap=np.True_),
        DQNConfig(final_learning_rate=None, save_replay=None, steps_per_update=4, double=np.False_),
        ESConfig(noise_std=np.float64(1.0), weight_decay=0),
    ],
    ids=["ppo", "dqn", "es"],
)
def test_numbers_of_numpy_and_whole_ones_for_fractions_are_settings_too(settings, tmp_path):
    algorithm = type(settings).__name__.removesuffix("Config").lower()
    config = RunConfig("x", num_workers=np.int64(2), solve_at=1, algorithm=algorithm, settings=settings)
    save_checkpoint(tmp_path / "checkpoint.pt", {"run": config})
    assert run_config_from_dict(load_checkpoint(tmp_path)["run"]) == config


class Exchanging:
    """A learner in two ranks: notes each time that it would meet the other one."""

    def __init__(self, envs):
        self.envs, self.exchanges = envs, []

    def state_dict(self):
        self.exchanges.append("learner")
        return {"weight": torch.zeros(1)}

    def env_states(self):
        self.exchanges.append("environments")


SAVES = {
    "when due": lambda keeper, directory: keeper.save_when_due(Due(True, True), directory, 1.0, lambda line: None),
    "at the end": lambda keeper, directory: keeper.save_both(directory, 1.0),
}


@pytest.mark.parametrize("failing", [(), ("best.pt",), ("checkpoint.pt",), ("best.pt", "checkpoint.pt")])
@pytest.mark.parametrize("save", SAVES)
def test_a_full_disk_on_rank_0_leaves_no_rank_alone_in_an_exchange(save, failing, tmp_path, monkeypatch):
    def save_or_fail(path, content):
        if path.name in failing:
            raise OSError(28, "No space left on device")
        save_checkpoint(path, content)

    monkeypatch.setattr(checkpoint_keeper, "save_checkpoint", save_or_fail)
    exchanges, refused = [], []
    for directory in (RunDirectory(tmp_path / "run"), None):  # ranks 0 and 1
        with vecenv.make_vec("CartPole-v1", num_envs=1, backend="sync") as envs:
            learner, window = Exchanging(envs), EpisodeWindow(size=1)
            keeper = CheckpointKeeper(RunConfig("CartPole-v1", settings=PPOConfig()), learner, window, num_ranks=2)
            window.add([Episode(1.0, 1)])
            keeper.keep_best(directory, 1.0)
            try:
                SAVES[save](keeper, directory)
            except OSError:
                refused.append(directory)
            exchanges.append(learner.exchanges)
    assert exchanges[0] == exchanges[1]
    assert exchanges[0][-2:] == ["environments", "learner"]
    assert len(refused) == (save == "at the end" and bool(failing))
    written = {file.name for file in (tmp_path / "run").glob("*.pt")}
    assert written == (set() if "best.pt" in failing else {"best.pt", "checkpoint.pt"} - set(failing))


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"weights": torch.zeros(1000)})
    content = bytearray(path.read_bytes())
    place = content.index(bytes(4000)) + 2000
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not a readable checkpoint .its part .* is damaged"):
        load_checkpoint(path)


@pytest.mark.skipif(not hasattr(torch.serialization, "set_crc32_options"), reason="torch always writes them")
def test_sums_are_written_whatever_the_program_has_set(tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        save_checkpoint(tmp_path / "checkpoint.pt", {"weights": torch.ones(3)})
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(before)
    assert load_checkpoint(tmp_path)["weights"].tolist() == [1.0, 1.0, 1.0]
