"""What Stable-Baselines3's Monitor reports and writes, without the import of Stable-Baselines3 and PyTorch.

These classes run in workers, and workers stay small: importing `stable_baselines3` would bring PyTorch into each.
"""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

MONITOR = "stable_baselines3.common.monitor.Monitor"


class EpisodeFile:
    """The CSV file of one env: a line of JSON, a header, one line per episode.

    Args:
        path: of the file; ``monitor.csv`` is put into a folder, or appended to another name.
        header: what the first line tells.
        extra_columns: columns besides return, length and time.
        overwrite: begin anew, else go on with the file that is there.
        begun: when the vector env was asked for, in seconds since the epoch. A file that was begun later is of the same
            env, whose worker has died: it is gone on with.

    Attributes:
        t_start: when it was begun, in seconds since the epoch; the times of its episodes count from there.
    """

    def __init__(
        self,
        path: str,
        header: Mapping[str, Any],
        extra_columns: Sequence[str],
        overwrite: bool,
        begun: float = math.inf,
    ) -> None:
        if not path.endswith("monitor.csv"):
            path = os.path.join(path, "monitor.csv") if os.path.isdir(path) else f"{path}.monitor.csv"
        path = os.path.realpath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.t_start: float = header["t_start"]
        earlier = _start_in(path) if overwrite else None
        if earlier is not None and earlier >= begun:
            self.t_start, overwrite = earlier, False
        self._file = open(path, "w" if overwrite else "a", newline="\n")  # noqa: SIM115 - closed by `close`
        self._rows = csv.DictWriter(self._file, ("r", "l", "t", *extra_columns))
        if overwrite:
            self._file.write(f"#{json.dumps(dict(header))}\n")
            self._rows.writeheader()
        self._file.flush()

    def write(self, episode: Mapping[str, Any]) -> None:
        """Add an episode; it is in the file when this returns."""
        self._rows.writerow(episode)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _start_in(path: str) -> float | None:
    """When a file of episodes was begun, as its first line tells; None: it is no such file."""
    try:
        with open(path) as file:
            start = json.loads(file.readline().removeprefix("#"))["t_start"]
    except (OSError, ValueError, TypeError, KeyError):  # not there, or something else
        return None
    return start if isinstance(start, float) else None


class Monitor(gym.Wrapper[Any, Any, Any, Any]):
    """Reports every ended episode in ``info["episode"] = {"r": return, "l": length, "t": seconds since construction}``.

    Arguments, results and file are those of Stable-Baselines3's wrapper of the same name.

    Args:
        env: the environment.
        filename: of the CSV file; None: no file.
        allow_early_resets: whether a reset may cut an episode short.
        reset_keywords: arguments that every reset must have, for the report.
        info_keywords: infos of an episode's last step, for the report.
        override_existing: whether a file of that name is begun anew.
        begun: see `EpisodeFile`.
    """

    stands_for = (MONITOR,)

    def __init__(
        self,
        env: gym.Env[Any, Any],
        filename: str | None = None,
        allow_early_resets: bool = True,
        reset_keywords: tuple[str, ...] = (),
        info_keywords: tuple[str, ...] = (),
        override_existing: bool = True,
        begun: float = math.inf,
    ) -> None:
        super().__init__(env)
        self.t_start = time.time()
        self.allow_early_resets = allow_early_resets
        self.reset_keywords, self.info_keywords = reset_keywords, info_keywords
        self.rewards: list[float] = []
        self.needs_reset = True
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        self.total_steps = 0
        self.current_reset_info: dict[str, Any] = {}
        self._file: EpisodeFile | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": str(env.spec.id if env.spec is not None else None)}
            self._file = EpisodeFile(filename, header, (*reset_keywords, *info_keywords), override_existing, begun)
            self.t_start = self._file.t_start

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Raises:
            RuntimeError: an episode is running and ``allow_early_resets`` is False.
            ValueError: an argument of `reset_keywords` is missing.
        """
        if not self.allow_early_resets and not self.needs_reset:
            raise RuntimeError("the episode is not over; early resets need Monitor(..., allow_early_resets=True)")
        self.rewards = []
        self.needs_reset = False
        for key in self.reset_keywords:
            if arguments.get(key) is None:
                raise ValueError(f"reset needs the argument {key!r}, which reset_keywords names")
            self.current_reset_info[key] = arguments[key]
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and report the episode if it ends.

        Raises:
            RuntimeError: the episode is over.
        """
        if self.needs_reset:
            raise RuntimeError("the episode is over, or none was begun; call reset first")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(float(reward))
        self.total_steps += 1
        if terminated or truncated:
            self.needs_reset = True
            info["episode"] = self._report(info)
        return observation, reward, terminated, truncated, info

    def _report(self, info: dict[str, Any]) -> dict[str, Any]:
        total, length, seconds = sum(self.rewards), len(self.rewards), time.time() - self.t_start
        self.episode_returns.append(total)
        self.episode_lengths.append(length)
        self.episode_times.append(seconds)
        episode = {"r": round(total, 6), "l": length, "t": round(seconds, 6)}
        episode.update({key: info[key] for key in self.info_keywords})
        episode.update(self.current_reset_info)
        if self._file is not None:
            self._file.write(episode)
        return episode

    def close(self) -> None:
        """Close the env and the file."""
        super().close()
        if self._file is not None:
            self._file.close()

    def get_total_steps(self) -> int:
        """Steps since construction."""
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """Returns of all ended episodes."""
        return self.episode_returns

    def get_episode_lengths(self) -> list[int]:
        """Lengths of all ended episodes, in steps."""
        return self.episode_lengths

    def get_episode_times(self) -> list[float]:
        """When the episodes ended, in seconds since construction."""
        return self.episode_times


@dataclass(frozen=True)
class MonitoredEnv:
    """Constructor of one env as Stable-Baselines3's `make_vec_env` builds it.

    Attributes:
        env_id: spec of a registered env, or a function that builds one.
        env_kwargs: for the env's constructor.
        action_seed: seeds the env's action space; None: it stays as it is.
        monitor_path: of the CSV file, without its ending; None: no file.
        monitor_kwargs: for `Monitor`.
        wrapper_class: applied outside of `Monitor`.
        wrapper_kwargs: for it.
        begun: when it was made, in seconds since the epoch; an env that is built again goes on with its file.
    """

    env_id: EnvSpec | Callable[..., gym.Env[Any, Any]]
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    action_seed: int | None = None
    monitor_path: str | None = None
    monitor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrapper_class: Callable[..., gym.Env[Any, Any]] | None = None
    wrapper_kwargs: Mapping[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.time)

    def __call__(self) -> gym.Env[Any, Any]:
        """Build it; a registered env is asked for pictures if it can be."""
        env = self._bare_env()
        if self.action_seed is not None:
            env.action_space.seed(self.action_seed)
        env = Monitor(env, filename=self.monitor_path, begun=self.begun, **self.monitor_kwargs)
        return env if self.wrapper_class is None else self.wrapper_class(env, **self.wrapper_kwargs)

    def _bare_env(self) -> gym.Env[Any, Any]:
        if not isinstance(self.env_id, EnvSpec):
            return self.env_id(**self.env_kwargs)
        try:
            return gym.make(copy.deepcopy(self.env_id), **{"render_mode": "rgb_array", **self.env_kwargs})
        except TypeError:  # its constructor has no render_mode
            return gym.make(copy.deepcopy(self.env_id), **self.env_kwargs)
