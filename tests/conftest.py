"""Start of every test run: says what to do where vecenv was never installed."""

from __future__ import annotations

import importlib.util

import pytest


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def pytest_configure(config: pytest.Config) -> None:
    """Stop with one sentence if the mapped folders cannot be imported, or the test tools are missing."""
    needed = ("vecenv.preprocess", "vecenv.agents", "vecenv.benchmarks", "gymnasium", "numba", "pytest_timeout")
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        pytest.exit(
            f"vecenv is not installed for this Python ({', '.join(missing)} cannot be imported): the folders "
            "preprocess/, agents/ and benchmarks/ become vecenv.preprocess, vecenv.agents and vecenv.benchmarks by "
            "installing; run `make setup`, then `make test`",
            returncode=4,
        )
