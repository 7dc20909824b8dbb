"""Start of every test run: says what to do where vecenv was never installed, and spares workers the tests' imports."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import pytest

# Tests about what workers import, and about the source lines that a traceback from a worker shows.
IMPORTED_BY_WORKERS = {"test_ray_backend", "test_subproc_failures", "test_subproc_start"}


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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Classes and functions of test modules reach workers by value, as those of a notebook do.

    By reference every worker would import the test module, and with it pytest, or even torch, which costs more than
    most tests do.
    """
    import cloudpickle

    for item in session.items:
        module = getattr(item, "module", None)
        if module is not None and module.__name__.rpartition(".")[2] not in IMPORTED_BY_WORKERS:
            cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="session", autouse=True)
def _pytest_in_fork_servers() -> Iterator[None]:
    """Workers that do import a test module find pytest loaded already."""
    from vecenv.fork_server import ForkServer

    launch = ForkServer.launch

    def launch_with_pytest(self: ForkServer, descriptors: Sequence[int], preload: Sequence[str] = ()) -> int:
        return launch(self, descriptors, (*preload, "pytest"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "launch", launch_with_pytest)
        yield


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """As in a training run: more threads only wait for each other, and sums would depend on how many there are."""
    import torch  # not every test has it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_ray_cluster() -> Iterator[None]:
    """A small Ray cluster of our own, for all tests of a module."""
    from vecenv.ray_cluster import RayConnection

    connection = RayConnection("local", object_store_memory=128 * 2**20, num_cpus=2)
    yield
    connection.release()
