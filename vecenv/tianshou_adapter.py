"""Tianshou's vector env interface over a vector env of this package."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from multiprocessing import TimeoutError
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import AutoresetMode

from vecenv.arguments import check_positive_int, seeds_of
from vecenv.base import VecEnv
from vecenv.env_access import EnvAccess, named_envs
from vecenv.errors import EnvError, MissingExtra
from vecenv.per_env import batch_of_actions, split_infos
from vecenv.send_recv import SendRecvVecEnv
from vecenv.spaces import row_of

try:
    from tianshou.env import BaseVectorEnv
except ModuleNotFoundError as error:
    if error.name != "tianshou":
        raise
    raise MissingExtra("tianshou", "tianshou") from error

_NOT_BY_ROW = "need the sync, subproc or ray back end; this engine steps all envs at once"
Ids = int | Sequence[int] | npt.NDArray[Any] | None


class _Row(NamedTuple):
    """What one env answered."""

    env_id: int
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class VectorEnvAdapter(BaseVectorEnv):
    """Any of our vector envs as Tianshou wants them: env ids at every call, an array of info dicts, no autoreset.

    Args:
        envs: a vector env with autoreset mode DISABLED; closed by `close`. Steps of some of its envs, and
            asynchronous ones, need the sync, subproc or ray back end.
        wait_num: how many envs a step waits for; None: all that were sent.
        timeout: seconds after which a step returns what is there, if anything is; None: no limit.
        addressable: whether its envs are `AddressableEnv`, so that some of them can be asked alone.

    Attributes:
        vector_env: the vector env.
        is_async: whether a step may return fewer envs than were sent.
        waiting_id: envs that are stepping.
        ready_id: the others.
        action_space: one per env, always the same objects; `seed` seeds them.

    Raises:
        TypeError: `envs` is none of our vector envs, or a number is none.
        ValueError: another autoreset mode, or a number out of range.
        NotImplementedError: `wait_num` or `timeout` on an engine that steps all envs at once.
    """

    def __init__(
        self, envs: VecEnv, wait_num: int | None = None, timeout: float | None = None, addressable: bool = False
    ) -> None:
        if not isinstance(envs, VecEnv):
            raise TypeError(f"envs: expected a vector env of this package, got {envs!r}")
        if envs.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"envs: Tianshou begins episodes itself, got {envs.autoreset_mode}; build the vector env with "
                "autoreset_mode='Disabled'"
            )
        self.vector_env = envs
        self.env_num = envs.num_envs
        self.wait_num, self.timeout = checked_waiting(wait_num, timeout, envs.num_envs)
        self.is_async = self.wait_num != self.env_num or timeout is not None
        # The same vector env, if its envs can be stepped alone.
        self._by_row = envs if isinstance(envs, SendRecvVecEnv) and envs.steps_rows_alone else None
        if self.is_async and self._by_row is None:
            raise NotImplementedError(f"wait_num and timeout {_NOT_BY_ROW}")
        self.waiting_id: list[int] = []
        self.ready_id = list(range(self.env_num))
        self.is_closed = False
        self._early: dict[int, _Row] = {}  # steps that were finished while resets were waited for
        self._access = EnvAccess(envs, addressable)
        self._action_spaces = [copy.deepcopy(envs.single_action_space) for _ in range(self.env_num)]

    # -- episodes ----------------------------------------------------------------------------------------------------

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Begin new episodes in some envs.

        Args:
            env_id: the envs; None: all.
            kwargs: ``seed``, the same for each of them, and ``options``.

        Returns:
            observations: `[len(env_id), ...]`; an object array of dicts where observations are dicts.
            infos: `[len(env_id)]` object array of dicts.

        Raises:
            AlreadyPendingCallError: one of them is stepping.
            TypeError: observations are tuples, which Tianshou does not take; or another keyword.
        """
        ids = self._ready(env_id, "reset")
        unknown = set(kwargs) - {"seed", "options"}
        if unknown:
            raise TypeError(f"reset: the keywords are seed and options, got {', '.join(sorted(unknown))}")
        if isinstance(self.vector_env.single_observation_space, gym.spaces.Tuple):
            raise TypeError("reset: Tianshou takes no tuples as observations; make them arrays or dicts")
        seed = kwargs.get("seed")
        return self._reset(ids, None if seed is None else [seed] * self.env_num, kwargs.get("options"))

    def _reset(
        self, ids: list[int], seeds: Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        envs = self.vector_env
        if len(set(ids)) < self.env_num:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            options = {**(options or {}), "reset_mask": mask}
        if self.waiting_id and self._by_row is not None:
            self._by_row.send_reset(seed=seeds, options=options)
            rows = self._receive_these(set(ids))
            return self._stacked([rows[env_id].observation for env_id in ids]), _objects([rows[i].info for i in ids])
        observations, infos = envs.reset(seed=seeds, options=options)
        dicts = split_infos(infos, self.env_num)
        return self._chosen(observations, ids), _objects([dicts[env_id] for env_id in ids])

    def step(self, action: Any, id: Ids = None) -> Any:
        """Step some envs.

        Args:
            action: one per env named. None, where steps are asynchronous: send nothing, fetch what is finished.
            id: the envs; None: all.

        Returns:
            observations, rewards (float64), terminated, truncated and infos (dicts with ``env_id``) of these envs, in
            their order; of those that are finished, in the order of finishing, where steps are asynchronous.

        Raises:
            ValueError: no or another number of actions.
            AlreadyPendingCallError: one of them is stepping already.
        """
        if action is None:
            self._check_not_closed("step")
            if not self.is_async:
                raise ValueError("step: expected actions; only asynchronous steps (wait_num, timeout) go without")
            return self._result(self._gather())
        ids = self._ready(id, "step")
        if len(action) != len(ids):
            raise ValueError(f"step: expected {len(ids)} actions, one per environment named, got {len(action)}")
        batch = batch_of_actions(self.vector_env.single_action_space, _plain(action))
        if self.is_async:
            self._send(batch, ids)
            return self._result(self._gather())
        if ids == list(range(self.env_num)):
            observations, rewards, terminations, truncations, infos = self.vector_env.step(batch)
            dicts = split_infos(infos, self.env_num)
            for env_id, info in enumerate(dicts):
                info["env_id"] = env_id
            return self._chosen(observations, None), rewards, terminations, truncations, _objects(dicts)
        self._send(batch, ids)
        rows = self._receive_these(set(ids))
        self._settle(ids)
        return self._result([rows[env_id] for env_id in ids])

    # -- rows --------------------------------------------------------------------------------------------------------

    def _send(self, batch: Any, ids: list[int]) -> None:
        if self._by_row is None:
            raise NotImplementedError(f"steps of some envs {_NOT_BY_ROW}")
        # Not all at once, even if it is all: those answer in env order, and together.
        self._by_row.batch_size = 1
        self._by_row.send(batch, ids)
        self.waiting_id += ids
        self.ready_id = [env_id for env_id in self.ready_id if env_id not in ids]

    def _settle(self, ids: Sequence[int]) -> None:
        self.waiting_id = [env_id for env_id in self.waiting_id if env_id not in ids]
        self.ready_id += [env_id for env_id in ids if env_id not in self.ready_id]

    def _receive(self, count: int, timeout: float | None = None) -> list[_Row]:
        """Wait for some rows, the first to finish first."""
        envs: Any = self.vector_env
        envs.batch_size = count
        try:
            observations, rewards, terminations, truncations, infos = envs.recv(timeout)
        except EnvError as error:
            failed = [failure.env_index for failure in error.failures]
            self._settle(failed if self.is_async else list(self.waiting_id))  # a reset drops what is not fetched
            raise
        return [
            _Row(
                info["env_id"],
                row_of(observations, place),
                rewards[place],
                terminations[place],
                truncations[place],
                info,
            )
            for place, info in enumerate(split_infos(infos, count))
        ]

    def _receive_these(self, ids: set[int]) -> dict[int, _Row]:
        """Wait for certain rows; steps of others that are finished meanwhile are kept for `_gather`.

        Where others are stepping, what an env raises is raised once all of these rows are there: those that were left
        would be taken for steps.
        """
        rows: dict[int, _Row] = {}
        failure: EnvError | None = None
        while missing := len(ids) - len(rows):
            try:
                for row in self._receive(missing if len(self.waiting_id) == len(ids) else 1):
                    (rows if row.env_id in ids else self._early)[row.env_id] = row
            except EnvError as error:
                if not self.is_async:
                    raise
                failure = error if failure is None else failure
                ids = ids.difference(failed.env_index for failed in error.failures)
        if failure is not None:
            raise failure
        return rows

    def _gather(self) -> list[_Row]:
        """Rows of asynchronous steps: `wait_num` of them, or those that are there when the time is over."""
        wanted = min(self.wait_num, len(self.waiting_id))
        rows = [self._early.pop(env_id) for env_id in list(self._early)[:wanted]]
        try:
            self._gather_into(rows, wanted)
        except BaseException:  # they are for the next step: their envs are still waiting
            self._early = {row.env_id: row for row in rows} | self._early
            raise
        self._settle([row.env_id for row in rows])
        return rows

    def _gather_into(self, rows: list[_Row], wanted: int) -> None:
        end = None if self.timeout is None else time.monotonic() + self.timeout
        while len(rows) < wanted:
            try:
                if end is None:
                    rows += self._receive(wanted - len(rows))
                else:  # without any row the time does not count: an answer holds at least one
                    rows += self._receive(1, max(0.0, end - time.monotonic()) if rows else None)
            except TimeoutError as error:
                if isinstance(error, EnvError):  # an env has raised it
                    raise
                return

    def _result(self, rows: list[_Row]) -> tuple[npt.NDArray[Any], ...]:
        for row in rows:
            row.info["env_id"] = row.env_id
        return (
            self._stacked([row.observation for row in rows]),
            np.array([row.reward for row in rows], np.float64),
            np.array([row.terminated for row in rows], np.bool_),
            np.array([row.truncated for row in rows], np.bool_),
            _objects([row.info for row in rows]),
        )

    def _stacked(self, observations: list[Any]) -> npt.NDArray[Any]:
        space = self.vector_env.single_observation_space
        if isinstance(space, gym.spaces.Dict) or space.shape is None:
            return _objects(observations)
        return np.stack(observations) if observations else np.empty((0, *space.shape), space.dtype)

    def _chosen(self, observations: Any, ids: list[int] | None) -> npt.NDArray[Any]:
        """Rows of a whole batch; None: all."""
        if isinstance(observations, np.ndarray):
            return observations if ids is None else observations[ids]
        rows = range(self.env_num) if ids is None else ids
        return self._stacked([row_of(observations, row) for row in rows])

    # -- single envs -------------------------------------------------------------------------------------------------

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """Read an attribute of some envs, through wrappers.

        Raises:
            AttributeError: an env does not have it.
        """
        ids = self._ids(id, "get_env_attr")
        if key == "action_space":
            return [self._action_spaces[env_id] for env_id in ids]
        if key == "observation_space":
            return [self.vector_env.single_observation_space for _ in ids]
        return self._access.read(key, ids)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set an attribute of some envs where it lives; it is set when this returns."""
        self._access.write(key, value, None if id is None else self._ids(id, "set_env_attr"))

    def seed(self, seed: Any = None) -> list[Any]:
        """Begin new episodes in all envs with new seeds, and seed the action spaces.

        Args:
            seed: None, an int s (env i gets s + i) or one per env.

        Returns:
            A list with the seed of each env.
        """
        ids = self._ready(None, "seed")
        seeds = seeds_of(seed, self.env_num)
        self._reset(ids, seeds, None)
        for space, own in zip(self._action_spaces, seeds, strict=True):
            space.seed(own)
        return [[own] for own in seeds]

    def render(self, **kwargs: Any) -> list[Any]:
        """What the envs' own `render` gives."""
        self._ready(None, "render")
        return self._access.call("render", (), kwargs)

    def close(self) -> None:
        """Close the envs; a second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self.vector_env.close()

    # -- env ids -----------------------------------------------------------------------------------------------------

    def _check_not_closed(self, doing: str) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"`{doing}` was called after `close`")

    def _ids(self, ids: Ids, doing: str) -> list[int]:
        self._check_not_closed(doing)
        return named_envs(ids, self.env_num)

    def _ready(self, ids: Ids, doing: str) -> list[int]:
        """The envs named, none of which may be stepping."""
        chosen = self._ids(ids, doing)
        stepping = [env_id for env_id in chosen if env_id in self.waiting_id]
        if stepping:
            raise AlreadyPendingCallError(
                f"`{doing}` was called for environments {stepping}, which are stepping; ready are {self.ready_id}",
                "step",
            )
        return chosen


def checked_waiting(wait_num: int | None, timeout: float | None, num_envs: int) -> tuple[int, float | None]:
    """Read `wait_num` and `timeout` of `VectorEnvAdapter`.

    Raises:
        TypeError, ValueError: a number that does not fit.
    """
    if wait_num is not None and check_positive_int("wait_num", wait_num) > num_envs:
        raise ValueError(f"wait_num: expected at most {num_envs}, the number of environments, got {wait_num}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a positive number of seconds or None, got {timeout!r}")
    return wait_num or num_envs, timeout


def _plain(action: Any) -> Any:
    """Actions as arrays or sequences of them; a tensor lives where NumPy can see it, or comes over."""
    return action.detach().cpu().numpy() if hasattr(action, "detach") else action


def _objects(items: Sequence[Any]) -> npt.NDArray[Any]:
    """`[len(items)]` object array."""
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array
