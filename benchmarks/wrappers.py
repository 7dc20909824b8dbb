"""``vecenv bench wrappers``: what each stage of an Atari agent step costs, ours beside the peers'."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

from vecenv.atari import find_game
from vecenv.doctor import describe_machine
from vecenv.errors import UnknownSetting

from .arguments import add_output, add_timing, check_known, make_parser, some_words
from .picture import save_picture
from .report import check_output, print_table, publish, samples_of
from .timing import Rates, alternate
from .wrapper_stages import (
    PIPELINES,
    Recording,
    Stage,
    check_stages,
    emulator_stage,
    our_stages,
    peer_stages,
    step_stage,
    whole_env,
    worker_stage,
)

COLUMNS = ("emulator", "screen copy", "gray + max", "resize", "stack", "reward", "glue", "transport")
_PACKAGES = {"vecenv": "", "gymnasium": "cv2", "sb3": "stable_baselines3", "opencv": "cv2"}
_TITLES = {
    "vecenv": "vecenv",
    "gymnasium": "Gymnasium wrappers",
    "sb3": "SB3 wrappers",
    "opencv": "plain OpenCV calls",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure, print a table, write a JSON file and, if asked, a picture.

    Args:
        argv: words after ``vecenv bench wrappers``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if a stage of ours got slower beyond noise.

    Raises:
        UnknownSetting: not an Atari game, or an unknown pipeline.
        RuntimeError: our kernels and OpenCV differ.
    """
    arguments = _parser().parse_args(argv)
    game = find_game(arguments.env)
    if game is None:
        raise UnknownSetting(f"{arguments.env!r} is not the id of an Atari game")
    check_output(arguments, "wrappers")
    pipelines: list[str] = arguments.pipelines
    check_known(pipelines, PIPELINES, "pipeline")
    for name in [name for name in pipelines if _PACKAGES[name] and find_spec(_PACKAGES[name]) is None]:
        print(f"left out: {_TITLES[name]} ({_PACKAGES[name]} is not installed)", file=sys.stderr)
        pipelines.remove(name)
    print(describe_machine())
    rates = measure(
        game.rom,
        arguments.env,
        pipelines,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        transport=arguments.transport,
    )
    prices = {name: stage_prices(name, rates) for name in pipelines}
    print_prices(f"{arguments.env}: microseconds per agent step, medians of {arguments.rounds} rounds", prices, rates)
    if arguments.plot is not None:
        plot_prices(arguments.plot, arguments.env, prices)
        print(f"picture in {arguments.plot}")
    results = {"microseconds": prices, "rates": [row.as_dict() for row in rates.values()]}
    settings = {"env_id": arguments.env, "pipelines": pipelines, "rounds": arguments.rounds}
    theirs = [name for name in rates if not name.startswith("vecenv: ")]
    return publish(
        arguments,
        "wrappers",
        settings={**settings, "seconds": arguments.seconds},
        results=results,
        samples=samples_of(list(rates.values()), "agent steps/s", theirs=theirs),
        file_name=f"wrappers-{arguments.env}",
    )


def measure(
    rom: str, env_id: str, pipelines: Sequence[str], *, rounds: int, seconds: float, transport: bool
) -> dict[str, Rates]:
    """Time every stage of every pipeline, in alternating rounds.

    Args:
        rom: name of the ROM.
        env_id: its id, for the worker process.
        pipelines: keys of `PIPELINES`.
        rounds: samples per stage.
        seconds: length of a sample in seconds.
        transport: also time whole steps in a worker process.

    Returns:
        Agent steps per second, by the names of the stages.
    """
    recording = Recording(rom, 256)
    if find_spec("cv2") is not None:
        check_stages(recording)
    with ExitStack() as stack:
        stages: list[Stage] = [emulator_stage(recording)]
        for name in pipelines:
            parts = our_stages(recording) if name == "vecenv" else peer_stages(recording, name)
            stages += parts.values()
            if name == "opencv":
                continue
            whole = [step_stage(name, whole_env(name, rom))]
            if transport:
                whole.append(worker_stage(name, rom, env_id))
            stages += [stack.enter_context(closing(stage)) for stage in whole]
        measured = alternate(stages, rounds=rounds, seconds=seconds, warm_up_seconds=min(seconds, 0.2))
    return {row.name: row for row in measured}


def stage_prices(pipeline: str, rates: dict[str, Rates]) -> dict[str, float]:
    """Microseconds per agent step of every stage.

    Our kernels are timed with growing scope and told apart by differences; glue is what a whole step costs beyond its
    stages, transport what it costs more in a worker process. Differences are taken within each round.

    Args:
        pipeline: a key of `PIPELINES`.
        rates: as `measure` returns them.

    Returns:
        Medians by the names in `COLUMNS`; what was not measured is left out.
    """

    def times(name: str) -> list[float]:
        return [1e6 / rate for rate in rates[name].samples]

    def difference(name: str, less: Sequence[str]) -> float:
        columns = [times(other) for other in less]
        whole = times(name)
        return statistics.median(total - sum(column[turn] for column in columns) for turn, total in enumerate(whole))

    if pipeline == "vecenv":
        nested = {"gray + max": ("pool", ()), "resize": ("shrink", ("pool",)), "stack": ("observe", ("shrink",))}
        inside = ["screen copy", "observe", "reward"]
    else:
        nested = {name: (name, ()) for name in ("gray + max", "resize", "stack")}
        inside = ["screen copy", "gray + max", "resize", "stack", "reward"]
        if pipeline == "sb3":
            inside.remove("stack")  # SB3 stacks outside of the environment
    prices = {"emulator": difference("emulator", ())}
    prices["screen copy"] = difference(f"{pipeline}: screen copy", ())
    for column, (name, less) in nested.items():
        prices[column] = difference(f"{pipeline}: {name}", [f"{pipeline}: {other}" for other in less])
    prices["reward"] = difference(f"{pipeline}: reward", ())
    if f"{pipeline}: step" in rates:
        prices["glue"] = difference(f"{pipeline}: step", ["emulator", *(f"{pipeline}: {name}" for name in inside)])
    if f"{pipeline}: in a worker" in rates:
        outside = [f"{pipeline}: stack"] if pipeline == "sb3" else []
        prices["transport"] = difference(f"{pipeline}: in a worker", [f"{pipeline}: step", *outside])
    return prices


def price_table(prices: dict[str, dict[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with a line per pipeline and a column per stage, in microseconds per agent step.

    Args:
        prices: as `stage_prices` returns them, by pipeline.
    """
    rows = []
    for name, row in prices.items():
        beside = sum(value for column, value in row.items() if column != "emulator")
        cells = [f"{row[column]:.1f}" if column in row else "" for column in COLUMNS]
        rows.append([_TITLES[name], *cells, f"{beside:.1f}"])
    return ["pipeline", *COLUMNS, "beside the emulator"], rows


def print_prices(title: str, prices: dict[str, dict[str, float]], rates: dict[str, Rates]) -> None:
    """Print the table: a line per pipeline, a column per stage, and below the spread of whole steps.

    Args:
        title: line above the table.
        prices: as `stage_prices` returns them, by pipeline.
        rates: as `measure` returns them.
    """
    print_table(title, *price_table(prices), width=150)
    for name in rates:
        if name.endswith((": step", ": in a worker", ": observe", ": observe, whole frame")) or name == "emulator":
            row_rates = rates[name]
            fastest, slowest = 1e6 / row_rates.highest, 1e6 / row_rates.lowest
            print(f"  {name:<29} {1e6 / row_rates.median:8.1f} us   ({fastest:.1f} - {slowest:.1f})")


def plot_prices(path: Path, env_id: str, prices: dict[str, dict[str, float]]) -> None:
    """Draw a stacked bar per pipeline that shows where the time goes.

    Args:
        path: the file; its suffix chooses the format.
        env_id: for the title.
        prices: as `stage_prices` returns them, by pipeline.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.8 * len(prices)), layout="constrained")
    names = [_TITLES[name] for name in prices]
    lefts = [0.0] * len(prices)
    for column in COLUMNS:
        # A stage can come out slightly negative where it is a difference of noisy times.
        widths = [max(0.0, row.get(column, 0.0)) for row in prices.values()]
        axes.barh(names, widths, left=lefts, label=column)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("microseconds per agent step (4 frames)")
    axes.set_title(env_id)
    axes.legend(ncols=len(COLUMNS), loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize="small", frameon=False)
    save_picture(figure, path)
    pyplot.close(figure)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench wrappers", __doc__)
    parser.add_argument(
        "env",
        metavar="ENV",
        nargs="?",
        default="PongNoFrameskip-v4",
        help="id of an Atari game (default PongNoFrameskip-v4)",
    )
    parser.add_argument(
        "--pipelines",
        type=some_words,
        metavar="NAMES",
        default=list(PIPELINES),
        help=f"whose wrappers, comma-separated: {', '.join(PIPELINES)} (default: all)",
    )
    add_timing(parser, rounds=5, seconds=0.3)
    parser.add_argument(
        "--transport",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time whole steps in a worker process (default: yes)",
    )
    add_output(parser, "wrappers-ENV", plot="a stacked bar per pipeline")
    return parser
