"""Main of an actor process: plays its environments with the learner's weights, straight into the shared replay.

Only counts, episodes and the version of the weights go back through the channel; a pipe of permits says how far the
actor may run ahead of the learner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import select
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vecenv import AutoresetMode, SyncVecEnv, VecEnv
from vecenv.channel import Channel
from vecenv.errors import EnvError, VecEnvError, env_error
from vecenv.forks import close_in_forks
from vecenv.lifeline import begin_child
from vecenv.pickling import dumps

from .dqn_config import DQNConfig
from .dqn_player import ReplayPlayer
from .dqn_weights import SharedWeights
from .inference import BatchedPolicy, EpsilonGreedy
from .learner import Episode
from .q_networks import QNetwork, build_q_network
from .replay_memory import ReplayMemory, ReplaySpec
from .replay_writer import ReplayWriter


@dataclass(frozen=True)
class ActorSetup:
    """What an actor gets at its start.

    Attributes:
        env_fns: pickled constructors of its environments.
        first: index of the first of them among all.
        written: [N] int64, rows that their streams have had.
        spec: of the replay.
        config: hyper-parameters.
        autoreset_mode: of the environments.
        seed: of the first episodes and of the exploration.
        action_seed: of the exploration.
    """

    env_fns: tuple[bytes, ...]
    first: int
    written: NDArray[np.int64]
    spec: ReplaySpec
    config: DQNConfig
    autoreset_mode: str
    seed: int
    action_seed: int


class PlayedMessage(NamedTuple):
    """What an actor says after each step of its environments."""

    written: NDArray[np.int64]
    """[N] int64, rows that its streams have had."""
    env_steps: int
    """Actions that were executed."""
    episodes: list[Episode]
    """Episodes that ended."""
    updates: int
    """Gradient steps in the weights that chose the actions."""


class FailedMessage(NamedTuple):
    """What an actor says when it cannot go on."""

    error: VecEnvError
    """To be raised by the learner."""


def actor_main(descriptors: Sequence[int]) -> None:
    """Play until the learner is gone or lets go of the channel.

    Args:
        descriptors: channel, lifeline, permits, replay, weights; owned from here on.
    """
    channel_fd, lifeline_fd, permits_fd, replay_fd, weights_fd = descriptors
    begin_child(descriptors, lifeline_fd)
    torch.set_num_threads(1)
    channel = Channel(socket.socket(fileno=channel_fd))
    close_in_forks(channel, (lifeline_fd, permits_fd))  # the memory belongs to arrays, which close what is theirs
    try:
        setup: ActorSetup = channel.receive()
        try:
            with contextlib.closing(_Actor(setup, ReplayMemory(setup.spec, replay_fd), weights_fd)) as actor:
                actor.play(channel, permits_fd)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            channel.send_bytes(_packed_failure(error, setup.first))
    except (EOFError, ConnectionError):
        pass  # the learner has let go of the channel


class _Actor:
    def __init__(self, setup: ActorSetup, memory: ReplayMemory, weights_fd: int) -> None:
        config, mode = setup.config, AutoresetMode(setup.autoreset_mode)
        env_fns = [pickle.loads(data) for data in setup.env_fns]
        self._envs: VecEnv = SyncVecEnv(env_fns, copy=False, slots=2, statistics=True, autoreset_mode=mode)
        spaces = self._envs.single_observation_space, self._envs.single_action_space
        self._network: QNetwork = build_q_network(*spaces, config, 0)
        self._weights = SharedWeights(self._network, weights_fd)
        self._setup = setup
        self._noise = torch.Generator().manual_seed(setup.action_seed)
        writer = ReplayWriter(memory, setup.first, len(env_fns), mode)
        writer.written[:] = setup.written
        head = EpsilonGreedy()
        self._origin = self._weights.read(self._network)
        self._player = ReplayPlayer(self._envs, self._policy(head), head, writer)

    def _policy(self, head: EpsilonGreedy) -> BatchedPolicy:
        return BatchedPolicy(self._network, head=head, precision=self._origin.precision, seed=self._setup.action_seed)

    def play(self, channel: Channel, permits_fd: int) -> None:
        """Take one step of all environments per permit, until the channel closes."""
        player = self._player
        player.reset(self._setup.seed)
        poller = select.poll()
        poller.register(permits_fd, select.POLLIN)
        poller.register(channel.fileno(), select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if channel.fileno() in ready or not os.read(permits_fd, 1):
                break
            self._take_over_weights()
            player.begin_step(self._setup.config.epsilon_at(self._weights.env_steps))
            played = player.end_step()
            channel.send(PlayedMessage(player.writer.written, played.env_steps, played.episodes, self._origin.updates))

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _take_over_weights(self) -> None:
        player = self._player
        if self._weights.version != self._origin.version:
            self._origin = self._weights.read(self._network)
            if self._origin.precision != player.policy.precision:
                generator = player.policy.generator
                player.policy = self._policy(player.head)
                player.policy.generator = generator
        self._network.draw_noise(self._noise)
        player.policy.refresh()


def _packed_failure(error: Exception, first: int) -> bytes:
    """A message that tells an exception; environments are named by their index among all."""
    if isinstance(error, EnvError):
        failures = [dataclasses.replace(own, env_index=own.env_index + first) for own in error.failures]
        try:
            return dumps(FailedMessage(env_error(failures, error.doing)))
        except Exception:  # an exception of the user's that cannot be pickled
            plain = [dataclasses.replace(own, exception=None) for own in failures]
            return dumps(FailedMessage(env_error(plain, error.doing)))
    text = "".join(traceback.format_exception(error)).rstrip()
    return dumps(FailedMessage(VecEnvError(f"actor process {os.getpid()} failed:\n{text}")))
