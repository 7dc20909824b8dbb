"""``vecenv bench parity``: our Atari presets against the peers they are named after, bit for bit; writes a report."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vecenv.doctor import package_versions
from vecenv.errors import UnknownSetting
from vecenv.preprocess.config import AtariConfig, find_preset
from vecenv.registration import ROMS
from vecenv.writable import check_writable

from .arguments import check_known, make_parser, positive_int, some_words
from .parity_peers import PEER_NAMES, PEERS, Step, ours

# Games with and without FIRE, with and without lives, of 210, 214 and 250 lines, of both palettes, with odd pixel
# values (air_raid).
GAMES = (
    "pong", "breakout", "seaquest", "ms_pacman", "montezuma_revenge", "space_invaders", "freeway", "skiing", "tennis",
    "air_raid", "carnival", "king_kong", "qbert", "journey_escape",
)  # fmt: skip

# Low enough to be reached, high enough for games to end before.
FRAME_LIMIT = 3_500


@dataclass(frozen=True)
class Comparison:
    """One run of ours beside a peer.

    Attributes:
        peer: a key of `PEERS`.
        rom: name of the ROM.
        seed: the seed.
        steps: agent steps compared.
        terminations: episodes that ended.
        truncations: episodes that were cut off.
        lost_lives: steps after which fewer lives were left.
        difference: what differed first, "" where everything was equal.
    """

    peer: str
    rom: str
    seed: int
    steps: int
    terminations: int
    truncations: int
    lost_lives: int
    difference: str


def compare(peer: str, rom: str, config: AtariConfig, *, seed: int, steps: int) -> Comparison:
    """Play the same random actions in both and compare everything at every step, until something differs.

    Args:
        peer: a key of `PEERS`.
        rom: name of the ROM.
        config: the settings of both.
        seed: seeds both environments and the actions.
        steps: number of agent steps.
    """
    with ExitStack() as stack:
        mine = ours(peer, rom, config, seed)
        stack.enter_context(closing(mine))
        theirs = PEERS[peer](rom, config, seed)
        stack.enter_context(closing(theirs))
        generator = np.random.default_rng(seed + 1)
        num_actions = int(mine.env.action_space.n)  # type: ignore[attr-defined]
        terminations = truncations = lost_lives = 0
        got, expected = mine.reset(), theirs.reset()
        difference = describe_difference(got, expected)
        done, lives = 0, got.lives or 0
        while not difference and done < steps:
            action = int(generator.integers(num_actions))
            got, expected = mine.step(action), theirs.step(action)
            done += 1
            difference = describe_difference(got, expected)
            terminations += got.terminated
            truncations += got.truncated
            lost_lives += (got.lives or 0) < lives
            lives = got.lives or 0
    if difference:
        difference = f"{difference} after step {done}"
    return Comparison(peer, rom, seed, done, terminations, truncations, lost_lives, difference)


def describe_difference(got: Step, expected: Step) -> str:
    """Name what differs between two steps; "" where nothing does. Lives are compared where the peer tells them."""
    pairs = [("observation", got.observation, expected.observation)]
    if (got.final_observation is None) != (expected.final_observation is None):
        return "only one of both was reset"
    if got.final_observation is not None and expected.final_observation is not None:
        pairs.append(("final observation", got.final_observation, expected.final_observation))
    for name, mine, theirs in pairs:
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"{name}: {mine.dtype} {mine.shape}, not {theirs.dtype} {theirs.shape}"
        if not np.array_equal(mine, theirs):
            return f"{name}: {int((mine != theirs).sum())} of {mine.size} values"
    for name in ("reward", "terminated", "truncated", "lives"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        if theirs is not None and mine != theirs:
            return f"{name}: {mine}, not {theirs}"
    return ""


def parity_config(peer: str, repeat_action_probability: float) -> AtariConfig:
    """The preset with a limit that is reached, and sticky actions.

    Args:
        peer: name of the preset.
        repeat_action_probability: see `AtariConfig`.
    """
    preset = find_preset(peer)
    limit = {"max_episode_steps": FRAME_LIMIT // 4} if peer == "envpool" else {"max_episode_frames": FRAME_LIMIT}
    return dataclasses.replace(preset, repeat_action_probability=repeat_action_probability, **limit)  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and write the report.

    Args:
        argv: words after ``vecenv bench parity``; None: those of this process.

    Returns:
        The exit code: 0 where everything was equal, else 1.

    Raises:
        UnknownSetting: an unknown peer or game, nothing to compare, or a page that cannot be written.
    """
    arguments = _parser().parse_args(argv)
    peers, games = arguments.peers, arguments.games
    check_known(peers, tuple(PEERS), "peer")
    check_known(games, ROMS, "game")
    if arguments.report is not None:
        check_writable(arguments.report, "--report")
    missing = [peer for peer in peers if find_spec(PEER_NAMES[peer][1]) is None]
    for peer in missing:
        print(f"left out: {PEER_NAMES[peer][0]} ({PEER_NAMES[peer][1]} is not installed)", file=sys.stderr)
    if len(missing) == len(peers):
        raise UnknownSetting("nothing would be compared: name at least one peer that is installed")
    results = []
    for peer in [peer for peer in peers if peer not in missing]:
        for rom in games:
            for seed in range(arguments.seeds):
                # Every second seed plays with sticky actions.
                config = parity_config(peer, 0.25 if seed % 2 == 0 else 0.0)
                result = compare(peer, rom, config, seed=seed, steps=arguments.steps)
                results.append(result)
                print(f"{peer:<10} {rom:<18} seed {seed}  {result.difference or 'equal'}", file=sys.stderr)
    text = report(results)
    if arguments.report is None:
        print(text)
    else:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(text)
        print(f"written to {arguments.report}")
    return int(any(result.difference for result in results))


def report(results: Sequence[Comparison]) -> str:
    """A Markdown page.

    Args:
        results: in any order.
    """
    versions = package_versions()
    packages = [f"{name} {versions[name]}" for name in _PACKAGES if versions.get(name)]
    steps = sum(result.steps for result in results)
    unequal = [result for result in results if result.difference]
    lines = [
        "# Parity of the Atari presets",
        "",
        "Written by `make parity` (`vecenv bench parity`). Each preset plays random actions beside the peer it is",
        "named after, same seed: no-op starts, sticky actions (0.25 with even seeds, none with odd ones), automatic",
        f"resets, and a limit of {FRAME_LIMIT} frames that long games run into. At every step observations, rewards,",
        "flags and lives must be equal, bit for bit.",
        "",
        f"Versions: {', '.join(packages)}.",
        "",
        f"**{steps:,} agent steps compared in {len(results)} runs; {len(unequal)} runs differ.**",
    ]
    for peer in dict.fromkeys(result.peer for result in results):
        lines += ["", f"## `{peer}`: {PEER_NAMES[peer][0]}", ""]
        lines += ["| game | seeds | agent steps | terminations | truncations | lost lives | result |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for rom in dict.fromkeys(result.rom for result in results if result.peer == peer):
            rows = [result for result in results if (result.peer, result.rom) == (peer, rom)]
            sums = [sum(getattr(row, name) for row in rows) for name in _COUNTS]
            verdict = "; ".join(f"seed {row.seed}: {row.difference}" for row in rows if row.difference) or "equal"
            lines.append(f"| {rom} | {len(rows)} | {' | '.join(f'{number:,}' for number in sums)} | {verdict} |")
    return "\n".join(lines) + "\n" + _NOTES


_COUNTS = ("steps", "terminations", "truncations", "lost_lives")
_PACKAGES = ("vecenv", "gymnasium", "ale-py", "envpool", "stable-baselines3", "opencv-python-headless", "numpy")
_NOTES = """
## What the presets follow, and the switches

The settings are fields of `AtariConfig`; each can be given to `make_vec` beside `preprocess="<preset>"`.

- **The last observation of a game that ends within an agent step.** `ale` and `gymnasium` do not read the frame at
  which it ends; they show older ones, at the last frame of a step pooled with the result of the step before. `sb3`
  reads it but may pool it with a frame of the step, or even the game, before. `envpool` pools complete steps only.
  `true_final_frame=True` shows the frames played last.
- **Explicit resets between lives.** With `next_life=True`, which `sb3` has, `reset()` goes on with the game, as the
  peer's does. `reset(options={"new_game": True})` begins a new one; `next_life=False` always does.
- **Starts of `sb3`.** Where FIRE, or the action after it, costs the life, the first observation is the one before the
  second start, as `FireResetEnv` returns it.
- **Sticky actions of `sb3`** are drawn by the environment's generator, as `AtariWrapper(action_repeat_probability=)`
  does. `sticky_actions="emulator"` leaves them to the emulator, as an `ALE/...-v5` id inside `AtariWrapper` would.
- **Tall screens.** `envpool` sees the first 210 lines; `max_screen_height=None` shows all.
- **Stacks between lives.** With `episodic_life` and `next_life`, `envpool` keeps frames of the life before.
- **The frame limit.** `ale` counts frames after the reset, `gymnasium` and `sb3` frames of the game, `envpool` agent
  steps: `max_episode_frames`, `count_start_frames`, `max_episode_steps`.

## What is not equal, and why

- A reset with a seed always begins a new, newly seeded game. SB3's `EpisodicLifeEnv` drops the seed between two lives.
- Rewards are float64; EnvPool's are float32 with the same values.
- Infos are `lives`, `episode_frame_number` and `frame_number` with every preset. SB3's `FireResetEnv` returns none, and
  EnvPool others.
- Where an episode ends and is cut off at the same step, `gymnasium` and `sb3` environments set both flags, as the
  peers' environments do; SB3's vector environments report a termination only.
- `life_loss_info=True` equals `AtariVectorEnv` step by step. Automatic resets, which follow every termination, then
  change nothing but spend a step on it.
- Seeds of 2**31 and more are folded for the emulator, which takes 31 bits; they are not compared.
"""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench parity", __doc__)
    text = f"whose preprocessing to compare with, comma-separated (default {','.join(PEERS)})"
    parser.add_argument("--peers", type=some_words, metavar="NAMES", default=list(PEERS), help=text)
    text = f"names of ROMs, comma-separated (default {','.join(GAMES)})"
    parser.add_argument("--games", type=some_words, metavar="NAMES", default=list(GAMES), help=text)
    parser.add_argument("--seeds", type=positive_int, metavar="N", default=3, help="seeds per game (default 3)")
    parser.add_argument(
        "--steps", type=positive_int, metavar="N", default=5000, help="agent steps per game and seed (default 5000)"
    )
    parser.add_argument("--report", type=Path, metavar="PAGE.md", help="where to write the page (default: print it)")
    return parser
