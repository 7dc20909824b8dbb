"""A process that plays pairs of a population for another one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from vecenv.channel import Channel
from vecenv.forks import close_in_forks
from vecenv.lifeline import begin_child

from .population_evaluation import Broadcast
from .population_player import DONE, PlayerSetup, PopulationPlayer, failed_answer


def worker_main(descriptors: Sequence[int]) -> None:
    """Play what is asked for until the asking process closes the channel, or ends in whatever way.

    Args:
        descriptors: channel, lifeline; owned from here on.

    Messages in: a `PlayerSetup` and the number of environments; then ``("generation", Broadcast)`` and ``("play",
    pairs)``. Messages out, see `read_answer`: an answer when everything is built or cannot be, after which the process
    ends, and one per play.
    """
    channel_fd, lifeline_fd = descriptors
    begin_child(descriptors, lifeline_fd)
    channel = Channel(socket.socket(fileno=channel_fd))
    close_in_forks(channel, (lifeline_fd,))
    try:
        _serve(channel)
    except (EOFError, ConnectionError):  # the asking process has closed its end
        return


def _serve(channel: Channel) -> None:
    setup: PlayerSetup = channel.receive()
    num_envs: int = channel.receive()
    try:
        player = PopulationPlayer(setup, num_envs)
    except Exception as error:
        channel.send_bytes(failed_answer(error))
        return
    with contextlib.closing(player):
        channel.send_bytes(DONE)
        broadcast: Broadcast
        while True:
            word, content = channel.receive()
            if word == "generation":
                broadcast = content
            else:
                channel.send_bytes(player.play(broadcast, content))
