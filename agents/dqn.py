"""Deep Q-learning (Mnih et al., 2015) with the well-known improvements as independent switches."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from vecenv import VecEnv

from .config import Precision
from .dqn_config import DQN_PRESETS, DQNConfig
from .dqn_player import ReplayPlayer
from .dqn_staging import new_array
from .dqn_update import QLearning
from .env_checks import require_autoreset, require_number, require_statistics
from .inference import BatchedPolicy, EpsilonGreedy
from .learner import Algorithm, CollectionInterrupted, Episode, UpdateReport
from .networks import sees_images
from .prioritized_replay import Priorities
from .q_networks import build_q_network
from .replay_buffer import ReplayBuffer
from .replay_files import load_rows, save_rows, unused_path
from .replay_memory import ReplayMemory, ReplaySpec
from .replay_writer import ReplayWriter
from .run_directory import REPLAY_NAME

if TYPE_CHECKING:
    from .dqn_actors import ActorPool

LARGEST_SAVED_REPLAY = 10**9
"""Bytes up to which checkpoints keep the replay unless told otherwise."""
REPORT_SECONDS = 10.0
"""The longest time between two reports."""
RETURN_SMOOTHING = 0.98
"""Of the smoothed return: what the past counts at every episode."""
RATE_SMOOTHING = 0.8
"""Of the smoothed speed: what the past counts at every report."""


class DQN:
    """Learner: plays into the replay, and takes gradient steps in a fixed ratio to the env steps."""

    def __init__(
        self, envs: VecEnv, config: DQNConfig, *, seed: int = 0, device: str = "cpu", precision: Precision = "auto"
    ) -> None:
        """Build networks, replay and player; actor processes start at the first :meth:`reset`.

        Args:
            envs: made with :func:`env_settings`; stays the caller's to close. Actor processes build their own from
                its constructors.
            config: hyper-parameters.
            seed: of the weights, the exploration and the sampling.
            device: where the networks lie.
            precision: number format of the network's trunk.

        Raises:
            NotImplementedError: spaces that DQN cannot act in or read.
            UnknownSetting: the replay does not fit the environments, or not into memory; envs was made with other
                settings.
            ValueError: the network does not fit the observations.
        """
        self.envs, self.config = envs, config
        self.device = torch.device(device)
        self.env_steps = 0
        self.learning = QLearning(envs, config, seed=seed, device=self.device)
        self.precision: dict[str, Any] = self.learning.precision  # the same dictionary
        self.replay = self._build_replay(seed)
        self._seed, self._requested_precision = seed, precision
        self._begun, self._targets = False, 0
        self._counted_from = config.learning_starts, 0
        self._smoothed_return: float | None = None
        self._rate: float | None = None
        self._saved_replay: tuple[int, dict[str, Any]] | None = None
        self._restored: dict[str, Any] = {}
        self.actors: ActorPool | None = None
        self.player: ReplayPlayer | None = None
        if config.num_actors:
            from .dqn_actors import ActorPool  # not there on Windows

            self.actors = ActorPool(envs, config, self.replay, seed)
        else:
            require_number(envs, config.num_envs)
            require_statistics(envs)
            mode = require_autoreset(envs)
            writer = ReplayWriter(self.replay.memory, 0, envs.num_envs, mode)
            head = EpsilonGreedy()
            self.player = ReplayPlayer(envs, self._policy(head), head, writer)

    def _build_replay(self, seed: int) -> ReplayBuffer:
        envs, config = self.envs, self.config
        stack_size = config.stack_size or (envs.config.stack_size if envs.config is not None else 1)
        spec = ReplaySpec.of(envs.single_observation_space, config.num_envs, config.replay_capacity, stack_size)
        return ReplayBuffer(
            ReplayMemory(spec),
            config.num_return_steps,
            config.gamma,
            steps_ahead=config.actor_steps_ahead if config.num_actors else 1,
            priorities=Priorities(spec.num_streams * spec.num_slots, config.priority_exponent)
            if config.prioritized
            else None,
            new_array=functools.partial(new_array, device=self.device),
            seed=seed,
        )

    def _policy(self, head: EpsilonGreedy) -> BatchedPolicy:
        return BatchedPolicy(
            self.learning.network,
            head=head,
            device=self.device,
            precision=self.precision["acting"],
            seed=self._seed,
        )

    def close(self) -> None:
        """End threads and actor processes; may be called again."""
        if self.actors is not None:
            self.actors.close()
        self.learning.close()
        self.replay.memory.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the actors."""
        return () if self.actors is None else self.actors.pids

    def prepare(self) -> list[Episode]:
        """Nothing: the replay is filled by the first calls of :meth:`train_once`."""
        return []

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments."""
        if self.actors is not None:
            self.actors.reset(
                seed, self.learning.network, self.env_steps, self.learning.updates, self.precision["acting"]
            )
        elif self.player is not None:
            self.player.reset(seed)
            self.replay.publish(self.player.writer.written)

    def train_once(self, stop_requested: Callable[[], bool] = lambda: False) -> UpdateReport:
        """Play and learn until the env steps cross the next multiple of ``report_steps``.

        A stop ends the call early, with a report of what was done; so do `REPORT_SECONDS`, where steps take long.

        Raises:
            CollectionInterrupted: when ``stop_requested`` says so before anything was done.
            FloatingPointError: when the loss is no longer a finite number.
            VecEnvError: when an environment or a process fails.
        """
        config = self.config
        started, steps_before = time.perf_counter(), self.env_steps
        goal = min((self.env_steps // config.report_steps + 1) * config.report_steps, config.total_steps)
        episodes: list[Episode] = []
        while self.env_steps < max(goal, steps_before + 1):
            if stop_requested():
                if self.env_steps == steps_before:
                    raise CollectionInterrupted
                break
            episodes += self._turn()
            if self.env_steps > steps_before and time.perf_counter() - started > REPORT_SECONDS:
                break
        return self._report(episodes, self.env_steps - steps_before, time.perf_counter() - started)

    def _turn(self) -> list[Episode]:
        """One step of all environments, or what actors have played since the last turn, and its gradient steps."""
        if self.actors is not None:
            played = self.actors.receive()
            self.env_steps += played.env_steps
            self._learn()
            self.actors.send(self.learning.network, self.env_steps, self.learning.updates, self.precision["acting"])
            return played.episodes
        player = cast(ReplayPlayer, self.player)
        self.learning.draw_noise()
        player.policy.refresh()
        player.begin_step(self.config.epsilon_at(self.env_steps))
        if self.config.overlap:
            self._learn()
        played = player.end_step()
        self.env_steps += played.env_steps
        self.replay.publish(player.writer.written)
        if not self.config.overlap:
            self._learn()
        return played.episodes

    def _learn(self) -> None:
        """Take the gradient steps that are due, and renew the target network where its time has come."""
        config = self.config
        if self.env_steps < config.learning_starts or not self.replay.size:
            return
        if not self._begun:
            self.learning.begin(self.replay, config.num_envs, self._requested_precision)
            self._use_acting_precision()
            self._begun = True
        if self.env_steps // config.target_update_steps > self._targets:
            self._targets = self.env_steps // config.target_update_steps
            self.learning.update_target()
        steps, updates = self._counted_from
        due = updates + int((self.env_steps - steps) / config.steps_per_update)
        while self.learning.updates < due:
            self.learning.update(self.replay, self.env_steps)

    def _use_acting_precision(self) -> None:
        player = self.player
        if player is not None and player.policy.precision != self.precision["acting"]:
            generator = player.policy.generator
            player.policy = self._policy(player.head)
            player.policy.generator = generator

    def _report(self, episodes: list[Episode], env_steps: int, seconds: float) -> UpdateReport:
        for episode in episodes:
            past = episode.total_reward if self._smoothed_return is None else self._smoothed_return
            self._smoothed_return = RETURN_SMOOTHING * past + (1.0 - RETURN_SMOOTHING) * episode.total_reward
        rate = env_steps / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else RATE_SMOOTHING * self._rate + (1.0 - RATE_SMOOTHING) * rate
        figures: dict[str, float | None] = {
            "smoothed_return": self._smoothed_return,
            "smoothed_steps_per_second": self._rate,
            "learning_rate": self.learning.learning_rate,
            **self.learning.take_figures(self.env_steps),
            "epsilon": self.config.epsilon_at(self.env_steps),
            "replay_size": self.replay.size,
            "updates": self.learning.updates,
            "queued_steps": None if self.actors is None else self.actors.queued_steps,
            "updates_behind": None if self.actors is None else self.learning.updates - self.actors.oldest_updates,
        }
        return UpdateReport(episodes, figures)

    # -- resuming ----------------------------------------------------------------------------------------------------

    @property
    def keeps_replay(self) -> bool:
        """Whether checkpoints keep the replay, by ``save_replay``."""
        if self.config.save_replay is not None:
            return self.config.save_replay
        return self.replay.spec.nbytes <= LARGEST_SAVED_REPLAY

    def save_files(self, folder: Path) -> None:
        """Write the replay into ``folder``, for the :meth:`state_dict` that follows; it names the file."""
        if self.keeps_replay:
            path = unused_path(folder, self.env_steps)
            self._saved_replay = self.env_steps, save_rows(self.replay.memory, self.replay.written, path)

    def remove_old_files(self, folder: Path) -> None:
        """Remove the replays of earlier checkpoints, after the last one has been written."""
        if self._saved_replay is None:
            return
        for path in folder.glob(REPLAY_NAME.format("*")):
            if path.name != self._saved_replay[1]["name"]:
                path.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on, but the states of the environments and the rows of the replay."""
        saved = None
        if self._saved_replay is not None and self._saved_replay[0] == self.env_steps:
            saved = self._saved_replay[1]
        state: dict[str, Any] = {
            "learning": self.learning.state_dict(),
            "replay": self.replay.state_dict(with_rows=saved is not None),
            "replay_file": saved,
            "env_steps": self.env_steps,
            "begun": self._begun,
            "targets": self._targets,
            "pace": {**self._pace(), "counted_from": self._counted_from},
            "smoothed_return": self._smoothed_return,
        }
        if self.player is not None:
            state["action_generator"] = self.player.policy.generator.get_state()
            state["is_filler"] = self.player.is_filler.copy()
        return state

    def load_state_dict(self, state: dict[str, Any], folder: Path | None = None) -> None:
        """Go on from :meth:`state_dict`; replaces :meth:`prepare`.

        Args:
            state: what was saved.
            folder: where the files of that checkpoint lie; None starts the replay anew.

        Raises:
            UnknownSetting: the replay's file does not fit.
        """
        self.learning.load_state_dict(state["learning"])
        self.env_steps, self._targets = int(state["env_steps"]), int(state["targets"])
        self._go_on_counting(state.get("pace"))
        self._begun = bool(state["begun"])
        self._smoothed_return = state["smoothed_return"]
        record, replay = state["replay_file"], state["replay"]
        self._restored = {"rows": record is not None and folder is not None}
        if record is not None and folder is not None:
            load_rows(self.replay.memory, np.asarray(replay["written"]), folder / record["name"], record)
            self.replay.load_state_dict(replay)
        else:
            self.replay.load_state_dict({"random": replay["random"]})
        if self.player is not None and "is_filler" in state:
            self._use_acting_precision()
            self.player.policy.generator.set_state(state["action_generator"])
            self._restored["is_filler"] = np.asarray(state["is_filler"])
        if self.player is not None and self._restored["rows"]:
            self.player.writer.written[:] = self.replay.written

    def _pace(self) -> dict[str, Any]:
        return {"steps_per_update": self.config.steps_per_update, "learning_starts": self.config.learning_starts}

    def _go_on_counting(self, before: dict[str, Any] | None) -> None:
        """Settings that have changed hold from now on: they make nothing overdue, and nothing wait.

        Args:
            before: pace of the saved state; None: the same as now, as states of before it was saved are taken.
        """
        self._targets = min(self._targets, self.env_steps // self.config.target_update_steps)
        if before is None:
            return
        self._counted_from = tuple(before["counted_from"])
        if any(before[name] != now for name, now in self._pace().items()):
            self._counted_from = max(self.env_steps, self.config.learning_starts), self.learning.updates

    def starts_anew(self) -> str | None:
        """What :meth:`load_state_dict` could not bring back, as one sentence for people."""
        if self._restored and not self._restored["rows"]:
            return "the replay starts anew, because it was not saved (--save-replay True saves it)"
        return None

    @property
    def plays_elsewhere(self) -> bool:
        """Whether actor processes play, so that there are no environments here whose states could be set."""
        return self.actors is not None

    def env_states(self) -> list[bytes] | None:
        """States of the environments; None where actor processes play."""
        return None if self.actors is not None else self.envs.get_state()

    def set_env_states(self, states: Sequence[bytes]) -> None:
        """Go on from :meth:`env_states`, after :meth:`load_state_dict`."""
        player = cast(ReplayPlayer, self.player)
        self.envs.set_state(states)
        player.go_on(self._restored["is_filler"], self._restored["rows"])
        self.replay.publish(player.writer.written)


def env_settings(config: DQNConfig) -> dict[str, Any]:
    """Keywords for `make_vec`; actor processes need only one environment here, to copy its constructor."""
    return {"num_envs": 1 if config.num_actors else config.num_envs, "copy": False, "slots": 2, "statistics": True}


def evaluation_policy(
    envs: VecEnv, config: DQNConfig, state: dict[str, Any], *, sample: bool, seed: int, device: str
) -> BatchedPolicy:
    """The trained policy; see :class:`~vecenv.agents.learner.EvaluationPolicy`."""
    network = build_q_network(envs.single_observation_space, envs.single_action_space, config, seed)
    network.load_state_dict(state["learning"]["network"])
    if not sample:
        for layer in network.noisy_layers():
            layer.remove_noise()
    head = EpsilonGreedy(config.epsilon_at(int(state["env_steps"])) if sample else 0.0)
    return BatchedPolicy(network.to(device), head=head, device=device, seed=seed)


# A replay is large: it is not written every minute.
ALGORITHM = Algorithm(
    "DQN",
    DQNConfig,
    DQN_PRESETS,
    DQN,
    env_settings,
    evaluation_policy,
    run_defaults={"checkpoint_seconds": 300.0},
    fixed_settings={
        "value_min": lambda config: config.categorical,
        "value_max": lambda config: config.categorical,
        "subtract_mean_image": sees_images,
    },
)
