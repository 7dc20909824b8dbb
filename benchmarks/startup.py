"""``vecenv bench startup``: what it costs to import vecenv, to build a batch on each back end, and to keep a worker."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from vecenv.atari import find_game
from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.factory import resolved_spec

from .arguments import add_output, add_timing, check_known, make_parser, positive_int, some_words
from .compare import Samples
from .contestants import BACKENDS
from .report import check_output, print_table, publish

BASE_IMPORTS = "import numpy, gymnasium"
START_METHODS = ("forkserver", "spawn", "fork")
#: Parts of a start, in their order, and what each is.
PHASES = {"import": "import vecenv, back end", "build": "build", "reset": "first reset", "step": "first step"}

# Each runs in a fresh interpreter and prints one line of JSON: imports and caches start from nothing only there.
USE = "; vecenv.make_vec"  # names are loaded at first use
IMPORT_SCRIPT = """
import time
start = time.perf_counter()
{imports}
print(time.perf_counter() - start)
"""
BUILD_SCRIPT = """
import json, os, time
import numpy, gymnasium, psutil
if __name__ == "__main__":
    times = [time.perf_counter()]
    import vecenv
    vecenv.make_vec
    times.append(time.perf_counter())
    envs = vecenv.make_vec({env!r}, {num_envs}, {backend!r}, **{arguments})
    times.append(time.perf_counter())
    envs.reset(seed=0)
    times.append(time.perf_counter())
    envs.step(envs.action_space.sample())
    times.append(time.perf_counter())
    for _ in range(50):
        envs.step(envs.action_space.sample())
    processes = getattr(envs, "worker_pids", None) or [os.getpid()]
    private = [psutil.Process(pid).memory_full_info().uss for pid in processes]
    envs.close()
    seconds = [end - start for start, end in zip(times, times[1:])]
    print(json.dumps({{"seconds": seconds, "private_bytes": private}}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write a JSON file.

    Args:
        argv: words after ``vecenv bench startup``; None: those of this process.

    Returns:
        The exit code: 0; 1 if a part could not be measured or, with ``--compare``, got slower beyond noise.

    Raises:
        UnknownSetting, MissingExtra: a back end that does not exist or is not installed.
    """
    arguments = _parser().parse_args(argv)
    check_output(arguments, "startup")
    _check_backends(arguments.backends, arguments.env)
    if find_game(arguments.env) is None:
        resolved_spec(arguments.env)
    workers = min(arguments.num_workers or usable_cores(), arguments.num_envs)
    print(describe_machine())
    results: dict[str, Any] = {}
    try:
        results["import"] = measure_import(arguments.rounds)
        _print_import(results["import"])
        results["build"] = {
            backend: measure_build(
                arguments.env, arguments.num_envs, workers, backend, arguments.builds, arguments.start_method
            )
            for backend in arguments.backends
        }
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"vecenv bench startup: a fresh interpreter failed: {last_line}", file=sys.stderr)
        return 1
    _print_builds(results["build"], arguments.env, arguments.num_envs)
    settings = {"env_id": arguments.env, "num_envs": arguments.num_envs, "num_workers": workers}
    settings |= {"rounds": arguments.rounds, "builds": arguments.builds, "backends": arguments.backends}
    settings["start_method"] = arguments.start_method
    return publish(arguments, "startup", settings=settings, results=results, samples=_samples(results, arguments.env))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vecenv bench startup", __doc__)
    text = "what to build (default PongNoFrameskip-v4)"
    parser.add_argument("--env", metavar="ID", default="PongNoFrameskip-v4", help=text)
    parser.add_argument("--num-envs", type=positive_int, metavar="N", default=16, help="envs in the batch (default 16)")
    parser.add_argument("--num-workers", type=positive_int, metavar="N", help="workers (default: usable cores)")
    text = f"of worker processes: {', '.join(START_METHODS)} (default forkserver)"
    parser.add_argument("--start-method", choices=START_METHODS, default="forkserver", help=text)
    text = f"comma-separated: {', '.join(BACKENDS)} (default subproc)"
    parser.add_argument("--backends", type=some_words, metavar="NAMES", default=["subproc"], help=text)
    text = "fresh interpreters per back end with kernels from the cache; one more compiles them (default 3)"
    parser.add_argument("--builds", type=positive_int, metavar="N", default=3, help=text)
    add_timing(parser, rounds=7)
    add_output(parser, "startup")
    return parser


def _check_backends(names: Sequence[str], env_id: str) -> None:
    check_known(names, list(BACKENDS), "back end")
    for name in names:
        contender = BACKENDS[name]
        if contender.module and find_spec(contender.module) is None:
            raise MissingExtra(contender.distribution, contender.extra)
        if contender.atari_only and find_game(env_id) is None:
            raise UnknownSetting(f"the back end {name!r} has Atari games only")


def _samples(results: dict[str, Any], env_id: str) -> dict[str, Samples]:
    """Raw samples by row; what was timed once only, a build that compiles, no test can judge, so it is left out."""
    seconds = results["import"]["seconds"]

    def over_base(name: str) -> Samples:
        differences = [ours - base for ours, base in zip(seconds[name], seconds["base"], strict=True)]
        return Samples(tuple(differences), "s", higher_is_better=False)

    samples = {
        "import numpy, gymnasium": Samples(tuple(seconds["base"]), "s", higher_is_better=False, ours=False),
        "import vecenv over numpy and gymnasium": over_base("with_vecenv"),
        "vecenv.make_vec looked up, over numpy and gymnasium": over_base("with_make_vec"),
    }
    for backend, build in results["build"].items():
        whole = tuple(sum(run["seconds"]) for run in build["warm"])
        private = tuple(float(max(run["private_bytes"])) for run in build["warm"])
        samples[f"{backend}: start of {env_id}, warm"] = Samples(whole, "s", higher_is_better=False)
        samples[f"{backend}: private memory with {env_id}"] = Samples(private, "bytes", higher_is_better=False)
    return samples


def measure_import(rounds: int) -> dict[str, Any]:
    """Time ``import vecenv`` over what everybody imports anyway, in fresh interpreters that take turns.

    Returns:
        Seconds: all samples; medians of the differences within the rounds, for the bare import and with
        `vecenv.make_vec` looked up, which loads the back ends.
    """
    statements = {
        "base": BASE_IMPORTS,
        "with_vecenv": f"{BASE_IMPORTS}, vecenv",
        "with_make_vec": f"{BASE_IMPORTS}, vecenv{USE}",
    }
    samples: dict[str, list[float]] = {name: [] for name in statements}
    for turn in range(rounds + 1):
        for name, text in statements.items():
            seconds = float(_run(IMPORT_SCRIPT.format(imports=text)))
            if turn > 0:  # the first round fills the disk cache
                samples[name].append(seconds)
    differences = {
        name: statistics.median(ours - base for ours, base in zip(samples[name], samples["base"], strict=True))
        for name in ("with_vecenv", "with_make_vec")
    }
    return {"seconds": samples, "median_differences": differences}


def measure_build(
    env_id: str, num_envs: int, num_workers: int, backend: str, builds: int, start_method: str = "forkserver"
) -> dict[str, Any]:
    """Time the start of a vector env in fresh interpreters: once with no compiled kernel cached, then with.

    Args:
        env_id: id of the environment.
        num_envs: environments in the batch.
        num_workers: processes, or threads of an engine.
        backend: name of the back end.
        builds: warm starts.
        start_method: of the worker processes of ``subproc``.

    Returns:
        ``cold``: the run that compiled, and ``warm``: a list of the others. Each has seconds for every one of
        `PHASES`, and private memory in bytes, after 50 steps, of each worker, or of the process where there are none.
    """
    arguments: dict[str, Any] = {"num_workers": num_workers} if BACKENDS[backend].uses_workers else {}
    if backend == "subproc":
        arguments["backend_options"] = {"context": start_method}
    if find_game(env_id) is not None and backend == "envpool":
        arguments["preprocess"] = "envpool"
    script = BUILD_SCRIPT.format(env=env_id, num_envs=num_envs, backend=backend, arguments=arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold = json.loads(_run(script, environment))
        return {"cold": cold, "warm": [json.loads(_run(script, environment)) for _ in range(builds)]}


def _run(script: str, environment: dict[str, str] | None = None) -> str:
    """Run a script in a fresh interpreter away from the current folder; returns the last line it printed."""
    command = [sys.executable, "-c", script]
    with tempfile.TemporaryDirectory() as folder:
        finished = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=300, env=environment, cwd=folder
        )
    return finished.stdout.strip().splitlines()[-1]


def _print_import(result: dict[str, Any]) -> None:
    base, differences = result["seconds"]["base"], result["median_differences"]
    print(
        f"import numpy, gymnasium: {statistics.median(base):.3f} s; vecenv on top: {differences['with_vecenv']:.3f} s; "
        f"with vecenv.make_vec: {differences['with_make_vec']:.3f} s (medians of {len(base)})"
    )


def build_table(builds: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of starts: seconds of every phase, medians, and private memory.

    Args:
        builds: as `measure_build` returns them, by back end.
    """
    rows = []
    for backend, build in builds.items():
        for name, runs in (("compiled anew", [build["cold"]]), ("from the cache", build["warm"])):
            phases = [statistics.median(run["seconds"][place] for run in runs) for place in range(len(PHASES))]
            whole = statistics.median(sum(run["seconds"]) for run in runs)
            private = max(size for run in runs for size in run["private_bytes"])
            count = len(runs[0]["private_bytes"])
            cells = [backend, name, *(f"{seconds:.3f}" for seconds in phases), f"{whole:.2f}"]
            rows.append([*cells, f"{private / 2**20:.1f} x {count}"])
    return ["back end", "kernels", *PHASES.values(), "all", "private memory per worker"], rows


def _print_builds(builds: dict[str, Any], env_id: str, num_envs: int) -> None:
    title = f"{num_envs} x {env_id} from nothing, seconds (medians); private memory in MiB x processes"
    print_table(title, *build_table(builds), width=150)
