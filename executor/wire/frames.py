"""Whole messages over a stream socket between a worker and the process that started it.

Invariant: a process that stops, even in the middle of a message, blocks neither the reader nor the
writer at the other end. Only ``recv_bytes`` and ``send_bytes`` wait, and they wake every
``LOOK_MS`` (``pulse.py``).
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress

from treepipe.executor.wire.clock import LOOK_MS

HEAD = struct.Struct("!Q")
"""The length of a message in bytes, in front of it."""
PIECE_BYTES = 2**20
"""Upper bound on the bytes of one read."""


class Frames:
    """One end of a worker's control line; it owns the stream socket.

    Attributes:
        ended: whether the other end is closed.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line, self.ended = line, False
        self._coming, self._going = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._line.fileno()

    # --- without waiting -------------------------------------------------------------------------

    def read(self) -> None:
        """Read the data that has arrived."""
        try:
            piece = self._line.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        self._coming += piece
        self.ended = not piece

    def take(self) -> bytes | None:
        """Return the next whole message, or None. Raises ``EOFError`` after the last one."""
        if (size := self._size) is None:
            if self.ended:
                raise EOFError
            return None
        with memoryview(self._coming) as view:
            found = bytes(view[HEAD.size : HEAD.size + size])
        del self._coming[: HEAD.size + size]
        return found

    @property
    def holds(self) -> bool:
        """Whether ``take`` has a message, or raises, before more is read."""
        return self.ended or self._size is not None

    @property
    def _size(self) -> int | None:
        """Length of the next message in bytes; None while it is incomplete."""
        if len(self._coming) < HEAD.size:
            return None
        (size,) = HEAD.unpack_from(self._coming)
        return size if len(self._coming) >= HEAD.size + size else None

    def put(self, data: bytes) -> None:
        """Send a message; ``flush`` sends the part that does not fit into the line now. Raises
        ``ConnectionError`` if the other end is closed."""
        self._going += HEAD.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send as much of the rest as fits into the line. Raises as ``put``."""
        with suppress(BlockingIOError):
            while self._going:
                del self._going[: self._line.send(self._going)]

    @property
    def left_bytes(self) -> int:
        return len(self._going)

    def close(self) -> None:
        """Close the line for all processes that hold this end."""
        with suppress(OSError):  # it is closed already
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    # --- waiting ---------------------------------------------------------------------------------

    def recv_bytes(self, look_ms: int | None = LOOK_MS) -> bytes:
        """Wait for a message, waking every ``look_ms`` (None: never). Raises as ``take``."""
        while (found := self.take()) is None:
            self._wait(select.POLLIN, look_ms)
            self.read()
        return found

    def send_bytes(self, data: bytes) -> None:
        """Send a message and wait until the line has taken all of it. Raises as ``put``."""
        self.put(data)
        while self._going:
            self._wait(select.POLLOUT, LOOK_MS)
            self.flush()

    def _wait(self, event: int, look_ms: int | None) -> None:
        poll = select.poll()
        poll.register(self._line, event)
        poll.poll(look_ms)
