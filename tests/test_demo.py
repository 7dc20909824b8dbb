"""The demonstration: its order, its exit codes, and (slow) the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vecenv import cli
from vecenv.benchmarks import demo
from vecenv.benchmarks.timing import Rates
from vecenv.errors import UnknownSetting

SUMMARY = {"solved": True, "mean_return": 480.0, "env_steps": 100_000, "seconds": 12.0, "steps_per_second": 8000.0}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prepared rates in place of the Pong measurement; returns the list of what was asked for."""
    asked: list[str] = []

    def measure(settings: object, names: list[str], **options: object) -> list[Rates]:
        asked.extend(names)
        return [Rates("ours", (800.0,)), Rates("theirs", (200.0,)), Rates("limit", (1000.0,))]

    monkeypatch.setattr(demo, "measure", measure)
    return asked


def train_leaving(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, summary: object, curve: bool, exit_code: int = 0
) -> None:
    """Put a training in place that leaves the given files behind."""

    def main(argv: list[str]) -> int:
        assert argv[:3] == ["ppo", "--env", "CartPole-v1"]
        assert argv[argv.index("--solve-at") + 1] == "475"
        folder = Path(argv[argv.index("--run-dir") + 1])
        assert folder == run_dir
        folder.mkdir()
        if summary is not None:
            (folder / "summary.json").write_text(json.dumps(summary))
        if curve:
            (folder / "curve.png").write_bytes(b"picture")
        return exit_code

    monkeypatch.setitem(sys.modules, "vecenv.agents.train", SimpleNamespace(main=main))


@pytest.mark.parametrize(
    ("current", "advice"),
    [
        ("clone", "`make test` runs the tests; `make pong` trains"),
        ("other", "`vecenv train ppo --env PongNoFrameskip-v4 --solve-at 18` trains"),
    ],
)
def test_all_parts(
    current: str,
    advice: str,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder in ("clone", "other"):  # that of vecenv, and of another project
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Makefile").write_text("test:\n")
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "clone" / "benchmarks" / "demo.py"))
    monkeypatch.chdir(tmp_path / current)
    train_leaving(monkeypatch, tmp_path / "run", SUMMARY, curve=True)
    programs = tmp_path / "bin"  # of a virtual environment that is not active
    programs.mkdir()
    (programs / "activate").touch()
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "")
    assert demo.main(["--run-dir", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert measured == ["subproc", "gymnasium-async"]
    assert "4.0 times as fast" in text
    assert "80% of what the emulator alone" in text
    assert str(tmp_path / "run" / "curve.png") in text
    closing = text.strip().splitlines()[-2:]
    assert closing[0].startswith(f"Next: {advice} PPO on Pong from pixels; ")
    assert closing[1] == f"The command vecenv is in {programs}: type `. {programs / 'activate'}` first."


@pytest.mark.parametrize(
    ("summary", "curve", "exit_code", "words"),
    [
        (SUMMARY, True, 3, "exit code 3"),
        (None, True, 0, "summary.json"),
        ({**SUMMARY, "solved": False, "mean_return": 99.5}, True, 0, "99.5"),
        (SUMMARY, False, 0, "curve.png"),
    ],
)
def test_training_that_falls_short_is_one_line(
    summary: object,
    curve: bool,
    exit_code: int,
    words: str,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_leaving(monkeypatch, tmp_path / "run", summary, curve, exit_code)
    assert demo.main(["--run-dir", str(tmp_path / "run")]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert "Next:" not in captured.out


def test_interrupted_training_ends_the_demo(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_leaving(monkeypatch, tmp_path / "run", SUMMARY, curve=True, exit_code=130)
    assert cli.main(["demo", "--run-dir", str(tmp_path / "run")]) == 130
    captured = capsys.readouterr()
    assert captured.err == "vecenv: interrupted\n"
    assert "Next:" not in captured.out


def test_missing_package_is_noticed_before_anything_runs(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "cv2" else True)
    assert cli.main(["demo"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "vecenv: opencv-python-headless is not installed; run: pip install 'vecenv[demo]'\n"
    assert (printed.out, measured) == ("", [])


def test_a_folder_that_cannot_be_made_is_noticed_before_anything_runs(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnknownSetting, match=r"--run-dir: .*file is a file"):
        demo.main(["--run-dir", str(tmp_path / "file")])
    assert measured == []


def test_failing_comparison_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(*arguments: object, **options: object) -> list[Rates]:
        raise OSError("no memory\nmore")

    monkeypatch.setattr(demo, "measure", measure)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "vecenv demo: the Pong comparison failed: OSError: no memory\n"


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--seconds", "0"], ["--seconds", "-1"], ["--seed", "-1"]])
def test_senseless_numbers_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        demo.main(words)
    assert exit_info.value.code == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vecenv", "demo", "--rounds", "1", "--seconds", "0.3", "--run-dir", "run"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=570, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["solved"] is True
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert finished.stdout.strip().splitlines()[-1].startswith("Next:")
