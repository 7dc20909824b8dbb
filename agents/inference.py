"""The one place where a network is called to act: a batch of observations in, a batch of actions out.

Agents, evaluation and actor processes all act through :class:`BatchedPolicy`; nothing else calls a network to act.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .distributions import gaussian_log_probs

ActionHead = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""(what the network's policy head gives [B, ...], generator) -> (actions [B, ...], their log-probabilities [B])."""


class ActingNetwork(Protocol):
    """A module that gives what a head needs: observations [B, ...] -> (outputs [B, ...], values [B]), both float32."""

    def __call__(self, observations: Tensor, /) -> tuple[Tensor, Tensor]:
        """One forward pass."""

    def state_dict(self) -> dict[str, Any]:
        """Weights and buffers, by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Set weights and buffers."""

    def requires_grad_(self, requires_grad: bool, /) -> Self:
        """Switch gradients of all weights."""


@runtime_checkable
class CastableNetwork(Protocol):
    """A network that can act in another number format."""

    def cast_trunks(self, dtype: torch.dtype) -> Any:
        """Let the trunks compute in ``dtype``; what the heads give stays float32. Returns self."""


class PolicyOutput(NamedTuple):
    """What the policy decided for a batch; the arrays belong to the caller."""

    actions: NDArray[Any]
    """[B] int64, index of the action, counted from 0; or [B, A] float32."""
    log_probs: NDArray[np.float32]
    """[B] float32, log-probability of each action under the policy."""
    values: NDArray[np.float32]
    """[B] float32, estimated value of each observation."""


class BatchedPolicy:
    """Acts for a whole batch of environments with one forward pass.

    On the CPU observations are read where they lie, without a copy. On CUDA they go through two page-locked buffers
    in turn, so that a copy to the device may still run while the next batch is being put into the other buffer.

    With ``precision="bfloat16"`` or ``own_weights=True`` the policy acts with its own copy of the network; call
    :meth:`refresh` after every change of the weights that is to count.
    """

    def __init__(
        self,
        network: ActingNetwork,
        *,
        head: str | ActionHead = "categorical",
        device: torch.device | str = "cpu",
        precision: Literal["float32", "bfloat16"] = "float32",
        seed: int = 0,
        own_weights: bool = False,
    ) -> None:
        """Act with ``network``, which must already lie on ``device``.

        Args:
            network: gives ``(outputs [B, ...], values [B])``; shared with the learner, never copied in float32.
            head: turns outputs into actions: a name in `ACTION_HEADS`, or a head itself.
            device: where the network lies.
            precision: number format of the trunk.
            seed: of the generator that draws actions.
            own_weights: act with a copy of the network that changes in :meth:`refresh` only, so that the network may
                be trained meanwhile.

        Raises:
            NotImplementedError: for a head that does not exist, or a network that acts in float32 only.
        """
        if isinstance(head, str) and head not in ACTION_HEADS:
            raise NotImplementedError(f"there is no action head {head!r}; there are {', '.join(ACTION_HEADS)}")
        self.network = network
        self.head: ActionHead = ACTION_HEADS[head]() if isinstance(head, str) else head
        self.device = torch.device(device)
        self.precision = precision
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self._staging = CudaStaging(self.device) if self.device.type == "cuda" else None
        self._acting: ActingNetwork = network
        if own_weights or precision == "bfloat16":
            self._acting = copy.deepcopy(network).requires_grad_(False)
        if precision == "bfloat16":
            if not isinstance(self._acting, CastableNetwork):
                raise NotImplementedError(f"{type(network).__name__} acts in float32 only")
            self._acting = self._acting.cast_trunks(torch.bfloat16)

    def refresh(self) -> None:
        """Take over the learner's weights; does nothing where they are shared."""
        if self._acting is self.network:
            return
        with torch.inference_mode():
            for mine, theirs in zip(
                self._acting.state_dict().values(), self.network.state_dict().values(), strict=True
            ):
                mine.copy_(theirs)

    def weights(self) -> dict[str, Tensor]:
        """State of the network that acts; its tensors stay the policy's."""
        state: dict[str, Tensor] = self._acting.state_dict()
        return state

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Act with the weights of :meth:`weights`, which are copied, until the next :meth:`refresh`.

        Raises:
            RuntimeError: they are of another network.
        """
        self._acting.load_state_dict(state)

    def act(self, observations: NDArray[Any]) -> PolicyOutput:
        """Choose an action for every row of ``observations`` [B, ...]; one forward pass."""
        with torch.inference_mode():
            outputs, values = self._acting(self.stage(observations))
            actions, log_probs = self.head(outputs, self.generator)
            return PolicyOutput(actions.cpu().numpy(), log_probs.cpu().numpy(), values.cpu().numpy())

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Estimated value of every row of ``observations`` [B, ...]: [B] float32, owned by the caller."""
        with torch.inference_mode():
            values: NDArray[np.float32] = self._acting(self.stage(observations))[1].cpu().numpy()
            return values

    def stage(self, observations: NDArray[Any]) -> Tensor:
        """``observations`` [B, ...] as a tensor of the same shape and dtype on the device.

        On the CPU it shares their memory; on CUDA it is valid until the second next call.
        """
        if self._staging is not None:
            return self._staging.stage(observations)
        return torch.from_numpy(observations).to(self.device)


class CudaStaging:
    """Two page-locked host buffers and two device buffers, used in turn, on a copy stream of their own."""

    def __init__(self, device: torch.device) -> None:
        """Stage to ``device``; buffers are made for the first batch and again when its shape changes."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._host: list[Tensor] = []
        self._on_device: list[Tensor] = []
        self._copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def stage(self, observations: NDArray[Any]) -> Tensor:
        """Start the copy of one batch [B, ...]; the tensor, which is like it, is valid until the second next call."""
        source = torch.from_numpy(observations)
        if not self._host or self._host[0].shape != source.shape or self._host[0].dtype != source.dtype:
            torch.cuda.synchronize(self._device)
            self._host = [torch.empty_like(source, pin_memory=True) for _ in range(2)]
            self._on_device = [torch.empty_like(source, device=self._device) for _ in range(2)]
        turn, self._turn = self._turn, 1 - self._turn
        self._copied[turn].synchronize()  # the host buffer may be written again once its last copy is through
        self._host[turn].copy_(source)
        compute = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(compute)  # nothing still computes on the device buffer from two batches ago
        with torch.cuda.stream(self._stream):
            self._on_device[turn].copy_(self._host[turn], non_blocking=True)
            self._copied[turn].record(self._stream)
        compute.wait_event(self._copied[turn])
        return self._on_device[turn]


def draw_categorical(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw from softmax(logits), ``logits`` [B, A]; actions [B] int64 and their log-probabilities [B]."""
    # The largest of logits plus Gumbel noise is such a draw: cheaper than torch.multinomial on small batches.
    noise = torch.empty_like(logits).exponential_(generator=generator).log_()
    return _with_log_probs(logits, (logits - noise).argmax(dim=-1))


def take_greedy(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Take the largest of ``logits`` [B, A]; actions [B] int64 and their log-probabilities [B] in softmax(logits)."""
    return _with_log_probs(logits, logits.argmax(dim=-1))


class EpsilonGreedy:
    """Takes the largest of the action values, or with probability epsilon any action; every environment has its coin.

    Attributes:
        epsilon: chance of a random action, for the next call.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        """Explore with probability ``epsilon``."""
        self.epsilon = epsilon

    def __call__(self, values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions [B] and their log-probabilities [B] from values of the actions [B, A]."""
        best = values.argmax(dim=-1)
        num_envs, num_actions = values.shape
        coins = torch.rand(num_envs, generator=generator, device=values.device)
        others = torch.randint(num_actions, (num_envs,), generator=generator, device=values.device)
        actions = torch.where(coins < self.epsilon, others, best)
        chances = self.epsilon / num_actions + (1.0 - self.epsilon) * (actions == best)
        return actions, chances.log()


def draw_gaussian(outputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw from independent normal distributions.

    Args:
        outputs: [B, 2 A], means and log standard deviations.
        generator: of the draws, on the device of ``outputs``.

    Returns:
        Actions [B, A] and their log-probabilities [B].
    """
    means, log_stds = outputs.chunk(2, dim=-1)
    noise = torch.empty_like(means).normal_(generator=generator)
    return means + log_stds.exp() * noise, gaussian_log_probs(noise, log_stds)


def take_gaussian_mean(outputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Take the mean, the most probable action; arguments and results as of :func:`draw_gaussian`."""
    means, log_stds = outputs.chunk(2, dim=-1)
    return means, gaussian_log_probs(torch.zeros_like(means), log_stds)


def _with_log_probs(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    return actions, torch.log_softmax(logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


ACTION_HEADS: dict[str, Callable[[], ActionHead]] = {
    "categorical": lambda: draw_categorical,
    "greedy": lambda: take_greedy,
    "epsilon_greedy": EpsilonGreedy,
    "gaussian": lambda: draw_gaussian,
    "gaussian_mean": lambda: take_gaussian_mean,
}
"""Name -> maker of a head. A head with settings, such as an epsilon per env, is an object of its own per policy."""
