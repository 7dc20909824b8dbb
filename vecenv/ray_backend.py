"""The `ray` back end: actors with a share of the envs each, on this machine or on a cluster."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.arguments import checked_env_fns
from vecenv.base import VecEnv
from vecenv.batch import batch_arrays, plan_batch
from vecenv.buffers import Block, Layout
from vecenv.capabilities import FEATURES, NATIVE
from vecenv.engines import EngineRequest
from vecenv.env_failures import unpack_failures
from vecenv.errors import WorkerDied, env_error
from vecenv.factory import env_functions, vector_spec
from vecenv.info_arena import ARENA_BYTES_PER_ENV, InfoArena
from vecenv.ray_calls import own_indices
from vecenv.ray_cluster import RayConnection
from vecenv.ray_group import ActorGroup, shut_down_at_the_end
from vecenv.ray_rows import RayRows
from vecenv.ray_settings import RaySettings
from vecenv.ray_worker import SlicePlan
from vecenv.recovery import Replacements
from vecenv.registered_ids import pickled_specs
from vecenv.settings import EnvDescription, ObservationMode, VectorSettings, joined_descriptions
from vecenv.worker_settings import pickled_functions, shares, worker_config

EnvFn = Callable[[], gym.Env[Any, Any]]

#: What ``backend_options`` may name; see `RaySettings` and, for ``observation_mode``, `VectorSettings`.
OPTIONS = ("observation_mode", *(field.name for field in fields(RaySettings) if field.name != "num_workers"))
CAPABILITIES = dict.fromkeys(FEATURES, NATIVE)


class RayVecEnv(RayRows):
    """Runs envs in Ray actors.

    Args:
        env_fns: constructors of the envs; lambdas, closures and classes of `__main__` are fine.
        copy: see `VectorSettings`.
        observation_mode: see `VectorSettings`.
        autoreset_mode: see `VectorSettings`.
        settings: the other settings of `VectorSettings` and those of `RaySettings`.

    Raises:
        MissingExtra: Ray is not installed.
        RayUnreachable: the cluster does not answer.
        NotEnoughResources: the cluster has less than the actors ask for.
        WorkerRefused: a node has another version of this package.
        EnvError: a constructor raised.
        WorkerDied: an actor ended while building.
        TypeError: a constructor that cannot be sent.
        RuntimeError: envs with different spaces.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        self._ray_settings, settings = RaySettings.split(settings)
        self.settings = VectorSettings.checked(
            copy=copy, observation_mode=observation_mode, autoreset_mode=autoreset_mode, **settings
        )
        self.env_fns = checked_env_fns(env_fns)
        self.settings.checked_batch_size(len(self.env_fns))
        pickled = pickled_functions(self.env_fns)
        own = self._ray_settings
        connection = RayConnection(own.address, own.object_store_memory, own.start_timeout)
        try:
            rows = shares(len(self.env_fns), self._workers_for(len(self.env_fns), connection))
            self._group = ActorGroup(rows, own, connection)
        except BaseException:
            connection.release()
            raise
        self._own = own_indices(rows)
        # No method of this object: a cycle would keep it, and its actors, alive after `del`.
        self._config_of = functools.partial(worker_config, pickled, pickled_specs(), rows, self.settings.autoreset_mode)
        self._finalizer = shut_down_at_the_end(self, self._group)
        try:
            self._group.start()
            self._describe(self._build_envs(), len(self.env_fns))
            self._prepare()
        except BaseException:
            self._finalizer()
            raise
        self.closed = False

    def _workers_for(self, num_envs: int, connection: RayConnection) -> int:
        """How many actors a number of envs gets."""
        own = self._ray_settings
        if own.num_workers is not None:
            return min(own.num_workers, num_envs)
        return max(1, min(num_envs, int(connection.free().get("CPU", 0.0) / (own.num_cpus or 1.0) + 1e-6)))

    def _build_envs(self) -> EnvDescription:
        """Have the actors build their envs, side by side."""
        workers = range(self.num_workers)
        asked = [self._group.ask(worker, "build", self._config_of(worker)) for worker in workers]
        replies = [self._group.fetch(worker, asked[worker], "construction") for worker in workers]
        for death in self._group.deaths.values():
            raise WorkerDied(death.env_indices, death.pid, death.exitcode, death.doing)
        messages = [pickle.loads(reply) for reply in replies]
        failures = [failure for word, value in messages if word == "failed" for failure in unpack_failures(value)]
        if failures:
            raise env_error(failures, "construction") from failures[0].exception
        descriptions = [description for _, value in messages for description in value]
        return joined_descriptions(descriptions, self.settings.observation_mode)

    def _prepare(self) -> None:
        """Make room for the batch, here and in the actors."""
        spaces, num_envs = self._planned_spaces, self.num_envs
        layout = Layout()
        plan_batch(layout, *spaces, num_envs, self.settings.slots)
        layout.add("info_arena", (num_envs * ARENA_BYTES_PER_ENV,), np.uint8)
        block = Block(layout)
        self._arrays = batch_arrays(block, *spaces)
        self._arena_memory = block["info_arena"]
        self._arena = InfoArena(self._arena_memory, num_envs)
        self._columns = {}
        self._replacements = Replacements(self._group, self._ray_settings)
        self._pending, self._odd, self._results, self._failures = {}, {}, {}, []
        self._groups, self._finished, self._row_records, self._progress = {}, [], {}, {}
        self._row_seconds = np.full(num_envs, np.inf)
        self._doing = "construction"
        self._shared = {}
        self._attach(dict.fromkeys(range(self.num_workers), SlicePlan(*spaces)), None)
        self._raise_deaths()

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the envs, end the actors and, where it was started for them, the cluster; in bounded time.

        Args:
            timeout: seconds that envs may take to close; None: 10.
            terminate: end the actors at once, without closing the envs.
            kwargs: accepted and ignored, as Gymnasium does.
        """
        self._finalizer.detach()
        for text in self._group.shut_down(0.0 if terminate else 10.0 if timeout is None else timeout):
            print(text, file=sys.stderr, flush=True)
        self._shared.clear()


def make_envs(request: EngineRequest) -> VecEnv:
    """Build a vector env of Ray actors; raises what `RayVecEnv` raises."""
    env_kwargs = dict(request.env_kwargs)
    env_fns, config, _ = env_functions(
        request.env_id, request.preprocess, request.wrappers, env_kwargs, request.per_env_kwargs, request.num_envs
    )
    envs = RayVecEnv(env_fns, num_workers=request.num_workers, **request.settings, **request.options)
    envs.spec = vector_spec(request.env_id, request.num_envs, env_kwargs)
    envs.config = config
    return envs
