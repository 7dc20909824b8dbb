"""``vecenv bench compiled``: CartPole as one kernel beside Gymnasium's vectorised CartPole and EnvPool."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from vecenv import make_vec
from vecenv.doctor import describe_machine

from .arguments import add_output, add_timing, make_parser, positive_ints
from .compare import Samples
from .report import check_output, print_rates, publish, samples_of
from .timing import Rates, alternate, measure_rate

ENV_ID = "CartPole-v1"
#: Name in the table -> settings of `make_vec`.
OURS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "compiled, statistics": {"statistics": True},
    "compiled, SameStep": {"autoreset_mode": "SameStep"},
}
ACTION_BATCHES = 64
#: EnvPool takes a while to start with more.
MOST_ENVPOOL_ENVS = 1024


class Steps:
    """A vector env stepped with random actions drawn ahead, whose results are held until the next step.

    Args:
        name: name in the table.
        envs: the vector env.
        num_envs: number of envs in it.
        step: how to step it with a batch of actions.
    """

    def __init__(self, name: str, envs: Any, num_envs: int, step: Callable[[Any], Any]) -> None:
        self.name = name
        self.envs = envs
        self._num_envs, self._step, self._turn = num_envs, step, 0
        self._actions = list(np.random.default_rng(0).integers(0, 2, (ACTION_BATCHES, num_envs)))
        self._result: Any = None

    def _work(self) -> int:
        self._turn = (self._turn + 1) % ACTION_BATCHES
        self._result = self._step(self._actions[self._turn])
        return self._num_envs

    def measure(self, seconds: float) -> float:
        """Env steps per second."""
        return measure_rate(self._work, seconds)


def contestants(num_envs: int) -> list[Steps]:
    """Everything that is installed, with a batch of `num_envs`; ours first."""
    result = []
    for name, settings in OURS.items():
        envs = make_vec(ENV_ID, num_envs, "compiled", **settings)
        envs.reset(seed=0)
        result.append(Steps(name, envs, num_envs, envs.step))
    theirs = gymnasium.make_vec(ENV_ID, num_envs, vectorization_mode="vector_entry_point")
    theirs.reset(seed=0)
    result.append(Steps("CartPoleVectorEnv", theirs, num_envs, theirs.step))
    if num_envs <= MOST_ENVPOOL_ENVS and importlib.util.find_spec("envpool") is not None:
        import envpool

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the bounds of its float32 spaces
            pool: Any = envpool.make_gymnasium(ENV_ID, num_envs=num_envs, seed=0)
            pool.reset()
        result.append(Steps("EnvPool", pool, num_envs, pool.step))
    return result


def measure(num_envs: int, rounds: int, seconds: float) -> list[Rates]:
    """Rates of all, in alternating rounds."""
    everyone = contestants(num_envs)
    try:
        return alternate(everyone, rounds=rounds, seconds=seconds)
    finally:
        for one in everyone:
            one.envs.close()


def ratios(rates: Sequence[Rates]) -> dict[str, dict[str, float]]:
    """For each of ours, how many times as fast as each peer it is."""
    peers = rates[len(OURS) :]
    return {ours.name: {peer.name: ours.ratio_to(peer) for peer in peers} for ours in rates[: len(OURS)]}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables and write a JSON file.

    Args:
        argv: words after ``vecenv bench compiled``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something of ours got slower beyond noise.
    """
    parser = make_parser("vecenv bench compiled", __doc__)
    text = "environments in a batch, comma-separated (default 1024,16384)"
    parser.add_argument("--num-envs", type=positive_ints, metavar="N,N", default=[1024, 16384], help=text)
    add_timing(parser, rounds=5, seconds=1.0)
    add_output(parser, "compiled")
    arguments = parser.parse_args(argv)
    check_output(arguments, "compiled")
    print(describe_machine())
    results: dict[str, Any] = {}
    samples: dict[str, Samples] = {}
    for num_envs in dict.fromkeys(arguments.num_envs):
        rates = measure(num_envs, arguments.rounds, arguments.seconds)
        print_rates(f"{ENV_ID}, {num_envs} environments", rates, frames_per_step=1, unit="steps/s")
        for name, against in ratios(rates).items():
            print(f"{name}: " + ", ".join(f"{ratio:.1f} times {peer}" for peer, ratio in against.items()))
        results[str(num_envs)] = {"rates": [one.as_dict() for one in rates], "ratios": ratios(rates)}
        theirs = [row.name for row in rates if row.name not in OURS]
        for name, row in samples_of(rates, "steps/s", theirs=theirs).items():
            samples[f"{name}, {num_envs} envs"] = row
    settings = {"env_id": ENV_ID, "num_envs": arguments.num_envs}
    settings |= {"rounds": arguments.rounds, "seconds": arguments.seconds}
    return publish(arguments, "compiled", settings=settings, results=results, samples=samples)
