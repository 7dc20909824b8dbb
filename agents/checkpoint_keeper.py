"""Which checkpoints a run keeps, what is in them, and how a run goes on from one."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from gymnasium.error import AlreadyPendingCallError

from vecenv import VecEnv
from vecenv.errors import EnvError, UnknownSetting, WorkerDied

from .algorithms import find_algorithm, run_config_from_dict
from .checkpoint import CheckpointError, load_checkpoint, save_checkpoint, to_plain
from .config import RunConfig
from .env_states import pack_states, unpack_states
from .learner import KeepsFiles, Learner
from .run_directory import RunDirectory, versions
from .stopping import EpisodeWindow

REQUIRED: dict[str, tuple[type, ...]] = {
    "run": (dict,),
    "spaces": (dict,),
    "learner": (dict,),
    "window": (dict,),
    "seconds": (float, int),
    "best_mean_return": (float, int, NoneType),
    "has_files": (bool,),
    "env_states": (list, NoneType),
}
"""What the checkpoint of a run must hold, and as what."""
MISFITS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)
"""What states that belong to something else raise while they are taken apart."""


def load_run(path: Path) -> tuple[RunConfig, dict[str, Any]]:
    """Settings and content of the checkpoint at ``path``, or of the ``checkpoint.pt`` of a run's folder.

    Raises:
        CheckpointError: it cannot be read, or is not one of a run.
        UnknownSetting: its settings are not of this version.
    """
    checkpoint = load_checkpoint(path)
    missing = [name for name in REQUIRED if name not in checkpoint]
    if missing:
        raise CheckpointError(f"{path} is not the checkpoint of a run: there is no {', '.join(missing)} in it")
    odd = [name for name, kinds in REQUIRED.items() if not isinstance(checkpoint[name], kinds)]
    if odd:
        raise CheckpointError(f"{path} is not the checkpoint of a run: its {', '.join(odd)} cannot be read")
    return run_config_from_dict(checkpoint["run"]), checkpoint


def describe_misfit(error: Exception) -> str:
    """What does not fit, in one line; torch lists every tensor, a `KeyError` says the name alone."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (RuntimeError, ValueError)) else f"{type(error).__name__}: {text}"


def describe_spaces(envs: VecEnv) -> dict[str, str]:
    """The spaces of one environment as text, to be compared with those of another run."""
    return {"observations": str(envs.single_observation_space), "actions": str(envs.single_action_space)}


def check_spaces(checkpoint: dict[str, Any], envs: VecEnv) -> None:
    """Refuse a checkpoint of other spaces.

    Raises:
        CheckpointError: one sentence with both.
    """
    env_id = "the environment" if envs.spec is None else envs.spec.id
    for name, here in describe_spaces(envs).items():
        there = checkpoint["spaces"].get(name)
        if there != here:
            raise CheckpointError(f"the checkpoint is for {name} {there}, but those of {env_id} are {here}")


class Due(NamedTuple):
    """What is to be done after an update."""

    best: bool
    """The returns are better than ever: keep this state."""
    last: bool
    """It is time for ``checkpoint.pt``."""


class CheckpointKeeper:
    """Writes ``checkpoint.pt``, the last state of a run, and ``best.pt``, the one with the best mean return.

    The last one holds what is needed to go on bit for bit. The best one is for playing: it leaves out the states of
    environments and files beside the checkpoint. It is kept in memory after every update that is better than all
    before, so that no peak is missed, and written at most every quarter of ``checkpoint_seconds``, before each
    ``checkpoint.pt`` and at the end.

    Where several ranks learn together all of them save at the same time, because each gives its part of the state;
    those without a directory write nothing. Whether to save must then be the word of one of them.
    """

    def __init__(self, config: RunConfig, learner: Learner, window: EpisodeWindow, num_ranks: int = 1) -> None:
        """Keep checkpoints of ``learner``, whose finished episodes are in ``window``; it learns in so many ranks."""
        self._num_ranks = num_ranks
        self._config = config
        self._learner = learner
        self._window = window
        self._last_save = self._last_best = time.perf_counter()
        self._unwritten_best: dict[str, Any] | None = None
        self.best_mean_return: float | None = None
        self.has_env_states = False

    def due(self) -> Due:
        """What is due by the returns and by the clock."""
        return Due(self.is_better, time.perf_counter() - self._last_save >= self._config.checkpoint_seconds)

    def save_when_due(
        self, due: Due, directory: RunDirectory | None, seconds: float, say: Callable[[str], None]
    ) -> None:
        """Keep and write what is due; a disk that is full is reported, and the files of before stay.

        Args:
            due: what :meth:`due` said, on whichever rank decides.
            directory: of the run, None on a rank that writes nothing.
            seconds: how long the run has taken so far.
            say: prints one line.
        """
        if due.best:
            self.keep_best(directory, seconds)
        is_time_for_best = time.perf_counter() - self._last_best >= self._config.checkpoint_seconds / 4
        try:
            if due.last:
                self.save_both(directory, seconds)
            elif is_time_for_best:
                self.write_best(directory)
        except OSError as error:
            self._last_save = self._last_best = time.perf_counter()
            say(f"no checkpoint written ({error}); the one before stays, and the run goes on")

    @property
    def is_better(self) -> bool:
        """Whether a full window of episodes has a better mean return than ever before."""
        mean_return = self._window.mean_return
        if mean_return is None or not self._window.is_full:
            return False
        return self.best_mean_return is None or mean_return > self.best_mean_return

    def save_both(self, directory: RunDirectory | None, seconds: float) -> None:
        """Write ``best.pt`` where it is not up to date, then ``checkpoint.pt``; on all ranks, see the class.

        A rank whose ``best.pt`` fails still gives its part of the last state, because the others are waiting for it;
        it writes no ``checkpoint.pt`` then, which would know of a best return that has no file.

        Raises:
            OSError: one of them could not be written; the old files stay.
        """
        try:
            self.write_best(directory)
        except OSError:
            self.save_last(None, seconds)
            raise
        self.save_last(directory, seconds)

    def save_last(self, directory: RunDirectory | None, seconds: float) -> None:
        """Write ``checkpoint.pt``.

        Raises:
            OSError: it could not be written; the old file stays.
        """
        if directory is not None and isinstance(self._learner, KeepsFiles):
            self._learner.save_files(directory.path)
        packed, reason = self._pack_env_states()
        content = {**self._content(seconds), "env_states": packed, "without_env_states": reason, "has_files": True}
        if directory is None:
            return
        save_checkpoint(directory.checkpoint, content)
        if isinstance(self._learner, KeepsFiles):
            self._learner.remove_old_files(directory.path)
        self._last_save = time.perf_counter()

    def keep_best(self, directory: RunDirectory | None, seconds: float) -> None:
        """Keep a copy of the state as the best one, where :attr:`is_better`; on all ranks, see the class."""
        self.best_mean_return = self._window.mean_return
        reason = "the best checkpoint does not hold the states of its environments"
        content = {**self._content(seconds), "env_states": None, "without_env_states": reason, "has_files": False}
        if directory is not None:
            self._unwritten_best = copy.deepcopy(to_plain(content))

    def write_best(self, directory: RunDirectory | None) -> None:
        """Write ``best.pt``, where there is a best state that is not yet in it.

        Raises:
            OSError: it could not be written; the old file stays, and the state is kept to be written later.
        """
        if directory is None or self._unwritten_best is None:
            return
        save_checkpoint(directory.best, self._unwritten_best)
        self._unwritten_best = None
        self._last_best = time.perf_counter()

    def rescue_best(self, directory: RunDirectory | None) -> None:
        """:meth:`write_best` where a run ends by an error, which is the one to be told."""
        with contextlib.suppress(OSError):
            self.write_best(directory)

    def _content(self, seconds: float) -> dict[str, Any]:
        learner = self._learner
        return {
            "algorithm": self._config.algorithm,
            "run": self._config,
            "spaces": describe_spaces(learner.envs),
            "learner": learner.state_dict(),
            "window": self._window.state_dict(),
            "best_mean_return": self.best_mean_return,
            "seconds": seconds,
            "versions": versions(),
        }

    def _pack_env_states(self) -> tuple[list[dict[str, Any]] | None, str]:
        """States to go on from, or None and why there are none."""
        try:
            states = self._learner.env_states()
        except (WorkerDied, AlreadyPendingCallError):  # the latter where one has died in the middle of a step
            return None, "their workers had ended when they were to be saved"
        except (EnvError, NotImplementedError, TypeError) as error:
            return None, f"not all can be saved: {_first_line(error)}"
        if states is None:
            return None, "their states are not saved where processes of their own play"
        return pack_states(states), ""

    def restore(self, checkpoint: dict[str, Any], folder: Path, *, fresh_envs: bool) -> list[str]:
        """Go on from a checkpoint: learner, window, best return and, where they were saved, environments.

        Args:
            checkpoint: of the same algorithm.
            folder: where it lies, with the files that belong to it.
            fresh_envs: start new episodes in any case, so that no state is unpickled.

        Returns:
            What starts anew, each as one sentence.

        Raises:
            CheckpointError: other spaces, or states that are damaged.
            UnknownSetting: the learner's state does not fit the settings.
        """
        learner = self._learner
        check_spaces(checkpoint, learner.envs)
        self._check_fixed_settings(checkpoint["run"].get("settings", {}))
        try:
            if isinstance(learner, KeepsFiles):
                learner.load_state_dict(checkpoint["learner"], folder if checkpoint["has_files"] else None)
            else:
                learner.load_state_dict(checkpoint["learner"])
            self._window.load_state_dict(checkpoint["window"])
        except UnknownSetting:
            raise
        except MISFITS as error:
            raise UnknownSetting(f"the checkpoint does not fit these settings: {describe_misfit(error)}") from error
        self.best_mean_return = checkpoint["best_mean_return"]
        anew = []
        if isinstance(learner, KeepsFiles) and (sentence := learner.starts_anew()) is not None:
            anew.append(sentence)
        why_new_episodes = self._restore_envs(checkpoint, fresh_envs)
        if why_new_episodes is not None:
            anew.append(f"the environments start new episodes, because {why_new_episodes}")
        return anew

    def _check_fixed_settings(self, before: dict[str, Any]) -> None:
        """Refuse another value of a setting that the state already holds: the new one would silently count nothing."""
        settings = self._config.settings
        for name, counts in find_algorithm(self._config.algorithm).fixed_settings.items():
            now = getattr(settings, name)
            if before.get(name, now) != now and counts(settings):
                raise UnknownSetting(
                    f"{name} cannot be changed in the middle of a run: it was {before[name]!r}, and {now!r} was given"
                )

    def _restore_envs(self, checkpoint: dict[str, Any], fresh_envs: bool) -> str | None:
        """Set the saved states; None, or why there are new episodes instead."""
        num_envs = self._num_ranks * self._learner.envs.num_envs
        if fresh_envs:
            reason: str | None = "--fresh-envs was given"
        elif checkpoint["env_states"] is None:
            reason = checkpoint["without_env_states"]
        elif getattr(self._learner, "plays_elsewhere", False):
            reason = "processes of their own play now"
        elif checkpoint["env_states"] and len(checkpoint["env_states"]) != num_envs:
            reason = f"there were {len(checkpoint['env_states'])} and are {num_envs} now"
        else:
            states = unpack_states(checkpoint["env_states"])
            try:
                self._learner.set_env_states(states)
            except (EnvError, NotImplementedError) as error:
                raise CheckpointError(
                    f"the saved environments cannot be brought back ({_first_line(error)}); --fresh-envs starts new "
                    "episodes"
                ) from error
            self.has_env_states, reason = True, None
        return reason


def _first_line(error: Exception) -> str:
    """What went wrong, without where: of an environment's error, what it said itself."""
    message = error.failures[0].message if isinstance(error, EnvError) else str(error)
    lines = message.splitlines()
    return lines[0] if lines else type(error).__name__
