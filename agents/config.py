"""Settings of a training run as frozen dataclasses; the command line, checkpoints and ``config.json`` all show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from vecenv.errors import UnknownSetting

Precision = Literal["auto", "float32", "bfloat16"]
NetworkName = Literal["mlp", "small-cnn", "nature-cnn"]


@dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters of PPO. All counts of steps are real env steps (agent steps, not emulator frames)."""

    num_envs: int = 16
    """Environments stepped side by side."""
    num_steps: int = 64
    """Rows collected from each environment before an update (T)."""
    total_steps: int = 500_000
    """Env steps of the whole run; the learning rate reaches its end here."""
    num_epochs: int = 8
    """Passes over each rollout."""
    minibatch_size: int = 256
    """Rows per gradient step."""
    learning_rate: float = 2e-3
    """Adam's step size at the start."""
    final_learning_rate: float = 0.0
    """Adam's step size at ``total_steps``; in between it falls linearly with the env steps."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Trade-off of advantage estimation between bias (0) and variance (1)."""
    clip_range: float = 0.2
    """How far the probability ratio may move before its gradient stops."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to at most this norm."""
    network: NetworkName = "mlp"
    """``mlp`` for vectors; ``small-cnn`` or ``nature-cnn`` for images [C, H, W]."""
    hidden_size: int = 64
    """Width of the two hidden layers of ``mlp``."""
    subtract_mean_image: bool = True
    """Image networks see the difference from the mean image of the first rollout."""
    training_threads: int = 1
    """CPU threads that share the rows of a gradient step; 0 takes one per usable core, at most 8."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        for name in ("num_envs", "num_steps", "total_steps", "num_epochs", "minibatch_size", "hidden_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnknownSetting(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.num_steps < 2:
            raise UnknownSetting("num_steps must be at least 2: a rollout of one row may hold nothing but resets")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UnknownSetting(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        for name in ("learning_rate", "clip_range", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise UnknownSetting(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.network not in get_args(NetworkName):
            raise UnknownSetting(f"network must be one of {', '.join(get_args(NetworkName))}, got {self.network!r}")
        if self.training_threads < 0:
            raise UnknownSetting(f"training_threads must be 0 or more, got {self.training_threads!r}")


PPO_PRESETS: dict[str, PPOConfig] = {
    "classic-control": PPOConfig(),
    "atari": PPOConfig(
        num_envs=32,
        num_steps=64,
        total_steps=1_000_000,
        num_epochs=3,
        minibatch_size=256,
        learning_rate=1e-3,
        clip_range=0.1,
        entropy_coefficient=0.01,
        network="small-cnn",
        training_threads=0,
    ),
}
"""Hyper-parameters per kind of environment."""


@dataclass(frozen=True)
class RunConfig:
    """One training run: which environment, on what, until when, and where the results go."""

    env: str
    """Id of the environment, such as CartPole-v1 or PongNoFrameskip-v4."""
    backend: str = "auto"
    """Back end that steps the environments."""
    num_workers: int | None = None
    """Worker processes; None lets the back end choose."""
    preprocess: str | None = None
    """Preprocessing preset of Atari games; None is the back end's default."""
    seed: int = 0
    """Seed of the environments, the network and the sampling."""
    solve_at: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""
    max_seconds: float | None = None
    """Stop after this many seconds."""
    device: str = "auto"
    """Torch device; auto takes CUDA where there is one."""
    precision: Precision = "auto"
    """Number format of networks; auto takes bfloat16 only where it measures faster and acts the same."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""
    algorithm: str = "ppo"
    """Name of the algorithm."""
    settings: Any = PPOConfig()
    """Hyper-parameters of the algorithm, the frozen dataclass that its entry in the table of algorithms names."""

    def __post_init__(self) -> None:
        """Refuse values that cannot run.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        if self.precision not in get_args(Precision):
            raise UnknownSetting(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UnknownSetting(f"max_seconds must be above 0, got {self.max_seconds!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UnknownSetting(f"seed must be a whole number of at least 0, got {self.seed!r}")
