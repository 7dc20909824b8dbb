"""Stable-Baselines3's vector env interface over a vector env of this package."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode

from vecenv.addressable_env import OPTIONS_BY_ENV
from vecenv.base import StepResult
from vecenv.base import VecEnv as VectorEnv
from vecenv.env_access import EnvAccess, named_envs
from vecenv.errors import MissingExtra
from vecenv.infos import info_of_row
from vecenv.per_env import batch_of_actions, split_infos
from vecenv.sb3_monitor import MONITOR
from vecenv.spaces import row_of

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    if error.name != "stable_baselines3":
        raise
    raise MissingExtra("stable-baselines3", "sb3") from error


#: How long `close` waits for a step that was begun.
_CLOSE_SECONDS = 5.0


class VecEnvAdapter(VecEnv):
    """Any of our vector envs as SB3 wants them: 4-tuples, a list of info dicts, reset within the step.

    Args:
        envs: a vector env with autoreset mode SAME_STEP; closed by `close`.
        addressable: whether its envs are `AddressableEnv`, so that some of them can be asked alone.
        adds_episodes: report ended episodes in ``info["episode"]``, where the env does not do so itself.

    Attributes:
        vector_env: the vector env.
        reset_infos: the info of each env's latest reset.
        waiting: whether `step_async` was called and `step_wait` was not.
        closed: whether `close` was called.

    Raises:
        TypeError: `envs` is none of our vector envs.
        ValueError: another autoreset mode.
    """

    def __init__(self, envs: VectorEnv, addressable: bool = False, adds_episodes: bool = False) -> None:
        if not isinstance(envs, VectorEnv):
            raise TypeError(f"envs: expected a vector env of this package, got {envs!r}")
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"envs: SB3 expects a new episode within the step that ends one, got {envs.autoreset_mode}; build the "
                "vector env with autoreset_mode='SameStep'"
            )
        self.vector_env = envs
        self._access = EnvAccess(envs, addressable)
        self._adds_episodes = adds_episodes
        self._episode_counts = envs.episode_statistics().episode_counts if adds_episodes else None
        self._start = time.time()
        self._actions: Any = None
        self.waiting = False
        self.closed = False
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    # -- episodes ----------------------------------------------------------------------------------------------------

    def reset(self) -> Any:
        """Begin new episodes with the seeds and options that `seed` and `set_options` have set.

        Returns:
            Observations, `[num_envs, ...]` or a dict or tuple of such arrays.
        """
        if self.waiting:  # what it gives is worthless now
            with contextlib.suppress(NoAsyncCallError):  # a Ctrl-C came just before it was begun, or after its end
                self.step_wait()
        seeds = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        observations, infos = self._reset_with_options(seeds)
        self.reset_infos = split_infos(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return observations

    def _reset_with_options(self, seeds: list[int | None] | None) -> tuple[Any, dict[str, Any]]:
        options = self._options
        if len(options) != self.num_envs:
            raise ValueError(f"set_options: expected {self.num_envs} dicts, one per environment, got {len(options)}")
        if not any(options):
            return self.vector_env.reset(seed=seeds)
        if self._access.addressable:
            return self.vector_env.reset(seed=seeds, options={OPTIONS_BY_ENV: list(options)})
        if any(own != options[0] for own in options):
            raise NotImplementedError(
                "set_options: one dict per environment is available where this class builds the envs "
                "(vecenv.sb3.SubprocVecEnv); a wrapped vector env takes one dict for all"
            )
        return self.vector_env.reset(seed=seeds, options=dict(options[0]))

    def step_async(self, actions: Any) -> None:
        """Start a step of every env.

        Args:
            actions: `[num_envs, ...]`, or a sequence of one action per env.
        """
        batch = batch_of_actions(self.action_space, actions)
        begin = getattr(self.vector_env, "step_async", None)
        waited, self.waiting = self.waiting, True  # first: a Ctrl-C below may leave a step that was begun
        if begin is None:
            self._actions = batch
            return
        try:
            begin(batch)
        except Exception:
            self.waiting = waited
            raise

    def step_wait(self) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """Wait for `step_async`.

        Returns:
            observations: `[num_envs, ...]`; the first of the next episode where one has ended.
            rewards: `[num_envs] float64`.
            dones: `[num_envs]` bool.
            infos: one dict per env, with ``TimeLimit.truncated``, and ``terminal_observation`` where an episode ended.
        """
        try:
            observations, rewards, terminations, truncations, infos = self._end_step()
        except Exception:  # not after a Ctrl-C, which leaves the step pending
            self.waiting = False
            raise
        self.waiting = False
        dones = terminations | truncations
        return observations, rewards, dones, self._rows(infos, dones, truncations & ~terminations)

    def _end_step(self) -> StepResult:
        wait = getattr(self.vector_env, "step_wait", None)
        if wait is None:
            self.waiting, actions, self._actions = False, self._actions, None  # `step` leaves nothing pending
            if actions is None:
                raise NoAsyncCallError("`step_wait` was called, but `step_async` was not", "step_async")
            return self.vector_env.step(actions)
        result: StepResult = wait()
        return result

    def _rows(self, infos: dict[str, Any], dones: Any, cut_off: Any) -> list[dict[str, Any]]:
        final_observations, final_infos = infos.pop("final_obs", None), infos.pop("final_info", None)
        infos.pop("_final_obs", None)
        final_mask = infos.pop("_final_info", None)
        rows = split_infos(infos, self.num_envs)
        ended = np.flatnonzero(dones).tolist()
        for row in ended:
            first = rows[row]
            last = info_of_row(final_infos, row) if final_mask is not None and final_mask[row] else dict(first)
            for key in ("episode", "worker_restarted"):  # of the episode that ended
                if key in first:
                    last.setdefault(key, first.pop(key))
            last["terminal_observation"] = row_of(final_observations, row)
            rows[row], self.reset_infos[row] = last, first
        if ended and self._adds_episodes:
            self._add_episodes(rows)
        for info, flag in zip(rows, cut_off.tolist(), strict=True):
            info["TimeLimit.truncated"] = flag
        return rows

    def _add_episodes(self, rows: list[dict[str, Any]]) -> None:
        counted = self.vector_env.episode_statistics()
        for row in np.flatnonzero(counted.episode_counts != self._episode_counts).tolist():
            total, length = round(float(counted.last_returns[row]), 6), int(counted.last_lengths[row])
            rows[row].setdefault("episode", {"r": total, "l": length, "t": round(time.time() - self._start, 6)})
        self._episode_counts = counted.episode_counts

    def close(self) -> None:
        """Close the envs; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        wait = getattr(self.vector_env, "step_wait", None)
        if self.waiting and wait is not None:
            with contextlib.suppress(Exception):  # what the step gives is worthless now
                wait(timeout=_CLOSE_SECONDS)
        self.vector_env.close()

    # -- single envs -------------------------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Read an attribute of some envs, through wrappers; a method is not called."""
        return self._access.read(attr_name, self._rows_of(indices))

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute."""
        return self._access.has(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of some envs where it lives (SB3 would hide it behind one of the outermost wrapper)."""
        self._access.write(attr_name, value, None if indices is None else self._rows_of(indices))

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of some envs, through wrappers."""
        rows = None if indices is None else self._rows_of(indices)
        return self._access.call(method_name, method_args, method_kwargs, rows)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether a wrapper of this class (or of one derived from it) is around some envs."""
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        rows = self._rows_of(indices)
        if name == MONITOR and self._adds_episodes:  # what is asked is whether episodes are reported
            return [True for _ in rows]
        return self._access.ask(rows, "is_wrapped", name)

    def get_images(self) -> Sequence[Any]:
        """The pictures of all envs, `[height, width, 3]`; None without ``render_mode="rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"pictures need render_mode='rgb_array', it is {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        return list(self.vector_env.render() or ())

    def _rows_of(self, indices: Any) -> list[int]:
        return named_envs(indices, self.num_envs)
