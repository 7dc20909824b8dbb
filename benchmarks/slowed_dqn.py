"""What a rung takes away from DQN to show what it costs; only measurements have any use for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vecenv.agents.dqn import DQN
from vecenv.agents.dqn_loss import QMinibatch
from vecenv.agents.dqn_staging import MinibatchStaging, minibatch_arrays
from vecenv.agents.inference import BatchedPolicy, PolicyOutput
from vecenv.agents.replay_buffer import Transitions
from vecenv.agents.training_run import TrainingRun


class PolicyWithGradients(BatchedPolicy):
    """Acts as `BatchedPolicy`, and records everything for a backward pass that never comes."""

    def act(self, observations: NDArray[Any]) -> PolicyOutput:
        """Choose an action for every row of ``observations`` [B, ...]."""
        with torch.enable_grad():
            outputs, values = self._acting(self.stage(observations))
            actions, log_probs = self.head(outputs, self.generator)
        return PolicyOutput(
            actions.detach().cpu().numpy(), log_probs.detach().cpu().numpy(), values.detach().cpu().numpy()
        )


def leave_gradients_on(run: TrainingRun) -> None:
    """Forget ``no_grad`` while acting and while computing targets; what is learnt stays the same.

    Args:
        run: of DQN that plays in the learner's process (``num_actors=0``), in float32.

    Raises:
        TypeError: it is of another algorithm, or plays in other processes.
    """
    learner = _dqn(run)
    if learner.player is None:
        raise TypeError(f"expected num_actors=0, got {run.config.settings.num_actors}")
    learner.player.policy = PolicyWithGradients(
        learner.learning.network, head=learner.player.head, device=learner.device, seed=run.config.seed
    )
    target: nn.Module = learner.learning.target_network.requires_grad_(True)
    outputs = learner.learning.target_network.outputs

    def outputs_with_gradients(observations: Tensor) -> Tensor:
        with torch.enable_grad():
            return outputs(observations)

    setattr(target, "outputs", outputs_with_gradients)  # noqa: B010 - mypy lets no method be replaced


class WaitingStaging(MinibatchStaging):
    """Copies each minibatch from pageable memory and waits for it, as ``torch.tensor(array, device=...)`` does."""

    def stage(self, transitions: Transitions) -> QMinibatch:
        """The minibatch on the device."""
        return QMinibatch(
            *(torch.from_numpy(np.array(field)).to(self._device) for field in minibatch_arrays(transitions))
        )


def wait_for_copies(run: TrainingRun) -> None:
    """Copy minibatches to a CUDA device one after the other; on the CPU there is nothing to copy."""
    learner = _dqn(run)
    if learner.device.type == "cuda":
        learner.learning._staging = WaitingStaging(learner.device)


def _dqn(run: TrainingRun) -> DQN:
    if not isinstance(run.learner, DQN):
        raise TypeError(f"this is for DQN, got {type(run.learner).__name__}")
    return run.learner
