"""Hyper-parameters of evolution strategies, and sets of them per kind of environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vecenv.errors import UnknownSetting

from .config import NetworkName
from .setting_checks import check_choice, check_count, check_kinds, check_number

FitnessShaping = Literal["centered-ranks", "normalised"]
EngineName = Literal["inline", "processes", "ray"]

USED_ONLY_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "workers": ("engine", ("processes", "ray")),
    "start_timeout": ("engine", ("processes", "ray")),
    "ray_address": ("engine", ("ray",)),
    "ray_cpus": ("engine", ("ray",)),
}
"""Hyper-parameter -> the one that decides whether it counts, and with which of its values."""


@dataclass(frozen=True)
class ESConfig:
    """Hyper-parameters of evolution strategies (Salimans et al., 2017). Counts of steps are real env steps."""

    num_pairs: int = 32
    """Antithetic pairs per generation: one member adds the noise to the parameters, the other subtracts it."""
    total_steps: int = 5_000_000
    """Env steps of the whole run."""
    noise_std: float = 0.1
    """Standard deviation of the noise in the parameters."""
    learning_rate: float = 0.1
    """Adam's step size."""
    weight_decay: float = 0.0
    """This times the parameters is added to the gradient that is minimised."""
    fitness: FitnessShaping = "centered-ranks"
    """How returns become weights: centered-ranks (ties share), or normalised by mean and standard deviation."""
    normalise_observations: bool = False
    """Observations minus their running mean, over their running standard deviation; not for images."""
    subtract_mean_image: bool = True
    """Image networks see the difference from the mean image of some random steps before the first generation."""
    unperturbed_pairs: int = 0
    """Further pairs that play without noise: where there are any, theirs are the episodes that count as results."""
    max_episode_steps: int = 0
    """Episodes are cut after this many steps; 0 leaves it to the environment."""
    network: NetworkName = "mlp"
    """mlp for vectors; small-cnn or nature-cnn for images [C, H, W]."""
    hidden_size: int = 32
    """Width of the two hidden layers of mlp, or of the layer behind the convolutions."""
    engine: EngineName = "inline"
    """Who plays: inline (this process), processes, or ray (actors of a cluster); the same parameters in any case."""
    workers: int = 0
    """Processes or actors of the engine; 0 takes one per usable core, or per free CPU of the Ray cluster."""
    pairs_at_once: int = 0
    """Pairs that one worker plays side by side; 0 is an equal share of all, fewer save memory."""
    report_share: float = 1.0
    """Share of the pairs that a generation waits for; below 1 results CHANGE and cannot be repeated."""
    # The rest is dropped, so that one slow worker holds up nobody: which pairs count then depends on time, and long
    # episodes are the ones dropped. Only what is dealt in small portions can be cut off: see pairs_at_once.
    start_timeout: float = 120.0
    """Seconds that workers may take to start and to build their environments."""
    ray_address: str | None = None
    """Ray cluster of engine ray: host:port, auto or local; by default that of RAY_ADDRESS, else one of our own."""
    ray_cpus: float = 1.0
    """CPUs that Ray sets aside for each worker of engine ray; a fraction lets workers share one."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        for name in ("num_pairs", "total_steps", "hidden_size"):
            check_count(name, getattr(self, name), 1)
        for name in ("unperturbed_pairs", "workers", "pairs_at_once", "max_episode_steps"):
            check_count(name, getattr(self, name), 0)
        for name in ("noise_std", "learning_rate", "report_share", "start_timeout", "ray_cpus"):
            check_number(name, getattr(self, name), above=0.0)
        check_number("report_share", self.report_share, least=0.0, most=1.0)
        check_number("weight_decay", self.weight_decay, least=0.0)
        for name, choices in (("fitness", FitnessShaping), ("network", NetworkName), ("engine", EngineName)):
            check_choice(name, getattr(self, name), choices)
        if self.engine == "inline" and self.report_share < 1.0:
            raise UnknownSetting("report_share below 1 needs workers that can be late: engine processes or ray")
        if self.ray_address is not None and not isinstance(self.ray_address, str):
            raise UnknownSetting(f"ray_address must be 'host:port', 'auto' or 'local', got {self.ray_address!r}")
        check_kinds(self, ESConfig)
        for name, (decider, fitting) in USED_ONLY_WITH.items():
            if getattr(self, name) != getattr(ESConfig, name) and getattr(self, decider) not in fitting:
                needed, given = " or ".join(fitting), getattr(self, decider)
                raise UnknownSetting(f"{name} needs {decider} {needed}, got {decider} {given}")

    @property
    def played_pairs(self) -> int:
        """Pairs played per generation, those without noise included."""
        return self.num_pairs + self.unperturbed_pairs

    @property
    def num_envs(self) -> int:
        """Episodes per generation: one per member of every pair."""
        return 2 * self.played_pairs


ES_PRESETS: dict[str, ESConfig] = {
    "classic-control": ESConfig(),
    "mujoco": ESConfig(
        num_pairs=60,
        total_steps=12_000_000,
        noise_std=0.02,
        learning_rate=0.02,
        normalise_observations=True,
        hidden_size=64,
        engine="processes",
    ),
    "atari": ESConfig(
        num_pairs=32,
        total_steps=20_000_000,
        noise_std=0.05,
        learning_rate=0.02,
        network="small-cnn",
        hidden_size=64,
        engine="processes",
        pairs_at_once=4,
        max_episode_steps=3_000,
    ),
}
"""Hyper-parameters per kind of environment."""
