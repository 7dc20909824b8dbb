"""Framed messages over a socket pair: the pipe for rare words between a vector env and a worker."""

from __future__ import annotations

import pickle
import socket
import struct
import sys
from itertools import repeat, starmap
from typing import Any, NamedTuple

from vecenv.pickling import dumps

if sys.platform == "win32":
    raise ImportError("worker processes are not available on Windows; use backend='sync'")

import fcntl
import termios

_LENGTH = struct.Struct("=Q")
_CHUNK = 1 << 20


class _Received(NamedTuple):
    """What has come and nobody took.

    Attributes:
        messages: whole ones, still pickled.
        chunks: what came after them.
        wanted: bytes that the chunks must have together to hold another message, as far as they tell.
    """

    messages: list[bytes]
    chunks: list[bytes]
    wanted: int


class Channel:
    """One end of a socket pair that carries pickled messages.

    Nothing that has come is lost where a signal handler raises (Ctrl-C), whatever is being done at that moment.

    Args:
        connection: the socket; owned by the channel from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # whatever default timeout for sockets the user has set, at either end
        self._socket = connection
        self._received = _Received([], [], _LENGTH.size)

    def fileno(self) -> int:
        """Descriptor to poll for reading."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message; blocks while the other side does not read.

        Raises:
            OSError: the other side is gone.
        """
        self.send_bytes(dumps(message))

    def send_bytes(self, data: bytes) -> None:
        """Send one message that is pickled already."""
        self._socket.sendall(framed(data))

    def send_part(self, data: memoryview) -> int:
        """Send as much of some bytes as there is room for, without waiting; gives how many.

        Raises:
            OSError: the other side is gone.
        """
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send_now(self, data: bytes) -> None:
        """Send a short pickled message without ever blocking.

        Raises:
            OSError: the other side is gone, or has not read for so long that there is no room.
        """
        self._socket.sendmsg([framed(data)], [], socket.MSG_DONTWAIT)

    def unread(self) -> bool:
        """Whether the other side has not yet read all that was sent (True where the system does not tell)."""
        try:
            queued = fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return True
        return bool(struct.unpack("i", queued)[0])

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the other side is gone.
        """
        while not self.has_message():
            if not self._receive_chunk():
                raise EOFError
        return pickle.loads(self._received.messages.pop(0))

    def read_available(self) -> list[bytes]:
        """Take what has arrived without waiting for more: whole messages, still pickled.

        Raises:
            EOFError: the other side is gone and no whole message is left.
        """
        messages: list[bytes] = []
        self.read_to(messages)
        return messages

    def read_to(self, inbox: list[Any]) -> None:
        """Append what `read_available` would give to a list, which has it whatever a signal handler raises meanwhile.

        Raises:
            EOFError: as there.
        """
        gone = False
        while not gone:
            try:
                gone = not self._receive_chunk(socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                gone = True
        if self.has_message():
            messages = self._received.messages
            inbox.extend(starmap(messages.pop, repeat((0,), len(messages))))  # in C from list to list, see below
        elif gone:
            raise EOFError

    def has_message(self) -> bool:
        """Whether a whole message has been received that nobody took yet; no poll would tell of it."""
        self._split()
        return bool(self._received.messages)

    def _receive_chunk(self, flags: int = 0) -> bool:
        """Receive something; False: the other side is gone."""
        chunks = self._received.chunks
        # In C from the system call to the list, as in `vecenv.native_calls`: no signal handler runs in between.
        chunks.extend(starmap(self._socket.recv, [(_CHUNK, flags)]))
        return bool(chunks[-1])

    def _split(self) -> None:
        """Find the whole messages in what has been received."""
        messages, chunks, wanted = self._received
        if sum(map(len, chunks)) < wanted:
            return
        data, start, whole = b"".join(chunks), 0, list(messages)
        while (stop := _stop_of_message(data, start)) <= len(data):
            whole.append(data[start + _LENGTH.size : stop])
            start = stop
        # One assignment: whatever a signal handler raises leaves the one state or the other.
        self._received = _Received(whole, [data[start:]] if start < len(data) else [], stop - start)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _stop_of_message(data: bytes, start: int) -> int:
    """Where the message that begins at a place stops, as far as the bytes that are there tell."""
    stop = start + _LENGTH.size
    return stop if stop > len(data) else stop + int(_LENGTH.unpack_from(data, start)[0])


def framed(data: bytes) -> bytes:
    """A pickled message as it goes over the socket."""
    return _LENGTH.pack(len(data)) + data
