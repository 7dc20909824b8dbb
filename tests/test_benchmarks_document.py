"""The page of figures: made from results alone, targets met or not, what is measured again, and a whole tiny page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from vecenv.benchmarks import compiled, document, document_entries, document_runs, document_tables, targets
from vecenv.benchmarks.document_entries import ENTRIES, Entry, command_of, find_entries
from vecenv.benchmarks.document_page import write_page
from vecenv.benchmarks.document_runs import Measured, is_current, measure_all, read_measured
from vecenv.benchmarks.document_tables import TABLES
from vecenv.benchmarks.report import markdown_table, write_json
from vecenv.benchmarks.targets import TARGETS, target_rows
from vecenv.cli import BENCHMARKS
from vecenv.errors import UnknownSetting

ROOT = Path(__file__).resolve().parent.parent
BY_NAME = {entry.name: entry for entry in ENTRIES}


def rates(name: str, *samples: float, **more: Any) -> dict[str, Any]:
    ordered = sorted(samples)
    return {
        "name": name,
        "samples": list(samples),
        "median": ordered[len(ordered) // 2],
        "lowest": ordered[0],
        "highest": ordered[-1],
        **more,
    }


OURS = "vecenv subproc (16 envs, 2 workers)"
THROUGHPUT = {
    "rates": [
        rates(OURS, 90.0, 95.0, 85.0, settings={"num_envs": 16}),
        rates("EnvPool (16 envs, 2 workers)", 50.0, 51.0, 49.0, settings={"num_envs": 16}),
        rates("emulator limit", 100.0, 100.0, 100.0, settings={}),
    ],
    "ratios_of_first": {OURS: {"EnvPool (16 envs, 2 workers)": 1.8, "emulator limit": 0.9}},
}


def cheetah(mean: float, *, speed: float = 2.0) -> dict[str, Any]:
    generations = list(range(1, 101))
    return {
        "algorithm": "es",
        "env": "HalfCheetah-v5",
        "seed": 0,
        "solve_at": None,
        "solved": False,
        "seconds": 100 * speed,
        "env_steps": 12_000_000,
        "mean_return": mean,
        "steps_per_second": 40_000.0,
        "points": {
            "env_steps": [120_000 * g for g in generations],
            "seconds": [speed * g for g in generations],
            "mean_return": [mean * g / 100 for g in generations],
            "generation": generations,
            "population_mean": [None, *(mean * g / 100 for g in generations[1:])],
        },
    }


def learnt(algorithm: str, env: str, seconds: float, *, solved: bool = True) -> dict[str, Any]:
    points = {"env_steps": [10, 20], "seconds": [0.5 * seconds, seconds], "mean_return": [1.0, 19.0]}
    mark = 475.0 if env == "CartPole-v1" else 18.0
    row = {"algorithm": algorithm, "env": env, "seconds": seconds, "solved": solved, "points": points, "solve_at": mark}
    return {**row, "seed": 0, "env_steps": 20, "mean_return": 19.0, "steps_per_second": 20 / seconds}


def rung(name: str, samples: Sequence[float] | None, table: str = "engines", **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"ladder": "es", "table": table, "rung": name, "changes": f"{name} | changed"}
    row |= {"theirs": [{"source": "document", "rate": 20000.0, "text": "6 processes"}], "left_out": None}
    row |= {"rates": None if samples is None else rates(name, *samples), "figures": {"bytes per pair": 24.0}}
    return {**row, "times_base": 1.0, "times_before": None, **more}


FAILED = {"algorithm": "dqn", "env": "CartPole-v1", "seed": 0, "solve_at": 475.0, "solved": False}
FAILED |= {"message": "dqn: it broke"}
STARTS = {"seconds": [0.1, 1.0, 0.5, 0.4], "private_bytes": [20_000_000, 24_000_000]}
RESULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # entry -> settings, results
    "throughput-pong": ({"env_id": "PongNoFrameskip-v4"}, THROUGHPUT),
    "limits": (
        {},
        {
            f"{game}NoFrameskip-v4": {
                "rates": [rates(str(place), 100.0) for place in range(4)],
                "shares": [1.0, 0.97, 0.9, share],
            }
            for game, share in (("Pong", 0.88), ("Freeway", 0.879))
        },
    ),
    "wrappers": (
        {"env_id": "PongNoFrameskip-v4"},
        {
            "microseconds": {"vecenv": {"emulator": 200.0, "resize": 3.0}, "opencv": {"emulator": 200.0}},
            "rates": [
                rates("vecenv: observe", 125_000.0, 125_000.0),
                rates("vecenv: observe, whole frame", 40_000.0, 50_000.0),
            ],
        },
    ),
    "compiled": (
        {"env_id": "CartPole-v1"},
        {
            "1024": {
                "rates": [rates("compiled", 1e8, 1.1e8), rates("CartPoleVectorEnv", 1e7)],
                "ratios": {"compiled": {"CartPoleVectorEnv": 6.99}},
            }
        },
    ),
    "workers": (
        {"workers": 2},
        {
            "round": {"microseconds": [49.0], "median": 49.0},
            "cart_pole": [rates("subproc", 60.0, 66.0, 90.0), rates("gymnasium-async", 10.0, 11.0, 10.0)],
            "busy": {"shares": [0.9], "median": 0.9},
            "uneven": {"balance": [rates("balanced", 3.0), rates("not balanced", 2.0)]},
        },
    ),
    "startup": (
        {"env_id": "PongNoFrameskip-v4", "num_envs": 16, "num_workers": 2},
        {
            "import": {
                "seconds": {"base": [0.2]},
                "median_differences": {"with_vecenv": 0.006, "with_make_vec": 0.05},
            },
            "build": {"subproc": {"cold": STARTS, "warm": [STARTS]}},
        },
    ),
    "inference": (
        {"network": "mlp", "device": "cpu"},
        {"1": [rates("batched, float32", 1000.0)], "8": [rates("batched, float32", 7000.0), rates("once", 900.0)]},
    ),
    "engines": (
        {},
        {
            f"PongNoFrameskip-v4, {engine}, 8 envs": {
                "ours": rates("ours", 990.0),
                "bare": rates("bare", 1000.0),
                "cost": cost,
            }
            for engine, cost in (("ale", [0.03, 0.02, 0.041]), ("envpool", [0.0301, 0.0302, 0.04]))
        },
    ),
    "adapters-cartpole": (
        {"env": "CartPole-v1", "num_envs": 8},
        {"sb3": [rates("SB3 on ours", 20.0, 22.0), rates("SB3 on its own", 10.0, 11.0)]},
    ),
    "speedups-es": (
        {},
        {
            "rungs": [
                rung("bare-envpool", (100.0, 100.0)),
                rung("envpool", (84.0, 84.0), times_before=0.84),
                rung("population", (90.0, 90.0), table="cumulative", times_before=1.99),
                rung("population", (90.0, 90.0), times_before=3.0),
                rung("cuda", None, left_out="not applicable: no CUDA device"),
            ],
            "tables": [
                {
                    "ladder": "es",
                    "table": "engines",
                    "title": "ES on HalfCheetah-v5: against the engine alone",
                    "unit": "observations/s",
                    "notes": ["whole generations are measured."],
                }
            ],
        },
    ),
    "solved-ppo": (
        {},
        {
            "solutions": [
                {"rung": "serial", "solved": 1, "seconds": 90.0, "env_steps": 1000},
                {"rung": "serial", "solved": 0, "seconds": 600.0, "env_steps": 9000},
                {"rung": "default", "solved": 1, "seconds": 6.0, "env_steps": 800},
            ]
        },
    ),
    "learning-cartpole": (
        {"seeds": 1},
        {"runs": [learnt("ppo", "CartPole-v1", 8.0), learnt("es", "CartPole-v1", 9.0)], "failures": [FAILED]},
    ),
    "learning-pong": (
        {"seeds": 3},
        {
            "runs": [
                learnt("ppo", "PongNoFrameskip-v4", 250.0),
                learnt("ppo", "PongNoFrameskip-v4", 100.0, solved=False),
                learnt("ppo", "PongNoFrameskip-v4", 90.0, solved=False),
            ],
            "failures": [],
        },
    ),
    "learning-pong-dqn": (
        {"seeds": 2},
        {
            "runs": [learnt("dqn", "PongNoFrameskip-v4", 1_500.0), learnt("dqn", "PongNoFrameskip-v4", 2_040.0)],
            "failures": [],
        },
    ),
    "learning-halfcheetah": ({"seeds": 1}, {"runs": [cheetah(7_600.0)], "failures": []}),
    "scaling": (
        {},
        {
            "costs": {"subproc": {"fixed": 1e-5, "message": 1e-5, "row": 1e-6, "byte": 1e-10, "stored": 0.0}},
            "efficiency": {"subproc": 0.9},
        },
    ),
}


def documents() -> dict[str, Any]:
    return {name: {"settings": settings, "results": results} for name, (settings, results) in RESULTS.items()}


def results_folder(folder: Path, names: Sequence[str] = tuple(RESULTS)) -> Path:
    for name in names:
        settings, results = RESULTS[name]
        write_json(folder / f"{name}.json", name=BY_NAME[name].verb, settings=settings, results=results)
        run(folder, name)
    return folder


def run(folder: Path, name: str, exit_code: int = 0, message: str = "", left_out: Sequence[str] = ()) -> None:
    words = command_of(BY_NAME[name], quick=False)[0]
    results = {"exit_code": exit_code, "message": message, "seconds": 1.0, "left_out": list(left_out)}
    write_json(folder / f"{name}.run.json", name="run", settings={"entry": name, "words": words}, results=results)


def rows_of_targets(found: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    return {(line[0], line[1]): line[2:] for line in target_rows(found)}


def test_targets_are_met_or_not_by_the_results() -> None:
    rows = rows_of_targets(documents())
    pong = "Pong, 16 envs, gray 84x84x4, skip 4, max-pool, sticky 0"

    def said(work: str, wanted: str) -> list[str]:
        (found,) = [cells for (own, text), cells in rows.items() if own == work and wanted in text]
        return found[:2]

    assert said(pong, "emulator limit") == ["0.90x", "yes"]  # exactly the bound
    assert said(pong, "EnvPool") == ["1.80x", "yes"]
    assert said(pong, "SB3") == ["not measured", "-"]  # the benchmark ran without that peer
    assert said("Pong, 16 envs", "0.88") == ["0.88", "yes"]
    assert said("Freeway, 16 envs", "0.88") == ["0.88", "**no**"]  # 0.879 is shown as 0.88 and is not it
    assert said("Enduro, 16 envs", "0.88") == ["not measured", "-"]
    assert said("fused kernel, changed rows only", "8 us") == ["8.0 us", "yes"]
    assert said("fused kernel, full game frame", "20 us") == ["20.0 us", "yes"]
    assert said("CartPole, subproc, 8 envs, 2 workers", "6x") == ["6.00x", "yes"]  # median of ratios of the rounds
    assert said("empty round of 2 workers", "50 us") == ["49 us", "yes"]
    assert said("CartPole, compiled, 1,024 envs", "statistics off") == ["6.99x", "**no**"]
    assert said("CartPole, compiled, 16,384 envs", "statistics off") == ["not measured", "-"]
    assert said("adapter of `ale`, Pong, 8 envs", "3%") == ["+3.0%", "yes"]
    assert said("adapter of `envpool`, Pong, 8 envs", "3%") == ["+3.0%", "**no**"]
    assert said("adapter of `envpool`, Pong, 64 envs", "3%") == ["not measured", "-"]
    assert said("start of 16 Pong envs, warm cache", "3 s") == ["2.0 s", "yes"]
    assert said("worker with 8 Pong envs", "25 MB") == ["24.0 MB", "yes"]
    assert said("the same, start method spawn", "60 MB") == ["not measured", "-"]
    assert said("PPO, CartPole-v1 to mean 475 over 100 episodes", "15 s") == ["median 8.0 s", "yes"]
    assert said("PPO, Pong to mean 18 over 100 episodes", "5 min") == ["not reached", "**no**"]  # one of three
    assert said("DQN, Pong to mean 18 over 100 episodes", "30 min") == ["median 29.5 min", "yes"]
    assert said("ES, CartPole-v1 to mean 475 over 100 episodes", "60 s") == ["median 9.0 s", "yes"]
    assert said("DQN, CartPole-v1 to mean 475 over 100 episodes", "60 s") == ["not reached", "**no**"]  # it failed
    cheetah_works = "ES on HalfCheetah-v5, 60 pairs"
    assert said(cheetah_works, "1,500") == ["median 20", "yes"]
    assert said(cheetah_works, "3,000") == ["median 40", "yes"]
    assert said(cheetah_works, "5 min") == ["median 3.3 min", "yes"]
    assert said(cheetah_works, "bare engine") == ["0.84", "**no**"]
    assert said(cheetah_works, "one observation per forward pass") == ["1.99x", "**no**"]


def test_a_miss_points_to_its_explanation_and_a_hit_does_not() -> None:
    rows = rows_of_targets(documents())
    assert rows["Freeway, 16 envs", "at least 0.88 of its own limit"][3] == "[atari-speed.md](atari-speed.md)"
    assert rows["Pong, 16 envs", "at least 0.88 of its own limit"][3] == ""
    assert rows["CartPole, compiled, 1,024 envs", KERNEL][3] == "below"
    told = targets.misses(documents())
    assert len(told) == sum(cells[1] == "**no**" for cells in rows.values())
    assert "- Freeway, 16 envs, at least 0.88 of its own limit: See [atari-speed.md](atari-speed.md)." in told
    assert f"- CartPole, compiled, 1,024 envs, {KERNEL}: Why is not known yet." in told
    assert not any("subproc" in item for item in told)
    slow = {**RESULTS["workers"][1], "cart_pole": [rates("subproc", 59.0), rates("gymnasium-async", 10.0)]}
    (item,) = targets.misses({"workers": {"settings": {}, "results": slow}})
    assert item.startswith("- CartPole, subproc, 8 envs, 2 workers, at least 6x")
    assert "hand-overs between three processes" in item


KERNEL = "statistics off: at least 7x Gymnasium's `CartPoleVectorEnv`"


def test_every_target_has_an_entry_and_its_page_exists() -> None:
    for target in TARGETS:
        assert target.entry in BY_NAME
        assert not target.explained or (ROOT / "docs" / target.explained).is_file()
    assert len({(target.work, target.wanted) for target in TARGETS}) == len(TARGETS)


def test_without_any_result_nothing_is_claimed() -> None:
    assert {line[2] for line in target_rows({})} == {"not measured"}


def test_figures_of_other_settings_decide_no_target() -> None:
    found = documents()
    found["startup"] = {**found["startup"], "settings": {"env_id": "CartPole-v1", "num_envs": 16, "num_workers": 2}}
    easy = [{**learnt("ppo", "CartPole-v1", 1.0), "solve_at": 30.0}]
    found["learning-cartpole"] = {"settings": {}, "results": {"runs": easy, "failures": []}}
    rows = {line[0]: line[2] for line in target_rows(found)}
    assert rows["start of 16 Pong envs, warm cache"] == "not measured"
    assert rows["worker with 8 Pong envs"] == "not measured"
    assert rows["PPO, CartPole-v1 to mean 475 over 100 episodes"] == "not measured"


def test_a_mark_of_nobody_is_infinite() -> None:
    found = {"learning-halfcheetah": {"results": {"runs": [cheetah(1_000.0), cheetah(1_000.0)]}}}
    rows = [line for line in target_rows(found) if line[0].startswith("ES on HalfCheetah")]
    assert [line[2] for line in rows] == ["not reached", "not reached", "median 3.3 min", *2 * ["not measured"]]
    assert not math.isfinite(targets._first({"a": [1.0, None], "b": [1, 2]}, "a", 2.0, "b"))


def test_trainings_that_failed_are_no_reason_to_leave_them_out() -> None:
    found = documents()
    assert found["learning-cartpole"]["results"]["runs"][0]["seconds"] == 8.0
    lost = [{**FAILED, "algorithm": "ppo", "seed": seed} for seed in (1, 2)]
    found["learning-cartpole"] = {"results": {**found["learning-cartpole"]["results"], "failures": lost}}
    lost = [{**FAILED, "algorithm": "es", "env": "HalfCheetah-v5", "solve_at": None, "seed": seed} for seed in (1, 2)]
    found["learning-halfcheetah"] = {"results": {"runs": [cheetah(7_600.0)], "failures": lost}}
    rows = rows_of_targets(found)
    assert rows["PPO, CartPole-v1 to mean 475 over 100 episodes", "at most 15 s"][:2] == ["not reached", "**no**"]
    assert rows["ES on HalfCheetah-v5, 60 pairs", "100 generations in at most 5 min"][0] == "not reached"


def test_entries_are_benchmarks_that_can_be_shown() -> None:
    assert len(BY_NAME) == len(ENTRIES)
    for entry in ENTRIES:
        assert entry.verb in BENCHMARKS
        assert entry.verb in TABLES
        assert entry.quick_words[0] == entry.verb
        for words in (entry.words, entry.quick_words):
            assert "--json" not in words
    assert [entry.name for entry in find_entries(["scaling", "limits"])] == ["limits", "scaling"]
    assert not any(entry.is_long for entry in find_entries([]))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("quick", [False, True])
def test_commands_are_understood(entry: Entry, quick: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The words of every entry get past the benchmark's own parser: what comes next is never reached."""
    import importlib

    module = importlib.import_module(BENCHMARKS[entry.verb].module)

    class ParsedError(Exception):
        pass

    def check(arguments: Any, name: str) -> None:
        assert arguments.json == tmp_path / "new.json"
        raise ParsedError

    monkeypatch.setattr(module, "check_output", check)
    words = command_of(entry, quick=quick)[0]
    place = words.index("--") if "--" in words else len(words)
    with pytest.raises(ParsedError):
        module.main([*words[1:place], "--json", str(tmp_path / "new.json"), *words[place:]])


def test_what_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = document_entries.find_spec
    monkeypatch.setattr(document_entries, "find_spec", lambda name: None if name == "stable_baselines3" else real(name))
    words, missing = command_of(BY_NAME["throughput-pong"], quick=False)
    assert words[words.index("--peers") + 1] == "gymnasium-async,ale,envpool"
    assert missing == ["SB3 SubprocVecEnv: stable-baselines3 is not installed"]


def test_markdown_cells_cannot_end_a_column() -> None:
    assert markdown_table(["a", "b"], [["x|y", "1"]]) == "| a | b |\n|---|--:|\n| x/y | 1 |\n"


def page_of(folder: Path, tmp_path: Path, **options: Any) -> str:
    path = tmp_path / "docs" / "figures.md"
    write_page(path, [read_measured(folder, entry) for entry in ENTRIES], **options)
    return path.read_text()


def test_page_has_every_table_picture_and_target(tmp_path: Path) -> None:
    folder = results_folder(tmp_path / "results")
    run(folder, "limits", left_out=["something: it is not installed"])
    text = page_of(folder, tmp_path)
    for name in RESULTS:
        assert f"## {BY_NAME[name].title}\n" in text
    assert "| EnvPool (16 envs, 2 workers) | 50 | 49 - 51 | 200 | 1.80x |" in text
    assert "| Freeway | 100 | 0.97 | 0.90 | 0.88 | 100 |" in text
    assert "| the whole frame | 22.5 | 20.0 - 25.0 |" in text
    assert "| compiled | 105,000,000 | 100,000,000 - 110,000,000 | 7.0x |" in text
    assert "| batched, float32 | 1,000 | 7,000 |" in text
    assert "| once |  | 900 |" in text
    assert "| PongNoFrameskip-v4, ale, 8 envs | 990 | 1,000 | +3.0% | +2.0% to +4.1% | cannot tell |" in text
    assert "| PongNoFrameskip-v4, envpool, 8 envs | 990 | 1,000 | +3.0% | +3.0% to +4.0% | no |" in text
    assert "| SB3 on its own | 10 | 10 - 11 | 2.00x |" in text
    assert "document: 20,000, 6 processes" in text
    head = "ES on HalfCheetah-v5: against the engine alone:\n\n| rung | what changes | observations/s |"
    assert head in text
    assert "cumulative:\n\n| rung | what changes | units of work/s |" in text  # one that says nothing about itself
    assert "\nWhole generations are measured.\n" in text
    assert "| envpool | envpool / changed | 84 | 84 - 84 | 1.00 | 0.84 | 24 |" in text
    assert "not applicable: no CUDA device" in text
    assert "| serial | 1 of 2 | not reached (1.50 - not reached) |" in text
    assert "| default | 1 of 1 | 0.10 | 800 |" in text
    assert "dqn: it broke" in text
    assert "| dqn | CartPole-v1 | 1, 1 failed | 0 of 1 | not reached |" in text
    assert "Left out: `something: it is not installed`" in text
    assert "vecenv bench compiled\n```" in text
    assert "Not measured yet." in text  # the entries without a result
    assert "Rough" not in text
    assert re.search(r"- Commit: (`[0-9a-f]{12}`|none)", text)
    assert text.index("## Targets") > text.index("## Costs of messages")
    assert "## Targets that are not met, and why\n\n- " in text
    assert "written account" in text
    assert "source document" not in text
    pictures = re.findall(r"\]\((figures/[^)]+\.svg)\)", text)
    assert len(pictures) == len(set(pictures)) >= 8
    for picture in pictures:
        assert "<svg" in (tmp_path / "docs" / picture).read_text()[:500]


def test_page_says_what_is_rough_and_what_differs(tmp_path: Path) -> None:
    folder = results_folder(tmp_path / "results", ["workers", "compiled"])
    path = folder / "workers.json"
    changed = json.loads(path.read_text())
    changed["machine"]["processor"] = "abacus"
    changed["packages"]["numpy"] = "0.1"
    changed["commit"] = "f" * 40 + "-dirty"
    path.write_text(json.dumps(changed))
    text = page_of(folder, tmp_path, quick=True)
    assert "Rough" in text
    assert "not met, and why" in page_of(folder, tmp_path)  # the kernel
    assert "not met, and why" not in page_of(results_folder(tmp_path / "good", ["workers"]), tmp_path)
    assert "Measured on another machine: abacus" in text
    assert "Measured with other versions: numpy 0.1." in text
    assert f"Measured at commit `{'f' * 12}` with changed files." in text


def test_failures_stand_on_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    run(folder, "scaling", exit_code=2, message="vecenv: ray is not installed")
    text = page_of(folder, tmp_path)
    assert "**Did not end well:** `exit status 2: vecenv: ray is not installed`" in text


def test_a_result_of_another_form_does_not_take_the_page_away(tmp_path: Path) -> None:
    folder = results_folder(tmp_path / "results", ["workers", "limits"])
    write_json(folder / "workers.json", name="workers", settings={}, results={"rounds": 3})
    text = page_of(folder, tmp_path)
    assert "**Cannot be shown:**" in text
    assert "| empty round of 2 workers | at most 50 us | not measured |" in text
    assert "| Freeway, 16 envs | at least 0.88 of its own limit | 0.88 | **no** |" in text


def test_a_training_without_a_finished_episode_is_shown(tmp_path: Path) -> None:
    row = learnt("ppo", "CartPole-v1", 8.0, solved=False)
    row |= {"mean_return": None, "points": {"env_steps": [], "seconds": [], "mean_return": []}}
    folder = results_folder(tmp_path / "results", ["learning-cartpole"])
    results = {"runs": [row], "failures": []}
    write_json(folder / "learning-cartpole.json", name="learning", settings={"seeds": 1}, results=results)
    text = page_of(folder, tmp_path)
    assert "no episode ended" in text
    assert "figures/learning-cartpole.svg" in text


def fake_commands(monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, int]) -> list[list[str]]:
    """Replaces the processes that measure: each leaves the made-up result of its entry."""
    called: list[list[str]] = []

    def run_command(words: Sequence[str], log: Path) -> int:
        called.append(list(words))
        path = Path(words[words.index("--json") + 1])
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("left out: Peer: it is not installed\nvecenv: last words\n")
        settings, results = RESULTS[path.stem]
        if outcomes.get(path.stem, 0) == 0:
            write_json(path, name=BY_NAME[path.stem].verb, settings=settings, results=results)
        return outcomes.get(path.stem, 0)

    monkeypatch.setattr(document_runs, "run_command", run_command)
    return called


def test_what_fails_does_not_stop_the_rest_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    words = ["--run", "--folder", str(tmp_path / "r"), "--output", str(page), "--entries", "workers,compiled,scaling"]
    called = fake_commands(monkeypatch, {"compiled": 1})
    assert document.main(words) == 1
    assert [command[1] for command in called] == ["compiled", "workers", "scaling"]
    assert "exit status 1: vecenv: last words" in capsys.readouterr().out
    assert "exit status 1" in page.read_text()
    assert "Left out: `Peer: it is not installed`" in page.read_text()
    called = fake_commands(monkeypatch, {})
    assert document.main(words) == 0
    assert [command[1] for command in called] == ["compiled"]  # the others are there
    assert "exit status" not in page.read_text()
    assert document.main([*words, "--fresh"]) == 0
    assert len(called) == 4
    page.unlink()
    assert document.main(words[1:5]) == 0  # without --run: the page alone
    assert len(called) == 4
    assert "| a round of 2 workers" in page.read_text()


def test_trainings_get_a_folder_of_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = fake_commands(monkeypatch, {})
    monkeypatch.setattr(document_runs, "commit", lambda: "a" * 40 + "-dirty")
    entry = BY_NAME["learning-halfcheetah"]
    (known,) = measure_all([entry], tmp_path, quick=False, fresh=True)
    words = called[0]
    kept = tmp_path / "learning-halfcheetah-kept" / ("a" * 12)
    assert words[words.index("--run-dir") + 1] == str(kept / "trainings")
    assert words.index("--run-dir") < words.index("--")
    (kept / "trainings").mkdir()
    measure_all([replace(entry, words=("learning", "--seeds", "1"))], tmp_path, quick=False, fresh=False)
    assert (kept / "trainings").exists()  # gone on with
    measure_all([entry], tmp_path, quick=False, fresh=True)
    assert not (kept / "trainings").exists()
    assert words[words.index("--") :] == ["--", "--backend", "envpool"]
    assert known.command == f"vecenv bench {' '.join(entry.words)}"


def test_current_is_what_ended_well_here_at_this_commit_with_these_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_runs, "commit", lambda: "a" * 40)
    monkeypatch.setattr("vecenv.benchmarks.report.commit", lambda: "a" * 40 + "-dirty")
    entry = BY_NAME["workers"]
    known = read_measured(results_folder(tmp_path, ["workers"]), entry)
    assert known.run is not None
    assert is_current(known, ["workers"])
    assert not is_current(known, ["workers", "--rounds", "3"])
    assert not is_current(Measured(entry, known.run, None), ["workers"])
    assert not is_current(Measured(entry, None, None), ["workers"])
    elsewhere = {**known.run, "machine": {**known.run["machine"], "cores": 999}}
    assert not is_current(replace(known, run=elsewhere), ["workers"])
    failed = {**known.run, "results": {**known.run["results"], "exit_code": 1}}
    assert not is_current(replace(known, run=failed), ["workers"])
    monkeypatch.setattr(document_runs, "commit", lambda: "b" * 40)
    assert not is_current(known, ["workers"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--entries", "speed"], "no entry 'speed'"),
        (["--fresh"], "--fresh goes together with --run only"),
        (["--entries", "workers"], "--entries says what to measure"),
        (["--entries", ""], "--entries says what to measure"),
        (["--output", "page.html"], r"must end in \.md"),
        ([], "no result in"),
    ],
)
def test_refusals(words: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownSetting, match=text):
        document.main(["--folder", str(tmp_path), "--output", str(tmp_path / "page.md"), *words])
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize("content", ["{", '{"name": "limits"}', "[1]"])
def test_files_that_are_no_results_are_refused_by_name(content: str, tmp_path: Path) -> None:
    folder = results_folder(tmp_path, ["workers"])
    (folder / "workers.json").write_text(content)
    with pytest.raises(UnknownSetting, match=r"workers\.json"):
        read_measured(folder, BY_NAME["workers"])


def test_notes_of_several_tables_are_told_once() -> None:
    found = json.loads(json.dumps(RESULTS["speedups-es"][1]))
    (own,) = found["tables"]
    own["notes"].append("this one too.")
    found["tables"].append(
        {**own, "table": "cumulative", "title": "climb", "notes": ["whole generations are measured."]}
    )
    first, second = document_tables.rung_tables({"results": found})
    assert (first.title, first.notes) == ("ES on HalfCheetah-v5: against the engine alone", ["this one too."])
    assert (second.title, second.notes) == ("climb", ["whole generations are measured."])
    assert [row["rung"] for row in second.rungs] == ["population"]
    assert list(document_tables.rung_groups({"results": found})) == [
        "ES on HalfCheetah-v5: against the engine alone, observations/s",
        "climb, observations/s",
    ]


def test_a_real_measurement_ends_up_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, the real benchmark, the page."""
    tiny = ("compiled", "--num-envs", "16", "--rounds", "1", "--seconds", "0.02")
    entries = tuple(replace(entry, quick_words=tiny) if entry.name == "compiled" else entry for entry in ENTRIES)
    for module in (document, document_entries):
        monkeypatch.setattr(module, "ENTRIES", entries)
    assert document.main(["--run", "--quick", "--folder", str(tmp_path), "--entries", "compiled"]) == 0
    text = (tmp_path / "benchmarks.md").read_text()
    assert "CartPole-v1, 16 environments:" in text
    assert "| compiled, SameStep |" in text
    assert (tmp_path / "benchmarks" / "compiled.svg").is_file()


def test_compiled_can_be_compared_with_an_earlier_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vecenv.benchmarks.timing import Rates

    def measure(num_envs: int, rounds: int, seconds: float) -> list[Rates]:
        names = [*compiled.OURS, "CartPoleVectorEnv"]
        return [Rates(name, (rate, rate + 1, rate + 2)) for name in names]

    monkeypatch.setattr(compiled, "measure", measure)
    rate = 100.0
    old = str(tmp_path / "old.json")
    assert compiled.main(["--num-envs", "8,16", "--json", old]) == 0
    rate = 50.0  # everything, the peer too: the machine's doing
    assert compiled.main(["--num-envs", "16", "--json", str(tmp_path / "new.json"), "--compare", old]) == 0
    assert "0.50 times its speed of then" in capsys.readouterr().out
    samples = json.loads((tmp_path / "new.json").read_text())["samples"]
    assert not samples["CartPoleVectorEnv, 16 envs"]["ours"]
    assert samples["compiled, 16 envs"]["ours"]
