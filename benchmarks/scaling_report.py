"""The tables, the picture and the text of ``vecenv bench scaling``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vecenv.doctor import describe_machine

from .report import markdown_table
from .scaling_evolution import ENGINES, MeasuredEngine
from .scaling_model import Costs, Evolution, Round, Workload, predict, predict_generation
from .timing import Rates

CORES = (16, 64, 256, 1024)
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]

_INTRODUCTION = """# Scaling beyond one machine

Written by `vecenv bench scaling --report docs/scaling.md`. Costs, rounds and the first table of generations are
measured on the machine named below, the others are a **model on paper**: nothing here was run on more cores than that
machine has.

`make_vec(..., backend="ray")` starts a cluster on this machine, or joins the one that `RAY_ADDRESS` or
`backend_options=dict(address="host:port")` names. Every actor hosts a share of the environments and answers a step with
one message: its rows as arrays, which Ray puts into its object store once and the caller reads there without a copy
(below 100 kB Ray sends them in the message itself, as it does up to 4 MiB in a cluster started for us: on one machine
that is cheaper). An actor on the caller's machine leaves its rows in memory that both map; where all actors run there,
and steps have nothing more to tell, they are asked and answered through that memory and two pipes, without a message.
Here rows are sent (`share_memory=False`), since the model is about actors on other machines. `envs.worker_machines` and
`envs.worker_pids` say where the actors run. `backend_options` also takes `num_cpus`, `num_gpus`, `memory` and
`resources` of every actor, `scheduling_strategy`, `runtime_env`, `on_worker_failure` and `step_timeout`.
"""

_MODEL = """## The model

One process drives all workers, step by step, as a synchronous agent does. With C cores, K environments on each, s
seconds per environment step and B bytes per observation, a step takes

    K s  +  fixed + message C  +  row C K  +  byte C K B

Environments run side by side; what the driver does for messages, rows and bytes it does one after the other. Its costs
are its processor time in the least disturbed samples, fitted by least squares; `fixed` also holds the waiting of the
smallest round, and `message` what Ray's object store adds to messages of over 100 KiB. Efficiency is the first term's
share, and the limit is the largest term. The lines of subproc mean one machine with that many cores.

The model knows no network between machines, no stragglers, and no learner: a learner that trains on 10,000 samples a
second is the limit as soon as the rate is above that, whatever the environments do. `send`/`recv` with `batch_size`
below `num_envs` hides the first term behind the others and is not modelled.

Where messages are the limit, fewer and larger ones help: more environments per actor, or several drivers that each have
actors of their own, as data-parallel learners do. Evolution strategies send next to nothing and go furthest.
"""

_EVOLUTION = """## Evolution strategies

`vecenv train es` with `--engine processes` or `--engine ray` ends with the same parameters, to the last bit, for any
number of workers. With Ray, `--workers 64 --ray-address host:port` joins a cluster (as `RAY_ADDRESS` does; without
either one is started on this machine), and `--ray-cpus` is what Ray sets aside for each worker.

The parameters of a generation are put into Ray's object store once; every machine fetches them once, and workers read
them there without a copy. A process gets them over its channel. Per pair come back the key of its noise, two returns
and two numbers of steps, 36 bytes, and where observations are normalised their mean and variance: 8 bytes per
component, of as many pairs in turn as keep these at 160 bytes per pair on average, or below.

Pairs of a worker that dies are played by others, with a warning that names it, and Ray is asked for another one.
`--report-share 0.9` goes on once 0.9 of the pairs have reported; that changes results, so it is off by default.
"""

_EVOLUTION_MODEL = """The model's HalfCheetah plays episodes of 1,000 steps, with a policy of two hidden layers of 64.
`pairs` is the limit where cores wait because the pairs cannot be divided evenly, or are fewer than cores. The model has
the driver send parameters to every worker, as with `processes`; Ray sends them once per machine, which is less.
Messages of `processes` are taken to cost what those of the back end subproc do, on one machine with that many cores.
"""


def measured_tables(costs: Mapping[str, Costs], efficiency: Mapping[str, float]) -> list[Table]:
    """What was measured."""
    rows = [
        [
            backend,
            f"{own.fixed * 1e6:,.0f} us",
            f"{own.message * 1e6:,.0f} us",
            f"{own.stored * 1e6:,.0f} us",
            f"{own.row * 1e6:,.1f} us",
            f"{own.byte * 1e9:.3f} ns",
            f"{efficiency[backend]:.2f}",
        ]
        for backend, own in costs.items()
    ]
    header = [
        "back end",
        "per step",
        "per message",
        "more if over 100 KiB",
        "per env",
        "per observation byte",
        "efficiency 1 -> 2 workers",
    ]
    return [("Costs, fitted to the rounds below", header, rows)]


def predicted_tables(costs: Mapping[str, Costs], workloads: Sequence[Workload]) -> list[Table]:
    """What the model says of every workload."""
    tables: list[Table] = []
    for workload in workloads:
        rows = []
        for backend, own in costs.items():
            for cores in CORES:
                said = predict(own, workload, cores)
                rate, gigabytes = f"{said.rate:,.0f}", f"{said.bytes_per_second / 1e9:.2f}"
                rows.append([backend, f"{cores:,}", rate, f"{said.efficiency:.0%}", gigabytes, said.limit])
        title = f"{workload.name}: {workload.envs_per_core} envs per core, {workload.env_seconds * 1e6:,.0f} us a step"
        tables.append((title, ["back end", "cores", "env steps/s", "efficiency", "GB/s to the driver", "limit"], rows))
    return tables


def measured_evolution_table(measured: Sequence[MeasuredEngine], backends: Sequence[str]) -> Table:
    """What was measured of evolution strategies.

    Args:
        measured: the engines of all back ends, on one environment after the other.
        backends: in the order of their engines; rates are multiples of the first engine's.
    """
    rows = []
    for place, one in enumerate(measured):
        first = measured[place - place % len(backends)]
        low, high = f"{one.rates.lowest:,.0f}", f"{one.rates.highest:,.0f}"
        ratio = "" if one is first else f"{one.rates.ratio_to(first.rates):.2f}"
        per_pair, per_worker = f"{one.bytes_per_pair:.0f}", f"{one.bytes_per_worker:,}"
        rows.append([one.rates.name, f"{one.rates.median:,.0f}", f"{low} - {high}", ratio, per_pair, per_worker])
    times_first = f"x {ENGINES[backends[0]]}"
    header = ["engine", "env steps/s", "lowest - highest", times_first, "bytes per pair", "bytes per worker"]
    return "Generations, measured: bytes received per pair, and given to each worker per generation", header, rows


def evolution_table(costs: Mapping[str, Costs], evolution: Evolution) -> Table:
    """What the model says of a generation."""
    rows = []
    for backend, own in costs.items():
        for cores in CORES:
            seconds, efficiency, limit = predict_generation(own, evolution, cores)
            sent = 4 * evolution.parameters + evolution.bytes_per_pair * evolution.pairs / cores
            duration, share = f"{seconds:.2f} s", f"{efficiency:.0%}"
            rows.append([ENGINES[backend], f"{cores:,}", duration, share, f"{sent:,.0f}", limit])
    title = f"{evolution.pairs:,} pairs, {evolution.parameters:,} parameters"
    return title, ["engine", "cores", "generation", "efficiency", "bytes per worker", "limit"], rows


def draw(path: Path, costs: Mapping[str, Costs], workloads: Sequence[Workload]) -> Path:
    """Draw efficiency over cores; gives the path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes: Any = figure.add_subplot()
    cores = [2**power for power in range(1, 11)]
    for workload, colour in zip(workloads, ("tab:blue", "tab:orange", "tab:green", "tab:red"), strict=False):
        for (backend, own), style in zip(costs.items(), ("-", "--"), strict=False):
            efficiency = [predict(own, workload, count).efficiency for count in cores]
            axes.plot(cores, efficiency, style, color=colour, label=f"{workload.name} ({backend})")
    axes.set(xscale="log", xlabel="cores that run environments", ylabel="efficiency (model)", ylim=(0, 1.05))
    axes.set_xticks(cores, [str(count) for count in cores])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)
    return path


def write_report(
    path: Path,
    picture: Path,
    measured: Sequence[Table],
    predicted: Sequence[Table],
    evolution: Sequence[Table],
    rounds: Sequence[tuple[Rates, Round]],
) -> None:
    """Write the report as Markdown.

    Args:
        path: of the file.
        picture: beside it.
        measured: costs.
        predicted: what the model makes of them.
        evolution: generations of evolution strategies: measured ones, then what the model says of others.
        rounds: what the costs were fitted to.
    """
    single = [
        [rates.name, f"{1e6 / rates.median:,.0f} us", f"{driver.seconds * 1e6:,.0f} us"] for rates, driver in rounds
    ]
    header = ["round", "one step", "processor time of the driver"]
    parts = [_INTRODUCTION, f"Machine: {describe_machine()}; load average {os.getloadavg()[0]:.1f} at the end.\n"]
    parts += [_markdown(table) for table in measured]
    parts.append(_markdown(("Rounds of envs that do nothing", header, single)))
    parts += [_MODEL, f"![Efficiency over cores]({picture.name})\n"]
    parts += [_markdown(table) for table in predicted]
    parts += [_EVOLUTION, _markdown(evolution[0]), _EVOLUTION_MODEL]
    parts += [_markdown(table) for table in evolution[1:]]
    path.write_text("\n".join(parts))


def _markdown(table: Table) -> str:
    title, header, rows = table
    return f"### {title}\n\n{markdown_table(header, rows)}"
