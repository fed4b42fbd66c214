"""Reading users' files, including JSON; every fault is worded without Python's terms."""

from __future__ import annotations

import difflib
import gzip
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite, isnan
from pathlib import Path
from typing import Any, TypeVar

from treepipe.core.errors import UserError

T = TypeVar("T")
MOST_BYTES = 2**29
"""Most bytes of a file that is read whole."""
MOST_UNPACKED_BYTES = 2**27
"""Most bytes that a file is unpacked to."""


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a regular file's content, of at most so many bytes. Raises one of ``UNREADABLE``.

    Pipes and devices may never end or never begin, so none is waited for.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file, but a pipe or a device")
        found = file.read(most + 1) or b""  # None: the kernel has nothing there yet
    return _bounded(found, most, "is larger than")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a pipe's writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def unpacked(data: bytes, most: int = MOST_UNPACKED_BYTES) -> bytes:
    """Unpack gzipped data to at most so many bytes.

    Raises ``OSError``, ``EOFError`` or ``zlib.error`` if it is no such data, ``ValueError`` if it
    holds more.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return _bounded(file.read(most + 1), most, "unpacks to more than")


def _bounded(data: bytes, most: int, fault: str) -> bytes:
    if len(data) > most:
        raise ValueError(f"it {fault} {most >> 20} MiB")
    return data


def read_text(path: Path, encoding: str = "utf-8", most: int = MOST_BYTES) -> str:
    """Return a file's content with ends of lines as ``\n``. Raises one of ``UNREADABLE``."""
    with io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding) as text:
        return text.read()


def reading_fault(error: Exception) -> str:
    """Return the end of a sentence about a fault.

    Args:
        error: exception from reading or parsing a file's text.
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
"""Exceptions from reading and parsing a text file."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters except tabs and ends of lines; a terminal would interpret them."""


OUT_OF_RANGE = re.compile(r"[eE]\+?\d{3}|\d{300}")
"""Numbers of JSON that a float may not hold."""


class _NotFiniteError(ValueError):
    """A number that JSON does not have, or that a float does not hold."""


def visible(text: str) -> str:
    """Return the text with control characters written out.

    >>> visible("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@contextmanager
def reading(
    path: Path, fault: str, name: str = "file", also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Word the faults of reading and parsing a file, inside, as ``UserError``.

    Args:
        fault: beginning of the sentence about a file of which something is wrong.
        name: what a missing file is called.
        also: faults of its content besides ``UNREADABLE`` and missing keys.
    """
    faults: tuple[type[Exception], ...] = (*UNREADABLE, *also)
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such {name}") from None
    except KeyError as missing:
        raise UserError(f"{path}: {fault}: key {missing} is missing") from None
    except faults as error:
        raise UserError(f"{path}: {fault}: {reading_fault(error)}") from None


def counted(number: int) -> str:
    """Return a count as text; Python writes no number of very many digits.

    >>> counted(890_001_999), counted(10**9999)
    ('890,001,999', 'over 10^18')
    """
    return f"{number:,}" if number < 10**18 else "over 10^18"


def suggestion(name: str, known: Iterable[str], others: str = "there are") -> str:
    """Return the end of a sentence about an unknown name.

    >>> suggestion("pipedek", ["pp", "pipedec"]), suggestion("x", ["pp", "pipedec"])
    ("did you mean 'pipedec'?", 'there are pp, pipedec')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"{others} {', '.join(names) or 'none'}"


def named(known: Mapping[str, T], name: str, option: str) -> T:
    """Return the entry that an option names. Raises ``UserError`` if there is none."""
    if name not in known:
        raise UserError(f"{option} {name}: is unknown; {suggestion(name, known)}")
    return known[name]


def parse_json(text: str, endless: bool = False) -> Any:
    """Parse JSON, whose numbers are finite: Python's module would take NaN and Infinity, too.

    Args: ``endless``: infinities are numbers, as our files write the logarithm of 0.

    Raises ``ValueError`` (or ``RecursionError``) with a sentence that names the first such key.
    """

    def number(word: str) -> float:
        if wrong(found := float(word)):
            raise _NotFiniteError
        return found

    wrong = isnan if endless else lambda each: not isfinite(each)
    # A function for each number takes time, and only long ones are out of a float's range.
    own = number if OUT_OF_RANGE.search(text) else None
    try:
        return json.loads(text, parse_constant=number, parse_float=own)
    except _NotFiniteError:
        found = next(place for place, each in _floats(json.loads(text)) if wrong(each))
    raise ValueError(f"{found} is not a finite number")


def _floats(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers that may not be finite, with "key PLACE = NUMBER"."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _floats(each, f"{place}.{name}" if place else f"key {name}")
    elif isinstance(value, float):
        shown = json.dumps(value)
        yield (f"{place} = {shown}" if place else shown), value


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises ``UserError`` if there is none."""
    with reading(path, "is not valid JSON"):
        content = parse_json(read_text(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return content


def sentences(text: str) -> dict[str, list[str]]:
    """Return a template's list items by heading ("" before the first one).

    >>> sentences("- one\\n  goes on\\n\\n## More\\n\\n- two\\n")
    {'': ['one goes on'], 'More': ['two']}
    """
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
            found[heading] = []
        elif line.startswith("- "):
            found[heading].append(line[2:])
        elif line.startswith("  "):
            found[heading][-1] += " " + line.strip()
    return found
