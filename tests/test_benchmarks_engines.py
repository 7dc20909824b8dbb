"""The command that measures what adapters cost beside the engines used bare."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vecenv import make_vec
from vecenv.benchmarks import engines
from vecenv.benchmarks.contestants import Settings, VectorContestant, draw_actions
from vecenv.benchmarks.engines import PAIRS, BareKernel, Cost, chosen_cases, cost_of, measure
from vecenv.benchmarks.timing import Rates
from vecenv.errors import UnknownSetting


def test_the_cost_is_that_of_the_ratios_of_rounds():
    drift = np.linspace(1.0, 3.0, 21)  # a machine that gets faster all the time, which hits both alike
    bare = Rates("bare", tuple(100.0 * drift))
    cost = cost_of(Rates("ours", tuple(98.0 * drift)), bare)
    assert cost.share == pytest.approx(0.02)
    assert (cost.low, cost.high) == (pytest.approx(0.02), pytest.approx(0.02))


def test_the_interval_holds_the_median_and_grows_with_noise():
    noise = np.random.default_rng(1).normal(0, 1, 41)
    bare = Rates("bare", (100.0,) * 41)
    narrow, wide = (cost_of(Rates("ours", tuple(95 + size * noise)), bare) for size in (0.1, 3.0))
    for cost in (narrow, wide):
        assert cost.low < cost.share < cost.high
    assert narrow.high - narrow.low < (wide.high - wide.low) / 10
    assert cost_of(Rates("ours", tuple(95 + noise)), bare) == cost_of(Rates("ours", tuple(95 + noise)), bare)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.01, 0.03, "yes"), (0.031, 0.05, "no"), (0.0, 0.04, "cannot tell")]
)
def test_the_verdict_is_only_what_the_interval_tells(low, high, verdict):
    assert Cost(0.5, low, high).verdict == verdict


def test_the_bare_kernel_plays_the_same_steps():
    actions = draw_actions(Settings("CartPole-v1", 16, 1), 40)
    envs, bare = (make_vec("CartPole-v1", 16, "compiled") for _ in range(2))
    kernel = BareKernel(bare)
    envs.reset(seed=5)
    kernel.reset(5)
    for batch in actions:
        envs.step(batch)
        kernel.step(batch)
    np.testing.assert_array_equal(np.stack(envs.call("state")), np.stack(bare.call("state")))
    assert envs.episode_statistics().episode_counts.sum() > 0
    kernel.close()
    assert bare.closed
    envs.close()


def test_main(tmp_path, capsys):
    path = tmp_path / "result.json"
    words = ["CartPole-v1", "--engines", "compiled", "--num-envs", "4,8", "--rounds", "3", "--seconds", "0.01"]
    assert engines.main([*words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert set(document["results"]) == {f"CartPole-v1, compiled, {num_envs} envs" for num_envs in (4, 8)}
    assert {name for name, row in document["samples"].items() if row["ours"]} == {
        f"CartPole-v1, compiled, {num_envs} envs: ours" for num_envs in (4, 8)
    }
    output = capsys.readouterr().out
    assert "95 % interval" in output
    assert not any(verdict in output for verdict in (" yes ", " no ", "cannot tell"))  # CartPole is no Atari game


@pytest.mark.parametrize(("factor", "code"), [(1e-3, 0), (1e3, 1)])
def test_compared_with_results_that_were_slower_or_faster(tmp_path, factor, code):
    path = tmp_path / "old.json"
    words = ["CartPole-v1", "--engines", "compiled", "--num-envs", "4", "--rounds", "6", "--seconds", "0.01"]
    assert engines.main([*words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    for row in document["samples"].values():
        row["values"] = [value * (factor if row["ours"] else 1.0) for value in row["values"]]
    path.write_text(json.dumps(document))
    assert engines.main([*words, "--json", str(tmp_path / "new.json"), "--compare", str(path)]) == code


def test_a_named_engine_without_the_environment_is_told(capsys):
    pytest.importorskip("ale_py")
    cases = chosen_cases(["PongNoFrameskip-v4", "CartPole-v1"], ["ale", "compiled"])
    assert cases == [("PongNoFrameskip-v4", "ale"), ("CartPole-v1", "compiled")]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": this")[0] for line in told] == [
        "left out: PongNoFrameskip-v4, compiled",
        "left out: CartPole-v1, ale",
    ]


def test_ours_and_bare_of_every_installed_engine_take_turns():
    pytest.importorskip("envpool")
    pytest.importorskip("ale_py")
    for env_id, engine in chosen_cases(["PongNoFrameskip-v4"], None):
        ours, bare = engines.measure(Settings(env_id, 2, 1), engine, rounds=1, seconds=0.01)
        assert ours.samples[0] > 0
        assert bare.samples[0] > 0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UnknownSetting, match="no engine 'subproc'; available: ale, envpool, compiled"):
        chosen_cases(["CartPole-v1"], ["subproc"])
    with pytest.raises(UnknownSetting, match="none of these engines has any"):
        chosen_cases(["CartPole-v1"], ["ale"])
    with pytest.raises(UnknownSetting, match="none of these engines"):
        chosen_cases([], list(PAIRS))
    with pytest.raises(SystemExit):
        engines.main(["--rounds", "0"])


def test_turns_are_so_many_steps_for_either_side(monkeypatch):
    played = {"ours": [], "bare": []}
    play = VectorContestant.play

    def count(self, batches):
        played[self.name].append(batches)
        return play(self, batches)

    monkeypatch.setattr(VectorContestant, "play", count)
    ours, bare = measure(Settings("CartPole-v1", 8, 1), "compiled", rounds=3, seconds=0.01)
    assert played["ours"] == played["bare"]
    assert len(played["ours"]) == 2 + 3  # a probe, a warm-up, the rounds
    assert min(*ours.samples, *bare.samples) > 0
