"""``vecenv demo``: facts about the machine, Pong in turns with Gymnasium, and PPO learning CartPole to the end."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from vecenv.cores import usable_cores
from vecenv.doctor import OPTIONAL_PACKAGES, backend_statuses, describe_machine, package_versions
from vecenv.errors import MissingExtra
from vecenv.writable import check_writable

from .arguments import add_timing, make_parser, natural_number
from .contestants import Settings
from .report import print_rates
from .throughput import measure
from .timing import Rates

GOAL = 475.0
EXIT_INTERRUPTED = 130  # how training says that Ctrl-C ended it
SHOWN_PACKAGES = ("vecenv", "numpy", "gymnasium", "numba", "ale-py", "opencv-python-headless", "torch")
#: What the parts import, by import name.
NEEDED = ("ale_py", "cv2", "matplotlib", "rich", "tensorboard", "torch", "tyro")

Result = TypeVar("Result")


class DemoFailed(Exception):
    """A part of the demonstration did not do what it shows; the message says which and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the three parts.

    Args:
        argv: words after ``vecenv demo``; None: those of this process.

    Returns:
        The exit code: 0 if every part did what it shows, else 1.

    Raises:
        MissingExtra: something that a part needs is not installed.
    """
    parser = make_parser("vecenv demo", __doc__)
    add_timing(parser, rounds=3, seconds=2.0)
    parser.add_argument(
        "--run-dir", type=Path, metavar="FOLDER", help="where the training run goes (default runs/demo-TIME)"
    )
    parser.add_argument(
        "--seed", type=natural_number, metavar="N", default=1, help="seed of the training run (default 1)"
    )
    arguments = parser.parse_args(argv)
    run_dir = arguments.run_dir or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in NEEDED:
        if find_spec(name) is None:
            raise MissingExtra(OPTIONAL_PACKAGES[name].distribution, "demo")
    check_writable(run_dir / "config.json", "--run-dir")
    start = time.perf_counter()
    try:
        _heading(1, "this machine")
        show_machine()
        _heading(2, "Pong: vecenv and Gymnasium's AsyncVectorEnv, in turns, same preprocessing")
        compare_on_pong(arguments.rounds, arguments.seconds)
        _heading(3, f"PPO learns CartPole-v1 until the mean return of the last 100 episodes is {GOAL:g}")
        curve = train_cartpole(run_dir, arguments.seed)
    except DemoFailed as failure:
        print(f"vecenv demo: {failure}", file=sys.stderr)
        return 1
    print(f"\nAll three parts done in {time.perf_counter() - start:.0f} s. The learning curve: {curve}")
    print(f"Next: {_next_commands()}; `vecenv --help` lists the rest.")
    programs = Path(sys.executable).parent
    if shutil.which("vecenv") is None and (programs / "activate").is_file():
        print(f"The command vecenv is in {programs}: type `. {programs / 'activate'}` first.")
    return 0


def show_machine() -> None:
    """Print what the figures below depend on."""
    print(describe_machine())
    versions = package_versions()
    print(", ".join(f"{name} {versions[name]}" for name in SHOWN_PACKAGES if versions[name]))
    for status in backend_statuses():
        print(f"back end {status.name}: {'yes' if status.available else 'no'}, {status.note}")


def compare_on_pong(rounds: int, seconds: float, num_envs: int = 16) -> list[Rates]:
    """Measure both in alternating rounds and print both rates and the ratio.

    Args:
        rounds: samples of each.
        seconds: length of a sample in seconds.
        num_envs: environments in each batch.

    Returns:
        The rates: ours, Gymnasium's, the emulator limit.

    Raises:
        DemoFailed: if one of them cannot be built or stepped.
    """
    settings = Settings("PongNoFrameskip-v4", num_envs, min(usable_cores(), num_envs))
    rates = _part(
        "the Pong comparison",
        lambda: measure(settings, ["subproc", "gymnasium-async"], rounds=rounds, seconds=seconds),
    )
    print_rates(f"Pong, {num_envs} envs", rates, frames_per_step=4, unit="agent steps/s")
    ours, theirs, limit = rates
    print(
        f"vecenv {ours.median:,.0f}, AsyncVectorEnv {theirs.median:,.0f} agent steps/s: "
        f"{ours.ratio_to(theirs):.1f} times as fast, "
        f"and {ours.ratio_to(limit):.0%} of what the emulator alone could do on these cores"
    )
    return rates


def train_cartpole(run_dir: Path, seed: int) -> Path:
    """Train PPO until it has solved CartPole-v1, with its live display.

    Args:
        run_dir: folder of the run.
        seed: seed of the run.

    Returns:
        The picture of the learning curve.

    Raises:
        DemoFailed: if training fails, the goal is not reached, or the picture is missing.
    """
    from vecenv.agents.train import main as train

    words = ["ppo", "--env", "CartPole-v1", "--solve-at", f"{GOAL:g}", "--seed", str(seed), "--run-dir", str(run_dir)]
    exit_code = _part("training", lambda: train(words))
    if exit_code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if exit_code:
        raise DemoFailed(f"training ended with exit code {exit_code}")
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise DemoFailed(f"training left no readable {run_dir / 'summary.json'} ({error})") from error
    if not summary.get("solved"):
        raise DemoFailed(f"training stopped at a mean return of {summary.get('mean_return')}, short of {GOAL:g}")
    curve = run_dir / "curve.png"
    if not curve.is_file():
        raise DemoFailed(f"training wrote no picture {curve}")
    return curve


def _next_commands() -> str:
    """What to run next: the project's Makefile serves only where it lies in the current folder."""
    clone = Path(__file__).resolve().parent.parent
    if (clone / "Makefile").is_file() and clone == Path.cwd():
        return "`make test` runs the tests; `make pong` trains PPO on Pong from pixels"
    return "`vecenv train ppo --env PongNoFrameskip-v4 --solve-at 18` trains PPO on Pong from pixels"


def _part(name: str, run: Callable[[], Result]) -> Result:
    """Run a part; whatever goes wrong in it becomes one sentence that names the part."""
    try:
        return run()
    except Exception as error:
        raise DemoFailed(f"{name} failed: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _heading(number: int, text: str) -> None:
    print(f"\n[{number}/3] {text}\n", flush=True)
