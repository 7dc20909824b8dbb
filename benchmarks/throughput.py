"""``vecenv bench throughput ENV``: steps per second of our back ends and of the peers, in alternating rounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.factory import BACKENDS as AVAILABLE

from .arguments import add_output, add_timing, check_known, make_parser, natural_number, positive_ints, words
from .contestants import BACKENDS, Contender, Settings, draw_actions
from .emulator_limit import FRAME_SKIP, EmulatorLimit
from .peers import PEERS
from .report import check_output, print_rates, publish, samples_of
from .timing import Contestant, Rates, alternate

ATARI_PEERS = ("gymnasium-async", "ale", "envpool")
OTHER_PEERS = ("gymnasium-async", "gymnasium-sync", "gymnasium-vector", "envpool")
#: More processes than this are not started for one peer.
MOST_PROCESSES = 64
#: Seconds of sampling that ``--quick`` spends in all; building comes on top.
QUICK_SECONDS = 20.0


@dataclass(frozen=True)
class Entry:
    """A contender with the settings of one row.

    Attributes:
        contender: who.
        settings: what it is built with.
        named: whether the user named it: it is then an error if it cannot be built.
    """

    contender: Contender
    settings: Settings
    named: bool = True

    @property
    def row_name(self) -> str:
        """Name of the row."""
        return self.contender.row_name(self.settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for every number of environments, write a JSON file and, if asked, draw and compare.

    Args:
        argv: words after ``vecenv bench throughput``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if a back end of ours got slower beyond noise.

    Raises:
        MissingExtra: if a contender that was named is not installed.
        UnknownSetting: for one that does not exist, or does not have this environment.
    """
    arguments = _parser().parse_args(argv)
    check_output(arguments, "throughput")
    chosen = choose(arguments)
    grid = settings_grid(arguments)
    is_atari = grid[0].rom is not None
    rounds, seconds = arguments.rounds, arguments.seconds
    if arguments.quick:
        rows = sum(len(group) + is_atari for group in _groups(chosen, grid))
        rounds, seconds = 3, min(0.3, QUICK_SECONDS / (4 * max(1, rows)))
    print(describe_machine())
    measured: list[tuple[Sequence[Entry], list[Rates]]] = []
    for group in _groups(chosen, grid):
        entries, rates = measure_group(group, rounds=rounds, seconds=seconds)
        measured.append((entries, rates))
        if rates:
            title = (
                f"{arguments.env}, {group[0].settings.num_envs} envs, {rounds} alternating rounds of {seconds:.2g} s"
            )
            print_rates(title, rates, frames_per_step=FRAME_SKIP if is_atari else 1, unit="agent steps/s")
    if not any(rates for _, rates in measured):
        raise UnknownSetting("nothing was left to measure")
    if arguments.plot is not None:
        from .throughput_plot import plot_rates

        plot_rates(arguments.plot, arguments.env, measured)
        print(f"picture in {arguments.plot}")
    return _publish(arguments, measured, rounds, seconds)


def settings_grid(arguments: argparse.Namespace) -> list[Settings]:
    """Every combination of the numbers asked for that makes sense; workers are never more than environments."""
    grid = []
    for num_envs in arguments.num_envs:
        for num_workers in arguments.num_workers or [usable_cores()]:
            for batch_size in arguments.batch_size or [num_envs]:
                if batch_size <= num_envs:
                    part = None if batch_size == num_envs else batch_size
                    grid.append(Settings(arguments.env, num_envs, min(num_workers, num_envs), arguments.seed, part))
    if not grid:
        raise UnknownSetting("every batch size is larger than every number of environments")
    return list(dict.fromkeys(grid))


def choose(arguments: argparse.Namespace) -> list[tuple[Contender, bool]]:
    """The contenders, and for each whether the user named it.

    Raises:
        UnknownSetting: for a name that does not exist or does not have this environment.
        MissingExtra: for one whose package is not installed.
    """
    is_atari = Settings(arguments.env, 1, 1).rom is not None
    every = arguments.backends == ["all"]
    backends = [name for name in BACKENDS if name in AVAILABLE] if every else arguments.backends
    check_known(backends, list(BACKENDS), "back end")
    check_known(arguments.peers or [], list(PEERS), "peer")
    peers = (ATARI_PEERS if is_atari else OTHER_PEERS) if arguments.peers is None else arguments.peers
    chosen = [(BACKENDS[name], not every) for name in backends]
    chosen += [(PEERS[name], arguments.peers is not None) for name in peers]
    return [(contender, named) for contender, named in chosen if _can_run(contender, is_atari, named)]


def _can_run(contender: Contender, is_atari: bool, named: bool) -> bool:
    """Whether a contender can be tried at all; one that was named and cannot is an error, others are named and left."""
    error: Exception | None = None
    if contender.atari_only and not is_atari:
        error = UnknownSetting(f"{contender.title} has Atari games only")
    elif contender.module and find_spec(contender.module) is None:
        error = MissingExtra(contender.distribution, contender.extra)
    if error is None:
        return True
    if named:
        raise error
    if isinstance(error, MissingExtra):
        print(f"left out: {contender.title}: {error}", file=sys.stderr)
    return False


def _groups(chosen: Sequence[tuple[Contender, bool]], grid: Sequence[Settings]) -> list[list[Entry]]:
    """The rows of each number of environments; a contender has one row for settings that make no difference to it."""
    groups: dict[int, dict[str, Entry]] = {}
    for contender, named in chosen:
        for settings in grid:
            own = settings if contender.uses_batch_size else replace(settings, batch_size=None)
            entry = Entry(contender, own, named)
            if contender.process_per_env and settings.num_envs > MOST_PROCESSES:
                continue
            groups.setdefault(settings.num_envs, {}).setdefault(entry.row_name, entry)
    return [list(group.values()) for group in groups.values()]


def measure(settings: Settings, names: Sequence[str], *, rounds: int, seconds: float) -> list[Rates]:
    """Build contenders, let them take turns, close them.

    Args:
        settings: what is measured.
        names: keys of `BACKENDS`, or of `PEERS`; for Atari the emulator limit is added at the end.
        rounds: samples per contender.
        seconds: length of one sample in seconds.

    Returns:
        The rates, in the order of `names`.
    """
    contenders = {**PEERS, **BACKENDS}
    entries = [Entry(contenders[name], settings) for name in names]
    return measure_group(entries, rounds=rounds, seconds=seconds)[1]


def measure_group(entries: Sequence[Entry], *, rounds: int, seconds: float) -> tuple[list[Entry], list[Rates]]:
    """Build the contestants of one number of environments, let them take turns, close them.

    Args:
        entries: the rows.
        rounds: samples per row.
        seconds: length of one sample in seconds.

    Returns:
        The rows that could be built, and their rates in the same order; for Atari the emulator limit comes last.
    """
    actions = draw_actions(entries[0].settings)
    built: list[Entry] = []
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for entry in entries:
            print(f"building {entry.row_name} ...", file=sys.stderr)
            try:
                contestant = entry.contender.build(entry.settings, entry.row_name, actions)
            except (NotImplementedError, UnknownSetting, MissingExtra) as error:
                if entry.named and isinstance(error, NotImplementedError):
                    raise UnknownSetting(str(error)) from error
                if entry.named:
                    raise
                print(f"left out: {entry.row_name}: {error}", file=sys.stderr)
                continue
            contestants.append(stack.enter_context(closing(contestant)))
            built.append(entry)
        if not contestants:
            return [], []
        rom = entries[0].settings.rom
        if rom is not None:
            contestants.append(stack.enter_context(closing(EmulatorLimit(rom, usable_cores()))))
        rates = alternate(
            contestants,
            rounds=rounds,
            seconds=seconds,
            warm_up_seconds=min(1.0, seconds),
            on_sample=lambda turn, name, rate: print(
                f"round {turn + 1}/{rounds}  {name:<44} {rate:>12,.0f} steps/s", file=sys.stderr
            ),
        )
    return built, rates


def _publish(
    arguments: argparse.Namespace,
    measured: Sequence[tuple[Sequence[Entry], Sequence[Rates]]],
    rounds: int,
    seconds: float,
) -> int:
    """Write everything down: the rows with their settings, ratios within each group, raw samples."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    samples = {}
    for entries, rates in measured:
        theirs = [entry.row_name for entry in entries if not entry.contender.ours]
        limit = [row.name for row in rates[len(entries) :]]
        for index, row in enumerate(rates):
            own = asdict(entries[index].settings) if index < len(entries) else {}
            rows.append({**row.as_dict(), "settings": own})
        ratios.update({rates[0].name: {row.name: rates[0].ratio_to(row) for row in rates[1:]}} if rates else {})
        for name, row_samples in samples_of(rates, "agent steps/s", theirs=[*theirs, *limit]).items():
            # the limit is measured beside every number of environments
            samples[f"{name} beside {entries[0].settings.num_envs} envs" if name in limit else name] = row_samples
    written = {
        "env_id": arguments.env,
        "num_envs": arguments.num_envs,
        "num_workers": arguments.num_workers,
        "batch_size": arguments.batch_size,
        "seed": arguments.seed,
        "rounds": rounds,
        "seconds": seconds,
    }
    return publish(
        arguments,
        "throughput",
        settings=written,
        results={"rates": rows, "ratios_of_first": ratios},
        samples=samples,
        file_name=f"throughput-{arguments.env}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench throughput", __doc__)
    parser.add_argument("env", metavar="ENV", help="id of the environment, such as PongNoFrameskip-v4 or CartPole-v1")
    parser.add_argument(
        "--num-envs",
        type=positive_ints,
        metavar="N,N",
        default=[16],
        help="environments in a batch, comma-separated (default 16)",
    )
    parser.add_argument(
        "--num-workers",
        type=positive_ints,
        metavar="N,N",
        help="our worker processes and the native engines' threads, comma-separated (default: usable cores)",
    )
    parser.add_argument(
        "--batch-size",
        type=positive_ints,
        metavar="N,N",
        help="environments per recv, comma-separated, for those who have send and recv (default: all, by step)",
    )
    parser.add_argument(
        "--backends",
        type=words,
        metavar="NAMES",
        default=["subproc"],
        help=f"back ends of ours, comma-separated: {', '.join(BACKENDS)}; or all (default subproc)",
    )
    parser.add_argument(
        "--peers",
        type=words,
        metavar="NAMES",
        help=f"what to compare with, comma-separated, '' for nothing: {', '.join(PEERS)} "
        f"(default: {', '.join(ATARI_PEERS)} for Atari, else {', '.join(OTHER_PEERS)}; as far as they are installed)",
    )
    add_timing(parser, rounds=25, seconds=0.4)  # many short turns: a busy spell of the machine hits all
    parser.add_argument("--quick", action="store_true", help="3 short rounds; under a minute with the defaults")
    parser.add_argument(
        "--seed", type=natural_number, metavar="N", default=0, help="seed of environments and actions (default 0)"
    )
    add_output(parser, "throughput-ENV", plot="steps per second, the emulator limit as a line")
    return parser
