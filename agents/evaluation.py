"""The command ``vecenv eval``: plays whole episodes with a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vecenv
from vecenv import VecEnv
from vecenv.errors import UnknownSetting

from .algorithms import find_algorithm
from .checkpoint_keeper import MISFITS, check_spaces, describe_misfit, load_run
from .command_line import parse_arguments
from .config import RunConfig
from .inference import BatchedPolicy
from .playing import MOST_ENVS, PlayedEpisodes, play_episodes
from .setting_checks import check_count, check_seed
from .video import check_clip_path, make_rendered_envs, no_screen, record_clip

EXIT_FAILED = 1
DESCRIPTION = (
    "Play whole episodes with a trained agent and print their returns. CHECKPOINT is a file such as runs/pong/best.pt, "
    "or a run's folder, whose last checkpoint is taken."
)


@dataclass(frozen=True)
class EvalArguments:
    """Arguments of ``vecenv eval CHECKPOINT``."""

    episodes: int = 10
    """Whole episodes to play; each environment plays its share of them, fixed beforehand."""
    num_envs: int | None = None
    """Environments side by side; by default one per episode, at most 16."""
    max_steps: int = 200_000
    """Steps per environment after which episodes that have not ended are given up, and reported as such."""
    backend: str = "auto"
    """Back end that steps the environments: auto, auto-fast, sync, subproc, ale, envpool, compiled or ray."""
    seed: int = 1_000_000
    """Seed of the environments; far from those that training usually uses."""
    sample: bool = False
    """Draw actions from the policy in place of taking the best one."""
    device: str = "cpu"
    """Torch device; auto takes CUDA where there is one."""
    video: Path | None = None
    """Also record one episode into this file, which ends in .gif or .mp4."""
    video_frames: int = 2000
    """Frames after which the clip ends."""


def main(argv: Sequence[str] | None = None) -> int:
    """Play episodes with a checkpoint and print their returns; returns the exit code.

    Raises:
        UnknownSetting: one line about a checkpoint that cannot be read or a setting that does not fit.
        VecEnvError: when an environment or a worker fails.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        if words:
            parse_arguments(EvalArguments, ["--help"], "vecenv eval CHECKPOINT", DESCRIPTION)
        print("usage: vecenv eval CHECKPOINT [--help]")
        return 2
    if words[0].startswith("-"):
        raise UnknownSetting(f"CHECKPOINT is missing: it comes before {words[0]} (see vecenv eval --help)")
    path, words = Path(words[0]), words[1:]
    arguments = parse_arguments(EvalArguments, words, "vecenv eval CHECKPOINT", DESCRIPTION)
    for name in ("episodes", "max_steps", "video_frames"):
        check_count(name, getattr(arguments, name), 1)
    check_seed("seed", arguments.seed)
    if arguments.num_envs is not None:
        check_count("num_envs", arguments.num_envs, 1)
    if arguments.video is not None:
        check_clip_path(arguments.video)
    run, checkpoint = load_run(path)
    if arguments.video is not None:
        _record(run, checkpoint, arguments, arguments.video)
    return _report(run, _play(run, checkpoint, arguments), arguments)


def trained_policy(
    run: RunConfig, checkpoint: dict[str, Any], envs: VecEnv, *, sample: bool, seed: int, device: str
) -> BatchedPolicy:
    """The policy of a checkpoint, for ``envs``.

    Raises:
        CheckpointError: the checkpoint is of other spaces.
        UnknownSetting: its weights do not fit its settings.
    """
    check_spaces(checkpoint, envs)
    try:
        return find_algorithm(run.algorithm).evaluation_policy(
            envs, run.settings, checkpoint["learner"], sample=sample, seed=seed, device=device
        )
    except MISFITS as error:
        raise UnknownSetting(f"the checkpoint's weights do not fit its settings: {describe_misfit(error)}") from error


def _play(run: RunConfig, checkpoint: dict[str, Any], arguments: EvalArguments) -> PlayedEpisodes:
    num_envs = min(arguments.episodes, MOST_ENVS) if arguments.num_envs is None else arguments.num_envs
    workers = run.num_workers if arguments.backend in ("auto", run.backend) else None
    envs = vecenv.make_vec(
        run.env, num_envs, arguments.backend, num_workers=workers, preprocess=run.preprocess, statistics=True
    )
    with envs:
        policy = _policy(run, checkpoint, arguments, envs)
        return play_episodes(envs, policy, arguments.episodes, arguments.seed, arguments.max_steps)


def _record(run: RunConfig, checkpoint: dict[str, Any], arguments: EvalArguments, path: Path) -> None:
    with no_screen(), make_rendered_envs(run) as envs:
        policy = _policy(run, checkpoint, arguments, envs)
        frames = record_clip(envs, policy, path, arguments.seed, arguments.video_frames)
    print(f"{path}: {frames} frames of one episode")


def _policy(run: RunConfig, checkpoint: dict[str, Any], arguments: EvalArguments, envs: VecEnv) -> BatchedPolicy:
    from .training_run import choose_device

    device = choose_device(arguments.device)
    return trained_policy(run, checkpoint, envs, sample=arguments.sample, seed=arguments.seed, device=device)


def _report(run: RunConfig, played: PlayedEpisodes, arguments: EvalArguments) -> int:
    """Print what was played; returns the exit code."""
    if played.unfinished:
        print(
            f"{played.unfinished} of {arguments.episodes} episodes had not ended after {arguments.max_steps:,} steps "
            "per environment and are not counted",
            file=sys.stderr,
        )
    if not played.episodes:
        return EXIT_FAILED
    returns = np.array([episode.total_reward for episode in played.episodes])
    print(
        f"{run.env}: mean return {returns.mean():.2f} over {len(returns)} episode{'s' * (len(returns) > 1)} "
        f"(standard deviation {returns.std():.2f}, lowest {returns.min():g}, highest {returns.max():g})"
    )
    return 0
