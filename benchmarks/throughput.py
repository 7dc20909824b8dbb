"""``vecenv bench throughput ENV``: steps per second of our back ends and of the peers, in alternating rounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting

from .contestants import PEERS, Settings
from .emulator_limit import FRAME_SKIP, EmulatorLimit
from .report import default_path, print_rates, write_json
from .timing import Contestant, Rates, alternate

ATARI_PEERS = ("gymnasium-async", "ale", "envpool")
OTHER_PEERS = ("gymnasium-async", "gymnasium-sync")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a JSON file.

    Args:
        argv: words after ``vecenv bench throughput``; None: those of this process.

    Returns:
        The exit code, 0.

    Raises:
        MissingExtra: if a peer that was named is not installed.
        UnknownSetting: for an unknown peer, or one that does not have this environment.
    """
    arguments = _parser().parse_args(argv)
    settings = Settings(
        env_id=arguments.env,
        num_envs=arguments.num_envs,
        num_workers=min(arguments.num_workers or usable_cores(), arguments.num_envs),
        seed=arguments.seed,
    )
    is_atari = settings.rom is not None
    chosen = choose_peers(arguments.backends + (arguments.peers or []), is_atari=is_atari)
    if arguments.peers is None:
        chosen += _installed(ATARI_PEERS if is_atari else OTHER_PEERS)
    chosen = list(dict.fromkeys(chosen))
    print(describe_machine())
    rates = measure(settings, chosen, rounds=arguments.rounds, seconds=arguments.seconds)
    print_rates(
        f"{settings.env_id}, {settings.num_envs} envs, {settings.num_workers} workers, "
        f"{arguments.rounds} alternating rounds of {arguments.seconds:g} s",
        rates,
        frames_per_step=FRAME_SKIP if is_atari else 1,
        unit="agent steps/s",
    )
    path = arguments.json or default_path(f"throughput-{settings.env_id}")
    written = {**asdict(settings), "peers": chosen, "rounds": arguments.rounds, "seconds": arguments.seconds}
    write_json(path, name="throughput", settings=written, results=_results(rates))
    print(f"written to {path}")
    return 0


def measure(settings: Settings, names: Sequence[str], *, rounds: int, seconds: float) -> list[Rates]:
    """Build the contestants, let them take turns, close them.

    Args:
        settings: what is measured.
        names: keys of `PEERS`; for Atari the emulator limit is added at the end.
        rounds: samples per contestant.
        seconds: length of one sample in seconds.

    Returns:
        The rates, in the order of `names`.
    """
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for name in names:
            print(f"building {name} ...", file=sys.stderr)
            contestants.append(stack.enter_context(closing(PEERS[name].build(settings))))
        if settings.rom is not None:
            contestants.append(stack.enter_context(closing(EmulatorLimit(settings.rom, usable_cores()))))
        return alternate(
            contestants,
            rounds=rounds,
            seconds=seconds,
            warm_up_seconds=min(1.0, seconds),
            on_sample=lambda turn, name, rate: print(
                f"round {turn + 1}/{rounds}  {name:<26} {rate:>12,.0f} steps/s", file=sys.stderr
            ),
        )


def choose_peers(names: Sequence[str], *, is_atari: bool) -> list[str]:
    """Check names given by the user.

    Args:
        names: keys of `PEERS`.
        is_atari: whether the environment is an Atari game.

    Returns:
        The names.

    Raises:
        UnknownSetting: for a name that does not exist or does not have this environment.
        MissingExtra: for one whose package is not installed.
    """
    for name in names:
        if name not in PEERS:
            raise UnknownSetting(f"there is no peer {name!r}; the peers are: {', '.join(PEERS)}")
        peer = PEERS[name]
        if peer.atari_only and not is_atari:
            raise UnknownSetting(f"the peer {name!r} has Atari games only")
        if peer.module and find_spec(peer.module) is None:
            raise MissingExtra(peer.distribution, peer.extra)
    return list(names)


def _installed(names: Sequence[str]) -> list[str]:
    """Those of the default peers whose packages are there; each one left out is named on stderr."""
    present = []
    for name in names:
        peer = PEERS[name]
        if peer.module and find_spec(peer.module) is None:
            print(f"left out: {MissingExtra(peer.distribution, peer.extra)}", file=sys.stderr)
        else:
            present.append(name)
    return present


def _results(rates: Sequence[Rates]) -> dict[str, Any]:
    """The rates, and how many times as fast as each other row the first one is, as plain values."""
    return {
        "rates": [row.as_dict() for row in rates],
        "ratios_of_first": {row.name: rates[0].ratio_to(row) for row in rates[1:]},
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vecenv bench throughput", description=__doc__)
    parser.add_argument("env", metavar="ENV", help="id of the environment, such as PongNoFrameskip-v4 or CartPole-v1")
    parser.add_argument("--num-envs", type=_positive, default=16, help="environments in a batch (default 16)")
    parser.add_argument(
        "--num-workers",
        type=_positive,
        help="our worker processes and the native peers' threads (default: usable cores)",
    )
    parser.add_argument(
        "--backends", type=_words, default=["subproc"], help="our back ends, comma-separated (default subproc)"
    )
    parser.add_argument(
        "--peers",
        type=_words,
        help=f"what to compare with, comma-separated, '' for nothing: {', '.join(PEERS)} "
        "(default: gymnasium-async, ale and envpool for Atari, else gymnasium-async and gymnasium-sync)",
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--seconds", type=_positive_seconds, default=2.0, help="length of one sample (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of environments and actions (default 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write the result (default results/throughput-ENV-TIME.json)"
    )
    return parser
