"""Plays pairs of a population for somebody else: in a process or an actor that was told how, and answers in bytes."""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vecenv.errors import EnvFailure, env_error
from vecenv.pickling import dumps, dumps_function

from .es_config import ESConfig
from .population_engine import EngineRequest, EnvMaker, require_env_maker
from .population_evaluation import Broadcast, PopulationEvaluator

FAILED, DONE = b"F", b"D"
"""First byte of an answer: what follows is a pickled exception, or what was asked for."""


@dataclass(frozen=True)
class PlayerSetup:
    """What one who plays is told first.

    Attributes:
        make_envs: builds the environments.
        config: hyper-parameters.
        seed: of the run.
        device: where the networks lie.
    """

    make_envs: EnvMaker
    config: ESConfig
    seed: int
    device: str


class PopulationPlayer:
    """Environments and batched inference of its own, for pairs that others name."""

    def __init__(self, setup: PlayerSetup, num_envs: int) -> None:
        """Build environments and networks, and keep torch on one thread: whoever plays beside it has the others.

        Args:
            setup: what to build.
            num_envs: how many environments.

        Raises:
            Exception: whatever building an environment raises.
        """
        torch.set_num_threads(1)
        with contextlib.ExitStack() as at_end:
            envs = setup.make_envs(num_envs)
            at_end.callback(envs.close)
            self._evaluator = PopulationEvaluator(envs, setup.config, seed=setup.seed, device=setup.device)
            self._at_end = at_end.pop_all()

    def play(self, broadcast: Broadcast, pairs: Sequence[int]) -> bytes:
        """Play some pairs of a generation; gives an answer that holds their packed results."""
        try:
            return DONE + b"".join(result.pack() for result in self._evaluator.evaluate(broadcast, pairs))
        except Exception as error:
            return failed_answer(error)

    def close(self) -> None:
        """Close the environments; may be called again."""
        self._at_end.close()


def packed_setup(request: EngineRequest) -> bytes:
    """A pickled `PlayerSetup`.

    Raises:
        UnknownSetting: how to build environments is not known.
        TypeError: what builds them cannot be sent.
    """
    make_envs = require_env_maker(request)
    try:
        return dumps_function(PlayerSetup(make_envs, request.config, request.seed, request.device))
    except Exception as error:
        raise TypeError(f"what builds the environments cannot be sent to a worker: {error}") from error


def failed_answer(error: Exception) -> bytes:
    """The answer that tells of an exception; as text in an `EnvError` where it cannot be pickled."""
    try:
        data = dumps(error)
        pickle.loads(data)
    except Exception:
        text = "".join(traceback.format_exception(error))
        failure = EnvFailure(0, os.getpid(), None, type(error).__name__, str(error), text)
        data = dumps(env_error([failure], "evaluate"))
    return FAILED + data


def read_answer(answer: bytes) -> bytes:
    """What an answer holds.

    Raises:
        Exception: what it tells of.
    """
    kind, content = answer[:1], answer[1:]
    if kind == FAILED:
        error: Exception = pickle.loads(content)
        raise error
    return content
