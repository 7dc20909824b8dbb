"""Actor processes as the learner sees them: started, fed with weights and permits, listened to, and ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from typing import Any

import numpy as np
from torch import nn

from vecenv import VecEnv
from vecenv.errors import WorkerDied
from vecenv.pickling import dumps, dumps_function

from .actor_process import ActorSetup, FailedMessage, PlayedMessage
from .child_process import ChildProcess, read_children
from .dqn_config import DQNConfig
from .dqn_player import PlayedSteps
from .dqn_weights import SharedWeights
from .learner import Episode
from .precision import ChosenPrecision
from .replay_buffer import ReplayBuffer

LOOK_SECONDS = 0.1
"""The longest that one call waits for actors, so that a stop is noticed."""
END_SECONDS = 2.0
"""What actors get for an end of their own."""
_MAIN = "vecenv.agents.actor_process:actor_main"


class ActorHandle(ChildProcess):
    """One actor process, from the learner's side.

    Attributes:
        owed: steps it was permitted, has taken, and gets a new permit for.
        updates: gradient steps in the weights it acted with last.
    """

    def __init__(self, setup: ActorSetup, replay_fd: int, weights_fd: int) -> None:
        """Start the process.

        Args:
            setup: what it plays.
            replay_fd: descriptor of the replay's memory; stays the caller's.
            weights_fd: descriptor of the weights' memory; stays the caller's.
        """
        self.first, self.num_envs = setup.first, len(setup.env_fns)
        self.owed, self.updates = 0, 0
        permits, self._permits = os.pipe()
        try:
            super().__init__(_MAIN, (permits, replay_fd, weights_fd), held=(self._permits,))
        finally:
            os.close(permits)
        self.send_bytes(dumps(setup))

    def permit(self, count: int) -> None:
        """Allow so many more steps of all its environments."""
        with contextlib.suppress(OSError):
            os.write(self._permits, b"\1" * count)

    def died(self) -> WorkerDied:
        """The error for a process that has ended by itself."""
        self.process.join(1.0)
        envs = range(self.first, self.first + self.num_envs)
        return WorkerDied(
            tuple(envs), self.process.pid, self.process.exitcode, "train_once", "resume from a checkpoint"
        )


class ActorPool:
    """All actor processes of a learner.

    Attributes:
        queued_steps: env steps that were waiting when the learner last looked.
    """

    def __init__(self, envs: VecEnv, config: DQNConfig, replay: ReplayBuffer, seed: int) -> None:
        """Plan the processes; they start with :meth:`reset`.

        Args:
            envs: gives the constructors of the environments: one for all, or one each.
            config: hyper-parameters.
            replay: rows go there.
            seed: of the exploration.

        Raises:
            NotImplementedError: a back end whose environments have no constructors.
            ValueError: another number of constructors.
            TypeError: a constructor that cannot be sent.
        """
        functions = getattr(envs, "env_fns", None)
        if functions is None:
            raise NotImplementedError("actor processes build environments by themselves; use backend sync or subproc")
        if len(functions) not in (1, config.num_envs):
            raise ValueError(f"envs must have 1 or num_envs={config.num_envs} environments, got {len(functions)}")
        pickled = [dumps_function(function) for function in functions]
        self._functions = pickled * (config.num_envs // len(pickled))
        self._autoreset_mode = envs.metadata["autoreset_mode"].value
        self._config, self._replay, self._seed = config, replay, seed
        self._actors: list[ActorHandle] = []
        self._weights: SharedWeights | None = None
        self._written_updates = -1
        self._starts = 0
        self.queued_steps = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, in order."""
        return tuple(actor.process.pid for actor in self._actors)

    @property
    def oldest_updates(self) -> int:
        """Gradient steps in the oldest weights that an actor acted with last."""
        return min((actor.updates for actor in self._actors), default=0)

    def reset(self, seed: int, network: nn.Module, env_steps: int, updates: int, precision: ChosenPrecision) -> None:
        """Start the processes, or end them and start others: new episodes everywhere.

        Args:
            seed: of the episodes.
            network: the weights to act with.
            env_steps: so far.
            updates: gradient steps so far.
            precision: number format to act in.
        """
        self.close()
        self._starts += 1
        self._weights = SharedWeights(network)
        self._weights.env_steps = env_steps
        self._weights.write(network, updates, precision)
        self._written_updates = updates
        share = self._config.num_envs // self._config.num_actors
        entropy = np.random.SeedSequence((self._seed, env_steps, self._starts))
        try:
            for number, action_seed in enumerate(entropy.generate_state(self._config.num_actors)):
                own = slice(number * share, (number + 1) * share)
                setup = ActorSetup(
                    tuple(self._functions[own]),
                    own.start,
                    self._replay.written[own].copy(),
                    self._replay.spec,
                    self._config,
                    self._autoreset_mode,
                    seed + own.start,
                    int(action_seed),
                )
                actor = ActorHandle(setup, self._replay.memory.descriptor, self._weights.descriptor)
                self._actors.append(actor)
                actor.permit(self._config.actor_steps_ahead)
        except BaseException:
            self.close()
            raise

    def receive(self) -> PlayedSteps:
        """What actors have played since the last call; waits a moment where nothing has come yet.

        Raises:
            WorkerDied: a process has ended.
            VecEnvError: an environment failed.
            RuntimeError: before :meth:`reset`.
        """
        if not self._actors:
            raise RuntimeError("a step was taken before reset")
        env_steps, episodes = 0, list[Episode]()
        for actor, messages in read_children(self._actors, LOOK_SECONDS):
            if messages is None:
                raise actor.died()
            for data in messages:
                message: Any = pickle.loads(data)
                if isinstance(message, FailedMessage):
                    raise message.error
                env_steps += self._take(actor, message)
                episodes += message.episodes
        self.queued_steps = env_steps
        return PlayedSteps(env_steps, episodes)

    def _take(self, actor: ActorHandle, message: PlayedMessage) -> int:
        self._replay.publish(message.written, actor.first)
        actor.owed += 1
        actor.updates = message.updates
        return message.env_steps

    def send(self, network: nn.Module, env_steps: int, updates: int, precision: ChosenPrecision) -> None:
        """Give actors the present weights, and leave for as many steps as were learnt from."""
        assert self._weights is not None
        self._weights.env_steps = env_steps
        if updates != self._written_updates and self._weights.write(network, updates, precision):
            self._written_updates = updates
        for actor in self._actors:
            if actor.owed:
                actor.permit(actor.owed)
                actor.owed = 0

    def close(self) -> None:
        """End all processes, in bounded time; may be called again."""
        for actor in self._actors:
            actor.let_go()
        deadline = time.monotonic() + END_SECONDS
        for actor in self._actors:
            actor.end(deadline)
        self._actors = []
        if self._weights is not None:
            self._weights.close()
            self._weights = None
