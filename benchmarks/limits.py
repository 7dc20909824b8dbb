"""``vecenv bench limits GAME``: what stands between the emulator limit and a vector environment, one thing at a time.

Each row adds something to the row above: more than one emulator in a process, then the whole pipeline of this package
without anybody waiting for anybody, then rounds, in which all workers wait for the slowest and for the caller.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from vecenv import make_vec
from vecenv.atari import find_game
from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.errors import UnknownSetting

from .arguments import add_output, add_timing, make_parser, natural_number, positive_int, some_words
from .contestants import BACKENDS, Settings, draw_actions
from .emulator_limit import FRAME_SKIP, EmulatorLimit
from .parallel_players import ParallelPlayers
from .report import check_output, print_rates, publish, samples_of
from .timing import Contestant, Rates, alternate

#: Places of the rows of `contestants`, and so of the rates and shares in a result.
LIMIT, IN_TURNS, PIPELINE, VECENV = range(4)


class _PipelinePlayer:
    """Steps its own environments in this process, as a worker does, without a word to anybody."""

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self._envs = make_vec(env_id, num_envs, "sync", seed=seed, copy=False)
        self._envs.reset()
        settings = Settings(env_id, num_envs, 1, seed)
        self._actions = draw_actions(settings)
        self._turn = 0

    def __call__(self) -> int:
        """Step all environments once; returns their number."""
        self._envs.step(self._actions[self._turn % len(self._actions)])
        self._turn += 1
        return self._envs.num_envs


def rom_of(env_id: str) -> str:
    """The name of a game as ale-py knows it.

    Raises:
        UnknownSetting: the id is not that of an Atari game.
    """
    game = find_game(env_id)
    if game is None:
        raise UnknownSetting(f"{env_id!r} is not the id of an Atari game; only those have an emulator to compare with")
    return game.rom


def contestants(env_id: str, num_envs: int, seed: int) -> list[Any]:
    """The rows, from the limit down to the vector environment: at `LIMIT`, `IN_TURNS`, `PIPELINE` and `VECENV`.

    Raises:
        UnknownSetting: the id is not that of an Atari game, or there are too few environments.
    """
    rom = rom_of(env_id)
    workers = min(usable_cores(), num_envs)
    share = num_envs // workers
    if share < 2:
        raise UnknownSetting(f"--num-envs must be at least {2 * workers}, two for each of {workers} processes")
    apart = [functools.partial(_PipelinePlayer, env_id, share, seed + index) for index in range(workers)]
    settings = Settings(env_id, num_envs, workers, seed)
    return [
        EmulatorLimit(rom, workers, seed),
        EmulatorLimit(rom, workers, seed, share),
        ParallelPlayers(f"the whole pipeline, {workers} processes apart", apart),
        BACKENDS["subproc"].build(
            settings, f"vecenv subproc ({num_envs} envs, {workers} workers)", draw_actions(settings)
        ),
    ]


def measure(env_id: str, num_envs: int, seed: int, *, rounds: int, seconds: float) -> list[Rates]:
    """All rows in alternating rounds."""
    with ExitStack() as stack:
        rows: list[Contestant] = [stack.enter_context(closing(row)) for row in contestants(env_id, num_envs, seed)]
        return alternate(rows, rounds=rounds, seconds=seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for every game and a summary, write a JSON file.

    Args:
        argv: words after ``vecenv bench limits``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something of ours got slower beyond noise.
    """
    parser = make_parser("vecenv bench limits", __doc__)
    parser.add_argument(
        "envs", metavar="GAME,GAME", type=some_words, help="ids of Atari games, such as PongNoFrameskip-v4"
    )
    parser.add_argument("--num-envs", type=positive_int, metavar="N", default=16, help="environments (default 16)")
    parser.add_argument(
        "--seed", type=natural_number, metavar="N", default=0, help="seed of environments and actions (default 0)"
    )
    add_timing(parser, rounds=25, seconds=0.3)
    add_output(parser, "limits")
    arguments = parser.parse_args(argv)
    check_output(arguments, "limits")
    for env_id in arguments.envs:  # before minutes are spent on those that come first
        rom_of(env_id)
    print(describe_machine())
    measured: dict[str, list[Rates]] = {}
    for env_id in arguments.envs:
        rates = measure(env_id, arguments.num_envs, arguments.seed, rounds=arguments.rounds, seconds=arguments.seconds)
        measured[env_id] = rates
        print_rates(f"{env_id}, {arguments.num_envs} envs", rates, frames_per_step=FRAME_SKIP, unit="agent steps/s")
    shares = {env_id: [row.ratio_to(rates[LIMIT]) for row in rates] for env_id, rates in measured.items()}
    print(f"{'share of the emulator limit':<32}{'emulators':>10}{'pipeline':>10}{'vecenv':>10}")
    for env_id, share in shares.items():
        print(f"{env_id:<32}{share[IN_TURNS]:>10.2f}{share[PIPELINE]:>10.2f}{share[VECENV]:>10.2f}")
    samples = {}
    for env_id, rates in measured.items():
        rows = samples_of(rates, "agent steps/s", theirs=[row.name for row in (rates[LIMIT], rates[IN_TURNS])])
        samples.update({f"{env_id}: {name}": row for name, row in rows.items()})
    results = {
        env_id: {"rates": [row.as_dict() for row in rates], "shares": [float(np.round(x, 4)) for x in shares[env_id]]}
        for env_id, rates in measured.items()
    }
    settings = {"num_envs": arguments.num_envs, "rounds": arguments.rounds, "seconds": arguments.seconds}
    return publish(arguments, "limits", settings=settings, results=results, samples=samples)
