"""Proximal policy optimisation (Schulman et al., 2017) with a clipped objective; reads top to bottom like the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vecenv import VecEnv
from vecenv.cores import usable_cores

from .collector import RolloutCollector
from .config import PPO_PRESETS, PPOConfig, Precision
from .inference import BatchedPolicy
from .learner import Algorithm, Episode, UpdateReport
from .networks import CNNTrunk, build_actor_critic
from .parallel_gradients import ParallelGradients
from .precision import (
    REQUIRED_AGREEMENT,
    ChosenPrecision,
    choose_acting_precision,
    choose_training_precision,
    greedy_agreement,
)
from .rollout_buffer import Minibatch, TrainingBatch

PROBE_ROWS = 2048
"""Observations on which acting in bfloat16 is compared with float32."""


MOST_TRAINING_THREADS = 8
"""With more threads each has so few rows that the sum of their gradients costs more than they save."""


RECHECK_STEPS = 2**17
"""Env steps between two checks that acting in bfloat16 still takes the same actions as float32."""


class PPO:
    """Learner: collects T steps from every environment, then takes several epochs of gradient steps on them."""

    def __init__(
        self, envs: VecEnv, config: PPOConfig, *, seed: int = 0, device: str = "cpu", precision: Precision = "auto"
    ) -> None:
        """Build network, optimizer and collector.

        Args:
            envs: made with ``copy=False, slots=num_steps + 1, statistics=True``; stays the caller's to close.
            config: hyper-parameters.
            seed: of the weights, the drawing of actions and the shuffling.
            device: where the network lies.
            precision: number format of the network's trunk.

        Raises:
            NotImplementedError: for spaces that have no network or action head yet.
            ValueError: when the network does not fit the observations, or the slots do not fit ``num_steps``.
        """
        self.envs = envs
        self.config = config
        self.device = torch.device(device)
        self.network = build_actor_critic(envs.single_observation_space, envs.single_action_space, config, seed)
        self.network.to(self.device)
        num_slots = envs.observation_slots.shape[0]
        if num_slots != config.num_steps + 1:
            raise ValueError(f"envs needs {config.num_steps + 1} observation slots, got {num_slots}")
        # The paper's code base used this epsilon; Adam's default makes the first steps on rare features too long.
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        self.env_steps = 0
        self._seed = seed
        self._requested_precision = precision
        self.precision: dict[str, ChosenPrecision] = {"acting": "float32", "training": "float32"}
        self._gradients = ParallelGradients(self.network, self._num_training_threads())
        self._shuffler = torch.Generator().manual_seed(seed)
        self.collector = RolloutCollector(envs, BatchedPolicy(self.network, device=self.device, seed=seed))
        self.rollout = self.collector.rollout

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments."""
        self.collector.reset(seed=seed)

    def close(self) -> None:
        """End the threads that compute gradients; may be called again."""
        self._gradients.close()

    def prepare(self) -> list[Episode]:
        """Before the first update: one untrained rollout gives the mean image and chooses the precisions.

        The rollout is counted but not trained on, because its actions came from a network without the mean image.
        Networks for vectors need neither: they are so small that float32 is never the slower choice.
        """
        trunk = self.network.trunk
        if not isinstance(trunk, CNNTrunk):
            if self._requested_precision == "bfloat16":
                self._use_precision({"acting": "bfloat16", "training": "bfloat16"})
            return []
        episodes = self.collector.collect()
        self.env_steps += int(self.rollout.valid.sum())
        if self.config.subtract_mean_image:
            trunk.set_mean_image(self.rollout.observations.flatten(0, 1)[:: max(1, self.rollout.num_envs // 2)])
        self.rollout.compute_advantages(self.config.gamma, self.config.gae_lambda)
        batch = TrainingBatch(self.rollout, self.device)
        sample = batch.select(torch.arange(min(self.config.minibatch_size, batch.num_rows)))
        acting = choose_acting_precision(
            self.network, self._probe(), self.rollout.num_envs, self._requested_precision, self.device
        )
        training = choose_training_precision(
            lambda autocast: self._compute_gradients(sample, autocast), self._requested_precision, self.device
        )
        self._use_precision({"acting": acting, "training": training})
        return episodes

    def recheck_precision(self) -> None:
        """Go back to acting in float32 where bfloat16, chosen by ``auto``, no longer takes the same greedy actions.

        Agreement was measured on the untrained network; this measures the present one on the last rollout.
        """
        if self._requested_precision != "auto" or self.precision["acting"] != "bfloat16":
            return
        if greedy_agreement(self.network, self._probe(), self.device) < REQUIRED_AGREEMENT:
            self._use_precision({**self.precision, "acting": "float32"})

    def _probe(self) -> NDArray[Any]:
        """At most PROBE_ROWS observations [B, ...] of the last rollout, spread over time and environments."""
        rows = self.rollout.observations.flatten(0, 1)
        probe: NDArray[Any] = rows[:: max(1, len(rows) // PROBE_ROWS)].numpy()
        return probe

    def train_once(self, stop_requested: Callable[[], bool] = lambda: False) -> UpdateReport:
        """Collect T steps from every environment and learn from them.

        Raises:
            CollectionInterrupted: when ``stop_requested`` says so; weights and counters are then as before the call.
            FloatingPointError: when the loss is no longer a finite number.
        """
        config = self.config
        learning_rate = self._set_learning_rate()
        episodes = self.collector.collect(stop_requested)
        self.rollout.compute_advantages(config.gamma, config.gae_lambda)
        losses = self._take_gradient_steps()
        self.collector.policy.refresh()
        steps_before = self.env_steps
        self.env_steps += int(self.rollout.valid.sum())
        if not all(math.isfinite(loss) for loss in losses):
            raise FloatingPointError(
                f"the loss is no longer finite after {self.env_steps} env steps; lower --learning-rate"
            )
        if self.env_steps // RECHECK_STEPS > steps_before // RECHECK_STEPS:
            self.recheck_precision()
        names = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction")
        figures = {"learning_rate": learning_rate, **dict(zip(names, losses, strict=True))}
        return UpdateReport(episodes, {**figures, "explained_variance": self.explained_variance()})

    def _take_gradient_steps(self) -> list[float]:
        """All epochs over the present rollout; returns the means of what :meth:`_compute_gradients` returns."""
        config = self.config
        batch = TrainingBatch(self.rollout, self.device)
        autocast = self.precision["training"] == "bfloat16"
        num_minibatches = max(1, round(batch.num_rows / config.minibatch_size))
        figures: list[Tensor] = []
        for _ in range(config.num_epochs):
            order = torch.randperm(batch.num_rows, generator=self._shuffler)
            for rows in order.tensor_split(num_minibatches):
                figures.append(self._compute_gradients(batch.select(rows), autocast))
                nn.utils.clip_grad_norm_(self.network.parameters(), config.max_grad_norm)
                self.optimizer.step()
        means: list[float] = torch.stack(figures).mean(dim=0).tolist()
        return means

    def _compute_gradients(self, minibatch: Minibatch, autocast: bool) -> Tensor:
        """Set the gradients; returns policy loss, value loss, entropy, KL divergence and clip fraction [5]."""
        return self._gradients.compute(lambda network, rows: self._loss(network, rows, autocast), minibatch)

    def _loss(self, network: nn.Module, minibatch: Minibatch, autocast: bool) -> tuple[Tensor, Tensor]:
        """The clipped objective, to be minimised, and its figures."""
        config = self.config
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=autocast):
            logits, values = network(minibatch.observations)  # (B, A), (B,)
        log_policy = torch.log_softmax(logits, dim=-1)
        log_ratio = log_policy.gather(-1, minibatch.actions.unsqueeze(-1)).squeeze(-1) - minibatch.log_probs
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1.0 - config.clip_range, 1.0 + config.clip_range)
        policy_loss = -torch.min(minibatch.advantages * ratio, minibatch.advantages * clipped_ratio).mean()
        value_loss = 0.5 * (values - minibatch.returns).square().mean()
        entropy = -(log_policy.exp() * log_policy).sum(dim=-1).mean()
        loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
        approximate_kl = (ratio - 1.0 - log_ratio).mean()  # never negative, unlike the mean of -log_ratio
        clip_fraction = ((ratio - 1.0).abs() > config.clip_range).float().mean()
        return loss, torch.stack([policy_loss, value_loss, entropy, approximate_kl, clip_fraction])

    def _set_learning_rate(self) -> float:
        config = self.config
        progress = min(1.0, self.env_steps / config.total_steps)
        learning_rate = config.learning_rate + progress * (config.final_learning_rate - config.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        return learning_rate

    def _num_training_threads(self) -> int:
        if self.device.type != "cpu":
            return 1
        return self.config.training_threads or min(usable_cores(), MOST_TRAINING_THREADS)

    def _use_precision(self, precision: dict[str, ChosenPrecision]) -> None:
        self.precision = precision
        if precision["acting"] != self.collector.policy.precision:
            generator = self.collector.policy.generator
            self.collector.policy = BatchedPolicy(
                self.network, device=self.device, precision=precision["acting"], seed=self._seed
            )
            self.collector.policy.generator = generator
        self.collector.policy.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on, but the states of the environments."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "env_steps": self.env_steps,
            "precision": self.precision,
            "action_generator": self.collector.policy.generator.get_state(),
            "shuffle_generator": self._shuffler.get_state(),
            "is_filler": self.collector.is_filler.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; replaces :meth:`prepare`."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.env_steps = int(state["env_steps"])
        self._use_precision(state["precision"])
        self.collector.policy.generator.set_state(state["action_generator"])
        self._shuffler.set_state(state["shuffle_generator"])
        self.collector.is_filler[:] = state["is_filler"]

    def env_states(self) -> list[bytes]:
        """States of the environments, last observations included."""
        return self.envs.get_state()

    def set_env_states(self, states: Sequence[bytes]) -> None:
        """Go on from :meth:`env_states`, after :meth:`load_state_dict`."""
        self.envs.set_state(states)
        self.collector.go_on()

    def explained_variance(self) -> float:
        """Share of the last rollout's variance of returns that the value head foresaw; 1 is perfect."""
        valid = self.rollout.valid
        returns, values = self.rollout.returns[valid], self.rollout.values[valid]
        variance = float(np.var(returns))
        return float("nan") if variance == 0.0 else 1.0 - float(np.var(returns - values)) / variance


def env_settings(config: PPOConfig) -> dict[str, Any]:
    """Keywords for `make_vec`: the env's own slots are the rollout's storage."""
    return {"num_envs": config.num_envs, "copy": False, "slots": config.num_steps + 1, "statistics": True}


def evaluation_policy(
    envs: VecEnv, config: PPOConfig, state: dict[str, Any], *, sample: bool, seed: int, device: str
) -> BatchedPolicy:
    """The trained policy; see :class:`~vecenv.agents.learner.EvaluationPolicy`."""
    network = build_actor_critic(envs.single_observation_space, envs.single_action_space, config, seed)
    network.load_state_dict(state["network"])
    return BatchedPolicy(network.to(device), head="categorical" if sample else "greedy", device=device, seed=seed)


ALGORITHM = Algorithm("PPO", PPOConfig, PPO_PRESETS, PPO, env_settings, evaluation_policy)
