"""``vecenv tune ENV``: which back end, workers, envs per worker and batch size are fastest on this machine."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from vecenv import make_vec
from vecenv.atari import find_game
from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.engines import ENGINES
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.factory import BACKENDS as AVAILABLE
from vecenv.memory import FREE_SHARE, largest_num_envs, memory_per_env

from .arguments import add_output, make_parser, positive_ints, positive_number
from .compare import Samples
from .contestants import BACKENDS, Settings, VectorContestant, draw_actions
from .report import check_output, print_table, publish
from .timing import alternate

#: Rows within this of the fastest are as fast, as far as a short measurement tells; the simplest of them is advised.
AS_FAST = 0.95
FINALISTS = 3


@dataclass(frozen=True)
class Trial:
    """One way to build the vector env, and how fast it was.

    Attributes:
        backend: name of the back end.
        settings: numbers of environments and workers, batch size.
        samples: steps per second, all environments together.
    """

    backend: str
    settings: Settings
    samples: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)

    @property
    def workers(self) -> int:
        """Processes, or threads of an engine; 0 where everything runs in the caller's."""
        return self.settings.num_workers if BACKENDS[self.backend].uses_workers else 0

    @property
    def same_bits(self) -> bool:
        """Whether results are those of the Python environments, bit for bit."""
        return self.backend in ("sync", "subproc") or (self.backend == "ale" and self.settings.rom is not None)

    def line_of_code(self) -> str:
        """The call of `make_vec` to paste."""
        words = [json.dumps(self.settings.env_id), f"num_envs={self.settings.num_envs}", f'backend="{self.backend}"']
        if self.workers:
            words.append(f"num_workers={self.settings.num_workers}")
        if self.settings.batch_size is not None:
            words.append(f"batch_size={self.settings.batch_size}")
        return f"envs = vecenv.make_vec({', '.join(words)})"


class Search:
    """Tries ways to build the vector env until its time is over.

    Args:
        env_id: id of the environment.
        seconds: time for all of it; what has begun is finished.
        numbers: numbers of environments to try, smallest first.

    Attributes:
        trials: everything tried, in order.
    """

    def __init__(self, env_id: str, seconds: float, numbers: Sequence[int]) -> None:
        self._env_id = env_id
        self._numbers = numbers
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self.trials: list[Trial] = []
        self._left_out: set[str] = set()

    def run(self) -> None:
        """Try back ends over numbers of envs, then variations of the best, then let the best take turns."""
        cores = usable_cores()
        backends = [name for name in BACKENDS if name in AVAILABLE and _has(name, self._env_id)]
        # the middle first: whatever the time allows is then something sensible
        for num_envs in sorted(self._numbers, key=lambda number: abs(number - 8 * cores)):
            for backend in backends:
                self._try(backend, Settings(self._env_id, num_envs, min(cores, num_envs)), until=0.5)
        self._vary_best(cores)
        self._repeat_best()

    def _vary_best(self, cores: int) -> None:
        """Other numbers of workers, and half batches, for the fastest that changes no bit."""
        best = max((trial for trial in self.trials if trial.same_bits), key=lambda trial: trial.rate)
        if not best.workers:
            return
        for workers in sorted({1, cores - 1, cores + 1, 2 * cores} - {0, best.workers}):
            if workers <= best.settings.num_envs:
                self._try(best.backend, replace(best.settings, num_workers=workers), until=0.7)
        if BACKENDS[best.backend].uses_batch_size and best.settings.num_envs > 1:
            self._try(best.backend, replace(best.settings, batch_size=best.settings.num_envs // 2), until=0.7)

    def _repeat_best(self) -> None:
        """Let the fastest take turns, so that a slow minute of the machine hits all of them."""
        places = sorted(range(len(self.trials)), key=lambda place: -self.trials[place].rate)
        same = [place for place in places if self.trials[place].same_bits][:FINALISTS]
        other = [place for place in places if not self.trials[place].same_bits][:1]
        with ExitStack() as stack:
            built = {}
            for place in [*same, *other]:
                trial = self.trials[place]
                built[place] = stack.enter_context(closing(_build(trial.backend, trial.settings)))
            left = self._end - time.monotonic()
            seconds = min(1.0, max(0.1, left / (4 * len(built))))
            rates = alternate(list(built.values()), rounds=3, seconds=seconds, warm_up_seconds=min(0.2, seconds))
        for place, row in zip(built, rates, strict=True):
            self.trials[place] = replace(self.trials[place], samples=row.samples)

    def _try(self, backend: str, settings: Settings, until: float) -> None:
        """Build, measure for a moment, close; what the back end cannot do is named and left out.

        Args:
            backend: name of the back end.
            settings: what to build.
            until: share of the time after which nothing is tried any more; the first trial always is.
        """
        late = time.monotonic() > self._end - self._seconds * (1 - until)
        if backend in self._left_out or (late and any(trial.same_bits for trial in self.trials)):
            return
        print(f"trying {BACKENDS[backend].row_name(settings)} ...", file=sys.stderr)
        try:
            contestant = _build(backend, settings)
        except (NotImplementedError, UnknownSetting, MissingExtra) as error:
            if backend in ("sync", "subproc"):
                raise
            self._left_out.add(backend)
            print(f"left out: {backend}: {error}", file=sys.stderr)
            return
        with closing(contestant):
            contestant.measure(0.1)
            rate = contestant.measure(min(0.5, self._seconds / 40))
        self.trials.append(Trial(backend, settings, (rate,)))


def _has(backend: str, env_id: str) -> bool:
    """Whether it is worth asking a back end for the env under the default preprocessing."""
    contender = BACKENDS[backend]
    if contender.module and find_spec(contender.module) is None:
        return False
    if backend == "subproc" and sys.platform == "win32":
        return False
    if backend == "compiled":
        supported: bool = importlib.import_module(ENGINES["compiled"]).supports(env_id)
        return supported
    is_atari = find_game(env_id) is not None
    # EnvPool has its own preset for games and its own rules for other envs, and Ray is for several machines
    return (is_atari or not contender.atari_only) and backend not in ("envpool", "ray")


def _build(backend: str, settings: Settings) -> VectorContestant:
    """A contestant with the environment as the user's own line of code would have it."""
    words: dict[str, Any] = {}
    if BACKENDS[backend].uses_workers:
        words["num_workers"] = settings.num_workers
    if settings.batch_size is not None:
        words["batch_size"] = settings.batch_size
    envs = make_vec(settings.env_id, settings.num_envs, backend, **words)
    try:
        actions = draw_actions(settings, count=16)
        return VectorContestant(f"{backend} {words} {settings.num_envs}", envs, actions, settings)
    except BaseException:
        envs.close()
        raise


def step_seconds(env_id: str, seconds: float) -> float:
    """Time of one step of a single environment in this process, resets included."""
    with closing(_build("sync", Settings(env_id, 1, 1))) as contestant:
        contestant.measure(min(0.1, seconds))
        return 1 / contestant.measure(seconds)


def advised(trials: Sequence[Trial]) -> Trial:
    """The simplest of those as fast as the fastest: fewer envs, then fewer workers, then whole batches."""
    fastest = max(trial.rate for trial in trials)
    as_fast = [trial for trial in trials if trial.rate >= AS_FAST * fastest]
    return min(as_fast, key=lambda trial: (trial.settings.num_envs, trial.workers, trial.settings.batch_size or 0))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, the advice and the line of code, and write a JSON file.

    Args:
        argv: words after ``vecenv tune``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something got slower beyond noise.
    """
    arguments = _parser().parse_args(argv)
    check_output(arguments, "tune")
    env_id: str = arguments.env
    print(describe_machine())
    cost = step_seconds(env_id, min(1.0, arguments.seconds / 20))
    memory = _measured_memory(env_id)
    largest = None if memory is None else largest_num_envs(memory)
    print(f"a step of one {env_id}: {cost * 1e6:,.1f} microseconds")
    search = Search(env_id, arguments.seconds, _numbers(arguments, largest))
    search.run()
    _print_trials(env_id, search.trials)
    _print_advice(search.trials, memory, largest)
    results = {
        "step_seconds": cost,
        "memory_per_env_bytes": memory,
        "largest_num_envs": largest,
        "trials": [_as_dict(trial) for trial in search.trials],
        "advised": _as_dict(advised([trial for trial in search.trials if trial.same_bits])),
    }
    samples = {
        BACKENDS[trial.backend].row_name(trial.settings): Samples(trial.samples, "steps/s") for trial in search.trials
    }
    settings = {"env_id": env_id, "seconds": arguments.seconds, "num_envs": arguments.num_envs}
    return publish(arguments, "tune", settings=settings, results=results, samples=samples, file_name=f"tune-{env_id}")


def _measured_memory(env_id: str) -> int | None:
    try:
        return memory_per_env(env_id)
    except RuntimeError as error:  # an id that only this process knows, say
        print(f"memory per env was not measured: {error}", file=sys.stderr)
        return None


def _numbers(arguments: argparse.Namespace, largest: int | None) -> list[int]:
    """The numbers of environments to try: as asked for, or powers of two times the cores, as far as memory goes."""
    asked: list[int] = arguments.num_envs or []
    for number in asked:
        if largest is not None and number > largest:
            print(f"left out: {number:,} envs: {largest:,} fit into the memory", file=sys.stderr)
    numbers = asked or [usable_cores() * 2**power for power in range(8)]
    return sorted(number for number in numbers if largest is None or number <= largest) or [1]


def _as_dict(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "same_bits": trial.same_bits, "line_of_code": trial.line_of_code()}


def _print_trials(env_id: str, trials: Sequence[Trial]) -> None:
    rows = []
    for trial in sorted(trials, key=lambda trial: -trial.rate):
        settings = trial.settings
        per_worker = f"{settings.num_envs / trial.workers:.3g}" if trial.workers else ""
        batch = settings.batch_size or settings.num_envs
        milliseconds = f"{1e3 * batch / trial.rate:.2f}"
        cells = [trial.backend, str(settings.num_envs), str(trial.workers or ""), per_worker, str(batch)]
        rows.append([*cells, f"{trial.rate:,.0f}", milliseconds, "yes" if trial.same_bits else "no"])
    header = ["back end", "envs", "workers", "envs per worker", "batch size", "steps/s", "ms per batch", "same bits"]
    print_table(f"{env_id}: fastest first", header, rows)


def _print_advice(trials: Sequence[Trial], memory: int | None, largest: int | None) -> None:
    best = advised([trial for trial in trials if trial.same_bits])
    print(f"\nfastest with unchanged results ({best.rate:,.0f} steps/s):\n    {best.line_of_code()}")
    other = max(trials, key=lambda trial: trial.rate)
    if not other.same_bits and other.rate * AS_FAST > best.rate:
        print(f"faster, with other bits for the same seed ({other.rate:,.0f} steps/s):\n    {other.line_of_code()}")
    if memory is not None:
        size = f"{memory / 2**20:.1f} MiB" if memory >= 2**20 else f"{memory / 2**10:.1f} KiB"
        fits = "" if largest is None else f"; {largest:,} fit while {FREE_SHARE:.0%} of the memory stays free"
        print(f"memory per env: {size}{fits}")
    print("rules of thumb:")
    print(f"  workers: at most one per usable core, {usable_cores()} here; one less where the learner needs a core")
    print("  batches: steps x envs samples per update; with more envs fewer updates, each with more data")
    print("  learning rate: base x envs x 0.8, where base is the learning rate that suits one environment")


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv tune", __doc__)
    parser.add_argument("env", metavar="ENV", help="id of the environment, such as PongNoFrameskip-v4 or CartPole-v1")
    text = "numbers of environments to try, comma-separated (default: cores x 1, 2, 4, ... 128, as far as memory goes)"
    parser.add_argument("--num-envs", type=positive_ints, metavar="N,N", help=text)
    text = "seconds to spend on measuring; what has begun is finished (default 45)"
    parser.add_argument("--seconds", type=positive_number, metavar="S", default=45.0, help=text)
    add_output(parser, "tune-ENV")
    return parser
