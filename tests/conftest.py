"""Start of every test run: says what to do where vecenv was never installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

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


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """As in a training run: more threads only wait for each other, and sums would depend on how many there are."""
    import torch  # not every test has it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
