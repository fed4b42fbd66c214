"""Why a file could not be read, in words that need no knowledge of Python."""

from __future__ import annotations


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
    if isinstance(error, RecursionError):
        return "its lists or tables are nested too deeply"
    return str(error)


UNREADABLE = (OSError, ValueError, RecursionError)
"""What reading and parsing a text file raises."""
