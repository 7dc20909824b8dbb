"""``vecenv bench startup``: what it costs to import vecenv, to build a batch of Pong, and to keep a worker."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine

from .arguments import add_output, add_timing, positive_int
from .compare import Samples
from .report import check_output, publish

BASE_IMPORTS = "import numpy, gymnasium"

# Each runs in a fresh interpreter and prints one line of JSON: imports and caches start from nothing only there.
USE = "; vecenv.make_vec"  # names are loaded at first use
IMPORT_SCRIPT = """
import time
start = time.perf_counter()
{imports}
print(time.perf_counter() - start)
"""
BUILD_SCRIPT = """
import json, time
import numpy, gymnasium, psutil
if __name__ == "__main__":
    start = time.perf_counter()
    import vecenv
    envs = vecenv.make_vec({env!r}, {num_envs}, "subproc", num_workers={num_workers})
    envs.reset(seed=0)
    seconds = time.perf_counter() - start
    for _ in range(50):
        envs.step(envs.action_space.sample())
    private = [psutil.Process(pid).memory_full_info().uss for pid in envs.worker_pids]
    envs.close()
    print(json.dumps({{"seconds": seconds, "private_bytes": private}}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write a JSON file.

    Args:
        argv: words after ``vecenv bench startup``; None: those of this process.

    Returns:
        The exit code: 0; 1 if a part could not be measured or, with ``--compare``, got slower beyond noise.
    """
    parser = argparse.ArgumentParser(prog="vecenv bench startup", description=__doc__)
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="environment to build (default PongNoFrameskip-v4)")
    parser.add_argument("--num-envs", type=positive_int, default=16, help="environments in the batch (default 16)")
    parser.add_argument("--num-workers", type=positive_int, help="worker processes (default: usable cores)")
    add_timing(parser, rounds=7)
    add_output(parser, "startup")
    arguments = parser.parse_args(argv)
    check_output(arguments, "startup")
    workers = min(arguments.num_workers or usable_cores(), arguments.num_envs)
    print(describe_machine())
    try:
        results: dict[str, Any] = {"import": measure_import(arguments.rounds)}
        _print_import(results["import"])
        results["build"] = measure_build(arguments.env, arguments.num_envs, workers)
        _print_build(results["build"], arguments.env, arguments.num_envs)
    except subprocess.CalledProcessError as error:
        last_line = (error.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"vecenv bench startup: a fresh interpreter failed: {last_line}", file=sys.stderr)
        return 1
    settings = {"env_id": arguments.env, "num_envs": arguments.num_envs, "num_workers": workers}
    settings["rounds"] = arguments.rounds
    return publish(arguments, "startup", settings=settings, results=results, samples=_samples(results, arguments.env))


def _samples(results: dict[str, Any], env_id: str) -> dict[str, Samples]:
    """Raw samples by row; a build is timed once only, which no test can judge, so it is left out."""
    seconds = results["import"]["seconds"]

    def over_base(name: str) -> Samples:
        differences = [ours - base for ours, base in zip(seconds[name], seconds["base"], strict=True)]
        return Samples(tuple(differences), "s", higher_is_better=False)

    private = tuple(float(size) for size in results["build"]["warm"]["private_bytes"])
    return {
        "import numpy, gymnasium": Samples(tuple(seconds["base"]), "s", higher_is_better=False, ours=False),
        "import vecenv over numpy and gymnasium": over_base("with_vecenv"),
        "vecenv.make_vec looked up, over numpy and gymnasium": over_base("with_make_vec"),
        f"private memory of a worker with {env_id}": Samples(private, "bytes", higher_is_better=False),
    }


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


def measure_build(env_id: str, num_envs: int, num_workers: int) -> dict[str, Any]:
    """Time import, building and the first reset in a fresh interpreter: with no compiled kernel cached, then with.

    Returns:
        For ``cold`` and ``warm``: seconds, and private memory in bytes of each worker after 50 steps.
    """
    script = BUILD_SCRIPT.format(env=env_id, num_envs=num_envs, num_workers=num_workers)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        return {name: json.loads(_run(script, environment)) for name in ("cold", "warm")}


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


def _print_build(result: dict[str, Any], env_id: str, num_envs: int) -> None:
    for name, what in (("cold", "kernels compiled anew"), ("warm", "kernels from the cache")):
        private = result[name]["private_bytes"]
        print(
            f"import, build and reset {num_envs} x {env_id}, {what}: {result[name]['seconds']:.2f} s; "
            f"private memory per worker: {max(private) / 2**20:.1f} MiB ({len(private)} workers)"
        )
