"""`send` and `recv`: part of the environments at a time, in the order in which they finish."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode

from vecenv.arguments import env_ids_of, out_like, seeds_of, split_reset_mask
from vecenv.base import StepResult, VecEnv
from vecenv.infos import Infos, add_info
from vecenv.observations import batch_observations
from vecenv.spaces import copy_arrays, map_arrays
from vecenv.statistics import EpisodeStatistics, add_episode_infos


class SendRecvVecEnv(VecEnv):
    """A `VecEnv` whose environments can be stepped one by one.

    An env that was sent an action is outstanding until `recv` has returned its row. `step` needs all envs back first;
    `reset` waits for what is outstanding and drops it.

    Attributes:
        steps_rows_alone: whether envs step as they are sent, whatever the others do, so that `batch_size` may be set
            anew between calls. Engines that step whole batches wait for all.
    """

    steps_rows_alone = True

    # -- what users call -------------------------------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Start steps of some envs; `recv` gives results as they are finished.

        Args:
            actions: `[len(env_ids), ...]`, one action per env named.
            env_ids: indices of envs that are not outstanding. None: the envs that were received last.

        Raises:
            AlreadyPendingCallError: a row, or a call that was started with ``_async``, is outstanding.
            TypeError, ValueError: something does not fit; nothing was sent.
        """
        self._check_open("send")
        rows = env_ids_of(self._received if env_ids is None else env_ids, self.num_envs)
        self._check_not_outstanding("send", rows)
        self._check_idle("send")
        self._check_can_step("send", rows)
        if self.batch_size == self.num_envs and rows == list(range(self.num_envs)):
            self._begin_step(actions)
            self._whole_sent = True
            return
        wide = self._take_actions(actions, rows)
        self._send_rows(rows, wide)
        self._outstanding.update(dict.fromkeys(rows))

    def send_reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset of every env; `recv` gives first observations as they are ready.

        Args:
            seed: as for `reset`; the one of the constructor is used up as soon as it is sent.
            options: as for `reset`; ``reset_mask`` selects envs that are not outstanding.
        """
        self._check_open("send_reset")
        seed = self._first_seed if seed is None else seed
        seeds = seeds_of(seed, self.num_envs)
        selected, options = split_reset_mask(options, self.num_envs)
        rows = list(range(self.num_envs)) if selected is None else np.flatnonzero(selected).tolist()
        self._check_not_outstanding("send_reset", rows)
        self._check_idle("send_reset")
        self._send_row_resets(rows, seeds, options)
        self._note_seeds(seed, seeds, rows)
        self._first_seed = None
        self._outstanding.update(dict.fromkeys(rows))
        self._failed.difference_update(rows)
        self._done[rows] = False

    #: EnvPool's name for `send_reset`.
    async_reset = send_reset

    def recv(self, timeout: float | None = None, out: Any = None) -> StepResult:
        """Wait for the first `batch_size` envs to finish what was sent.

        Args:
            timeout: seconds; nothing is lost when they are over.
            out: array (or nest of arrays) to write the observations into.

        Returns:
            As `step`, with `batch_size` rows in the order in which the envs finished (in env order where `batch_size`
            is `num_envs`); ``infos["env_id"]``, `[batch_size] int64`, says whose they are. The caller's own, but for
            observations of a batch that was sent whole with ``copy=False``.

        Raises:
            NoAsyncCallError: fewer than `batch_size` envs are outstanding.
            multiprocessing.TimeoutError: the time is over.
            EnvError: an env raised; the others stay to be received. Reset the failed one to go on.
        """
        self._check_open("recv")
        self._check_out(out, self.batch_size)
        if self._whole_sent:
            result = self._end_step(timeout, out)
            self._received = list(range(self.num_envs))
            result[4]["env_id"] = np.arange(self.num_envs)
            result[4]["_env_id"] = np.ones(self.num_envs, np.bool_)
            return result
        if len(self._outstanding) < self.batch_size:
            raise NoAsyncCallError(
                f"`recv` needs {self.batch_size} outstanding environments (batch_size), there are "
                f"{len(self._outstanding)}; send to more first",
                "send",
            )
        rows = self._receive_rows(list(self._outstanding), self.batch_size, timeout)
        if self.batch_size == self.num_envs:
            rows.sort()
        return self._rows_result(rows, out)

    def _check_idle(self, doing: str) -> None:
        """Refuse a call while another one that was started with ``_async`` is pending, where there are such calls."""

    # -- what back ends fill in --------------------------------------------------------------------------------------

    @abstractmethod
    def _send_rows(self, rows: list[int], wide: bool) -> None:
        """Start steps of single rows."""

    @abstractmethod
    def _send_row_resets(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        """Start resets of single rows."""

    @abstractmethod
    def _receive_rows(self, outstanding: list[int], count: int, timeout: float | None) -> list[int]:
        """Wait until `count` of the outstanding rows are finished and give those, the first to finish first."""

    @abstractmethod
    def _row_infos(self, row: int) -> dict[str, Any]:
        """Take the info of a finished row.

        Raises:
            EnvError: the row's env raised.
        """

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _drop_outstanding(self) -> Exception | None:
        """See `VecEnv`; of rows that a mask leaves out, what they came to is noted: a failure, or an end."""
        failure: Exception | None = None
        if self._outstanding:
            rows = self._receive_rows(list(self._outstanding), len(self._outstanding), None)
            for row in rows:
                try:
                    self._row_infos(row)
                except Exception as error:
                    self._failed.add(row)
                    failure = error if failure is None else failure
            self._note_ends(rows)
            self._outstanding, self._taken_infos = {}, {}
        return failure

    def _infos_of_rows(self, rows: list[int]) -> Infos:
        """The infos of finished rows, in order; the first env that raised is raised, and is outstanding no more."""
        taken, infos = self._taken_infos, Infos()
        for row in rows:
            if row in taken:
                continue
            try:
                taken[row] = self._row_infos(row)
            except Exception:
                self._failed.add(row)
                self._outstanding.pop(row)
                self._give_back([other for other in rows if other != row])
                raise
        for place, row in enumerate(rows):
            add_info(infos, taken.pop(row), place, len(rows))
        return infos

    def _give_back(self, rows: list[int]) -> None:
        """Take back finished rows that `_receive_rows` has given, to give them again: another one of them failed."""

    def _rows_result(self, rows: list[int], out: Any) -> StepResult:
        """Put the results of single rows together."""
        arrays, count = self._arrays, len(rows)
        infos = self._infos_of_rows(rows)
        for row in rows:
            self._outstanding.pop(row)
        self._received = rows
        if self._objects is not None:
            observations = batch_observations(self.single_observation_space, [self._objects[row] for row in rows])
        else:
            observations = map_arrays(self._arrays.observations, lambda array: array[self.slot][rows])
        if out is not None:
            copy_arrays(out_like(out, observations), observations)
            observations = out
        terminations, truncations = arrays.terminations[rows], arrays.truncations[rows]
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._add_final_observations(infos, rows)
        else:
            self._done[rows] = terminations | truncations
        if self.settings.statistics and arrays.episode_ended[rows].any():
            add_episode_infos(infos, arrays.episode_ended[rows], EpisodeStatistics.of(arrays, rows))
        infos["env_id"], infos["_env_id"] = np.array(rows), np.ones(count, np.bool_)
        return observations, arrays.rewards[rows], terminations, truncations, infos
