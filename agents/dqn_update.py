"""The learning half of DQN: network, target network, gradient steps."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vecenv import VecEnv

from .config import Precision
from .dqn_config import DQNConfig
from .dqn_loss import QMinibatch, row_losses
from .dqn_staging import MinibatchStaging
from .learner import loss_not_finite
from .networks import CNNTrunk
from .parallel_gradients import ParallelGradients, num_training_threads
from .precision import choose_acting_precision, choose_training_precision
from .q_networks import build_q_network
from .replay_buffer import ReplayBuffer
from .schedules import linear

SMOOTHING = 0.98
"""Of the smoothed loss: what the past counts at every gradient step."""


class QLearning:
    """Takes gradient steps on minibatches from the replay.

    Attributes:
        network: learns.
        target_network: values what comes next; a copy of some time ago.
        updates: gradient steps so far.
        precision: number formats in use.
    """

    def __init__(self, envs: VecEnv, config: DQNConfig, *, seed: int, device: torch.device) -> None:
        """Build networks and optimizer.

        Args:
            envs: gives the spaces.
            config: hyper-parameters.
            seed: of weights and noise.
            device: where the networks lie.

        Raises:
            NotImplementedError: for spaces that DQN cannot act in or read.
            ValueError: when the network does not fit the observations.
        """
        self.config = config
        self.device = device
        self.network = build_q_network(envs.single_observation_space, envs.single_action_space, config, seed).to(device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self._parameters = list(self.network.parameters())
        self.updates = 0
        self.precision: dict[str, Any] = {"acting": "float32", "training": "float32"}
        self._noise = torch.Generator(device=device).manual_seed(seed)
        self._gradients = ParallelGradients(self.network, num_training_threads(config.training_threads, self.device))
        self._staging = MinibatchStaging(device)
        self._errors = torch.zeros(config.minibatch_size, device=device)
        self._late_errors: tuple[NDArray[np.int64], Tensor] | None = None
        self._figures: list[Tensor] = []
        self._smoothed_loss: float | None = None

    def close(self) -> None:
        """End the threads that compute gradients; may be called again."""
        self._gradients.close()

    def update(self, replay: ReplayBuffer, env_steps: int) -> None:
        """Take one gradient step on a minibatch of the replay.

        Raises:
            FloatingPointError: a priority would be no finite number.
        """
        config = self.config
        progress = min(1.0, env_steps / config.total_steps)
        beta = config.priority_beta + progress * (1.0 - config.priority_beta)
        self._set_learning_rate(env_steps)
        self.draw_noise()
        self._staging.wait()
        transitions = replay.sample(config.minibatch_size, beta)
        minibatch = self._staging.stage(transitions)
        self._figures.append(self._compute_gradients(minibatch, self.precision["training"] == "bfloat16"))
        if config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
        self.optimizer.step()
        self._staging.release()
        self.updates += 1
        if replay.priorities is not None:
            self._update_priorities(replay, transitions.places, env_steps)

    def _update_priorities(self, replay: ReplayBuffer, places: NDArray[np.int64], env_steps: int) -> None:
        """Report errors to the replay; on CUDA those of the step before, so that nothing waits for the device.

        Raises:
            FloatingPointError: one of them is no finite number, with which nothing could be drawn any more.
        """
        assert replay.priorities is not None
        errors = (places, self._errors)
        if self.device.type == "cuda":
            errors, self._late_errors = self._late_errors, (places, self._errors.clone())  # type: ignore[assignment]
        if errors is not None:
            sizes = errors[1].cpu().numpy()
            if not np.isfinite(sizes).all():
                raise loss_not_finite(env_steps)
            replay.priorities.update(errors[0], sizes)

    def draw_noise(self) -> None:
        """New noise for both networks, where they are noisy; each has its own."""
        if self.config.noisy:
            self.network.draw_noise(self._noise)
            self.target_network.draw_noise(self._noise)

    def _compute_gradients(self, minibatch: QMinibatch, autocast: bool) -> Tensor:
        """Set the gradients; returns loss and mean value of the actions taken [2]."""
        return self._gradients.compute(lambda network, rows: self._loss(network, rows, autocast), minibatch)

    def _loss(self, network: Any, rows: QMinibatch, autocast: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=autocast):
            losses, errors, values = row_losses(network, self.target_network, rows, double=self.config.double)
        self._errors[rows.rows] = errors
        loss = (rows.weights * losses).mean()
        return loss, torch.stack([loss, values.mean()])

    def update_target(self) -> None:
        """The target network becomes a copy of the network."""
        for target, source in zip(
            self.target_network.state_dict().values(), self.network.state_dict().values(), strict=True
        ):
            target.copy_(source)

    def begin(self, replay: ReplayBuffer, num_envs: int, requested: Precision) -> None:
        """Before the first gradient step: mean image and precisions, from what was played so far.

        Networks for vectors need neither: they are so small that float32 is never the slower choice.
        """
        trunk = self.network.trunk
        if isinstance(trunk, CNNTrunk):
            transitions = replay.sample(self.config.minibatch_size)
            if self.config.subtract_mean_image:
                trunk.set_mean_image(torch.from_numpy(transitions.observations).to(self.device))
            minibatch = self._staging.stage(transitions)
            acting = choose_acting_precision(self.network, transitions.observations, num_envs, requested, self.device)
            training = choose_training_precision(
                lambda autocast: self._compute_gradients(minibatch, autocast), requested, self.device
            )
            self.precision.update(acting=acting, training=training)
        elif requested == "bfloat16":
            self.precision.update(acting="bfloat16", training="bfloat16")
        self.update_target()

    def take_figures(self, env_steps: int) -> dict[str, float | None]:
        """Figures of the gradient steps since the last call; None where there were none.

        Raises:
            FloatingPointError: when a loss was no finite number.
        """
        loss = value = None
        if self._figures:
            figures = torch.stack(self._figures).cpu()
            self._figures = []
            loss, value = figures.mean(dim=0).tolist()
            if not math.isfinite(loss):
                raise loss_not_finite(env_steps)
            smoothed = figures[0, 0].item() if self._smoothed_loss is None else self._smoothed_loss
            for each in figures[:, 0].tolist():
                smoothed = SMOOTHING * smoothed + (1.0 - SMOOTHING) * each
            self._smoothed_loss = smoothed
        return {"loss": loss, "smoothed_loss": self._smoothed_loss, "action_value": value}

    def _set_learning_rate(self, env_steps: int) -> None:
        config = self.config
        if config.final_learning_rate is None:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = linear(config.learning_rate, config.final_learning_rate, env_steps, config.total_steps)

    @property
    def learning_rate(self) -> float:
        """Step size of the last gradient step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning needs to go on."""
        return {
            "network": self.network.state_dict(),
            "target_network": self.target_network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "precision": self.precision,
            "noise_generator": self._noise.get_state(),
            "smoothed_loss": self._smoothed_loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target_network"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # these are settings, which may have been changed
            group["eps"] = self.config.adam_epsilon
            if self.config.final_learning_rate is None:
                group["lr"] = self.config.learning_rate
        self.updates = int(state["updates"])
        self.precision.update(state["precision"])
        self._noise.set_state(state["noise_generator"])
        self._smoothed_loss = state["smoothed_loss"]
