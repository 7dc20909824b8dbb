"""What every actor of ours says of itself before it works."""

from __future__ import annotations

import contextlib
import os

from vecenv.interrupts import leave_interrupts_to_the_user


class HostedActor:
    """An actor that `vecenv.ray_group.ActorGroup` can start. It leaves Ctrl-C to the process that asks."""

    def __init__(self) -> None:
        with contextlib.suppress(ValueError):  # not the main thread
            leave_interrupts_to_the_user()

    def introduce(self) -> tuple[int, str, str]:
        """Process id, host name and version of this package where the actor runs."""
        import vecenv

        return os.getpid(), os.uname().nodename, vecenv.__version__
