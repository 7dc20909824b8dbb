"""What every algorithm gives and gets: its learner, its report after each update, its entry in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from vecenv import VecEnv

from .inference import BatchedPolicy


class Episode(NamedTuple):
    """A finished episode."""

    total_reward: float
    """Sum of the environment's own unclipped rewards."""
    length: int
    """In env steps."""


def finished_episodes(infos: dict[str, Any]) -> list[Episode]:
    """Episodes that ended in one step, in env order; from the infos of a vector env made with ``statistics=True``."""
    if "_episode" not in infos:
        return []
    totals, lengths = infos["episode"]["r"], infos["episode"]["l"]
    return [Episode(float(totals[env]), int(lengths[env])) for env in np.flatnonzero(infos["_episode"])]


class UpdateReport(NamedTuple):
    """What one call of :meth:`Learner.train_once` did."""

    episodes: list[Episode]
    """Finished since the last report."""
    figures: dict[str, float | None]
    """The algorithm's own columns of ``metrics.csv``, in order; the same keys in every report."""


class CollectionInterrupted(Exception):
    """Collecting was given up because a stop was asked for; weights and counters are as before the call."""


def loss_not_finite(env_steps: int) -> FloatingPointError:
    """The error for a loss that is no finite number, after so many env steps."""
    return FloatingPointError(
        f"the loss is no longer finite after {env_steps} env steps; lower --learning-rate, or look for rewards and "
        "observations that are not finite"
    )


class Settings(Protocol):
    """What a training run reads from the settings of any algorithm; all of them are frozen dataclasses."""

    @property
    def num_envs(self) -> int:
        """Environments stepped side by side."""

    @property
    def total_steps(self) -> int:
        """Env steps of the whole run."""


class Learner(Protocol):
    """One algorithm at work in one vector env. The env is built by the caller and closed by the caller."""

    env_steps: int
    """Real env steps taken so far; filler rows of next-step autoreset do not count."""
    precision: dict[str, Any]
    """Number formats in use, such as ``{"acting": "bfloat16", "training": "float32"}``."""
    envs: VecEnv

    def prepare(self) -> list[Episode]:
        """Before the first update of a fresh run, after :meth:`reset`; returns episodes that ended meanwhile."""

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments."""

    def train_once(self, stop_requested: Callable[[], bool]) -> UpdateReport:
        """Play and learn until there is something to report.

        Raises:
            CollectionInterrupted: ``stop_requested`` said so; everything is as before the call.
            FloatingPointError: the loss is no longer a finite number.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on, but the states of the environments: plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; replaces :meth:`prepare`."""

    def env_states(self) -> list[bytes] | None:
        """States of the environments to go on from, or None where they cannot be saved between two updates.

        Raises:
            VecEnvError, NotImplementedError: the environments cannot save theirs.
        """

    def set_env_states(self, states: Sequence[bytes]) -> None:
        """Go on from :meth:`env_states`, in place of :meth:`reset` and after :meth:`load_state_dict`."""

    def close(self) -> None:
        """End the learner's own threads and processes; may be called again."""


@runtime_checkable
class KeepsFiles(Protocol):
    """A learner with files beside its checkpoint, such as a replay; what has all of these methods is one."""

    def save_files(self, folder: Path) -> None:
        """Write them, for the `state_dict` that follows; it names them."""

    def remove_old_files(self, folder: Path) -> None:
        """Remove those of earlier checkpoints, after the last one has been written."""

    def load_state_dict(self, state: dict[str, Any], folder: Path | None = None) -> None:
        """As of any learner; ``folder`` is where the files lie, None where there are none."""

    def starts_anew(self) -> str | None:
        """What `load_state_dict` could not bring back, as one sentence for people."""


class EvaluationPolicy(Protocol):
    """Builds the policy of a trained learner, for playing."""

    def __call__(
        self, envs: VecEnv, config: Any, state: dict[str, Any], *, sample: bool, seed: int, device: str
    ) -> BatchedPolicy:
        """A policy that acts for ``envs`` with the weights in ``state``.

        Args:
            envs: gives the spaces.
            config: settings of the algorithm.
            state: from :meth:`Learner.state_dict`; statistics of normalisation in it are used frozen.
            sample: explore as in training, in place of the best known action.
            seed: of the policy's random draws.
            device: where the network lies.
        """


class LearnerFactory(Protocol):
    """The learner's class."""

    def __call__(self, envs: VecEnv, config: Any, *, seed: int, device: str, precision: Any) -> Learner:
        """Build a learner for ``envs``; see :class:`Learner`."""


@dataclass(frozen=True)
class Algorithm:
    """Entry of an algorithm in :data:`~vecenv.agents.algorithms.ALGORITHMS`.

    Attributes:
        title: for people, such as ``PPO``.
        config: frozen dataclass of the hyper-parameters, with at least ``num_envs`` and ``total_steps``.
        presets: hyper-parameters by name. ``classic-control`` must be there; ``atari``, ``mujoco`` are taken where the
            environment is of that kind; any other is taken on request.
        learner: builds a learner.
        env_settings: hyper-parameters -> keywords for `make_vec` (slots, copy, statistics, autoreset_mode, ...).
        evaluation_policy: builds a policy from a learner's state.
        run_defaults: fields of `RunConfig` that default to another value for this algorithm.
        is_data_parallel: several ranks can learn together; the learner then takes ``world``, see
            :class:`~vecenv.agents.distributed.World`.
        fixed_settings: hyper-parameter that stays as it is when a run goes on, because its state holds it -> whether it
            counts for anything, with these hyper-parameters.
        used_only_with: hyper-parameter -> the one that decides whether it counts, and with which of its values.
        cpu_only_with: hyper-parameter -> values with which networks lie on the CPU only, as device ``auto`` then does.
        former_values: hyper-parameter -> what earlier versions called one of its values -> its name now.
    """

    title: str
    config: type[Any]
    presets: Mapping[str, Any]
    learner: LearnerFactory
    env_settings: Callable[[Any], dict[str, Any]]
    evaluation_policy: EvaluationPolicy
    run_defaults: Mapping[str, Any] = field(default_factory=dict)
    is_data_parallel: bool = False
    fixed_settings: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    used_only_with: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    cpu_only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    former_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
