"""The model behind ``vecenv bench scaling``: fitted to rounds, evaluated in closed form, drawn; rounds are measured."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

from vecenv.agents.es_config import ESConfig
from vecenv.benchmarks.scaling import GRID, measure_efficiency, measure_rounds
from vecenv.benchmarks.scaling_evolution import MeasuredEngine, measure_evolution
from vecenv.benchmarks.scaling_model import (
    Costs,
    Evolution,
    Round,
    Workload,
    fit,
    predict,
    predict_generation,
    with_latency,
)
from vecenv.benchmarks.scaling_report import (
    draw,
    evolution_table,
    measured_evolution_table,
    measured_tables,
    predicted_tables,
    write_report,
)
from vecenv.benchmarks.timing import Rates

COSTS = Costs(fixed=50e-6, message=100e-6, row=2e-6, byte=0.1e-9)


def seconds_of(costs, workers, envs, size):
    return costs.fixed + workers * costs.message + envs * costs.row + envs * size * costs.byte


def test_the_grid_tells_the_costs_apart():
    fitted = fit([Round(*point, seconds_of(COSTS, *point)) for point in GRID])
    for name in ("fixed", "message", "row", "byte"):
        assert getattr(fitted, name) == pytest.approx(getattr(COSTS, name), rel=1e-6)


def test_messages_through_an_object_store_have_a_cost_of_their_own():
    costs = Costs(COSTS.fixed, COSTS.message, COSTS.row, COSTS.byte, stored=300e-6)
    rounds = []
    for workers, envs, size in GRID:
        stored = envs * size > 100 * 1024 * workers
        rounds.append(Round(workers, envs, size, seconds_of(COSTS, workers, envs, size) + 300e-6 * workers * stored))
    assert fit(rounds, has_store=True).stored == pytest.approx(300e-6)
    small, large = Workload("w", 32, 1e-4, 64), Workload("w", 32, 1e-4, 28_224)
    without = predict(COSTS, small, 8), predict(COSTS, large, 8)
    assert predict(costs, small, 8) == without[0]
    assert 256 / predict(costs, large, 8).rate == pytest.approx(256 / without[1].rate + 8 * 300e-6)


def test_costs_are_never_below_zero():
    tilted = [Round(*point, seconds_of(COSTS, *point) * (1 - 0.1 * (point[2] > 64))) for point in GRID]
    free = [Round(*point, 1e-3) for point in GRID]
    for rounds in (tilted, free):
        costs = fit(rounds)
        assert min(costs.fixed, costs.message, costs.row, costs.byte) >= 0
    assert fit(free).fixed == pytest.approx(1e-3)


def test_too_few_rounds():
    with pytest.raises(ValueError, match="3 rounds do not tell 4"):
        fit([Round(workers, 8, 64, 1e-3) for workers in (1, 2, 3)])
    with pytest.raises(ValueError, match="apart"):
        fit([Round(workers, 8 * workers, 64, 1e-3) for workers in (1, 2, 3, 4, 5)])


def test_waiting_belongs_to_the_fixed_part():
    smallest = Round(1, 8, 64, 100e-6)
    assert with_latency(COSTS, smallest, 300e-6).fixed == pytest.approx(250e-6)
    assert with_latency(COSTS, smallest, 90e-6) == COSTS


def test_a_step_is_the_sum_of_its_parts():
    workload = Workload("w", 32, 200e-6, 1000)
    for cores in (1, 64, 1024):
        said = predict(COSTS, workload, cores)
        seconds = 32 * 200e-6 + seconds_of(COSTS, cores, 32 * cores, 1000)
        assert said.rate == pytest.approx(32 * cores / seconds)
        assert said.efficiency == pytest.approx(32 * 200e-6 / seconds)
        assert said.bytes_per_second == pytest.approx(32_000 * cores / seconds)
    assert predict(COSTS, workload, 1).limit == "envs"
    assert predict(COSTS, workload, 1024).limit == "messages"
    assert predict(COSTS, Workload("w", 32, 200e-6, 10**6), 1024).limit == "observation bytes"
    assert predict(Costs(0, 0, 1e-3, 0), workload, 4).limit == "rows"


def test_a_generation():
    nothing = Costs(0.0, 0.0, 0.0, 0.0)
    evolution = Evolution(pairs=64, steps=1000, env_seconds=1e-3, parameters=1000)
    assert predict_generation(nothing, evolution, 16) == (pytest.approx(8.0), pytest.approx(1.0), "envs")
    seconds, efficiency, limit = predict_generation(nothing, evolution, 1024)
    assert (seconds, efficiency, limit) == (pytest.approx(2.0), pytest.approx(64 / 1024), "pairs")
    assert predict_generation(Costs(0, 0.1, 0, 0), evolution, 64)[2] == "messages"
    assert predict_generation(Costs(0, 0, 0, 1e-3), evolution, 64)[2] == "broadcast"
    slower = [predict_generation(COSTS, evolution, cores)[1] for cores in (2, 16, 64, 256)]
    assert all(one > two for one, two in itertools.pairwise(slower))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_report(tmp_path):
    costs = {"subproc": COSTS, "ray": Costs(1e-4, 3e-4, 2e-6, 0.2e-9)}
    workload = Workload("Pong", 32, 210e-6, 28_224)
    picture = draw(tmp_path / "scaling.svg", costs, [workload])
    rounds = [(Rates("subproc, 1 workers", (1000.0, 2000.0)), Round(1, 8, 64, 1e-4))]
    write_report(
        tmp_path / "scaling.md",
        picture,
        measured_tables(costs, {"subproc": 0.97, "ray": 0.9}),
        predicted_tables(costs, [workload]),
        [
            measured_evolution_table(
                [
                    MeasuredEngine(Rates("ES, processes", (1000.0, 2000.0)), 172.0, 22_944, 16),
                    MeasuredEngine(Rates("ES, ray", (900.0, 1900.0)), 36.4, 22_944, 16),
                ],
                ["subproc", "ray"],
            ),
            evolution_table(costs, Evolution(64, 1000, 45e-6, 5702)),
        ],
        rounds,
    )
    text = (tmp_path / "scaling.md").read_text()
    assert "model on paper" in text
    assert "![Efficiency over cores](scaling.svg)" in text
    assert "| engine | env steps/s | lowest - highest | x processes | bytes per pair | bytes per worker |" in text
    assert "| ES, processes | 1,500 | 1,000 - 2,000 |  | 172 | 22,944 |" in text
    assert "| ES, ray | 1,400 | 900 - 1,900 | 0.93 | 36 | 22,944 |" in text  # the median of 0.90 and 0.95
    assert text.index("ES, ray") < text.index("64 pairs")
    generations = text[text.index("64 pairs") :]
    assert "| engine | cores | generation |" in generations
    assert "\n| processes | 16 | " in generations
    assert "subproc |" not in generations
    said = predict(costs["ray"], workload, 1024)
    assert f"| ray | 1,024 | {said.rate:,.0f} |" in text
    assert picture.read_text().startswith("<?xml")


def test_rounds_are_measured(monkeypatch):
    monkeypatch.setattr("vecenv.benchmarks.scaling.GRID", ((1, 4, 64), (2, 4, 128)))
    measured = measure_rounds(["subproc"], 1, 0.05)["subproc"]
    assert [(one.driver.workers, one.driver.envs, one.driver.observation_bytes) for one in measured] == [
        (1, 4, 64),
        (2, 4, 128),
    ]
    assert all(one.rates.median > 0 and one.driver.seconds > 0 for one in measured)
    assert len(measure_efficiency(["subproc"], 1, 0.05)) == 2


def test_generations_are_measured(monkeypatch):
    config = ESConfig(num_pairs=2, hidden_size=8, normalise_observations=True, max_episode_steps=5)
    populations = (("CartPole-v1", "gymnasium", config), ("Nothing-v0", "no_such_package", config))
    monkeypatch.setattr("vecenv.benchmarks.scaling_evolution.POPULATIONS", populations)
    (measured,) = measure_evolution(["subproc"], 2, 0.01, workers=1)
    assert measured.rates.name == "ES on CartPole-v1, processes, 1 workers"
    assert len(measured.rates.samples) == 2
    assert measured.bytes_per_pair == 36 + 2 * 4 * 4
    num_parameters = 4 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2
    assert (measured.bytes_per_worker, measured.pairs) == (4 * num_parameters + 2 * 4 * 4, 2)
