"""Digests of pieces of files, each taken once as long as its file is as it was.

Law of this file: a digest is answered from memory only if the file has the size and the times that
it had when it was read, and had not just been written then: a file's times tell no two changes
apart that follow each other closely.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from treepipe.executor.clock import LOOK_MS

CHUNK_BYTES = 2**20
"""Read, hashed and sent at once."""
DIGEST_BYTES = 32
SETTLED_S = 2.0
"""A file that was changed so long ago shows a further change by its times."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a piece's bytes in a file."""

    file: Path
    begin: int
    size: int

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Read it from so many bytes on."""
        with self.file.open("rb") as file:
            file.seek(self.begin + offset)
            left = self.size - offset
            while left > 0 and (chunk := file.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk


@dataclass(slots=True)
class _Known:
    """The digests of a file's pieces, by what names them, and what the file was like."""

    stamp: list[int]
    digests: dict[str, str] = field(default_factory=dict)


class Digests:
    """What is known of files, in memory and, if there is one, in a file of its own."""

    def __init__(self, file: Path | None = None) -> None:
        """Args: ``file``: holds what was known before; what it says otherwise is not believed."""
        self._file, self._files, self._learned = file, _read(file), False

    def of(self, head: bytes, place: Place) -> bytes:
        """BLAKE2b's of the head and the piece's bytes."""
        path, stamp = str(place.file.absolute()), _stamp(place.file)
        known = self._files.get(path)
        if known is None or known.stamp != stamp:
            known = self._files[path] = _Known(stamp)
        name = f"{place.begin}:{place.size}:{blake2b(head, digest_size=8).hexdigest()}"
        if (found := known.digests.get(name)) is not None:
            return bytes.fromhex(found)
        settled = time.time_ns() - max(stamp[1:]) > 1e9 * SETTLED_S
        whole = blake2b(head, digest_size=DIGEST_BYTES)
        for chunk in place.chunks():
            whole.update(chunk)
        if settled and _stamp(place.file) == stamp:
            known.digests[name] = whole.hexdigest()
            self._learned = True
        return whole.digest()

    def keep(self) -> None:
        """Write what is known; a folder that takes no file keeps nothing."""
        if self._file is None or not self._learned:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with alone(self._file.parent):
                known = {
                    path: asdict(each)
                    for path, each in {**_read(self._file), **self._files}.items()
                    if each.digests and Path(path).is_file()
                }
                put(self._file, json.dumps(known).encode())
        self._learned = False


def put(file: Path, data: bytes) -> None:
    """Write a file as a whole: another worker of this host may be reading it."""
    part = file.with_suffix(".part")
    part.write_bytes(data)
    part.replace(file)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While no other worker of this host writes into a folder; waiting looks up now and then."""
    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_MS / 1e3)
        yield


def _stamp(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _read(file: Path | None) -> dict[str, _Known]:
    """What a file of digests says; nothing if there is none, or it is no such file."""
    try:
        said = {} if file is None else json.loads(file.read_bytes())
        return {path: _known(each) for path, each in said.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _known(said: Any) -> _Known:
    """Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError``."""
    digests = {str(name): str(each) for name, each in said["digests"].items()}
    if any(len(bytes.fromhex(each)) != DIGEST_BYTES for each in digests.values()):
        raise ValueError("a digest has a certain length")
    return _Known([int(each) for each in said["stamp"]], digests)
