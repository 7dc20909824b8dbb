"""RLlib's PPO on CartPole, with vecenv stepping the environments of every EnvRunner.

Needs the extra ``rllib``: in a clone, ``pip install -c constraints.txt '.[rllib]'``.
Run ``python examples/rllib_cartpole.py --iterations 15``.
"""

from __future__ import annotations

import argparse
import logging

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

from vecenv.ray_rllib import make_env


def main() -> None:
    """Train for some iterations and print the mean return of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one iteration")
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--num-envs", type=int, default=8, help="environments per EnvRunner")
    parser.add_argument("--num-env-runners", type=int, default=0, help="0: the EnvRunner of the driver itself")
    parser.add_argument("--backend", default="sync", help="vecenv's back end within an EnvRunner")
    arguments = parser.parse_args()

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_env("vecenv", make_env)
    config = (
        PPOConfig()
        .environment("vecenv", env_config={"env_id": "CartPole-v1", "backend": arguments.backend})
        .env_runners(
            num_env_runners=arguments.num_env_runners,
            num_envs_per_env_runner=arguments.num_envs,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .training(train_batch_size_per_learner=2000, minibatch_size=250, num_epochs=6, lr=5e-4)
    )
    algorithm = config.build_algo()
    try:
        for iteration in range(1, (1 if arguments.short else arguments.iterations) + 1):
            result = algorithm.train()["env_runners"]
            print(f"iteration {iteration}: mean return {result['episode_return_mean']:.1f}", flush=True)
    finally:
        algorithm.stop()
        ray.shutdown()


if __name__ == "__main__":
    main()
