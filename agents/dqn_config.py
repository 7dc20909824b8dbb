"""Hyper-parameters of DQN, as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass

from vecenv.errors import UnknownSetting

from .config import NetworkName
from .schedules import linear
from .setting_checks import check_choice, check_count, check_kinds, check_number

_WHOLE_NUMBERS = (
    "num_envs",
    "total_steps",
    "hidden_size",
    "replay_capacity",
    "learning_starts",
    "minibatch_size",
    "target_update_steps",
    "epsilon_steps",
    "num_return_steps",
    "num_atoms",
    "actor_steps_ahead",
    "report_steps",
)
_PARTS = ("gamma", "epsilon_start", "epsilon_end", "priority_exponent", "priority_beta")


@dataclass(frozen=True)
class DQNConfig:
    """Hyper-parameters of DQN. All counts of steps are real env steps of all environments together."""

    num_envs: int = 32
    """Environments stepped side by side."""
    total_steps: int = 150_000
    """Env steps of the whole run."""
    replay_capacity: int = 100_000
    """Rows of the replay. An env step takes one; every episode takes one more per frame of an observation."""
    learning_starts: int = 1_000
    """Env steps played before learning begins."""
    minibatch_size: int = 256
    """Transitions per gradient step."""
    steps_per_update: float = 16.0
    """Env steps per gradient step; below 1 there are several gradient steps per env step."""
    target_update_steps: int = 500
    """Env steps between two copies of the network to the target network."""
    gamma: float = 0.99
    """Discount per env step."""
    learning_rate: float = 2e-3
    """Adam's step size at the start."""
    final_learning_rate: float | None = 0.0
    """Adam's step size at total_steps, reached linearly; None keeps it as it is."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float | None = 10.0
    """Gradients are scaled down to at most this norm; None leaves them alone."""
    epsilon_start: float = 1.0
    """Chance of a random action at the start, drawn for every environment by itself."""
    epsilon_end: float = 0.02
    """Chance of a random action from epsilon_steps on."""
    epsilon_steps: int = 10_000
    """Env steps over which the chance of a random action falls linearly."""
    double: bool = True
    """The network picks the next action and the target network values it (van Hasselt et al., 2016)."""
    dueling: bool = False
    """State value and advantages have layers of their own (Wang et al., 2016)."""
    num_return_steps: int = 3
    """Rewards summed before a target bootstraps (n-step returns)."""
    prioritized: bool = False
    """Transitions whose value was further off are drawn more often (prioritized replay; Schaul et al., 2016)."""
    priority_exponent: float = 0.6
    """Alpha of prioritized replay: 0 draws all transitions alike, 1 in proportion to their error."""
    priority_beta: float = 0.4
    """Beta of prioritized replay at the start: how far importance weights undo its bias; 1 at total_steps."""
    noisy: bool = False
    """Noise on the weights explores in place of random actions (Fortunato et al., 2018)."""
    categorical: bool = False
    """Learns distributions of returns (C51; Bellemare et al., 2017)."""
    num_atoms: int = 51
    """Atoms of a categorical distribution, evenly from value_min to value_max."""
    value_min: float = -10.0
    """Lowest return that a categorical distribution can express."""
    value_max: float = 10.0
    """Highest return that a categorical distribution can express."""
    network: NetworkName = "mlp"
    """mlp for vectors; small-cnn or nature-cnn for images [C, H, W]."""
    hidden_size: int = 128
    """Width of the two hidden layers of mlp."""
    subtract_mean_image: bool = True
    """Image networks see the difference from the mean image of what was played before learning begins."""
    stack_size: int | None = None
    """Frames along the first axis of an observation, each stored once; None: what Atari preprocessing says, else 1."""
    training_threads: int = 1
    """CPU threads that share the rows of a gradient step; 0 takes one per usable core, at most 8."""
    overlap: bool = True
    """Gradient steps are taken while the environments step; they then do not know that step yet."""
    num_actors: int = 0
    """Processes that play, each its share of the environments; 0 plays in the learner's own process."""
    actor_steps_ahead: int = 4
    """Steps of all its environments that an actor process may be ahead of the learner."""
    report_steps: int = 1_000
    """Env steps between two rows of metrics.csv."""
    save_replay: bool | None = None
    """Whether checkpoints keep the replay, in a file beside them; None: where it takes at most 1 GB."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train.

        Raises:
            UnknownSetting: names the setting, the value and what is allowed.
        """
        for name in _WHOLE_NUMBERS:
            check_count(name, getattr(self, name), 1)
        for name in ("training_threads", "num_actors"):
            check_count(name, getattr(self, name), 0)
        if self.stack_size is not None:
            check_count("stack_size", self.stack_size, 1)
        for name in _PARTS:
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("learning_rate", "adam_epsilon", "steps_per_update"):
            check_number(name, getattr(self, name), above=0.0)
        check_number("max_grad_norm", self.max_grad_norm, above=0.0, optional=True)
        check_number("final_learning_rate", self.final_learning_rate, 0.0, optional=True)
        for name in ("value_min", "value_max"):
            check_number(name, getattr(self, name))
        check_choice("network", self.network, NetworkName)
        check_kinds(self, DQNConfig)
        self._check_sizes()

    def epsilon_at(self, env_steps: int) -> float:
        """Chance of a random action after so many env steps; 0 where noise explores."""
        return 0.0 if self.noisy else linear(self.epsilon_start, self.epsilon_end, env_steps, self.epsilon_steps)

    def _check_sizes(self) -> None:
        """Refuse values that contradict each other."""
        if self.minibatch_size > self.replay_capacity:
            raise UnknownSetting(
                f"minibatch_size {self.minibatch_size} is larger than the replay (replay_capacity "
                f"{self.replay_capacity})"
            )
        if self.learning_starts > self.replay_capacity:
            raise UnknownSetting(
                f"learning_starts {self.learning_starts} is more than the replay holds (replay_capacity "
                f"{self.replay_capacity})"
            )
        if self.categorical and not (self.num_atoms >= 2 and self.value_min < self.value_max):
            raise UnknownSetting(
                "categorical needs num_atoms of at least 2 and value_min below value_max, got "
                f"{self.num_atoms}, {self.value_min!r} and {self.value_max!r}"
            )
        if self.num_actors and self.num_envs % self.num_actors:
            raise UnknownSetting(
                f"num_envs {self.num_envs} must be a multiple of num_actors {self.num_actors}: each plays as many"
            )


DQN_PRESETS: dict[str, DQNConfig] = {
    "classic-control": DQNConfig(),
    "atari": DQNConfig(
        num_envs=16,
        total_steps=1_500_000,
        learning_starts=10_000,
        minibatch_size=128,
        steps_per_update=16.0,
        target_update_steps=2_000,
        learning_rate=3e-4,
        final_learning_rate=None,
        epsilon_steps=60_000,
        epsilon_end=0.01,
        network="small-cnn",
        training_threads=0,
        report_steps=2_000,
    ),
    "ladder-baseline": DQNConfig(
        num_envs=1,
        total_steps=1_500_000,
        learning_starts=10_000,
        minibatch_size=32,
        steps_per_update=1.0,
        target_update_steps=1_000,
        learning_rate=1e-4,
        final_learning_rate=None,
        max_grad_norm=None,
        epsilon_steps=100_000,
        epsilon_end=0.02,
        double=False,
        num_return_steps=1,
        network="nature-cnn",
        subtract_mean_image=False,
        training_threads=0,
        overlap=False,
    ),
}
"""Hyper-parameters per kind of environment; ``ladder-baseline`` is plain DQN with one Atari environment."""
