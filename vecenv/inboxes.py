"""What workers have sent and nobody has taken yet."""

from __future__ import annotations

from typing import Any

from vecenv.channel import Channel
from vecenv.slice_replies import loads_by_row

Message = tuple[str, Any]


class Inboxes:
    """The messages of each worker, in the order in which they came.

    An answer tells how many messages belong to it, so one that got lost would be waited for for ever. None does where a
    signal handler raises (Ctrl-C): each is in the channel or here, unpickled or still to be.

    Args:
        count: number of workers.
    """

    def __init__(self, count: int) -> None:
        self._messages: list[list[Any]] = [[] for _ in range(count)]
        self._pids = [0] * count

    def read(self, worker: int, channel: Channel, pid: int) -> None:
        """Read what a worker has sent so far.

        Args:
            worker: which.
            channel: to it.
            pid: its process id.

        Raises:
            EOFError: it is gone and has sent no more.
        """
        messages, self._pids[worker] = self._messages[worker], pid
        first = len(messages)
        channel.read_to(messages)
        self._load(worker, first)

    def _load(self, worker: int, first: int = 0) -> None:
        """Unpickle messages where they lie; one whose unpickling was interrupted is as it came."""
        messages = self._messages[worker]
        for place in range(first, len(messages)):
            if isinstance(messages[place], bytes):
                messages[place] = loads_by_row(messages[place], self._pids[worker])

    def count(self, worker: int) -> int:
        """How many messages of a worker are here."""
        return len(self._messages[worker])

    def take(self) -> list[list[Message]]:
        """Hand out the messages of all workers; empty when there are none."""
        if not any(self._messages):
            return []
        for worker in range(len(self._messages)):
            self._load(worker)
        messages, self._messages = self._messages, [[] for _ in self._messages]
        return messages

    def take_first(self, worker: int) -> Message:
        """Hand out the first message of a worker that has sent some."""
        self._load(worker)
        message: Message = self._messages[worker].pop(0)
        return message

    def take_results(self, worker: int) -> list[Message]:
        """Hand out the results of one worker and leave its other messages."""
        self._load(worker)
        messages = self._messages[worker]
        self._messages[worker] = [message for message in messages if message[0] != "results"]
        return [message for message in messages if message[0] == "results"]

    def clear(self, worker: int) -> None:
        """Forget the messages of a worker."""
        self._messages[worker] = []
