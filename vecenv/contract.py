"""The contract of vector envs as a suite of small named checks that runs over any back end.

The checks themselves stand in `contract_basics`, `contract_data`, `contract_episodes` and, for what goes beyond
Gymnasium, `contract_own`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence

from gymnasium.vector import AutoresetMode

from vecenv.autoreset import autoreset_mode_of
from vecenv.contract_case import CHECKS, Case, Check, MakeVecEnv
from vecenv.errors import UnknownSetting

__all__ = ["Check", "ContractViolation", "all_checks", "check_vec_env"]

_HOMES = ("vecenv.contract_basics", "vecenv.contract_data", "vecenv.contract_episodes", "vecenv.contract_own")


class ContractViolation(AssertionError):
    """A back end that does not keep the contract.

    Args:
        failures: see below.
        sentences: by the same names, what should hold.

    Attributes:
        failures: by name of the check and autoreset mode (``"seed_int [NextStep]"``), what was raised.
    """

    def __init__(self, failures: Mapping[str, BaseException], sentences: Mapping[str, str]) -> None:
        self.failures = dict(failures)
        lines = [f"{len(failures)} checks of the contract of vector envs failed:"]
        for name, error in failures.items():
            kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
            lines.append(f"- {name}: {sentences[name]}\n    {kind}{error}")
        super().__init__("\n".join(lines))


def all_checks() -> dict[str, Check]:
    """Every check by its name, in the order in which they run."""
    for home in _HOMES:
        importlib.import_module(home)
    return dict(CHECKS)


def check_vec_env(
    make: MakeVecEnv,
    *,
    autoreset_modes: Sequence[str | AutoresetMode] = tuple(AutoresetMode),
    only: Collection[str] = (),
    skip: Collection[str] = (),
    env_id: str | None = None,
    report: Callable[[str], None] | None = None,
) -> list[str]:
    """Run the contract over a back end; all checks run, then the failed ones are raised together.

    Checks belong to one of two groups. ``"gymnasium"``: what every `gymnasium.vector.VectorEnv` is expected to do; a
    back end is built with `autoreset_mode` alone. ``"vecenv"``: what this package's back ends do beyond it, such as
    statistics, `copy=False`, `send` and `recv`; a back end is also given ``statistics``, ``copy``, ``slots``, ``seed``
    and ``batch_size``.

    Args:
        make: ``make(env_fns, autoreset_mode=..., **settings)`` builds a vector env. What it builds is closed by the
            check. Settings of its own, such as ``copy=False``, must leave a result valid for 12 calls.
        autoreset_modes: modes that the back end has. Checks that concern one mode run in that mode only, all others
            once in each.
        only: names of checks or groups; empty: all.
        skip: names of checks or groups that are left out, after `only`.
        env_id: for a back end that cannot run toy environments: only the checks that work with any env run, with
            `env_fns` that make this registered id. A native engine may look at no more than how many they are.
        report: called with the name of every check before it runs.

    Returns:
        Names of the checks that ran and held, each with its mode.

    Raises:
        ContractViolation: some checks failed; the message and `failures` name each.
        UnknownSetting: a name in `only` or `skip` does not exist.

    Examples:
        >>> from vecenv import SyncVecEnv
        >>> check_vec_env(SyncVecEnv, only=["seed_int", "close_twice"], autoreset_modes=["NextStep"])
        ['seed_int [NextStep]', 'close_twice [NextStep]']

        Gymnasium's own serial back end changes the options that it is given:

        >>> from gymnasium.vector import SyncVectorEnv
        >>> check_vec_env(SyncVectorEnv, only=["mask_leaves_the_options_alone"], autoreset_modes=["NextStep"])
        Traceback (most recent call last):
        ...
        vecenv.contract.ContractViolation: 1 checks of the contract of vector envs failed:
        ...
    """
    modes = [autoreset_mode_of(mode) for mode in autoreset_modes]
    held: list[str] = []
    failures: dict[str, BaseException] = {}
    sentences: dict[str, str] = {}
    for check in _chosen(only, skip, env_id is not None):
        for mode in modes:
            if check.modes and mode not in check.modes:
                continue
            name = f"{check.name} [{mode.value}]"
            if report is not None:
                report(name)
            error = _run(check, Case(make, mode, env_id))
            if error is None:
                held.append(name)
            else:
                failures[name], sentences[name] = error, check.sentence
    if failures:
        raise ContractViolation(failures, sentences) from next(iter(failures.values()))
    return held


def _chosen(only: Collection[str], skip: Collection[str], any_env: bool) -> list[Check]:
    """The checks that are asked for."""
    checks = all_checks()
    groups = {check.group for check in checks.values()}
    for name in (*only, *skip):
        if name not in checks and name not in groups:
            raise UnknownSetting(
                f"check {name!r} does not exist; there are the groups {sorted(groups)} and the checks {list(checks)}"
            )
    return [
        check
        for check in checks.values()
        if (not only or check.name in only or check.group in only)
        and check.name not in skip
        and check.group not in skip
        and (check.any_env or not any_env)
    ]


def _run(check: Check, case: Case) -> Exception | None:
    """Run one check and close what it built, whether or not it held."""
    error: Exception | None = None
    try:
        check.function(case)
    except Exception as raised:  # whatever a back end raises where it should not is a failure of the check
        error = raised
    try:
        case.close()
    except Exception as raised:
        error = error or raised
    return error
