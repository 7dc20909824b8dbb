"""What the throughput benchmark lets take turns: a vector environment stepped with actions drawn ahead.

Every Atari contestant delivers the same work: 84x84 gray, the maximum over the last two of 4 skipped frames, a stack of
4, up to 30 no-ops at a reset, clipped rewards, no sticky actions, autoreset in the NEXT_STEP mode (the peer SB3 knows
only SAME_STEP).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from vecenv import make_vec
from vecenv.atari import find_game
from vecenv.atari_emulator import rom_facts

from .timing import measure_rate

ACTION_BATCHES = 256


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        env_id: id of the environment.
        num_envs: environments in a batch.
        num_workers: worker processes of ours, threads of native engines; at most one per usable core is sensible.
        seed: seed of the environments and of the actions.
        batch_size: environments per `recv`; None: all, with `step`.
    """

    env_id: str
    num_envs: int
    num_workers: int
    seed: int = 0
    batch_size: int | None = None

    @property
    def rom(self) -> str | None:
        """The Atari game's name as ale-py knows it, None for other environments."""
        game = find_game(self.env_id)
        return None if game is None else game.rom


class VectorContestant:
    """A vector environment stepped with random actions drawn ahead.

    The newest results are kept while the next step runs, as by a trainer, which stores the observations beside what
    comes of them: memory that nobody held on to would be handed out again at once, warm in the core's caches.

    Args:
        name: name in the table.
        envs: the environment; `close` closes it.
        actions: batches of actions, as `draw_actions` gives them.
        settings: what is measured; with a batch size it is driven by `send` and `recv`, else by `step`.
        reset: replaces ``envs.reset(seed=...)`` where a peer's differs; before `send` it only begins all resets.

    Attributes:
        observation_shape: shape of a batch of observations.
    """

    def __init__(
        self,
        name: str,
        envs: Any,
        actions: Sequence[np.ndarray],
        settings: Settings,
        *,
        reset: Callable[[], Any] | None = None,
    ) -> None:
        self.name = name
        self._envs = envs
        self._num_envs = settings.num_envs
        self._turn = 0
        self._actions = actions
        self._step = self._step_batch if settings.batch_size is None else self._step_part
        if settings.batch_size is not None:
            (reset or envs.send_reset)()
            first = envs.recv()
            self._env_ids = first[4]["env_id"]
        else:
            first = envs.reset(seed=settings.seed) if reset is None else reset()
        self._newest: Any = first
        observations = first[0] if isinstance(first, tuple) else first
        self.observation_shape: tuple[int, ...] = np.shape(observations)

    def measure(self, seconds: float) -> float:
        """Step for `seconds` seconds.

        Returns:
            Agent steps per second, all environments together.
        """
        return measure_rate(self._step, seconds)

    def play(self, batches: int) -> float:
        """Step so many times.

        Returns:
            Agent steps per second, all environments together.
        """
        start = time.perf_counter()
        steps = sum(self._step() for _ in range(batches))
        return steps / (time.perf_counter() - start)

    def _next_actions(self) -> np.ndarray:
        self._turn = (self._turn + 1) % len(self._actions)
        return self._actions[self._turn]

    def _step_batch(self) -> int:
        self._newest = self._envs.step(self._next_actions())
        return self._num_envs

    def _step_part(self) -> int:
        self._envs.send(self._next_actions()[self._env_ids], self._env_ids)
        self._newest = self._envs.recv()
        self._env_ids = self._newest[4]["env_id"]
        return len(self._env_ids)

    def close(self) -> None:
        """Close the environment."""
        close_envs(self._envs)


def close_envs(envs: Any) -> None:
    """Close a vector env; of a peer whose call was interrupted, end the worker processes instead.

    Their `close` first waits for the call's answers, without end where Ctrl-C came after one of them was taken. Ours
    ends in bounded time.
    """
    is_ours = type(envs).__module__.partition(".")[0] == "vecenv"
    processes = [] if is_ours else getattr(envs, "processes", [])
    if not processes or not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        envs.close()
        return
    for process in processes:
        process.kill()
        process.join()
    envs.closed = True  # or it would be closed once more when it is collected


def draw_actions(settings: Settings, count: int = ACTION_BATCHES) -> list[np.ndarray]:
    """Draw batches of valid actions, the same for every contestant.

    Args:
        settings: what is measured.
        count: number of batches.

    Returns:
        Batches of the batched action space's shape and dtype.
    """
    batched = gymnasium.vector.utils.batch_space(_action_space(settings), settings.num_envs)
    batched.seed(settings.seed)
    return [batched.sample() for _ in range(count)]


def _action_space(settings: Settings) -> gymnasium.Space[Any]:
    """Of one environment; a game's own table tells it without building a pipeline."""
    if settings.rom is not None:
        return gymnasium.spaces.Discrete(len(rom_facts(settings.rom).minimal_actions))
    env = gymnasium.make(settings.env_id, disable_env_checker=True)
    env.close()
    return env.action_space


@dataclass(frozen=True)
class Contender:
    """A back end of ours, or a peer, that can be asked for by name.

    Attributes:
        title: what the table calls it.
        build: builds it, given settings, the name of its row and the actions.
        module: import name of the package it needs, "" for none beyond the core.
        distribution: that package's name as pip knows it.
        extra: the extra that installs it.
        atari_only: whether it has nothing but Atari games.
        uses_workers: whether `Settings.num_workers` changes anything.
        uses_batch_size: whether it has `send` and `recv` in parts.
        process_per_env: whether it starts a process for every environment.
        ours: whether it is a back end of ours.
    """

    title: str
    build: Callable[[Settings, str, Sequence[np.ndarray]], VectorContestant]
    module: str = ""
    distribution: str = ""
    extra: str = ""
    atari_only: bool = False
    uses_workers: bool = False
    uses_batch_size: bool = False
    process_per_env: bool = False
    ours: bool = False

    def row_name(self, settings: Settings, *, with_num_envs: bool = True) -> str:
        """Name of its row: the title, and those of the settings that change anything."""
        parts = [f"{settings.num_envs} envs"] if with_num_envs else []
        if self.uses_workers:
            parts.append(f"{settings.num_workers} workers")
        if self.uses_batch_size and settings.batch_size is not None:
            parts.append(f"batches of {settings.batch_size}")
        return f"{self.title} ({', '.join(parts)})" if parts else self.title


def _ours(backend: str, settings: Settings, name: str, actions: Sequence[np.ndarray]) -> VectorContestant:
    kwargs: dict[str, Any] = {} if settings.rom is None else {"repeat_action_probability": 0.0}
    if settings.rom is not None and backend in ("ale", "envpool"):
        kwargs["preprocess"] = backend  # an engine has the preset of its own name
    if BACKENDS[backend].uses_workers:
        kwargs["num_workers"] = settings.num_workers
    if settings.batch_size is not None:
        kwargs["batch_size"] = settings.batch_size
    envs = make_vec(settings.env_id, settings.num_envs, backend, seed=settings.seed, **kwargs)
    return VectorContestant(name, envs, actions, settings)


def _backend(name: str, **facts: Any) -> Contender:
    def build(settings: Settings, row_name: str, actions: Sequence[np.ndarray]) -> VectorContestant:
        return _ours(name, settings, row_name, actions)

    return Contender(f"vecenv {name}", build, ours=True, **facts)


#: Back ends of ours, by the word for ``--backends``.
BACKENDS = {
    "subproc": _backend("subproc", uses_workers=True, uses_batch_size=True),
    "sync": _backend("sync", uses_batch_size=True),
    "compiled": _backend("compiled"),
    "ale": _backend(
        "ale",
        module="ale_py",
        distribution="ale-py",
        extra="atari",
        atari_only=True,
        uses_workers=True,
        uses_batch_size=True,
    ),
    "envpool": _backend(
        "envpool", module="envpool", distribution="envpool", extra="envpool", uses_workers=True, uses_batch_size=True
    ),
    "ray": _backend("ray", module="ray", distribution="ray", extra="ray", uses_workers=True, uses_batch_size=True),
}
