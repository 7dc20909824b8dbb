"""Settings of a training run as frozen dataclasses; the command line, checkpoints and ``config.json`` all show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vecenv.errors import UnknownSetting

from .setting_checks import check_choice, check_count, check_kinds, check_number, check_seed

Precision = Literal["auto", "float32", "bfloat16"]
NetworkName = Literal["mlp", "small-cnn", "nature-cnn"]
LrSchedule = Literal["linear", "kl"]
LrScaling = Literal["none", "linear", "linear-0.8"]


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
    """Adam's step size at total_steps; in between it falls linearly with the env steps."""
    lr_schedule: LrSchedule = "linear"
    """linear falls with the env steps; kl starts at learning_rate and follows kl_target."""
    lr_scaling: LrScaling = "none"
    """linear takes learning rates as those of one environment, times num_envs; linear-0.8 times num_envs x 0.8."""
    kl_target: float = 0.01
    """KL divergence per update that lr_schedule=kl aims at."""
    kl_limit: float | None = None
    """An update stops before the first minibatch whose KL divergence from the acting policy is above this."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Trade-off of advantage estimation between bias (0) and variance (1)."""
    clip_range: float = 0.2
    """How far the probability ratio may move before its gradient stops."""
    final_clip_range: float | None = None
    """Clip range at total_steps, reached linearly; None keeps it."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    final_entropy_coefficient: float | None = None
    """Entropy weight at total_steps, reached linearly; None keeps it."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to at most this norm."""
    network: NetworkName = "mlp"
    """mlp for vectors; small-cnn or nature-cnn for images [C, H, W]."""
    hidden_size: int = 64
    """Width of the two hidden layers of mlp."""
    subtract_mean_image: bool = True
    """Image networks see the difference from the mean image of the first rollout."""
    normalise_observations: bool = False
    """Vectors are brought to mean 0 and variance 1 by running statistics, which are saved and frozen for playing."""
    normalise_rewards: bool = False
    """Rewards are divided by the running standard deviation of discounted returns; reported returns are not."""
    overlap: bool = False
    """Environments take turns in two halves: one half steps while the policy decides for the other."""
    async_collect: bool = False
    """The next rollout is collected, by the policy as it was, while the last one is learnt from."""
    training_threads: int = 1
    """CPU threads that share the rows of a gradient step; 0 takes one per usable core, at most 8."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        for name in ("num_envs", "num_steps", "total_steps", "num_epochs", "minibatch_size", "hidden_size"):
            check_count(name, getattr(self, name), 1)
        check_count("training_threads", self.training_threads, 0)
        if self.num_steps < 2:
            raise UnknownSetting("num_steps must be at least 2: a rollout of one row may hold nothing but resets")
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("learning_rate", "clip_range", "max_grad_norm", "kl_target", "kl_limit", "final_clip_range"):
            check_number(name, getattr(self, name), above=0.0, optional=name in ("kl_limit", "final_clip_range"))
        for name in ("final_learning_rate", "value_coefficient", "entropy_coefficient"):
            check_number(name, getattr(self, name), 0.0)
        check_number("final_entropy_coefficient", self.final_entropy_coefficient, 0.0, optional=True)
        check_choice("network", self.network, NetworkName)
        check_choice("lr_schedule", self.lr_schedule, LrSchedule)
        check_choice("lr_scaling", self.lr_scaling, LrScaling)
        check_kinds(self, PPOConfig)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.normalise_observations and self.network != "mlp":
            raise UnknownSetting("normalise_observations is for vectors; images have subtract_mean_image")
        if self.overlap and self.num_envs % 2:
            raise UnknownSetting(f"overlap needs two halves: num_envs must be even, got {self.num_envs}")
        if self.overlap and self.async_collect:
            raise UnknownSetting("overlap and async_collect do not combine: both fill the time in which envs step")


PPO_PRESETS: dict[str, PPOConfig] = {
    "classic-control": PPOConfig(),
    "mujoco": PPOConfig(
        num_steps=128,
        total_steps=1_000_000,
        num_epochs=10,
        minibatch_size=64,
        learning_rate=3e-4,
        normalise_observations=True,
        normalise_rewards=True,
    ),
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

PPO_FORMER_VALUES: dict[str, dict[str, str]] = {"lr_scaling": {"document": "linear-0.8"}}
"""Hyper-parameter -> what earlier versions called one of its values -> its name now."""


@dataclass(frozen=True)
class RunConfig:
    """One training run: which environment, on what, until when, and where the results go."""

    env: str
    """Id of the environment, such as CartPole-v1 or PongNoFrameskip-v4."""
    backend: str = "auto"
    """Back end that steps the environments: auto, auto-fast, sync, subproc, ale, envpool, compiled or ray."""
    num_workers: int | None = None
    """Worker processes; None lets the back end choose."""
    preprocess: str | None = None
    """Preprocessing preset of Atari games; None is the back end's default."""
    seed: int = 0
    """Seed of the environments, the network and the sampling."""
    solve_at: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""
    stop_at_steps: int | None = None
    """Stop at this many env steps, with schedules made for total_steps; to go on, --resume with more, or with None."""
    max_seconds: float | None = None
    """Stop after this many seconds; a run that is resumed has them anew."""
    device: str = "auto"
    """Torch device; auto takes CUDA where there is one and the networks can lie on it."""
    precision: Precision = "auto"
    """Number format of networks; auto takes bfloat16 only where it measures faster and acts the same."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; a new best one is written up to four times as often."""
    algorithm: str = "ppo"
    """Name of the algorithm."""
    settings: Any = PPOConfig()
    """Hyper-parameters of the algorithm."""

    def __post_init__(self) -> None:
        """Refuse values that cannot run.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        check_choice("precision", self.precision, Precision)
        check_number("max_seconds", self.max_seconds, above=0.0, optional=True)
        check_number("checkpoint_seconds", self.checkpoint_seconds, 0.0)
        check_number("solve_at", self.solve_at, optional=True)
        check_seed("seed", self.seed)
        if self.stop_at_steps is not None:
            check_count("stop_at_steps", self.stop_at_steps, 1)
        if self.preprocess is not None and not isinstance(self.preprocess, str):
            raise UnknownSetting(
                f"preprocess must be the name of a preset, got {self.preprocess!r}; with other settings make the "
                "envs yourself and give them to Agent.train"
            )
        if type(self) is RunConfig:  # a command line may still lack the env, for which it has a marker of its own
            check_kinds(self, RunConfig)
