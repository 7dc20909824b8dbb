"""Proximal policy optimisation (Schulman et al., 2017): collects rollouts, and hands them to the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from gymnasium.error import AlreadyPendingCallError
from numpy.typing import NDArray

from vecenv import VecEnv
from vecenv.errors import UnknownSetting, VecEnvError

from .collector import RolloutCollector
from .config import PPO_FORMER_VALUES, PPO_PRESETS, PPOConfig, Precision
from .distributed import ALONE, OwnRows, World
from .env_checks import require_number, require_statistics
from .inference import ACTION_HEADS, ActionHead, BatchedPolicy
from .learner import Algorithm, CollectionInterrupted, Episode, UpdateReport
from .networks import CNNTrunk, build_actor_critic, sees_images
from .overlapped_collector import OverlappedCollector
from .ppo_update import LOSS_FIGURES, PPOUpdate
from .precision import (
    REQUIRED_AGREEMENT,
    ChosenPrecision,
    choose_acting_precision,
    choose_training_precision,
    greedy_agreement,
)
from .rollout_buffer import RolloutBuffer, TrainingBatch

PROBE_ROWS = 2048
"""Observations on which acting in bfloat16 is compared with float32."""
RECHECK_STEPS = 2**17
"""Env steps between two checks that acting in bfloat16 still takes the same actions as float32."""
NO_FIGURES: dict[str, float | None] = dict.fromkeys(
    ("learning_rate", *LOSS_FIGURES, "explained_variance", "gradient_steps")
)
"""Reported where no update has ended yet."""


class Collected(NamedTuple):
    """What a rank tells the others about the rollout it has just collected."""

    is_complete: bool
    """Whether all of its rows were played; not where Ctrl-C came in between."""
    num_steps: int
    """Env steps in it."""
    episodes: list[tuple[int, Episode]]
    """Each with the row t in which it ended."""


class PPO:
    """Learner: collects T steps from every environment, then takes several epochs of gradient steps on them.

    With ``async_collect`` the update runs in a thread of its own while the next rollout is collected by a copy of the
    policy as it was: rollout k+1 is acted on by version k and learnt from by version k+1. That is the largest
    staleness there can be, since the next rollout only begins when the update before it has ended. The importance
    ratio divides by the acting policy's probabilities, so the objective knows. Nothing depends on timing.

    Several ranks, each with ``config.num_envs`` environments, do together what one process with all of the environments
    would do, but for the order in which floating-point numbers are added: seeds, actions drawn, minibatches and
    statistics are the same. Counts of steps and episodes are those of all ranks, on each of them.
    """

    def __init__(
        self,
        envs: VecEnv,
        config: PPOConfig,
        *,
        seed: int = 0,
        device: str = "cpu",
        precision: Precision = "auto",
        world: World = ALONE,
    ) -> None:
        """Build network, optimizer and collector.

        Args:
            envs: made with :func:`env_settings`; stays the caller's to close.
            config: hyper-parameters.
            seed: of the weights, the drawing of actions and the shuffling.
            device: where the network lies.
            precision: number format of the network's trunk.
            world: the ranks that learn together; building, resetting and saving are exchanges of all of them.

        Raises:
            UnknownSetting: a minibatch has fewer rows than there are ranks, or envs was made with other settings.
            NotImplementedError: for spaces that have no network or action head.
            ValueError: when the network does not fit the observations, or the env does not fit the settings.
        """
        if config.minibatch_size < world.size:
            raise UnknownSetting(
                f"minibatch_size counts the rows of all ranks together: {config.minibatch_size} is fewer than the "
                f"{world.size} ranks"
            )
        require_number(envs, config.num_envs)
        require_statistics(envs)
        self.envs = envs
        self.config = config
        self._world = world
        self.device = torch.device(device)
        self.network = build_actor_critic(envs.single_observation_space, envs.single_action_space, config, seed)
        self.network.to(self.device)
        world.broadcast(self.network.state_dict().values())
        self.env_steps = 0
        self._seed = seed
        self._requested_precision = precision
        self.precision: dict[str, ChosenPrecision] = {"acting": "float32", "training": "float32"}
        self.update = PPOUpdate(
            self.network, config, self.device, seed, world.with_own_line() if config.async_collect else world
        )
        self.collector = self._build_collector()
        self._thread = ThreadPoolExecutor(1, "update", torch.set_num_threads, (1,)) if config.async_collect else None
        self._running: Future[dict[str, float | None]] | None = None
        self._last_figures = dict(NO_FIGURES)
        self._version = 0
        self._acting_version = 0

    def _build_collector(self) -> RolloutCollector | OverlappedCollector:
        envs, config, policy = self.envs, self.config, self._build_policy("float32")
        if config.overlap:
            return OverlappedCollector(envs, policy, config.num_steps)
        return RolloutCollector(envs, policy, config.num_steps, num_rollouts=2 if config.async_collect else 1)

    def _build_policy(self, precision: ChosenPrecision) -> BatchedPolicy:
        head: str | ActionHead = self.network.distribution.explore
        if self._world.size > 1:
            head = OwnRows(ACTION_HEADS[self.network.distribution.explore](), self._world)
        return BatchedPolicy(
            self.network,
            head=head,
            device=self.device,
            precision=precision,
            seed=self._seed,
            own_weights=self.config.async_collect,
        )

    @property
    def rollout(self) -> RolloutBuffer:
        """The rollout collected last."""
        return self.collector.rollout

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments."""
        self.collector.reset(seed=seed + self._world.rows(self.config.num_envs).start)

    def close(self) -> None:
        """End the threads that learn; may be called again."""
        if self._thread is not None:
            self._thread.shutdown()
        self.update.close()

    def prepare(self) -> list[Episode]:
        """Before the first update: one untrained rollout gives the statistics of observations and the precisions.

        The rollout is counted but not trained on, because its actions came from a network without the statistics.
        Networks for vectors need none unless observations are normalised, and are so small that float32 is never the
        slower choice.
        """
        trunk = self.network.trunk
        is_image = isinstance(trunk, CNNTrunk)
        if not is_image and self._requested_precision == "bfloat16":
            self._use_precision({"acting": "bfloat16", "training": "bfloat16"})
        if not is_image and self.network.normaliser is None:
            return []
        episodes = self._collect(lambda: False)
        self.update.observe(self.rollout)
        if isinstance(trunk, CNNTrunk):
            if self.config.subtract_mean_image:
                trunk.set_mean_image(self._image_sample(), self._world.merge)
            self._choose_precision()
        self.collector.policy.refresh()
        return episodes

    def _choose_precision(self) -> None:
        """Measure on the rollout collected last."""
        self.rollout.compute_advantages(self.config.gamma, self.config.gae_lambda)
        batch = TrainingBatch(self.rollout, self.device)
        sample = batch.select(torch.arange(min(self.config.minibatch_size, batch.num_rows)))
        acting = choose_acting_precision(
            self.network, self._probe(), self.rollout.num_envs, self._requested_precision, self.device
        )
        training = choose_training_precision(
            lambda autocast: self.update.compute_gradients(sample, autocast), self._requested_precision, self.device
        )
        # Ranks that measured differently still compute alike: bfloat16 where it pays on all of them.
        of_all = self._world.gather((acting, training))
        if any(acting == "float32" for acting, _ in of_all):
            acting = "float32"
        if any(training == "float32" for _, training in of_all):
            training = "float32"
        self._use_precision({"acting": acting, "training": training})

    def _image_sample(self) -> torch.Tensor:
        """Observations [B, ...] of the last rollout, two of each row over all ranks."""
        num_envs, size = self.rollout.num_envs, self._world.size
        numbers = torch.arange(self.rollout.num_slots * size * num_envs).reshape(-1, size * num_envs)
        mine = numbers[:, self._world.rows(num_envs)].flatten()
        return self.rollout.observations.flatten(0, 1)[mine % max(1, size * num_envs // 2) == 0]

    def recheck_precision(self) -> None:
        """Go back to acting in float32 where bfloat16, chosen by ``auto``, no longer takes the same greedy actions.

        Agreement was measured on the untrained network; this measures the present one on the last rollout.
        """
        if self._requested_precision != "auto" or self.precision["acting"] != "bfloat16":
            return
        agreement = greedy_agreement(self.network, self._probe(), self.device)
        if min(self._world.gather(agreement)) < REQUIRED_AGREEMENT:
            self._use_precision({**self.precision, "acting": "float32"})

    def _probe(self) -> NDArray[Any]:
        """At most PROBE_ROWS observations [B, ...] of the last rollout, spread over time and environments."""
        rows = self.rollout.observations.flatten(0, 1)
        probe: NDArray[Any] = rows[:: max(1, len(rows) // PROBE_ROWS)].numpy()
        return probe

    def train_once(self, stop_requested: Callable[[], bool] = lambda: False) -> UpdateReport:
        """Collect T steps from every environment and learn from them.

        With ``async_collect`` the report is of the update before, which ran meanwhile.

        Raises:
            CollectionInterrupted: when ``stop_requested`` says so; weights and counters are then as before the call.
            FloatingPointError: when the loss is no longer a finite number.
        """
        steps_before = self.env_steps
        episodes = self._collect(stop_requested)
        if self._thread is None:
            figures = self.update.learn(self.rollout, steps_before)
            self.collector.policy.refresh()
            staleness = 0
        else:
            figures = self._end_update()
            staleness = self._version - self._acting_version  # of the rollout just collected
            self.collector.policy.refresh()
            self._acting_version = self._version
        if self.env_steps // RECHECK_STEPS > steps_before // RECHECK_STEPS:
            self.recheck_precision()
        if self._thread is not None:
            self._running = self._thread.submit(self.update.learn, self.rollout, steps_before)
        return UpdateReport(episodes, {**figures, "staleness": staleness})

    def _collect(self, stop_requested: Callable[[], bool]) -> list[Episode]:
        """One rollout on every rank; counts its steps and returns its episodes, those of all ranks."""
        is_complete, episodes = True, []
        try:
            episodes = self.collector.collect(stop_requested)
        except CollectionInterrupted:
            is_complete = False  # the others must hear of it, or they would wait for this rank
        except VecEnvError:
            # torchrun ends its processes by a signal to whole groups, so workers end before their rank has stopped.
            if self._world.size == 1 or not stop_requested():
                raise
            is_complete = False
        num_steps = int(self.rollout.valid.sum())
        mine = Collected(is_complete, num_steps, list(zip(self.collector.episode_rows, episodes, strict=False)))
        ranks = self._world.gather(mine)
        if not all(rank.is_complete for rank in ranks):
            raise CollectionInterrupted
        self.env_steps += sum(rank.num_steps for rank in ranks)
        # Sorting is stable: in one row rank 0's environments come first, as they do in one process with all of them.
        return [episode for _, episode in sorted((e for rank in ranks for e in rank.episodes), key=lambda e: e[0])]

    def _end_update(self) -> dict[str, float | None]:
        """Wait for the update that runs in the thread, if there is one; figures of the last one that ran."""
        if self._running is not None:
            self._last_figures = self._running.result()
            self._running = None
            self._version += 1
        return self._last_figures

    def _use_precision(self, precision: dict[str, ChosenPrecision]) -> None:
        self.precision = precision
        self.update.autocast = precision["training"] == "bfloat16"
        if precision["acting"] != self.collector.policy.precision:
            generator = self.collector.policy.generator
            self.collector.policy = self._build_policy(precision["acting"])
            self.collector.policy.generator = generator
        self.collector.policy.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on, but the states of the environments; waits for a running update.

        It is that of one process with the environments of all ranks.
        """
        self._end_update()
        policy = self.collector.policy
        return {
            **self.update.state_dict(),
            "acting_weights": policy.weights() if self._thread is not None else None,
            "versions": [self._version, self._acting_version],
            "last_figures": self._last_figures,
            "env_steps": self.env_steps,
            "precision": self.precision,
            "action_generator": policy.generator.get_state(),
            "is_filler": [one for part in self._world.gather(self.collector.is_filler.tolist()) for one in part],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; replaces :meth:`prepare`.

        Raises:
            RuntimeError, ValueError: the state is of other settings.
        """
        self.update.load_state_dict(state)
        self.env_steps = int(state["env_steps"])
        self._use_precision(state["precision"])
        self._last_figures = dict(state["last_figures"])
        self._version, self._acting_version = state["versions"]
        if self._thread is not None and state["acting_weights"] is not None:
            self.collector.policy.load_weights(state["acting_weights"])
        self.collector.policy.generator.set_state(state["action_generator"])
        # With other environments only new episodes are possible, which have no fillers.
        if len(state["is_filler"]) == self._world.size * self.envs.num_envs:
            self.collector.is_filler[:] = state["is_filler"][self._world.rows(self.envs.num_envs)]

    def env_states(self) -> list[bytes]:
        """States of the environments of all ranks, last observations included.

        Raises:
            VecEnvError, NotImplementedError: the environments of a rank cannot save theirs.
        """
        if self._world.size == 1:
            return self.envs.get_state()
        states, refusal = [], ""
        try:
            states = self.envs.get_state()
        except (VecEnvError, AlreadyPendingCallError, NotImplementedError, TypeError) as error:
            refusal = f"{type(error).__name__} on rank {self._world.rank}: {error}"
        ranks = self._world.gather((states, refusal))
        if any(refusal for _, refusal in ranks):
            raise NotImplementedError(next(refusal for _, refusal in ranks if refusal))
        return [state for states, _ in ranks for state in states]

    def set_env_states(self, states: Sequence[bytes]) -> None:
        """Go on from :meth:`env_states`, after :meth:`load_state_dict`."""
        self.envs.set_state(states[self._world.rows(self.envs.num_envs)])
        self.collector.go_on()


def env_settings(config: PPOConfig) -> dict[str, Any]:
    """Keywords for `make_vec`: the env's own slots are the rollout's storage, except with ``overlap``."""
    settings = {"num_envs": config.num_envs, "copy": False, "statistics": True}
    if config.overlap:
        return {**settings, "batch_size": config.num_envs // 2}
    return {**settings, "slots": (2 if config.async_collect else 1) * config.num_steps + 1}


def evaluation_policy(
    envs: VecEnv, config: PPOConfig, state: dict[str, Any], *, sample: bool, seed: int, device: str
) -> BatchedPolicy:
    """The trained policy; see :class:`~vecenv.agents.learner.EvaluationPolicy`."""
    network = build_actor_critic(envs.single_observation_space, envs.single_action_space, config, seed)
    network.load_state_dict(state["network"])
    heads = network.distribution
    return BatchedPolicy(network.to(device), head=heads.explore if sample else heads.exploit, device=device, seed=seed)


ALGORITHM = Algorithm(
    "PPO",
    PPOConfig,
    PPO_PRESETS,
    PPO,
    env_settings,
    evaluation_policy,
    is_data_parallel=True,
    fixed_settings={"subtract_mean_image": sees_images},
    former_values=PPO_FORMER_VALUES,
)
