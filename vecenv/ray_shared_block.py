"""Memory of an actor that its caller maps too, where both run on one machine.

The actor owns an anonymous file, which is gone with the last process that maps it. The caller opens it as
``/proc/<pid>/fd/<number>``, after making sure that it means the same process by that number: the same boot of the same
kernel, the same namespace of process ids and, in the memory itself, a random token that came with the address. Where
one of these is missing (another machine, another container, another user, no /proc) the memory stays the actor's own.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vecenv.buffers import Block, Layout, create_block_file, reserve_block
from vecenv.signals import uses_linux_means

_TOKEN_BYTES = 16


@dataclass(frozen=True)
class BlockAddress:
    """Where a block is found.

    Attributes:
        place: boot and namespace of process ids, as this kernel names them.
        pid: of the process that owns it.
        descriptor: number of the file there.
        token: what stands in the block under that name.
        layout: names and places of its arrays.
    """

    place: tuple[str, str]
    pid: int
    descriptor: int
    token: bytes
    layout: Layout


def create_shared_block(layout: Layout) -> tuple[Block, BlockAddress | None]:
    """Make a block that another process of this machine can find.

    Args:
        layout: the plan; grows by the token.

    Returns:
        block: of this process for as long as it lives.
        address: for the other one; None: the block is private, since the machine has no means or no room for more.
    """
    place = _place()
    layout.add("token", (_TOKEN_BYTES,), np.uint8)
    if place is None:
        return Block(layout), None
    descriptor = create_block_file()
    try:
        reserve_block(descriptor, layout.size)
        block = Block(layout, descriptor)
    except (MemoryError, OSError):
        os.close(descriptor)
        return Block(layout), None
    token = os.urandom(_TOKEN_BYTES)
    block["token"][:] = np.frombuffer(token, np.uint8)
    return block, BlockAddress(place, os.getpid(), descriptor, token, layout)


def open_shared_block(address: BlockAddress) -> Block | None:
    """Map the block of another process; None: it is not on this machine, or may not be looked into."""
    if _place() != address.place:
        return None
    path = f"/proc/{address.pid}/fd/{address.descriptor}"
    with contextlib.suppress(OSError):
        if not os.readlink(path).startswith("/memfd:"):  # nothing else is opened, whatever it is
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < address.layout.size:
                return None
            block = Block(address.layout, descriptor)
        finally:
            os.close(descriptor)
        if block["token"].tobytes() == address.token:
            return block
    return None


def _place() -> tuple[str, str] | None:
    """What two processes must have in common so that a process id means the same to both; None: cannot be told."""
    if not uses_linux_means():
        return None
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # mounted for another namespace
            return None
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
