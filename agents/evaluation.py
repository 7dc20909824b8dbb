"""Plays whole episodes with a trained policy, and the command ``vecenv eval``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import vecenv
from vecenv import VecEnv
from vecenv.errors import UnknownSetting

from .actions import EnvActions
from .algorithms import find_algorithm, run_config_from_dict
from .checkpoint import load_checkpoint
from .command_line import parse_arguments
from .inference import BatchedPolicy
from .learner import Episode


@dataclass(frozen=True)
class EvalArguments:
    """Arguments of ``vecenv eval CHECKPOINT``."""

    episodes: int = 10
    """Whole episodes to play."""
    num_envs: int | None = None
    """Environments side by side; by default one per episode, at most 16."""
    backend: str = "auto"
    """Back end that steps the environments."""
    seed: int = 1_000_000
    """Seed of the environments; far from those that training usually uses."""
    sample: bool = False
    """Draw actions from the policy in place of taking the most probable one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Play episodes with a checkpoint and print their returns; returns the exit code.

    Raises:
        UnknownSetting: one line about a checkpoint that cannot be read or a setting that does not fit.
        VecEnvError: when an environment or a worker fails.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print("usage: vecenv eval CHECKPOINT [--episodes N] [--num-envs N] [--backend NAME] [--seed N] [--sample]")
        return 0 if words else 2
    path, words = Path(words[0]), words[1:]
    description = "Play whole episodes with a checkpoint."
    arguments = parse_arguments(EvalArguments, words, "vecenv eval CHECKPOINT", description)
    if arguments.episodes < 1:
        raise UnknownSetting(f"episodes must be at least 1, got {arguments.episodes}")
    checkpoint = load_checkpoint(path)
    run = run_config_from_dict(checkpoint["run"])
    num_envs = min(arguments.episodes, 16) if arguments.num_envs is None else arguments.num_envs
    envs = vecenv.make_vec(
        run.env,
        num_envs,
        arguments.backend,
        num_workers=run.num_workers,
        preprocess=run.preprocess,
        statistics=True,
    )
    try:
        policy = find_algorithm(run.algorithm).evaluation_policy(
            envs, run.settings, checkpoint["learner"], sample=arguments.sample, seed=arguments.seed, device="cpu"
        )
        episodes = play_episodes(envs, policy, arguments.episodes, arguments.seed)
    finally:
        envs.close()
    returns = np.array([episode.total_reward for episode in episodes])
    print(
        f"{run.env}: mean return {returns.mean():.2f} over {len(returns)} episodes "
        f"(standard deviation {returns.std():.2f}, lowest {returns.min():g}, highest {returns.max():g})"
    )
    return 0


def play_episodes(envs: VecEnv, policy: BatchedPolicy, num_episodes: int, seed: int | None = None) -> list[Episode]:
    """Play ``num_episodes`` whole episodes.

    Every environment plays a share fixed beforehand. Taking whichever end first would favour short episodes.

    Args:
        envs: a vector env made with ``statistics=True``.
        policy: acts for all environments at once.
        num_episodes: at least 1.
        seed: of the environments.

    Returns:
        The episodes, those of environment 0 first.
    """
    shares = np.full(envs.num_envs, num_episodes // envs.num_envs)
    shares[: num_episodes % envs.num_envs] += 1
    played: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    to_env = EnvActions(envs.single_action_space)
    observations, _ = envs.reset(seed=seed)
    while any(len(episodes) < share for episodes, share in zip(played, shares, strict=True)):
        observations, _, _, _, infos = envs.step(to_env(policy.act(observations).actions))
        if "_episode" not in infos:
            continue
        for env in np.flatnonzero(infos["_episode"]):
            if len(played[env]) < shares[env]:
                played[env].append(Episode(float(infos["episode"]["r"][env]), int(infos["episode"]["l"][env])))
    return [episode for episodes in played for episode in episodes]
