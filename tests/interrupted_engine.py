"""A Ctrl-C in the middle of a step of an engine: what the tests of the engines share."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any

import pytest


def interrupt_a_step(envs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SIGINT come once the engine has the actions of a step, which must take more than 50 ms."""
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    send = envs._engine_send

    def send_and_start_the_timer(actions: Any) -> None:
        send(actions)
        timer.start()

    with monkeypatch.context() as patched:
        patched.setattr(envs, "_engine_send", send_and_start_the_timer)
        # Where the first Python after the step is a callback of the collector (hypothesis has one), the interrupt is
        # raised there, and nobody gets it.
        gc.disable()
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                envs.step([0, 0])
                timer.join(30)  # a signal that comes after the end of the step falls in here
        finally:
            gc.enable()
