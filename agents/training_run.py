"""Runs a training from the first step to the last file: envs, learner, metrics, checkpoints, summary."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vecenv
from vecenv import VecEnv
from vecenv.errors import UnknownSetting, WorkerDied

from .algorithms import find_algorithm
from .checkpoint_keeper import CheckpointKeeper
from .config import RunConfig
from .curve import draw_curve
from .display import ProgressDisplay, ProgressFigures
from .distributed import ALONE, ONLY_PLACE, Place, World, find_place
from .health import take_health
from .learner import CollectionInterrupted, UpdateReport
from .metrics import MetricsWriter
from .run_directory import RunDirectory, versions
from .stopping import EpisodeWindow, InterruptFlag, StopReason, StopRule

SECONDS_BETWEEN_HEALTH = 5.0


@dataclasses.dataclass(frozen=True)
class Resume:
    """A checkpoint to go on from.

    Attributes:
        checkpoint: its content.
        folder: where it lies, with the files that belong to it.
        fresh_envs: start new episodes; otherwise the saved states of the environments are unpickled, which runs
            whatever code a forger put there: resume only what you trust.
    """

    checkpoint: dict[str, Any]
    folder: Path
    fresh_envs: bool = False


class TrainingRun:
    """One run of an algorithm: build it, call :meth:`train` once, close it (or use it as a context manager)."""

    def __init__(
        self, config: RunConfig, resume: Resume | None = None, envs: VecEnv | None = None, world: World = ALONE
    ) -> None:
        """Build environments and learner; the clock of the run starts here.

        Args:
            config: the settings.
            resume: where to go on.
            envs: an own vector env in place of the one that ``config`` describes, made with the keywords that the
                algorithm's ``env_settings`` gives; stays the caller's to close.
            world: the ranks that run together; all of them build, train and close at the same time.

        Raises:
            UnknownSetting: for a setting that does not exist or does not fit, a checkpoint included.
            NotImplementedError: for spaces that the algorithm does not know.
        """
        self._started = time.perf_counter()
        self.config = config
        self.algorithm = find_algorithm(config.algorithm)
        self.device = device_of_run(config, world.place)
        self.world = world
        self._at_close = contextlib.ExitStack()
        try:
            self.envs = self._make_envs() if envs is None else envs
            # Torch's threads would take the workers' cores while acting; gradient steps have threads of their own.
            self._at_close.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            options = {"world": world} if world.size > 1 else {}
            self.learner = self.algorithm.learner(
                self.envs, config.settings, seed=config.seed, device=self.device, precision=config.precision, **options
            )
            self._at_close.callback(self.learner.close)
            self.window = EpisodeWindow()
            self.keeper = CheckpointKeeper(config, self.learner, self.window, world.size)
            self.is_resumed = resume is not None
            self.starts_anew: list[str] = []
            self._seconds_before, self._has_env_states = 0.0, False
            if resume is not None:
                self.starts_anew = self.keeper.restore(resume.checkpoint, resume.folder, fresh_envs=resume.fresh_envs)
                self._has_env_states = self.keeper.has_env_states
                self._seconds_before = float(resume.checkpoint["seconds"])
            self._steps_before = self.learner.env_steps
        except BaseException:
            self.close()
            raise

    def _make_envs(self) -> VecEnv:
        config = self.config
        envs = vecenv.make_vec(
            config.env,
            backend=config.backend,
            num_workers=config.num_workers,
            preprocess=config.preprocess,
            **self.algorithm.env_settings(config.settings),
        )
        self._at_close.callback(envs.close)
        return envs

    def __enter__(self) -> TrainingRun:
        """The run itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the environments."""
        self.close()

    def close(self) -> None:
        """Close the environments, end the learner's threads and give torch its own back; may be called again."""
        self._at_close.close()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run since it was built, those before a resume included."""
        return self._seconds_before + time.perf_counter() - self._started

    def train(self, directory: RunDirectory | None, display: ProgressDisplay) -> dict[str, Any]:
        """Train until the target, a limit, Ctrl-C or SIGTERM; write everything into ``directory``.

        Args:
            directory: of the run; None on every rank but the first, which alone writes.
            display: shows progress.

        Returns:
            The summary, as ``summary.json`` holds it.

        Raises:
            FloatingPointError: when the loss is no longer a finite number; ``summary.json`` says so, and the last
                checkpoint from before stays.
            OSError: when the last files cannot be written; those from before stay.
            UnknownSetting: when another training is writing into ``directory``.
            VecEnvError: when an environment or a worker fails.
        """
        with contextlib.ExitStack() as stack:
            if directory is not None:
                stack.enter_context(directory.held())
            interrupt = stack.enter_context(InterruptFlag(among_ranks=self.world.size > 1))
            metrics = None if directory is None else stack.enter_context(self._open_files(directory))
            stack.enter_context(display)
            stack.callback(self.keeper.rescue_best, directory)
            try:
                reason = self._learn(directory, metrics, display, interrupt)
            except FloatingPointError as error:
                if directory is not None:
                    directory.write_json(directory.summary, {**self._summary("not_finite"), "error": str(error)})
                raise
            if self.world.broadcast_object(self.keeper.is_better):
                self.keeper.keep_best(directory, self.seconds)
            self.keeper.save_both(directory, self.seconds)
            summary = self._summary(reason)
            if directory is not None:
                directory.write_json(directory.summary, summary)
                title = f"{self.algorithm.title} on {self.config.env}"
                draw_curve(directory.metrics, directory.curve, title, self.config.solve_at)
            display.update(self._figures(), is_last=True)
            # torchrun may end the others when one has left: rank 0's files come first
            self.world.broadcast_object(None)
        return summary

    def _open_files(self, directory: RunDirectory) -> MetricsWriter:
        directory.write_json(directory.config, dataclasses.asdict(self.config))
        return MetricsWriter(directory.metrics, self.learner.env_steps if self.is_resumed else None)

    def _learn(
        self,
        directory: RunDirectory | None,
        metrics: MetricsWriter | None,
        display: ProgressDisplay,
        interrupt: InterruptFlag,
    ) -> StopReason:
        """The loop: one report of the learner after the other, until there is a reason to stop.

        What depends on a clock is rank 0's word, so that all ranks stop and save in the same update.
        """
        config = self.config
        limit = None if config.max_seconds is None else self._seconds_before + config.max_seconds
        rule = StopRule(config.settings.total_steps, config.solve_at, limit, config.stop_at_steps)
        if not self._has_env_states:
            # A resumed run must not see the episodes of the first one again: its seed follows from how far it is.
            entropy = np.random.SeedSequence((config.seed, self.learner.env_steps))
            self.learner.reset(seed=int(entropy.generate_state(1)[0]))
        if not self.is_resumed:
            self.window.add(self.learner.prepare())
        last_health = time.perf_counter()
        reason = self.world.broadcast_object(rule.reason(self.window, self.learner.env_steps, self.seconds))
        while reason is None:
            try:
                report = self._train_once(interrupt)
            except CollectionInterrupted:
                return "interrupted"
            self.window.add(report.episodes)
            if metrics is not None:
                metrics.write(self._row(report))
            display.update(self._figures())
            if time.perf_counter() - last_health >= SECONDS_BETWEEN_HEALTH:
                last_health = time.perf_counter()
                display.show_health(take_health(self.envs, self.device, self.learner))
            reason = rule.reason(self.window, self.learner.env_steps, self.seconds)
            reason, due = self.world.broadcast_object((reason, self.keeper.due()))
            self.keeper.save_when_due(due, directory, self.seconds, display.say)
        return reason

    def _train_once(self, interrupt: InterruptFlag) -> UpdateReport:
        """One report of the learner.

        Raises:
            CollectionInterrupted: a stop was asked for, also where the signal has gone to a whole group of processes,
                and has ended workers before the learner has looked.
            FloatingPointError, VecEnvError: as of :meth:`train`.
        """
        try:
            return self.learner.train_once(lambda: interrupt.is_set)
        except WorkerDied as error:
            if self.world.size > 1 or not interrupt.is_set:  # ranks must agree on it, see `PPO`
                raise
            raise CollectionInterrupted from error

    def _row(self, report: UpdateReport) -> dict[str, float | int | None]:
        """One row of ``metrics.csv``."""
        figures = self._figures()
        return {
            "env_steps": figures.env_steps,
            "seconds": round(figures.seconds, 3),
            "episodes": figures.episodes,
            "mean_return": figures.mean_return,
            "mean_length": self.window.mean_length,
            "steps_per_second": round(figures.steps_per_second, 1),
            **report.figures,
        }

    def _figures(self) -> ProgressFigures:
        seconds = self.seconds
        steps_per_second = (self.learner.env_steps - self._steps_before) / (seconds - self._seconds_before)
        return ProgressFigures(
            self.learner.env_steps, seconds, steps_per_second, self.window.finished, self.window.mean_return
        )

    def _summary(self, reason: StopReason) -> dict[str, Any]:
        """What ``summary.json`` says."""
        figures, best = self._figures(), self.keeper.best_mean_return
        return {
            "solved": reason == "solved",
            "stopped_by": reason,
            "world_size": self.world.size,
            "seconds": round(figures.seconds, 3),
            "env_steps": figures.env_steps,
            "episodes": figures.episodes,
            "mean_return": _finite(figures.mean_return),
            "best_mean_return": _finite(best),
            "steps_per_second": round(figures.steps_per_second, 1),
            "precision": self.learner.precision,
            "settings": dataclasses.asdict(self.config),
            "versions": versions(),
        }


def place_of_run(config: RunConfig) -> Place:
    """Where this process stands among those that learn together, see :func:`~vecenv.agents.distributed.find_place`.

    Raises:
        UnknownSetting: the environment is half set, or there are several ranks and the algorithm learns in one process.
    """
    place, algorithm = find_place(), find_algorithm(config.algorithm)
    if place.world_size > 1 and not algorithm.is_data_parallel:
        raise UnknownSetting(
            f"{algorithm.title} does not learn in the {place.world_size} ranks of torchrun, only PPO does: start it "
            "without (ES spreads by --engine processes or ray, DQN by --num-actors)"
        )
    return place


def device_of_run(config: RunConfig, place: Place = ONLY_PLACE) -> str:
    """The device of a run's networks, see :func:`choose_device`; ``auto`` is the CPU where they can lie there only.

    Raises:
        UnknownSetting: as of :func:`choose_device`.
    """
    cpu_only = find_algorithm(config.algorithm).cpu_only_with
    is_cpu_only = any(getattr(config.settings, name) in values for name, values in cpu_only.items())
    return choose_device("cpu" if config.device == "auto" and is_cpu_only else config.device, place)


def choose_device(name: str, place: Place = ONLY_PLACE) -> str:
    """``auto`` takes CUDA where there is one.

    Args:
        name: what was asked for.
        place: of this process; where several learn together each takes a GPU of its own: the one of its local rank, or
            the only one that ``CUDA_VISIBLE_DEVICES`` shows to it, see
            :func:`~vecenv.agents.distributed.refuse_shared_gpus`.

    Raises:
        UnknownSetting: for a device that torch does not know or does not have.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if place.world_size == 1:
            return name
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise UnknownSetting(f"there is no torch device {name!r}; use auto, cpu or cuda") from error
    if kind not in ("cpu", "cuda"):
        raise UnknownSetting(f"device {name!r} is not supported; use auto, cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UnknownSetting(f"device {name!r} was asked for, but torch finds no CUDA device here")
    if place.world_size == 1 or kind == "cpu":
        return name
    if os.environ.get("CUDA_VISIBLE_DEVICES") and torch.cuda.device_count() == 1 and name in ("cuda", "cuda:0"):
        return "cuda:0"
    if name != "cuda":
        raise UnknownSetting(f"device {name!r} would be that of every rank; with cuda each takes a GPU of its own")
    if place.local_rank >= torch.cuda.device_count():
        raise UnknownSetting(
            f"local rank {place.local_rank} has no GPU of its own: torch finds {torch.cuda.device_count()} here; start "
            "fewer ranks, or use --device cpu"
        )
    return f"cuda:{place.local_rank}"


def _finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None
