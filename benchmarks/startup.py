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
from pathlib import Path
from typing import Any

from vecenv.cores import usable_cores
from vecenv.doctor import describe_machine

from .report import default_path, write_json

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
        The exit code: 0, or 1 if a part could not be measured.
    """
    parser = argparse.ArgumentParser(prog="vecenv bench startup", description=__doc__)
    parser.add_argument("--env", default="PongNoFrameskip-v4", help="environment to build (default PongNoFrameskip-v4)")
    parser.add_argument("--num-envs", type=int, default=16, help="environments in the batch (default 16)")
    parser.add_argument("--num-workers", type=int, help="worker processes (default: usable cores)")
    parser.add_argument("--rounds", type=int, default=7, help="fresh interpreters per import figure (default 7)")
    parser.add_argument("--json", type=Path, help="where to write the result (default results/startup-TIME.json)")
    arguments = parser.parse_args(argv)
    if min(arguments.num_envs, arguments.rounds) < 1 or (arguments.num_workers or 1) < 1:
        parser.error("--num-envs, --num-workers and --rounds must be at least 1")
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
    path = arguments.json or default_path("startup")
    settings = {"env_id": arguments.env, "num_envs": arguments.num_envs, "num_workers": workers}
    write_json(path, name="startup", settings={**settings, "rounds": arguments.rounds}, results=results)
    print(f"written to {path}")
    return 0


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
