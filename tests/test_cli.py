"""The command vecenv: what it calls, and the one line it prints when called wrongly."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from vecenv import cli, doctor
from vecenv.errors import EnvFailure, UnknownSetting, WorkerDied, env_error

NO_LEVEL = FileNotFoundError(2, "No such file or directory", "level.txt")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    "command", [*cli.COMMANDS.values(), *cli.BENCHMARKS.values()], ids=lambda command: command.module
)
def test_every_command_has_a_module(command: cli.Command) -> None:
    assert find_spec(command.module) is not None
    assert command.summary


def test_unknown_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian", "ppo"]) == 2
    line = one_line(capsys)
    assert "'trian'" in line
    assert all(name in line for name in cli.COMMANDS)


def test_unknown_benchmark_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "speed"]) == 2
    line = one_line(capsys)
    assert "'speed'" in line
    assert all(name in line for name in cli.BENCHMARKS)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["bench", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert "usage: vecenv" in capsys.readouterr().out


def test_no_word_at_all_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "train" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"vecenv {doctor.package_versions()['vecenv']}\n"


def test_arguments_and_exit_code_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    module = SimpleNamespace(main=lambda argv: seen.append(argv) or 7)
    monkeypatch.setitem(sys.modules, "vecenv.agents.train", module)
    assert cli.main(["train", "ppo", "--env", "CartPole-v1"]) == 7
    assert seen == [["ppo", "--env", "CartPole-v1"]]


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def main(argv: object) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "vecenv.agents.train", SimpleNamespace(main=main))
    return cli.main(["train"])


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (UnknownSetting("there is no preset 'x'; the presets are: ale"), 2, "no preset 'x'"),
        (WorkerDied([0, 1], 1234, -9, "step"), 1, "1234"),
        (PermissionError(13, "Permission denied", "sealed/new.json"), 1, "vecenv: sealed/new.json: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_expected_errors_are_one_line(
    error: BaseException,
    exit_code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fail_with(error, monkeypatch) == exit_code
    assert words in one_line(capsys)


def test_unknown_environment_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import gymnasium

    with pytest.raises(gymnasium.error.Error) as caught:
        gymnasium.spec("Cartpole-v77")
    assert fail_with(caught.value, monkeypatch) == 2
    assert "Cartpole" in one_line(capsys)


@pytest.mark.parametrize("in_a_worker", [True, False])
def test_package_that_only_an_environment_needs_is_one_line(
    in_a_worker: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gymnasium

    missing = gymnasium.error.DependencyNotInstalled("Box2D is not installed, run `pip install x`")
    failure = EnvFailure(0, 1, missing, "DependencyNotInstalled", str(missing), "Traceback")
    assert fail_with(env_error([failure], "construction") if in_a_worker else missing, monkeypatch) == 2
    assert one_line(capsys) == "vecenv: Box2D is not installed, run `pip install x`\n"


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a mistake of ours"),
        OSError("without a file"),
        env_error([EnvFailure(0, 1, NO_LEVEL, "FileNotFoundError", str(NO_LEVEL), "Traceback")], "step"),
    ],
)
def test_other_errors_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error)):
        fail_with(error, monkeypatch)


def without_torch(script: str) -> tuple[int, str]:
    """Exit code and last line on stderr of a process without torch; here modules of ours would be imported twice."""
    script = f"import sys\nsys.modules['torch'] = None  # `import torch` now raises ModuleNotFoundError\n{script}"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return finished.returncode, finished.stderr.splitlines()[-1]


def test_missing_package_names_the_extra() -> None:
    code, line = without_torch("from vecenv import cli\nsys.exit(cli.main(['train', 'ppo']))")
    assert (code, line) == (2, "vecenv: torch is not installed; run: pip install 'vecenv[agents]'")


def test_agents_from_python_name_the_extra() -> None:
    code, line = without_torch("import vecenv.agents.agent")
    assert (code, line) == (1, "vecenv.errors.MissingExtra: torch is not installed; run: pip install 'vecenv[agents]'")


def test_module_of_ours_that_is_missing_is_not_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "train", cli.Command("vecenv.agents.no_such_file", "", "agents"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train"])


def test_python_dash_m() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "vecenv", "no-such-command"], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith("vecenv: there is no command 'no-such-command'")


def test_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -m vecenv doctor --no-run | {sys.executable} -c 'pass'"
    finished = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0
    assert "Traceback" not in finished.stderr
    assert "BrokenPipe" not in finished.stderr
