"""``vecenv bench engines``: what the adapter around an engine costs beside the same engine used bare.

Both do the same work: the same environments, seed, actions, threads and, turn by turn, the same number of steps, so
that neither plays a dearer part of a game than the other. Turns are short and every round gives one ratio, so that
whatever slows the machine for longer than a turn slows both. The cost is one minus the median of the ratios; its
interval is that of the percentile bootstrap (B. Efron, "Bootstrap methods: another look at the jackknife", Annals of
Statistics 7, 1979).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv import make_vec
from vecenv.compiled_backend import supports
from vecenv.compiled_vec_env import CompiledVecEnv
from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting

from .arguments import (
    add_output,
    add_quick,
    add_timing,
    check_known,
    make_parser,
    natural_number,
    positive_int,
    positive_ints,
    words,
)
from .compare import Samples
from .contestants import BACKENDS, Contender, Settings, VectorContestant, draw_actions
from .peers import PEERS
from .report import check_output, print_table, publish, samples_of
from .timing import Rates, alternate

UNIT = "agent steps/s"
DEFAULT_ENVS = ("PongNoFrameskip-v4", "CartPole-v1")
#: What an adapter may cost on Atari games.
ALLOWED = 0.03
HEADER = ("what", f"ours, {UNIT}", "bare", "cost", "95 % interval", f"<= {ALLOWED:.0%} (Atari)")
_RESAMPLES = 4000
#: Steps of a batch that tell how many make a turn.
_PROBE = 100


class BareKernel:
    """The kernel of the `compiled` back end, called with arrays that are its own: nothing checked, nothing handed out.

    Args:
        envs: a vector env of that back end.
    """

    def __init__(self, envs: CompiledVecEnv) -> None:
        self._envs = envs
        self._step, arguments = envs.bare_step()
        self._arguments = (arguments, envs.bare_step()[1])  # two sets of results, as for a caller who keeps the newest
        self._turn = 0

    def reset(self, seed: int) -> Any:
        """Reset as the vector env does."""
        return self._envs.reset(seed=seed)

    def step(self, actions: np.ndarray) -> None:
        """Play one step."""
        self._turn ^= 1
        self._step(actions, *self._arguments[self._turn])

    def close(self) -> None:
        """Close the vector env."""
        self._envs.close()


def _bare_kernel(settings: Settings, name: str, actions: Sequence[np.ndarray]) -> VectorContestant:
    envs: Any = make_vec(settings.env_id, settings.num_envs, "compiled")
    return VectorContestant(name, BareKernel(envs), actions, settings)


#: By the word for ``--engines``: ours, and the same engine bare.
PAIRS: dict[str, tuple[Contender, Contender]] = {
    "ale": (BACKENDS["ale"], PEERS["ale"]),
    "envpool": (BACKENDS["envpool"], PEERS["envpool"]),
    "compiled": (BACKENDS["compiled"], Contender("bare kernel", _bare_kernel)),
}


@dataclass
class EvenTurns:
    """A contestant whose turns are so many steps, however long they take.

    Args:
        name: the contestant's.
        contestant: what is stepped.
        batches: steps of the whole batch in a turn.
    """

    name: str
    contestant: VectorContestant
    batches: int

    def measure(self, seconds: float) -> float:
        """Take a turn; `seconds` is what `batches` was chosen for.

        Returns:
            Agent steps per second, all environments together.
        """
        return self.contestant.play(self.batches)


@dataclass(frozen=True)
class Cost:
    """What an adapter costs.

    Attributes:
        share: of the time per step, by the median of the ratios; below 0: ours was faster.
        low: lower end of the 95 % interval.
        high: its upper end.
    """

    share: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether it is within `ALLOWED`, as far as the interval tells."""
        if self.high <= ALLOWED:
            return "yes"
        return "no" if self.low > ALLOWED else "cannot tell"


def cost_of(ours: Rates, bare: Rates) -> Cost:
    """The cost by the rates of rounds in which both took turns."""
    ratios = np.array(ours.samples) / np.array(bare.samples)
    draws = np.random.default_rng(0).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.percentile(1 - np.median(ratios[draws], axis=1), [2.5, 97.5])
    return Cost(1 - float(np.median(ratios)), float(low), float(high))


def cost_row(name: str, result: Mapping[str, Any], *, is_atari: bool) -> list[str]:
    """Cells below `HEADER` for one pair, as it stands among the results.

    Args:
        name: of the pair.
        result: its rates and cost.
        is_atari: whether there is a verdict: `ALLOWED` is about Atari games.
    """
    cost = Cost(*result["cost"])
    return [
        name,
        *(f"{result[side]['median']:,.0f}" for side in ("ours", "bare")),
        f"{cost.share:+.1%}",
        f"{cost.low:+.1%} to {cost.high:+.1%}",
        cost.verdict if is_atari else "",
    ]


def measure(settings: Settings, engine: str, *, rounds: int, seconds: float) -> tuple[Rates, Rates]:
    """Build both, let them take turns, close them.

    Returns:
        Rates of ours and of the bare engine.
    """
    actions = draw_actions(settings)
    with ExitStack() as stack:
        pair = [
            stack.enter_context(closing(contender.build(settings, name, actions)))
            for contender, name in zip(PAIRS[engine], ("ours", "bare"), strict=True)
        ]
        slower = min([contestant.play(_PROBE) for contestant in pair])
        batches = max(1, round(slower * seconds / settings.num_envs))
        turns = [EvenTurns(contestant.name, contestant, batches) for contestant in pair]
        ours, bare = alternate(turns, rounds=rounds, seconds=seconds, warm_up_seconds=seconds)
    return ours, bare


def chosen_cases(env_ids: Sequence[str], engines: Sequence[str] | None) -> list[tuple[str, str]]:
    """Environment and engine of every pair to measure.

    Args:
        env_ids: ids of the environments.
        engines: those that the user named, a line on stderr tells which of them lack an environment; None: all that
            are installed, as far as they have it.

    Raises:
        UnknownSetting: an engine that does not exist, or none for any of the environments.
        MissingExtra: one that was named is not installed.
    """
    check_known(engines or [], list(PAIRS), "engine")
    cases = []
    for env_id in env_ids:
        for engine in PAIRS if engines is None else engines:
            contender = PAIRS[engine][0]
            if contender.module and importlib.util.find_spec(contender.module) is None:
                if engines is not None:
                    raise MissingExtra(contender.distribution, contender.extra)
            elif _has(engine, env_id):
                cases.append((env_id, engine))
            elif engines is not None:
                print(f"left out: {env_id}, {engine}: this engine does not have it", file=sys.stderr)
    if not cases:
        raise UnknownSetting(f"none of these engines has any of these environments: {', '.join(env_ids)}")
    return cases


def _has(engine: str, env_id: str) -> bool:
    """Whether an engine may have an environment; EnvPool is asked when it is built."""
    if engine == "compiled":
        return supports(env_id)
    return engine != "ale" or Settings(env_id, 1, 1).rom is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a JSON file.

    Args:
        argv: words after ``vecenv bench engines``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something of ours got slower beyond noise.

    Raises:
        UnknownSetting: nothing to measure.
        MissingExtra: an engine that was named is not installed.
    """
    arguments = _parser().parse_args(argv)
    check_output(arguments, "engines")
    cases = chosen_cases(arguments.envs, arguments.engines)
    print(describe_machine())
    rows, results, samples = [], {}, dict[str, Samples]()
    for env_id, engine in cases:
        for num_envs in arguments.num_envs:
            name = f"{env_id}, {engine}, {num_envs} envs"
            print(f"measuring {name} ...", file=sys.stderr)
            settings = Settings(env_id, num_envs, min(arguments.num_workers, num_envs), arguments.seed)
            try:
                ours, bare = measure(settings, engine, rounds=arguments.rounds, seconds=arguments.seconds)
            except UnknownSetting as error:
                if arguments.engines is not None:
                    raise
                print(f"left out: {name}: {error}", file=sys.stderr)
                continue
            cost = cost_of(ours, bare)
            results[name] = {"ours": ours.as_dict(), "bare": bare.as_dict(), "cost": [cost.share, cost.low, cost.high]}
            rows.append(cost_row(name, results[name], is_atari=settings.rom is not None))
            pair = samples_of((ours, bare), UNIT, theirs=["bare"])
            samples.update({f"{name}: {which}": row for which, row in pair.items()})
    if not rows:
        raise UnknownSetting("nothing was left to measure")
    print_table(f"{arguments.rounds} alternating rounds of {arguments.seconds:g} s", HEADER, rows)
    written = {
        key: getattr(arguments, key)
        for key in ("envs", "engines", "num_envs", "num_workers", "seed", "rounds", "seconds")
    }
    return publish(arguments, "engines", settings=written, results=results, samples=samples)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench engines", __doc__)
    text = f"ids, comma-separated (default {','.join(DEFAULT_ENVS)})"
    parser.add_argument("envs", metavar="ENV,ENV", type=words, nargs="?", default=list(DEFAULT_ENVS), help=text)
    text = f"comma-separated: {', '.join(PAIRS)} (default: those installed)"
    parser.add_argument("--engines", metavar="NAMES", type=words, help=text)
    text = "environments in a batch, comma-separated (default 8,64)"
    parser.add_argument("--num-envs", metavar="N,N", type=positive_ints, default=[8, 64], help=text)
    text = "threads of the engine (default: usable cores)"
    parser.add_argument("--num-workers", metavar="N", type=positive_int, default=usable_cores(), help=text)
    parser.add_argument(
        "--seed", type=natural_number, metavar="N", default=0, help="seed of environments and actions (default 0)"
    )
    add_timing(parser, rounds=40, seconds=0.3)
    add_quick(parser, rounds=5, seconds=0.1)
    add_output(parser, "engines")
    return parser
