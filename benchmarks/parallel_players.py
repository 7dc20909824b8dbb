"""Processes that do their own work as fast as they can, side by side and without a word to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from .piped_processes import PipedProcesses
from .timing import measure_rate

#: Called over and over; gives how much it has done.
Player = Callable[[], int]


class ParallelPlayers:
    """One process per player.

    Args:
        name: name in the table.
        make_players: functions that can be sent to a process and build its player there.

    Attributes:
        name: the same.
    """

    def __init__(self, name: str, make_players: Sequence[Callable[[], Player]]) -> None:
        self.name = name
        self._processes = PipedProcesses(_serve, make_players)

    def measure(self, seconds: float) -> float:
        """Let all play at the same time for `seconds` seconds.

        Returns:
            What all together did per second.
        """
        for pipe in self._processes.pipes:
            pipe.send(seconds)
        rates: list[float] = [pipe.recv() for pipe in self._processes.pipes]
        return sum(rates)

    def close(self) -> None:
        """End the processes, in the middle of their work if need be: they hold nothing that could be lost."""
        self._processes.close()


def _serve(pipe: Connection, make_player: Callable[[], Player]) -> None:
    """Run in a process of its own: play for as long as each message says, answer with what was done per second."""
    player = make_player()
    pipe.send("ready")
    while True:
        try:
            seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(measure_rate(player, seconds))
