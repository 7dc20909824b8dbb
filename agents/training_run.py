"""Runs a training from the first step to the last file: envs, learner, metrics, checkpoints, summary."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import numpy as np
import torch

import vecenv
from vecenv.errors import UnknownSetting

from .algorithms import find_algorithm
from .checkpoint import save_checkpoint
from .config import RunConfig
from .curve import draw_curve
from .display import ProgressDisplay, ProgressFigures
from .learner import CollectionInterrupted, UpdateReport
from .metrics import MetricsWriter
from .run_directory import RunDirectory, versions
from .stopping import EpisodeWindow, InterruptFlag, StopReason, StopRule


class TrainingRun:
    """One run of an algorithm: build it, call :meth:`train` once, close it (or use it as a context manager)."""

    def __init__(self, config: RunConfig, checkpoint: dict[str, Any] | None = None) -> None:
        """Build environments and learner; the clock of the run starts here.

        Args:
            config: the settings.
            checkpoint: content of the checkpoint to go on from; the environments themselves start new episodes.

        Raises:
            UnknownSetting: for a setting that does not exist or does not fit.
            NotImplementedError: for spaces that the algorithm does not know.
        """
        self._started = time.perf_counter()
        self.config = config
        self.algorithm = find_algorithm(config.algorithm)
        self.device = _choose_device(config.device)
        self.envs = vecenv.make_vec(
            config.env,
            backend=config.backend,
            num_workers=config.num_workers,
            preprocess=config.preprocess,
            **self.algorithm.env_settings(config.settings),
        )
        self._at_close = contextlib.ExitStack()
        self._at_close.callback(self.envs.close)
        try:
            # Torch's threads would take the workers' cores while acting; gradient steps have threads of their own.
            self._at_close.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            self.learner = self.algorithm.learner(
                self.envs, config.settings, seed=config.seed, device=self.device, precision=config.precision
            )
            self._at_close.callback(self.learner.close)
            self.window = EpisodeWindow()
            self._seconds_before = 0.0
            self._steps_before = 0
            self._resumed = checkpoint is not None
            if checkpoint is not None:
                self._restore(checkpoint)
        except BaseException:
            self.close()
            raise

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

    def train(self, directory: RunDirectory, display: ProgressDisplay) -> dict[str, Any]:
        """Train until the target, a limit or Ctrl-C; write everything into ``directory``.

        Returns:
            The summary, as ``summary.json`` holds it.

        Raises:
            FloatingPointError: when the loss is no longer a finite number; the last checkpoint stays.
            VecEnvError: when an environment or a worker fails.
        """
        directory.write_json(directory.config, dataclasses.asdict(self.config))
        with InterruptFlag() as interrupt, MetricsWriter(directory.metrics) as metrics, display:
            reason = self._learn(directory, metrics, display, interrupt)
            self._save(directory)
            summary = self._summary(reason)
            directory.write_json(directory.summary, summary)
            display.update(self._figures(), is_last=True)
        draw_curve(
            directory.metrics, directory.curve, f"{self.algorithm.title} on {self.config.env}", self.config.solve_at
        )
        return summary

    def _learn(
        self, directory: RunDirectory, metrics: MetricsWriter, display: ProgressDisplay, interrupt: InterruptFlag
    ) -> StopReason:
        """The loop: one rollout and its update after the other, until there is a reason to stop."""
        config = self.config
        limit = None if config.max_seconds is None else self._seconds_before + config.max_seconds
        rule = StopRule(config.settings.total_steps, config.solve_at, limit)
        # A resumed run must not see the episodes of the first one again: its seed follows from how far it has come.
        entropy = np.random.SeedSequence((config.seed, self.learner.env_steps))
        self.learner.reset(seed=int(entropy.generate_state(1)[0]))
        if not self._resumed:
            self.window.add(self.learner.prepare())
        last_save = time.perf_counter()
        while True:
            reason = rule.reason(self.window, self.learner.env_steps, self.seconds)
            if reason is not None:
                return reason
            try:
                report = self.learner.train_once(lambda: interrupt.is_set)
            except CollectionInterrupted:
                return "interrupted"
            self.window.add(report.episodes)
            metrics.write(self._row(report))
            display.update(self._figures())
            if time.perf_counter() - last_save >= config.checkpoint_seconds:
                self._save(directory)
                last_save = time.perf_counter()

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
        figures = self._figures()
        return {
            "solved": reason == "solved",
            "stopped_by": reason,
            "seconds": round(figures.seconds, 3),
            "env_steps": figures.env_steps,
            "episodes": figures.episodes,
            "mean_return": figures.mean_return,
            "steps_per_second": round(figures.steps_per_second, 1),
            "precision": self.learner.precision,
            "settings": dataclasses.asdict(self.config),
            "versions": versions(),
        }

    def _save(self, directory: RunDirectory) -> None:
        content = {
            "algorithm": self.config.algorithm,
            "run": self.config,
            "learner": self.learner.state_dict(),
            "window": self.window.state_dict(),
            "seconds": self.seconds,
            "versions": versions(),
        }
        save_checkpoint(directory.checkpoint, content)

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        try:
            self.learner.load_state_dict(checkpoint["learner"])
        except (RuntimeError, ValueError) as error:  # torch lists every tensor that does not fit
            reason = " ".join(str(error).split())
            raise UnknownSetting(f"the checkpoint's network does not fit these settings: {reason}") from error
        self.window.load_state_dict(checkpoint["window"])
        self._seconds_before = float(checkpoint["seconds"])
        self._steps_before = self.learner.env_steps


def _choose_device(name: str) -> str:
    """``auto`` takes CUDA where there is one.

    Raises:
        UnknownSetting: for a device that torch does not know or does not have.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise UnknownSetting(f"there is no torch device {name!r}; use auto, cpu or cuda") from error
    if kind not in ("cpu", "cuda"):
        raise UnknownSetting(f"device {name!r} is not supported; use auto, cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UnknownSetting(f"device {name!r} was asked for, but torch finds no CUDA device here")
    return name
