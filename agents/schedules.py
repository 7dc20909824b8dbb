"""Hyper-parameters that change over a run; all count env steps, so the number of environments changes nothing."""

from __future__ import annotations

from .config import PPOConfig

KL_BAND = 2.0
"""The learning rate follows the KL divergence once it is this factor above or below its target."""
KL_STEP = 1.5
"""Factor by which the learning rate then changes."""
KL_RANGE = 100.0
"""The adapted learning rate stays within this factor of the configured one."""


def linear(start: float, end: float, env_steps: int, total_steps: int) -> float:
    """From ``start`` at 0 env steps in a straight line to ``end`` at ``total_steps``, and ``end`` from then on."""
    progress = min(1.0, env_steps / total_steps)
    return start + progress * (end - start)


def learning_rate_factor(config: PPOConfig) -> float:
    """What the configured learning rates are multiplied by, see ``PPOConfig.lr_scaling``."""
    return {"none": 1.0, "linear": float(config.num_envs), "linear-0.8": 0.8 * config.num_envs}[config.lr_scaling]


class LearningRate:
    """The step size of the optimizer: a straight line over env steps, or one that follows the KL divergence."""

    def __init__(self, config: PPOConfig) -> None:
        """Begin at the configured rate."""
        self._config = config
        self._factor = learning_rate_factor(config)
        self.adapted = 1.0
        """What the KL divergence has made of the rate so far, as a factor."""

    def at(self, env_steps: int) -> float:
        """The rate after so many env steps."""
        config = self._config
        if config.lr_schedule == "kl":
            return config.learning_rate * self._factor * self.adapted
        start, end = config.learning_rate * self._factor, config.final_learning_rate * self._factor
        return linear(start, end, env_steps, config.total_steps)

    def follow(self, approximate_kl: float) -> None:
        """Adapt to the KL divergence of an update: slower when the policy moved too far, faster when it hardly did."""
        if self._config.lr_schedule != "kl":
            return
        target = self._config.kl_target
        if approximate_kl > KL_BAND * target:
            self.adapted = max(self.adapted / KL_STEP, 1.0 / KL_RANGE)
        elif approximate_kl < target / KL_BAND:
            self.adapted = min(self.adapted * KL_STEP, KL_RANGE)
