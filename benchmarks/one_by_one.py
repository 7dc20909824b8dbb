"""Evolution strategies as they are usually written: a process has one environment, one network, one observation.

What population inference is compared with. The members are the same ones, with the same noise, seeds and learner; only
who plays them is another, so that returns agree with those of the batched population up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from vecenv.agents.actions import EnvActions
from vecenv.agents.es_config import ESConfig
from vecenv.agents.inference import ACTION_HEADS
from vecenv.agents.learner import CollectionInterrupted
from vecenv.agents.perturbation import draw_env_seeds, draw_noise
from vecenv.agents.population_evaluation import Broadcast, PairResult, unpack_results
from vecenv.agents.population_network import action_head, build_policy_network
from vecenv.agents.population_statistics import sends_statistics

from .piped_processes import PipedProcesses

LOOK_SECONDS = 0.1
"""How often a wait looks whether a stop was asked for."""
END_SECONDS = 5.0
"""How long a process may take to end once its pipe has; its exit code is known only then."""


@dataclass(frozen=True)
class OneByOneSetup:
    """What a process plays.

    Attributes:
        env_id: id of the Gymnasium environment.
        config: hyper-parameters; its engine and what follows from it do not matter.
        seed: of the run.
        sends_noise: whether each pair's whole noise goes back with its scores.
    """

    env_id: str
    config: ESConfig
    seed: int
    sends_noise: bool = False


class OneByOnePlayer:
    """Plays members one after the other, with a forward pass per observation.

    Args:
        setup: what to play.
    """

    def __init__(self, setup: OneByOneSetup) -> None:
        self._setup = setup
        self._env = gymnasium.make(setup.env_id, disable_env_checker=True)
        observation_space, action_space = self._env.observation_space, self._env.action_space
        self._network = build_policy_network(observation_space, action_space, setup.config, setup.seed)
        head = action_head(action_space)
        self._head = ACTION_HEADS[head]() if isinstance(head, str) else head
        self._generator = torch.Generator()
        self._to_env = EnvActions(action_space)

    def play_pair(self, broadcast: Broadcast, pair: int) -> bytes:
        """Play both members of a pair that has noise.

        Returns:
            `PairResult.pack`, and behind it the noise [P] float32 where it is sent.
        """
        config, middle = self._setup.config, broadcast.parameters
        if broadcast.observation_mean is not None:
            self._network.scaling.set(broadcast.observation_mean, broadcast.observation_factor)
        noise = draw_noise(self._setup.seed, broadcast.generation, pair, len(middle))
        scaled = noise * np.float32(config.noise_std)
        env_seed = draw_env_seeds(self._setup.seed, broadcast.generation, pair)[0]
        first_return, first_seen = self._play(middle + scaled, env_seed)
        second_return, second_seen = self._play(middle - scaled, env_seed)
        returns, lengths = (first_return, second_return), (len(first_seen), len(second_seen))
        moments = None
        if broadcast.observation_mean is not None and config.normalise_observations:
            moments = _moments(np.concatenate([first_seen, second_seen]), broadcast.observation_mean)
            if not sends_statistics(broadcast.generation, pair, moments.shape[1]):
                moments = None
        packed = PairResult(broadcast.generation, pair, returns, lengths, moments).pack()
        return packed + noise.tobytes() if self._setup.sends_noise else packed

    def _play(self, parameters: NDArray[np.float32], env_seed: int) -> tuple[float, NDArray[np.float64]]:
        """One episode: its return, and all observations that were acted on [T, D]."""
        torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters), self._network.parameters())
        limit = self._setup.config.max_episode_steps
        total, seen = 0.0, []
        observation, _ = self._env.reset(seed=env_seed)
        with torch.inference_mode():
            while True:
                seen.append(observation)
                outputs, _ = self._network(torch.from_numpy(observation[np.newaxis]))
                actions, _ = self._head(outputs, self._generator)
                observation, reward, terminated, truncated, _ = self._env.step(self._to_env(actions.numpy())[0])
                total += float(reward)
                if terminated or truncated or len(seen) == limit:
                    return total, np.stack(seen).reshape(len(seen), -1)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _moments(observations: NDArray[np.float64], reference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean's difference from a reference, and variance, of observations [T, D]: [2, D] float32."""
    difference = observations - reference.astype(np.float64)
    return np.stack([difference.mean(axis=0), difference.var(axis=0)]).astype(np.float32)


class OneByOneEngine:
    """Plays whole generations in this process; an engine of ES.

    Args:
        setup: what to play.
    """

    def __init__(self, setup: OneByOneSetup) -> None:
        self._player = OneByOnePlayer(setup)
        self._pairs = range(setup.config.num_pairs)

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Play every pair of one generation.

        Raises:
            CollectionInterrupted: ``stop_requested`` said so between two pairs.
        """
        results = []
        for pair in self._pairs:
            if stop_requested():
                raise CollectionInterrupted
            results += unpack_results(self._player.play_pair(broadcast, pair))
        return results

    def close(self) -> None:
        """Close the environment."""
        self._player.close()


class OneByOneProcesses:
    """Plays whole generations in processes with one environment and one network each; an engine of ES.

    Args:
        setup: what to play.
        num_workers: processes.

    Attributes:
        bytes_received: payload of all results so far, in bytes.
    """

    def __init__(self, setup: OneByOneSetup, num_workers: int) -> None:
        self._setup = setup
        self._call = 0
        self.bytes_received = 0
        self._processes = PipedProcesses(_serve, [setup] * num_workers)

    def evaluate(self, broadcast: Broadcast, stop_requested: Callable[[], bool]) -> list[PairResult]:
        """Deal the pairs of one generation, as many to each process, and wait for all of them.

        Raises:
            CollectionInterrupted: ``stop_requested`` said so.
            RuntimeError: a process has ended; the message has its number and exit code.
        """
        self._call += 1
        num_pairs = self._setup.config.num_pairs
        pipes = self._processes.pipes
        for number, pipe in enumerate(pipes):
            with self._telling_its_end(number):
                pipe.send((self._call, broadcast, range(number, num_pairs, len(pipes))))
        results: dict[int, PairResult] = {}
        while len(results) < num_pairs:
            readable = wait(pipes, LOOK_SECONDS)
            for number, pipe in ((number, pipe) for number, pipe in enumerate(pipes) if pipe in readable):
                with self._telling_its_end(number):
                    call, data = pipe.recv()
                if call == self._call:  # otherwise of a generation that was given up
                    self._take(data, len(broadcast.parameters), results)
            if stop_requested():
                raise CollectionInterrupted
        return [results[pair] for pair in range(num_pairs)]

    @contextmanager
    def _telling_its_end(self, number: int) -> Iterator[None]:
        """Say which process a broken pipe is of, and how it ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            process = self._processes.processes[number]
            process.join(END_SECONDS)
            raise RuntimeError(f"process {number} has ended with exit code {process.exitcode}") from error

    def _take(self, data: bytes, num_parameters: int, results: dict[int, PairResult]) -> None:
        self.bytes_received += len(data)
        if self._setup.sends_noise:
            data = data[: -4 * num_parameters]
        results.update((result.pair, result) for result in unpack_results(data))

    def close(self) -> None:
        """End the processes, in the middle of their work if need be: they hold nothing that could be lost."""
        self._processes.close()


def _serve(pipe: Connection, setup: OneByOneSetup) -> None:
    """Run in a process of its own: play the pairs of each message, one answer per pair."""
    torch.set_num_threads(1)
    player = OneByOnePlayer(setup)
    pipe.send("ready")
    broadcast: Broadcast
    pairs: Sequence[int]
    while True:
        try:
            call, broadcast, pairs = pipe.recv()
        except (EOFError, OSError):
            return  # nobody is left to play for
        for pair in pairs:
            packed = player.play_pair(broadcast, pair)  # what fails here ends the process with its traceback
            try:
                pipe.send((call, packed))
            except OSError:
                return
