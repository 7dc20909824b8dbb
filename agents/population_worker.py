"""A process that plays pairs of a population for another one."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vecenv.channel import Channel
from vecenv.errors import EnvFailure, env_error
from vecenv.lifeline import end_with
from vecenv.pickling import dumps

from .es_config import ESConfig
from .population_engine import EnvMaker
from .population_evaluation import Broadcast, PopulationEvaluator


@dataclass(frozen=True)
class WorkerSetup:
    """First message to a worker.

    Attributes:
        make_envs: builds its environments.
        num_envs: how many.
        config: hyper-parameters.
        seed: of the run.
        device: where the networks lie.
    """

    make_envs: EnvMaker
    num_envs: int
    config: ESConfig
    seed: int
    device: str


def worker_main(descriptors: Sequence[int]) -> None:
    """Play what is asked for until the asking process closes the channel, or ends in whatever way.

    Args:
        descriptors: channel, lifeline; owned from here on.

    Messages in: a `WorkerSetup`; then ``("generation", Broadcast)`` and ``("play", (number of the call, pairs))``.
    Messages out: ``("ready", None)``; per play ``("results", (number of the call, packed results))``; or ``("failed",
    exception)``, after which the process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    channel_fd, lifeline_fd = descriptors
    end_with(lifeline_fd)
    torch.set_num_threads(1)
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        _serve(channel)
    except (EOFError, OSError):  # the asking process has closed its end
        return


def _serve(channel: Channel) -> None:
    setup: WorkerSetup = channel.receive()
    with contextlib.ExitStack() as at_end:
        try:
            envs = setup.make_envs(setup.num_envs)
            at_end.callback(envs.close)
            evaluator = PopulationEvaluator(envs, setup.config, seed=setup.seed, device=setup.device)
        except Exception as error:
            channel.send_bytes(_failure(error))
            return
        channel.send(("ready", None))
        broadcast: Broadcast
        while True:
            word, content = channel.receive()
            if word == "generation":
                broadcast = content
                continue
            number, pairs = content
            try:
                results = evaluator.evaluate(broadcast, pairs)
            except Exception as error:
                channel.send_bytes(_failure(error))
                return
            channel.send(("results", (number, b"".join(result.pack() for result in results))))


def _failure(error: Exception) -> bytes:
    """The message that tells of an exception; as text where it cannot be pickled."""
    try:
        data = dumps(("failed", error))
        pickle.loads(data)
        return data
    except Exception:
        text = "".join(traceback.format_exception(error))
        failure = EnvFailure(0, os.getpid(), None, type(error).__name__, str(error), text)
        return dumps(("failed", env_error([failure], "evaluate")))
