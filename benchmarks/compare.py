"""Two results of the same benchmark, old and new: what got slower, or faster, beyond noise.

The test is the one-sided Mann-Whitney U test on the raw samples of both files (ranks only, so that one odd round
decides nothing), by the exact permutation distribution where that is countable and by its normal approximation with
correction for ties otherwise. A row counts as slower where p <= 0.05 **and** its median is worse by at least 5 %:
samples of one run resemble each other more than two runs do, so significance alone would cry wolf. Three samples
against three are the fewest that can reach p = 0.05.

Where both results hold rows that are not ours (peers, the emulator limit), the geometric mean of their speeds is how
much faster or slower the machine was. A verdict must then hold twice: for the samples as they are, and divided by that.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vecenv.errors import UnknownSetting

SIGNIFICANCE = 0.05
SMALLEST_EFFECT = 0.05
#: More ways than this to divide the samples are not counted one by one.
_MOST_DIVISIONS = 200_000


@dataclass(frozen=True)
class Samples:
    """The raw samples of one thing measured.

    Attributes:
        values: one per round.
        unit: what they count, such as ``"steps/s"``.
        higher_is_better: False for times and sizes.
        ours: whether it is ours to speed up; peers and limits only tell how the machine was.
    """

    values: tuple[float, ...]
    unit: str
    higher_is_better: bool = True
    ours: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {**asdict(self), "values": list(self.values)}


@dataclass(frozen=True)
class Change:
    """One row of both files.

    Attributes:
        name: the thing measured.
        old: median of the old samples.
        new: median of the new samples.
        unit: of both.
        speed: how many times as fast as before, above 1 for faster; by medians.
        p_value: of the hypothesis that nothing changed, against a change in the direction seen.
        verdict: ``"slower"``, ``"faster"``, ``"same"`` (within noise) or ``"too few samples"``.
        ours: see `Samples`.
    """

    name: str
    old: float
    new: float
    unit: str
    speed: float
    p_value: float
    verdict: str
    ours: bool


def mann_whitney(lower: Sequence[float], higher: Sequence[float]) -> float:
    """P-value of the one-sided Mann-Whitney U test.

    Source: H. B. Mann, D. R. Whitney, "On a test of whether one of two random variables is stochastically larger than
    the other", Annals of Mathematical Statistics 18 (1947).

    Args:
        lower: samples suspected to be lower.
        higher: samples suspected to be higher.

    Returns:
        Probability of a sum of ranks of `lower` as small as the one seen, or smaller, if both came from one
        distribution.
    """
    ranks = _ranks([*lower, *higher])
    count, total = len(lower), len(ranks)
    seen = sum(ranks[:count])
    if math.comb(total, count) <= _MOST_DIVISIONS:
        sums = [sum(chosen) for chosen in itertools.combinations(ranks, count)]
        return sum(value <= seen + 1e-9 for value in sums) / len(sums)
    mean = count * (total + 1) / 2
    # of a sum drawn from these very ranks without replacement, which takes ties into account
    variance = count * (total - count) / total * statistics.variance(ranks)
    if variance == 0:
        return 1.0
    return 0.5 * math.erfc(-(seen + 0.5 - mean) / math.sqrt(2 * variance))


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value from 1; equal values share the mean of theirs."""
    order = sorted(values)
    first: dict[float, int] = {}
    for place, value in enumerate(order):
        first.setdefault(value, place)
    counts = {value: order.count(value) for value in first}
    return [first[value] + (counts[value] + 1) / 2 for value in values]


def compare_samples(name: str, old: Samples, new: Samples, drift: float = 1.0) -> Change:
    """Judge one row of two files.

    Args:
        name: of the row.
        old: its samples then.
        new: its samples now.
        drift: speed of the machine now, as a multiple of its speed then.
    """
    before, after = statistics.median(old.values), statistics.median(new.values)
    speed = _speed(before, after, new.higher_is_better)
    verdict, p_value = _judge(old.values, new.values, new.higher_is_better)
    if drift != 1.0 and verdict in ("slower", "faster"):
        factor = 1 / drift if new.higher_is_better else drift
        steadied = tuple(value * factor for value in new.values)
        if _judge(old.values, steadied, new.higher_is_better)[0] != verdict:
            verdict = "same"
    return Change(name, before, after, new.unit, speed, p_value, verdict, new.ours)


def _speed(before: float, after: float, higher_is_better: bool) -> float:
    if before <= 0 or after <= 0:
        return math.nan
    return after / before if higher_is_better else before / after


def _judge(old: Sequence[float], new: Sequence[float], higher_is_better: bool) -> tuple[str, float]:
    """Verdict and p-value for samples as they are."""
    speed = _speed(statistics.median(old), statistics.median(new), higher_is_better)
    worse = speed < 1
    p_value = mann_whitney(new, old) if worse == higher_is_better else mann_whitney(old, new)
    if 1 / math.comb(len(old) + len(new), len(old)) > SIGNIFICANCE:
        return "too few samples", p_value
    if p_value > SIGNIFICANCE or math.isnan(speed) or max(speed, 1 / speed) < 1 / (1 - SMALLEST_EFFECT):
        return "same", p_value
    return "slower" if worse else "faster", p_value


def compare_results(old: Mapping[str, Samples], new: Mapping[str, Samples]) -> list[Change]:
    """Judge every row that both results have, in the order of the new one."""
    common = [name for name in new if name in old]
    drift = machine_drift([compare_samples(name, old[name], new[name]) for name in common])
    return [compare_samples(name, old[name], new[name], drift if new[name].ours else 1.0) for name in common]


def machine_drift(changes: Sequence[Change]) -> float:
    """Speed of the machine now as a multiple of its speed then, by what is not ours; 1 where there is nothing such."""
    speeds = [change.speed for change in changes if not change.ours and not math.isnan(change.speed)]
    return statistics.geometric_mean(speeds) if speeds else 1.0


def read_result(path: Path, name: str) -> tuple[dict[str, Any], dict[str, Samples]]:
    """Read a result that a benchmark wrote.

    Args:
        path: the file.
        name: the benchmark it must be of.

    Returns:
        The document, and its samples by the name of the row.

    Raises:
        UnknownSetting: no such file, no result, or one of another benchmark.
    """
    try:
        document = json.loads(path.read_text())
        samples = {
            key: Samples(tuple(row["values"]), row["unit"], row["higher_is_better"], row["ours"])
            for key, row in document["samples"].items()
        }
        written_by = document["name"]
    except OSError as error:
        raise UnknownSetting(f"--compare {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownSetting(f"--compare {path}: not a result with raw samples ({error!r})") from error
    if written_by != name:
        raise UnknownSetting(f"--compare {path}: a result of {written_by!r}, not of {name!r}")
    return document, samples


def differing_facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What makes two results hard to compare: another machine or other versions; one line each."""
    lines = []
    for title in ("machine", "packages"):
        before, after = old.get(title, {}), new.get(title, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                lines.append(f"{key}: {before.get(key)} then, {after.get(key)} now")
    return lines
