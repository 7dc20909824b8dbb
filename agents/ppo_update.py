"""The learning half of PPO (Schulman et al., 2017): several epochs of clipped gradient steps over one rollout."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from .config import PPOConfig
from .distributed import ALONE, World
from .learner import loss_not_finite
from .networks import ActorCritic
from .normalisation import RewardNormaliser
from .parallel_gradients import ParallelGradients, num_training_threads
from .rollout_buffer import Minibatch, RolloutBuffer, TrainingBatch
from .schedules import LearningRate, linear
from .shared_minibatches import GradientSum, SharedRows

LOSS_FIGURES = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction")
"""What the loss reports, in order; means over the gradient steps of an update."""


class PPOUpdate:
    """Network, optimizer and schedules; :meth:`learn` turns a rollout into better weights."""

    def __init__(
        self, network: ActorCritic, config: PPOConfig, device: torch.device, seed: int, world: World = ALONE
    ) -> None:
        """Learn ``network``, which lies on ``device``; ``seed`` decides the shuffling.

        With several ranks :meth:`learn` is an exchange of all of them: afterwards all have the same weights.
        """
        self.network = network
        self.config = config
        self.device = device
        # The paper's code base used this epsilon; Adam's default makes the first steps on rare features too long.
        self.optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        self._world = world
        # Factors by the number of environments mean those of all ranks.
        self.learning_rate = LearningRate(dataclasses.replace(config, num_envs=world.size * config.num_envs))
        self.autocast = False
        self._clip_range = config.clip_range
        self._entropy_coefficient = config.entropy_coefficient
        self._evaluate = network.distribution.evaluate
        self._gradients = ParallelGradients(network, num_training_threads(config.training_threads, self.device))
        self._sum = GradientSum(network, world)
        self._shuffler = torch.Generator().manual_seed(seed)
        self._rewards = RewardNormaliser(config.num_envs, config.gamma) if config.normalise_rewards else None

    def close(self) -> None:
        """End the threads that compute gradients; may be called again."""
        self._gradients.close()

    def learn(self, rollout: RolloutBuffer, env_steps: int) -> dict[str, float | None]:
        """Take several epochs of gradient steps over ``rollout``.

        Args:
            rollout: collected; its rewards are scaled in place where rewards are normalised.
            env_steps: how far the run had come when ``rollout`` began; decides learning rate, clip range and entropy
                weight.

        Returns:
            Figures to report.

        Raises:
            FloatingPointError: when the loss is no longer a finite number.
        """
        rate = self._set_schedules(env_steps)
        if self._rewards is not None:
            ended = rollout.terminations | rollout.truncations
            self._rewards.normalise(rollout.rewards, ended, rollout.valid, self._world.merge)
        rollout.compute_advantages(self.config.gamma, self.config.gae_lambda)
        losses, gradient_steps = self._take_gradient_steps(rollout)
        if not all(math.isfinite(loss) for loss in losses):
            raise loss_not_finite(env_steps)
        figures = dict(zip(LOSS_FIGURES, losses, strict=True))
        self.learning_rate.follow(figures["approximate_kl"])
        self.observe(rollout)
        return {
            "learning_rate": rate,
            **figures,
            "explained_variance": explained_variance(rollout, self._world),
            "gradient_steps": gradient_steps,
        }

    def observe(self, rollout: RolloutBuffer) -> None:
        """Take a rollout's observations into the statistics that normalise them from now on."""
        if self.network.normaliser is not None:
            rows = rollout.observation_rows(rollout.trained_rows())
            observations = rollout.observations.flatten(0, 1)[torch.from_numpy(rows)]
            self.network.normaliser.update(observations, self._world.merge)

    def compute_gradients(self, minibatch: Minibatch, autocast: bool) -> Tensor:
        """Set the network's gradients; returns the figures named by `LOSS_FIGURES` [5]."""
        return self._gradients.compute(lambda network, rows: self._loss(network, rows, autocast), minibatch)

    def _take_gradient_steps(self, rollout: RolloutBuffer) -> tuple[list[float], int]:
        """All epochs; returns the means of what :meth:`compute_gradients` returns, and how many steps were taken."""
        config = self.config
        batch = TrainingBatch(rollout, self.device, self._world.merge)
        shared = None if self._world.size == 1 else SharedRows(rollout.valid, self._world)
        num_rows = batch.num_rows if shared is None else shared.num_rows
        num_minibatches = max(1, round(num_rows / config.minibatch_size))
        figures: list[Tensor] = []
        for _ in range(config.num_epochs):
            order = torch.randperm(num_rows, generator=self._shuffler)
            for rows in order.tensor_split(num_minibatches):
                figures.append(self._gradients_of_all_ranks(batch, rows, shared))
                if config.kl_limit is not None and float(figures[-1][3]) > config.kl_limit:
                    return _means(figures), len(figures) - 1  # the last gradient is not followed
                nn.utils.clip_grad_norm_(self.network.parameters(), config.max_grad_norm)
                self.optimizer.step()
        return _means(figures), len(figures)

    def _gradients_of_all_ranks(self, batch: TrainingBatch, rows: Tensor, shared: SharedRows | None) -> Tensor:
        """Set the network's gradients for the minibatch ``rows`` of all ranks; returns the figures [5]."""
        if shared is None:
            return self.compute_gradients(batch.select(rows), self.autocast)
        own = shared.own(rows)
        figures = self.compute_gradients(batch.select(own), self.autocast) if len(own) else None
        return self._sum.all_reduce(figures, len(own) / len(rows), len(LOSS_FIGURES))

    def _loss(self, network: nn.Module, minibatch: Minibatch, autocast: bool) -> tuple[Tensor, Tensor]:
        """The clipped objective, to be minimised, and its figures."""
        clip_range = self._clip_range
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=autocast):
            outputs, values = network(minibatch.observations)  # (B, ...), (B,)
        log_probs, entropies = self._evaluate(outputs, minibatch.actions)
        log_ratio = log_probs - minibatch.log_probs
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -torch.min(minibatch.advantages * ratio, minibatch.advantages * clipped_ratio).mean()
        value_loss = 0.5 * (values - minibatch.returns).square().mean()
        entropy = entropies.mean()
        loss = policy_loss + self.config.value_coefficient * value_loss - self._entropy_coefficient * entropy
        approximate_kl = (ratio - 1.0 - log_ratio).mean()  # never negative, unlike the mean of -log_ratio
        clip_fraction = ((ratio - 1.0).abs() > clip_range).float().mean()
        return loss, torch.stack([policy_loss, value_loss, entropy, approximate_kl, clip_fraction])

    def _set_schedules(self, env_steps: int) -> float:
        """Set learning rate, clip range and entropy weight for the next update; returns the learning rate."""
        config = self.config
        rate = self.learning_rate.at(env_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._clip_range, self._entropy_coefficient = config.clip_range, config.entropy_coefficient
        if config.final_clip_range is not None:
            self._clip_range = linear(config.clip_range, config.final_clip_range, env_steps, config.total_steps)
        if config.final_entropy_coefficient is not None:
            self._entropy_coefficient = linear(
                config.entropy_coefficient, config.final_entropy_coefficient, env_steps, config.total_steps
            )
        return rate

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning needs to go on, of all ranks."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shuffle_generator": self._shuffler.get_state(),
            "adapted_rate": self.learning_rate.adapted,
            "reward_statistics": None if self._rewards is None else self._reward_statistics(self._rewards),
        }

    def _reward_statistics(self, rewards: RewardNormaliser) -> dict[str, Any]:
        state = rewards.state_dict()
        return {**state, "returns": [value for part in self._world.gather(state["returns"]) for value in part]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            RuntimeError, ValueError: the state is of other settings.
        """
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._shuffler.set_state(state["shuffle_generator"])
        self.learning_rate.adapted = float(state["adapted_rate"])
        if self._rewards is not None:
            if state["reward_statistics"] is None:
                raise ValueError("normalise_rewards: no statistics of rewards were saved")
            statistics = state["reward_statistics"]
            if len(statistics["returns"]) == self._world.size * self.config.num_envs:
                own = self._world.rows(self.config.num_envs)
                statistics = {**statistics, "returns": statistics["returns"][own]}
            self._rewards.load_state_dict(statistics)


def explained_variance(rollout: RolloutBuffer, world: World = ALONE) -> float | None:
    """Share of a rollout's variance of returns that the value head foresaw; 1 is perfect, None without variance."""
    returns, values = rollout.returns[rollout.valid], rollout.values[rollout.valid]
    variance, unforeseen = (
        float(world.merge((len(sample), sample.mean(), sample.var()))[2]) for sample in (returns, returns - values)
    )
    return None if variance == 0.0 else 1.0 - unforeseen / variance


def _means(figures: list[Tensor]) -> list[float]:
    means: list[float] = torch.stack(figures).mean(dim=0).tolist()
    return means
