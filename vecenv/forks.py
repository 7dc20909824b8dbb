"""What a process that an env forks gives up: ways to the caller that would hide its parent's end, were they kept."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence

from vecenv.channel import Channel


def close_in_forks(channel: Channel, descriptors: Sequence[int] = ()) -> None:
    """Close, in every process that is forked from this one, its copies of what leads to the caller.

    Args:
        channel: to the caller, who would not see this process end as long as a copy is open.
        descriptors: others, which nothing else closes in a fork.
    """
    os.register_at_fork(after_in_child=functools.partial(_close_all, channel, list(descriptors)))


def _close_all(channel: Channel, descriptors: list[int]) -> None:
    channel.close()
    while descriptors:  # once: in a fork of the fork, their numbers may be those of other files
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())
