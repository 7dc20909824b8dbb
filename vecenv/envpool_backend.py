"""The `envpool` back end: EnvPool, an engine in C++ with threads of its own.

Atari games are played as the preset ``"envpool"`` says, bit for bit as the `sync` and `subproc` back ends do under that
preset; other tasks see `vecenv.envpool_tasks`. EnvPool seeds its envs when it is built, so that a reset with seeds
builds it anew. With ``batch_size`` below ``num_envs`` it gives out batches as envs finish.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from vecenv.base import StepResult
from vecenv.engines import EngineRequest
from vecenv.envpool_arrays import PoolArrays, own_infos
from vecenv.envpool_tasks import Task, task_of
from vecenv.native_batch import EngineBatch
from vecenv.native_engine import NativeVecEnv
from vecenv.native_request import THREAD_OPTIONS, affinity_of, engine_seeds, num_threads_of
from vecenv.settings import VectorSettings
from vecenv.spaces import map_arrays

Array = npt.NDArray[Any]

OPTIONS = THREAD_OPTIONS

CAPABILITIES = {
    "NextStep": "native",
    "SameStep": "emulated",
    "Disabled": "emulated",
    "partial reset": "native",
    "per-env seeds": "emulated",
    "batch_size": "native",
    "statistics": "emulated",
    "copy=False": "emulated",
    "out=": "emulated",
    "get_state": "refused",
    "call": "refused",
    "set_attr": "refused",
    "render": "native",
    "per_env_kwargs": "refused",
    "wrappers": "refused",
    "worker restart": "refused",
    "custom spaces": "refused",
}


def make_envs(request: EngineRequest) -> EnvPoolVecEnv:
    """Build envs in EnvPool.

    Raises:
        MissingExtra: EnvPool is not installed.
        UnknownSetting: EnvPool does not have the env, or the env does not have a setting.
        NotImplementedError: what EnvPool cannot do; the message names it.
    """
    task = task_of(request)
    settings = VectorSettings.checked(**request.settings)
    threads = num_threads_of(request, "envpool")
    return EnvPoolVecEnv(task, request.num_envs, settings, threads, affinity_of(request))


class EnvPoolVecEnv(NativeVecEnv):
    """Envs in EnvPool.

    Args:
        task: what EnvPool builds.
        num_envs: how many of it.
        settings: of the vector env.
        num_threads: of the engine.
        thread_affinity_offset: core of the first thread, -1: not bound.

    Raises:
        NotImplementedError: an autoreset mode that EnvPool cannot do together with the other settings.
    """

    engine = "envpool"
    _keeps_observations = True

    def __init__(
        self,
        task: Task,
        num_envs: int,
        settings: VectorSettings,
        num_threads: int,
        thread_affinity_offset: int = -1,
    ) -> None:
        batch_size = settings.checked_batch_size(num_envs)
        self._whole = batch_size == num_envs
        # EnvPool gives nothing out until a batch is full, so whole resets and steps must be made of full batches.
        self._group = math.gcd(num_envs, batch_size)
        self._plays_lives = task.config is not None and task.config.episodic_life
        if settings.autoreset_mode is not AutoresetMode.NEXT_STEP:
            self._check_partial_resets(f"autoreset_mode={settings.autoreset_mode.value!r}")
        self.config = task.config
        self._clips_rewards = task.config is not None and task.config.clip_reward
        self._pool: Any = None
        self._pool_arrays: PoolArrays
        self._task = task
        self._arguments = {
            **task.arguments,
            "num_envs": num_envs,
            "batch_size": self._group,
            "num_threads": num_threads,
            "thread_affinity_offset": thread_affinity_offset,
        }
        self._prepare(settings, num_envs, task.observation_space, task.action_space, task.render_mode)
        self._steps_at_once = self._whole

    def _check_partial_resets(self, what: str) -> None:
        if self._plays_lives:
            raise NotImplementedError(
                f"backend='envpool' cannot do {what} with episodic_life=True: a reset of single envs would restart the "
                "whole game"
            )
        if not self._whole:
            raise NotImplementedError(
                f"backend='envpool' cannot do {what} with batch_size below num_envs: a reset of single envs would "
                "return rows of others"
            )

    def _build_pool(self, seeds: list[int]) -> None:
        import envpool

        self._started = False  # and so it stays if a Ctrl-C comes before the reset that follows
        self._pool = None  # the one before lets go of its envs first
        keywords = dict(self._arguments)
        if self._task.render_mode is not None:
            keywords["render_mode"] = self._task.render_mode
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pool rounds the bounds of its space to float32
            pool = envpool.make(self._task.name, env_type="gymnasium", seed=seeds, **keywords)
            pool.observation_space  # noqa: B018  asked for at every batch, computed at the first
        self._pool, self._pool_arrays = pool, PoolArrays(pool, self._arrays.actions)

    # -- resets ------------------------------------------------------------------------------------------------------

    def _check_reset_options(self, options: dict[str, Any] | None) -> None:
        # Atari games of this package have the option new_game=True, which is what EnvPool always does.
        if options == {"new_game": True} and self.config is not None:
            return
        super()._check_reset_options(options)

    def _kept_in_fork(self) -> list[Any]:
        return [self._pool]

    def _engine_reset(self, seeds: list[int | None], rows: list[int] | None) -> tuple[Any, dict[str, Any]]:
        if rows is not None:
            return self._reset_some(seeds, rows)
        self._seed(seeds)
        if not self._whole:
            self._calls.send(self._pool._reset, self._pool.all_env_ids)
            batch = self._gather()
            return batch.observations, batch.infos
        observations, infos = self._exchange(self._pool.reset)
        return observations, own_infos(infos)

    def _exchange(self, function: Any, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Call a function of the pool that sends and receives.

        A Ctrl-C between the two leaves results in the pool, which every later call would be one behind of. The envs
        then count as never reset: a step is refused, and the next reset builds another pool.
        """
        started, self._started = self._started, False
        results: tuple[Any, dict[str, Any]] = function(*arguments)
        self._started = started
        return results

    def _seed(self, seeds: list[int | None]) -> None:
        """Build the pool where it is not there, or not with these seeds.

        Raises:
            NotImplementedError: seeds for some envs only, after the first reset.
        """
        if self._started and all(seed is None for seed in seeds):
            return
        known = [seed for seed in engine_seeds(seeds, unseeded=not self._started) if seed is not None]
        if len(known) < self.num_envs:
            raise NotImplementedError("backend='envpool' seeds all envs or none: None beside seeds is not there")
        self._build_pool(known)
        self._note_engine_seeds(known, range(self.num_envs))

    def _reset_some(self, seeds: list[int | None], rows: list[int]) -> tuple[Any, dict[str, Any]]:
        self._check_partial_resets("reset_mask")
        if any(seeds[row] is not None for row in rows):
            raise NotImplementedError("backend='envpool' seeds all envs or none: reset_mask with seeds is not there")
        part, infos = self._exchange(self._pool.reset, np.array(rows, np.int32))
        observations = map_arrays(self.observations, np.copy)
        _put_rows(observations, rows, part)
        return observations, _spread(own_infos(infos), rows, self.num_envs)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _engine_send(self, actions: Any) -> None:
        self._calls.send(self._pool._send, self._pool_arrays.of_actions(self._pool, actions))

    def _engine_receive(self) -> EngineBatch:
        if not self._whole:
            return self._gather()
        return super()._engine_receive()

    def _receive_raw(self) -> Any:
        return self._calls.receive(self._pool._recv)[0]

    def _read_batch(self, raw: Any) -> EngineBatch:
        batch = self._pool_arrays.batch(raw)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            ended = np.flatnonzero(batch.terminations | batch.truncations)
            if len(ended):
                return self._reset_ended(batch, ended)
        return batch

    def _reset_ended(self, batch: EngineBatch, rows: Array) -> EngineBatch:
        """Begin the next episode of rows, in place."""
        final_observations = map_arrays(batch.observations, np.copy)
        final_infos = map_arrays(batch.infos, np.copy)
        part, infos = self._exchange(self._pool.reset, rows.astype(np.int32))
        _put_rows(batch.observations, rows, part)
        _put_rows(batch.infos, rows, own_infos(infos))
        return batch._replace(final_observations=final_observations, final_infos=final_infos)

    def _games_over(self, batch: EngineBatch) -> Array:
        if not self._plays_lives:
            return super()._games_over(batch)
        game_over: Array = batch.infos["terminated"] != 0
        return game_over | batch.truncations

    def _plain_parts(self, raw: Any) -> tuple[Any, Array, Any] | None:
        return self._pool_arrays.plain_parts(raw)

    def _info_places(self) -> dict[str, Any]:
        return self._pool_arrays.info_places

    # -- batches as envs finish --------------------------------------------------------------------------------------

    def _gather(self) -> EngineBatch:
        """Receive all envs, which are all outstanding, and put them into env order."""
        parts, order = [], []
        for states in self._calls.receive(self._pool._recv, self.num_envs // self._group):
            order.append(self._pool_arrays.env_ids(states))
            parts.append(self._pool_arrays.batch(states))
        places = np.argsort(np.concatenate(order))
        return _joined(parts, places)

    def _send_rows(self, rows: list[int], wide: bool) -> None:
        if self._whole:
            return
        self._replace_ignored_actions()
        self._pool.send(map_arrays(self._arrays.actions, lambda array: array[rows]), np.array(rows, np.int32))

    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        super()._send_row_resets(rows, seeds, options)
        if self._whole:
            return
        self._sent_resets = None
        self._seed(seeds)
        self._started = True
        self._begin_rows(slice(None))
        self._only_reset[:] = True
        self._pool.async_reset()

    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        if self._whole:
            return super()._receive_rows(outstanding, count, timeout)
        parts, rows = [], []
        for states in self._calls.receive_next(self._pool._recv, count // self._group):
            rows += self._pool_arrays.env_ids(states).tolist()
            parts.append(self._pool_arrays.batch(states))
        self._row_batch = parts[0] if len(parts) == 1 else _joined(parts, slice(None))
        _put_rows(self.observations, rows, self._row_batch.observations)
        return rows

    def _rows_result(self, rows: list[int], out: Any) -> StepResult:
        return super()._rows_result(rows, out) if self._whole else self._rows_of_batch(rows, out)

    def _drop_outstanding(self) -> None:
        if not self._whole and self._outstanding:
            count = len(self._outstanding)
            if count % self._group:
                raise NotImplementedError(
                    f"backend='envpool' gives out batches of {self._group} envs and cannot drop the {count} that are "
                    "outstanding; send to more of them and receive them first"
                )
            self._calls.receive_next(self._pool._recv, count // self._group)
            self._only_reset[:] = False
        super()._drop_outstanding()

    # -- the rest ----------------------------------------------------------------------------------------------------

    def render(self) -> tuple[Any, ...] | None:
        """The frames of all envs, `[height, width, 3] uint8` each.

        Raises:
            NotImplementedError: built without ``render_mode="rgb_array"``.
            ResetNeeded: before the first reset.
        """
        self._check_open("render")
        if self.render_mode is None:
            self._refuse("render", "it was built without render_mode='rgb_array'")
        self._check_not_outstanding("render", range(self.num_envs))
        if self._pool is None:
            raise ResetNeeded("render: call reset first")
        return tuple(self._pool.render(np.arange(self.num_envs, dtype=np.int32)))

    def close_extras(self, **kwargs: Any) -> None:
        """Let the engine go; its threads end with it, arrays that it gave stay valid.

        Args:
            kwargs: accepted and ignored, as Gymnasium does.
        """
        self._pool = None


def _joined(parts: list[EngineBatch], places: Any) -> EngineBatch:
    """One batch out of several, its rows taken from `places` of the joined ones."""

    def join(values: Any) -> Any:
        if isinstance(values[0], dict):
            return {key: join([value[key] for value in values]) for key in values[0]}
        return np.concatenate(values)[places]

    return EngineBatch(*(join(values) for values in list(zip(*parts, strict=True))[:5]))


def _put_rows(target: Any, rows: Any, part: Any) -> None:
    """Write the rows of a smaller nest of arrays into a larger one, in place."""
    if isinstance(target, dict):
        for key, values in part.items():
            _put_rows(target[key], rows, values)
    else:
        target[rows] = part


def _spread(infos: dict[str, Any], rows: list[int], num_envs: int) -> dict[str, Any]:
    """Infos of some rows as infos of all, zero elsewhere."""
    spread = map_arrays(infos, lambda array: np.zeros((num_envs, *array.shape[1:]), array.dtype))
    _put_rows(spread, rows, infos)
    result: dict[str, Any] = spread
    return result
