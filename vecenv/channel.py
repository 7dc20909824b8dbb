"""Framed messages over a socket pair: the pipe for rare words between a vector env and a worker."""

from __future__ import annotations

import pickle
import socket
import struct
import sys
from typing import Any

from vecenv.pickling import dumps

if sys.platform == "win32":
    raise ImportError("worker processes are not available on Windows; use backend='sync'")

import fcntl
import termios

_LENGTH = struct.Struct("=Q")
_CHUNK = 1 << 20


class Channel:
    """One end of a socket pair that carries pickled messages.

    Args:
        connection: the socket; owned by the channel from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # whatever default timeout for sockets the user has set, at either end
        self._socket = connection
        self._received = bytearray()

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
        while (data := self._next()) is None:
            chunk = self._socket.recv(_CHUNK)
            if not chunk:
                raise EOFError
            self._received += chunk
        return pickle.loads(data)

    def read_available(self) -> list[bytes]:
        """Take what has arrived without waiting for more: whole messages, still pickled.

        Raises:
            EOFError: the other side is gone and no whole message is left.
        """
        gone = False
        while True:
            try:
                chunk = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                gone = True
                break
            if not chunk:
                gone = True
                break
            self._received += chunk
        messages = []
        while (data := self._next()) is not None:
            messages.append(data)
        if gone and not messages:
            raise EOFError
        return messages

    def has_message(self) -> bool:
        """Whether a whole message has been received that nobody took yet; no poll would tell of it."""
        size = len(self._received)
        return size >= _LENGTH.size and size >= _LENGTH.size + int(_LENGTH.unpack_from(self._received)[0])

    def _next(self) -> bytes | None:
        if not self.has_message():
            return None
        stop = _LENGTH.size + int(_LENGTH.unpack_from(self._received)[0])
        data = bytes(self._received[_LENGTH.size : stop])
        del self._received[:stop]
        return data

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def framed(data: bytes) -> bytes:
    """A pickled message as it goes over the socket."""
    return _LENGTH.pack(len(data)) + data
