"""Small ES learners: what the tests of the engines that play a population share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import vecenv
from vecenv.agents.es import ES, env_settings
from vecenv.agents.es_config import ESConfig


def learner(config: ESConfig, env: Any = "CartPole-v1", **kwargs: Any) -> ES:
    """A learner on environments of this process, which are closed if it cannot be built."""
    envs = vecenv.make_vec(env, backend="sync", **env_settings(config))
    try:
        return ES(envs, config, seed=3, **kwargs)
    except BaseException:
        envs.close()
        raise


def end(es: ES) -> None:
    es.close()
    es.envs.close()


def bits(es: ES) -> bytes:
    return es.parameters.detach().numpy().tobytes()


def trained(es: ES, generations: int = 2) -> bytes:
    for _ in range(generations):
        es.train_once()
    return bits(es)


def stop_after(seconds: float = 60.0) -> Callable[[], bool]:
    """For calls that might not come back."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline
