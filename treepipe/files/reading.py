"""Reading a user's file; why it could not be read, in words that need no knowledge of Python."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

MOST_STREAM_BYTES = 2**26
"""Read from a device or a pipe, which may never end; a file has the size that it has."""


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises what is ``UNREADABLE``."""
    with path.open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
        found = file.read(MOST_STREAM_BYTES + 1)
    if len(found) > MOST_STREAM_BYTES:
        raise ValueError(f"it is no file, and does not end within {MOST_STREAM_BYTES >> 20} MiB")
    return found


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return a file's content with ends of lines as ``\\n``. Raises what is ``UNREADABLE``."""
    with io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding) as text:
        return text.read()


def reading_fault(error: Exception) -> str:
    """The end of a sentence.

    Args:
        error: raised where a file's text was read or parsed.
    """
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text in UTF-8 (byte {error.start})"
    if isinstance(error, MemoryError):
        return "it does not fit into the memory"
    if isinstance(error, RecursionError):
        return "its lists or tables are nested too deeply"
    return str(error)


UNREADABLE = (OSError, ValueError, RecursionError, MemoryError)
"""What reading and parsing a text file raises."""
