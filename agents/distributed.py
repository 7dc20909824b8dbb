"""Processes that learn together: who they are, by the environment that ``torchrun`` sets, and what they exchange.

With one process nothing here touches ``torch.distributed``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from vecenv.errors import UnknownSetting

from .normalisation import Moments, merge_moments

Value = TypeVar("Value")

TIMEOUT_SECONDS = 300.0
"""Longest wait for another rank, to begin with and in each exchange; ``torchrun`` itself notices an end at once."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` sets for each of its processes."""


class RankLost(RuntimeError):
    """Another rank has ended, or did not answer in time."""


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that learn together.

    Attributes:
        rank: number of this process, 0 to ``world_size - 1``.
        world_size: how many there are.
        local_rank: number of this process on its machine; decides its GPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


ONLY_PLACE = Place()
"""That of a process which learns by itself."""


def find_place(environ: Mapping[str, str] | None = None) -> Place:
    """The place that ``torchrun`` gave to this process; the only one, where nothing says otherwise.

    Args:
        environ: variables; None: those of this process.

    Raises:
        UnknownSetting: only some of the variables are set, or they do not fit together.
    """
    environ = os.environ if environ is None else environ
    if not any(name in environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return ONLY_PLACE
    missing = [name for name in VARIABLES if not environ.get(name)]
    if missing:
        present = ", ".join(name for name in VARIABLES if environ.get(name))
        raise UnknownSetting(
            f"the environment sets {present or 'empty variables'} but not {', '.join(missing)}: torchrun sets all of "
            "them, and one process alone needs none"
        )
    numbers = {name: environ[name] for name in VARIABLES if name != "MASTER_ADDR"}
    wrong = [f"{name}={text}" for name, text in numbers.items() if not text.isdecimal()]
    if wrong:
        raise UnknownSetting(f"{', '.join(wrong)} in the environment must be a whole number of at least 0")
    rank, world_size, local_rank, port = (int(text) for text in numbers.values())
    if rank >= world_size:
        raise UnknownSetting(f"RANK={rank} in the environment must be below WORLD_SIZE={world_size}")
    if local_rank > rank:
        raise UnknownSetting(f"LOCAL_RANK={local_rank} in the environment must not be above RANK={rank}")
    if not 0 < port < 2**16:
        raise UnknownSetting(f"MASTER_PORT={port} in the environment must be from 1 to {2**16 - 1}")
    return Place(rank, world_size, local_rank)


class World:
    """The ranks of a run, seen from one of them.

    Every method is an exchange: all ranks call it, in the same order, and it returns when they have. With one rank it
    returns at once. Values travel as pickles between processes of the same user's run; tensors as they are.
    """

    def __init__(
        self,
        place: Place = ONLY_PLACE,
        timeout: timedelta = timedelta(seconds=TIMEOUT_SECONDS),
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        """The ranks that :func:`connect` brought together; by default one rank alone.

        Args:
            place: of this process.
            timeout: longest wait for another rank.
            group: a line of its own; None: the one that all exchanges use.
        """
        self.place, self.rank, self.size = place, place.rank, place.world_size
        self._timeout, self._group = timeout, group

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and prints."""
        return self.rank == 0

    def rows(self, num_rows: int) -> slice:
        """This rank's among the rows of all ranks, each of which has ``num_rows``."""
        return slice(self.rank * num_rows, (self.rank + 1) * num_rows)

    def with_own_line(self) -> World:
        """The same ranks with a line of their own, so that another thread can exchange at the same time."""
        if self.size == 1:
            return self
        with self._exchange():
            return World(self.place, self._timeout, distributed.new_group(timeout=self._timeout))

    def gather(self, value: Value) -> list[Value]:
        """What every rank gave, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._exchange():
            distributed.all_gather_object(values, value, group=self._group)
        return values

    def broadcast_object(self, value: Value) -> Value:
        """What rank 0 gave."""
        if self.size == 1:
            return value
        values: list[Any] = [value if self.is_first else None]
        with self._exchange():
            distributed.broadcast_object_list(values, src=0, group=self._group)
        first: Value = values[0]
        return first

    def merge(self, moments: Moments) -> Moments:
        """Count, mean and population variance of the samples of all ranks together; the same bits on each of them."""
        if self.size == 1:
            return moments
        count, mean, variance = moments
        if isinstance(mean, Tensor):  # a pickle of a tensor on a GPU would come out on the sender's
            count, mean, variance = self._merge((count, mean.cpu(), variance.cpu()))
            return count, mean.to(moments[1].device), variance.to(moments[1].device)
        return self._merge(moments)

    def _merge(self, moments: Moments) -> Moments:
        return functools.reduce(lambda one, other: merge_moments(*one, *other), self.gather(moments))

    def all_reduce(self, tensor: Tensor) -> None:
        """Put the sum over all ranks into ``tensor``, in place; the same bits on each of them."""
        if self.size > 1:
            with self._exchange():
                distributed.all_reduce(tensor, group=self._group)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Put rank 0's numbers into ``tensors``, in place."""
        if self.size > 1:
            for tensor in tensors:
                with self._exchange():
                    distributed.broadcast(tensor, src=0, group=self._group)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not _is_of_the_connection(error):
                raise
            raise RankLost(
                f"rank {self.rank} of {self.size} lost another rank, whose own error says why ({_reason(error)}); the "
                "last checkpoint stays"
            ) from error


ALONE = World()
"""One process that learns by itself."""


@contextlib.contextmanager
def connect(place: Place, device: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Iterator[World]:
    """The ranks of this run, connected to each other until the block ends.

    Args:
        place: of this process.
        device: torch device of this rank: on CUDA tensors travel by NCCL, everything else by gloo.
        timeout_seconds: longest wait for another rank.

    Raises:
        RankLost: the other ranks did not come in time.
        UnknownSetting: two ranks have the same GPU.
    """
    if place.world_size == 1:
        yield ALONE
        return
    is_cuda = torch.device(device).type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_seconds)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store = _meeting_point(place, timeout)
        store.set_timeout(timeout)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=distributed.PrefixStore(  # type: ignore[attr-defined]
                f"vecenv/{next(_meetings)}", store
            ),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise RankLost(
            f"rank {place.rank} of {place.world_size} did not meet the others at {address} ({_reason(error)})"
        ) from error
    try:
        world = World(place, timeout)
        if is_cuda:
            refuse_shared_gpus(world.gather((platform.node(), str(torch.cuda.get_device_properties(device).uuid))))
        yield world
    finally:
        distributed.destroy_process_group()


def refuse_shared_gpus(gpus: Sequence[tuple[str, str]]) -> None:
    """Refuse ranks that would share a GPU, which NCCL cannot do: each may have been shown the same single one.

    Args:
        gpus: machine and unique identifier of each rank's.

    Raises:
        UnknownSetting: two are the same; all ranks say so.
    """
    for rank, gpu in enumerate(gpus):
        first = gpus.index(gpu)
        if first < rank:
            raise UnknownSetting(
                f"ranks {first} and {rank} have the same GPU of {gpu[0]}: a launcher that sets CUDA_VISIBLE_DEVICES "
                "must show each rank another one; start fewer ranks, or use --device cpu"
            )


def _is_of_the_connection(error: RuntimeError) -> bool:
    """Whether an error of an exchange is about the others, unlike a lack of memory or tensors that do not fit.

    Gloo's begin with a place in its sources in brackets, where a check of this rank's own says ``enforce fail``.
    """
    text = str(error)
    return isinstance(error, distributed.DistError) or "NCCL" in text or re.match(r"\[(?!enforce)", text) is not None


def _reason(error: Exception) -> str:
    """What went wrong in a few words, without the place in torch's sources and the advice that follows."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^]]*\]:? *", "", lines[0]).split(". ")[0].rstrip(".")


_meetings = itertools.count()
"""How often this process has connected: each time has names of its own at the meeting point."""


@functools.cache
def _meeting_point(place: Place, timeout: timedelta) -> Any:
    """Where ranks find each other; kept until the process ends, so that none finds the one of an earlier run."""
    store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))
    return store


class OwnRows:
    """An action head that draws for the environments of all ranks and keeps its own.

    All ranks have the same generator, so each environment gets the random numbers that it would get in one process
    with all of them. Drawing costs next to nothing beside the network, which only ever sees this rank's rows.
    """

    def __init__(self, head: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]], world: World) -> None:
        """Draw by ``head``; every rank acts for as many environments."""
        self._head = head
        self._world = world

    def __call__(self, outputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions [B, ...] and log-probabilities [B] for this rank's ``outputs`` [B, ...]."""
        own = self._world.rows(len(outputs))
        of_all = outputs.new_zeros((self._world.size * len(outputs), *outputs.shape[1:]))
        of_all[own] = outputs
        actions, log_probs = self._head(of_all, generator)
        return actions[own], log_probs[own]
