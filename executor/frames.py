"""Whole messages over a stream socket between a worker and whoever started it.

Law of this file: a process that stops anywhere, in the middle of a message, too, blocks neither the
reader nor the writer at the other end; only ``recv_bytes`` and ``send_bytes`` wait, and these look
up every ``LOOK_MS`` (``pulse.py``).
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress

from treepipe.executor.clock import LOOK_MS

HEAD = struct.Struct("!Q")
"""In front of a message: its length in bytes."""
PIECE_BYTES = 2**20
"""Most bytes that one look reads."""


class Frames:
    """One end of a worker's control line.

    Attributes:
        ended: whether the other end is closed.
    """

    def __init__(self, line: socket.socket) -> None:
        """Take over a connected stream socket."""
        line.setblocking(False)
        self._line, self.ended = line, False
        self._coming, self._going = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._line.fileno()

    # --- without waiting -------------------------------------------------------------------------

    def read(self) -> None:
        """Read what has arrived."""
        try:
            piece = self._line.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        self._coming += piece
        self.ended = not piece

    def take(self) -> bytes | None:
        """Return the next whole message that was read, None if there is none. Raises ``EOFError``
        if there will be none."""
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
        """The length of the next message in bytes; None if it is not whole."""
        if len(self._coming) < HEAD.size:
            return None
        (size,) = HEAD.unpack_from(self._coming)
        return size if len(self._coming) >= HEAD.size + size else None

    def put(self, data: bytes) -> None:
        """Send a message; what the line does not take now is left for ``flush``. Raises
        ``ConnectionError`` if the other end is closed."""
        self._going += HEAD.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as the line takes it; raises as ``put``."""
        with suppress(BlockingIOError):
            while self._going:
                del self._going[: self._line.send(self._going)]

    @property
    def left_bytes(self) -> int:
        """Bytes that the line has not taken."""
        return len(self._going)

    def close(self) -> None:
        """Close the line for all processes that hold this end."""
        with suppress(OSError):  # it is closed already
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    # --- waiting ---------------------------------------------------------------------------------

    def recv_bytes(self, look_ms: int | None = LOOK_MS) -> bytes:
        """Wait for a message and return it; raises as ``take``. Args: ``look_ms``: None: it does
        not look up."""
        while (found := self.take()) is None:
            self._wait(select.POLLIN, look_ms)
            self.read()
        return found

    def send_bytes(self, data: bytes) -> None:
        """Send a message; returns when the line has taken all of it. Raises as ``put``."""
        self.put(data)
        while self._going:
            self._wait(select.POLLOUT, LOOK_MS)
            self.flush()

    def _wait(self, event: int, look_ms: int | None) -> None:
        poll = select.poll()
        poll.register(self._line, event)
        poll.poll(look_ms)
