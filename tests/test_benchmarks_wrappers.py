"""The wrapper benchmark: its sums, its check before timing, and small real runs. No test looks at a speed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vecenv.benchmarks import wrapper_stages, wrappers
from vecenv.benchmarks.timing import Rates
from vecenv.benchmarks.wrapper_stages import Recording
from vecenv.errors import UnknownSetting


def test_a_run_writes_table_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["PongNoFrameskip-v4", "--rounds", "2", "--seconds", "0.01", "--no-transport"]
    files = ["--json", str(tmp_path / "w.json"), "--plot", str(tmp_path / "pictures" / "w.png")]
    assert wrappers.main([*words, *files]) == 0
    output = capsys.readouterr().out
    for title in ("vecenv", "Gymnasium wrappers", "SB3 wrappers", "plain OpenCV calls", "beside the emulator"):
        assert title in output
    document = json.loads((tmp_path / "w.json").read_text())
    prices = document["results"]["microseconds"]
    assert set(prices) == {"vecenv", "gymnasium", "sb3", "opencv"}
    assert set(prices["vecenv"]) == set(wrappers.COLUMNS) - {"transport"}
    assert set(prices["opencv"]) == set(wrappers.COLUMNS) - {"transport", "glue"}
    assert all(len(row["samples"]) == 2 for row in document["results"]["rates"])
    assert (tmp_path / "pictures" / "w.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_transport_is_timed_in_worker_processes(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    assert wrappers.main(["--rounds", "1", "--seconds", "0.05", "--json", str(path)]) == 0
    prices = json.loads(path.read_text())["results"]["microseconds"]
    assert {name for name, row in prices.items() if "transport" in row} == {"vecenv", "gymnasium", "sb3"}


def rates(**microseconds: float) -> dict[str, Rates]:
    """Two rounds, the second twice as slow."""
    names = {name: name.replace("__", ": ").replace("_", " ") for name in microseconds}
    return {names[name]: Rates(names[name], (1e6 / value, 0.5e6 / value)) for name, value in microseconds.items()}


def test_stages_are_told_apart_by_differences_within_a_round() -> None:
    measured = rates(
        emulator=200, vecenv__screen_copy=2, vecenv__pool=4, vecenv__shrink=10, vecenv__observe=11, vecenv__reward=1,
        vecenv__step=220, vecenv__in_a_worker=260,
    )  # fmt: skip
    expected = {
        "emulator": 200, "screen copy": 2, "gray + max": 4, "resize": 6, "stack": 1, "reward": 1, "glue": 6,
        "transport": 40,
    }  # fmt: skip
    assert wrappers.stage_prices("vecenv", measured) == pytest.approx({k: 1.5 * v for k, v in expected.items()})
    assert sum(expected.values()) == 260


def test_sb3_stacks_outside_of_its_environments() -> None:
    measured = rates(
        emulator=200, sb3__screen_copy=40, sb3__gray_and_max=30, sb3__resize=50, sb3__stack=20, sb3__reward=1,
        sb3__step=330, sb3__in_a_worker=450,
    )  # fmt: skip
    measured["sb3: gray + max"] = measured.pop("sb3: gray and max")
    prices = wrappers.stage_prices("sb3", measured)
    assert prices["glue"] == pytest.approx(1.5 * 9)
    assert prices["transport"] == pytest.approx(1.5 * 100)
    assert sum(prices.values()) == pytest.approx(1.5 * 450)


def test_nothing_is_timed_where_a_pixel_differs() -> None:
    recording = Recording("pong", 8)
    wrapper_stages.check_stages(recording)
    recording.gray[5, :, 100:110] += 9
    with pytest.raises(RuntimeError, match="differ at step 5; nothing was timed"):
        wrapper_stages.check_stages(recording)


def test_recorded_screens_belong_together() -> None:
    recording = Recording("breakout", 6)
    assert recording.screens.shape == (6, 2, 210, 160)
    assert not np.array_equal(recording.screens[2, 0], recording.screens[4, 0])
    from vecenv.preprocess.palette import load_palette

    palette = load_palette("ntsc")
    np.testing.assert_array_equal(palette.rgb[recording.screens], recording.rgb)
    np.testing.assert_array_equal(palette.gray[recording.screens], recording.gray)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["CartPole-v1"], "'CartPole-v1' is not the id of an Atari game"), (["--pipelines", "cv2"], "no pipeline 'cv2'")],
)
def test_unknown_names_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UnknownSetting, match=message):
        wrappers.main(words)


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--seconds", "nan"], ["--seconds", "-1"]])
def test_senseless_numbers_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        wrappers.main(words)
    assert exit_info.value.code == 2
