"""Weights in shared memory: whole and current for every reader, with locks and without."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

from vecenv.agents import dqn_weights
from vecenv.agents.dqn_weights import SharedWeights
from vecenv.short_wait import STORES_IN_ORDER

pytestmark = pytest.mark.timeout(60)
BOTH = pytest.mark.parametrize("locked", [False, True])


def network_of(value):
    """A network whose 22,650 weights all have one value."""
    network = nn.Linear(150, 150)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    return network


def values_of(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_locks_are_used_where_stores_may_come_in_any_order():
    assert SharedWeights.__init__.__kwdefaults__ == {"locked": not STORES_IN_ORDER}
    assert dqn_weights.STORES_IN_ORDER is STORES_IN_ORDER


@BOTH
def test_a_reader_gets_the_newest_network(locked):
    source, copy = nn.Linear(3, 2), nn.Linear(3, 2)
    ours = SharedWeights(source, locked=locked)
    theirs = SharedWeights(copy, os.dup(ours.descriptor), locked=locked)
    for updates in (3, 4, 5):
        with torch.no_grad():
            source.weight.add_(updates)
        precision = "bfloat16" if updates == 5 else "float32"
        ours.env_steps = 100 * updates
        assert ours.write(source, updates, precision)
        assert theirs.version == updates - 2
        assert theirs.read(copy) == (updates - 2, updates, precision)
        assert theirs.env_steps == 100 * updates
        for mine, other in zip(source.state_dict().values(), copy.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
    ours.close()
    ours.close()


class Interrupting(nn.Linear):
    """A network that is written over once, while it is being read."""

    def __init__(self, write):
        super().__init__(150, 150)
        self.write, self.count = write, 0

    def state_dict(self, *args, **options):
        outer, state = self, super().state_dict(*args, **options)

        class State(dict):
            def values(self):
                for number, tensor in enumerate(super().values()):
                    if number == 1 and outer.count < 3:
                        outer.count += 1
                        outer.write(outer.count)
                    yield tensor

        return State(state)


def test_without_locks_a_copy_that_was_written_over_meanwhile_is_read_again():
    shared = SharedWeights(network_of(0), locked=False)
    shared.write(network_of(0), 0, "float32")
    reader = Interrupting(lambda count: shared.write(network_of(count), count, "bfloat16"))
    assert shared.read(reader) == (4, 3, "bfloat16")  # overtaken three times
    assert values_of(reader).unique().tolist() == [3]


WRITER = """
import sys, time, torch
from torch import nn
from vecenv.agents.dqn_weights import SharedWeights
network = nn.Linear(150, 150)
without, with_locks = map(int, sys.argv[1:])
both = [SharedWeights(network, without, locked=False), SharedWeights(network, with_locks, locked=True)]
end = time.monotonic() + 30
print("ready", flush=True)
while time.monotonic() < end:
    for shared in both:
        number = shared.version + 1
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(number)
        shared.write(network, number, "float32" if number % 3 else "bfloat16")
"""


@pytest.fixture(scope="module")
def written_by_another_process():
    """Both kinds of shared weights, written again and again by one process."""
    both = [SharedWeights(network_of(0), locked=locked) for locked in (False, True)]
    for shared in both:
        shared.write(network_of(1), 1, "float32")
    descriptors = [shared.descriptor for shared in both]
    command = [sys.executable, "-c", WRITER, *map(str, descriptors)]
    with subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield {shared._locked: shared for shared in both}
        process.kill()


@BOTH
def test_no_read_is_torn_while_another_process_writes(written_by_another_process, locked):
    shared, network = written_by_another_process[locked], nn.Linear(150, 150)
    seen, end = [], time.monotonic() + 3
    while len(seen) < 300 and (time.monotonic() < end or len(seen) < 3):
        origin = shared.read(network)
        values = values_of(network)
        assert (values == origin.version).all()
        assert origin.updates == origin.version
        assert origin.precision == ("float32" if origin.version % 3 else "bfloat16")
        if not seen or origin.version != seen[-1]:
            seen.append(origin.version)
    assert seen == sorted(seen)


@contextlib.contextmanager
def held(descriptor, kind, byte):
    """Another process has the lock of a copy; it is killed at the end."""
    code = (
        f"import fcntl, time; fcntl.lockf({descriptor}, {kind}, 1, {byte}); print('held', flush=True); time.sleep(50)"
    )
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[descriptor], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def test_a_writer_leaves_the_copy_that_somebody_reads_and_comes_again():
    shared, network = SharedWeights(network_of(0), locked=True), network_of(0)
    for number in (1, 2):
        assert shared.write(network_of(number), number, "float32")
    with held(shared.descriptor, fcntl.LOCK_SH, 1):  # of version 1; 3 would lie there
        assert not shared.write(network_of(3), 3, "float32")
        assert shared.read(network) == (2, 2, "float32")
        assert values_of(network).unique().tolist() == [2]
    assert shared.write(network_of(3), 3, "float32")  # the lock ended with its process
    assert shared.read(network).updates == 3


def test_a_reader_waits_for_the_end_of_a_write():
    shared, network = SharedWeights(network_of(0), locked=True), network_of(0)
    shared.write(network_of(1), 1, "float32")
    read = threading.Thread(target=shared.read, args=(network,), daemon=True)
    with held(shared.descriptor, fcntl.LOCK_EX, 1):
        read.start()
        read.join(0.3)
        assert read.is_alive()
    read.join(10)
    assert not read.is_alive()
    assert values_of(network).unique().tolist() == [1]
