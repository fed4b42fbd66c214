"""What a role reads of a model, piece by piece: compared between two hosts, and sent where missing.

A piece is a tensor of a checkpoint, or a whole file; its digest is BLAKE2b's. A stage needs its own
layers' tensors, so no more than these is hashed, compared or sent. What was received is kept as a
file per piece, which its digest names, so that no piece is sent to a host twice.

Law of this file: nothing is read from a received file before its digest is the one announced, and
an interrupted one goes on where it stopped. A file that is as it was when it was read is not read
again for its digest (``digests.py``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import INDEX, CheckpointSource, shards_of
from treepipe.executor.digests import CHUNK_BYTES, DIGEST_BYTES, Digests, Place, alone, put

CONFIG = "config.json"
MOST_PIECE_BYTES = 2**36
RECEIVED = "received"
"""Of a worker's folder of models, the folder of what coordinators sent."""
DIGESTS = "digests.json"
"""In that folder, the digests of all files that were compared (``digests.py``)."""


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """A tensor, or a file: ``head`` and then ``size`` bytes, the digest of both.

    The head makes a tensor's bytes a safetensors file of their own; it says name, type and shape.
    """

    name: str
    size: int
    digest: bytes
    head: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MOST_PIECE_BYTES or len(self.head) > CHUNK_BYTES:
            raise ValueError("a piece has a certain size")
        if len(self.digest) != DIGEST_BYTES:
            raise ValueError("a digest has a certain length")

    def is_in(self, file: Path, digests: Digests) -> bool:
        """Whether a file is this piece, byte by byte."""
        size = len(self.head) + self.size
        if not file.is_file() or file.stat().st_size != size:
            return False
        return digests.of(b"", Place(file, 0, size)) == self.digest


@dataclass(frozen=True, slots=True)
class Manifest:
    """The pieces that a role needs of a model, whose directory is called ``name``."""

    name: str
    pieces: tuple[ModelPiece, ...]

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or set(self.name) & set("/\\\0"):
            raise ValueError("a model's name is that of a folder")

    @property
    def digest(self) -> str:
        """One digest for all of it."""
        whole = blake2b(digest_size=DIGEST_BYTES)
        for piece in self.pieces:
            whole.update(piece.digest)
        return whole.hexdigest()

    def difference(self, other: Manifest) -> str | None:
        """The first piece that another one has otherwise, or lacks."""
        theirs = {piece.name: piece for piece in other.pieces}
        for piece in self.pieces:
            found = theirs.get(piece.name)
            if found is None:
                return f"{piece.name} is missing"
            if found.digest != piece.digest:
                ours, other_one = piece.digest.hex()[:12], found.digest.hex()[:12]
                return f"{piece.name} has digest {other_one} there, {ours} at the coordinator"
        return None


Needs = Callable[[str], bool]
"""Of a tensor, by its name: whether a role reads it."""


def everything(tensor: str) -> bool:
    """What a draft model's or a head's role reads."""
    return True


class ModelFiles:
    """What a directory holds of what a role needs; files are hashed when ``manifest`` is asked."""

    def __init__(self, directory: Path, needs: Needs) -> None:
        """Raises ``UserError`` if the directory is none, or its weights cannot be read."""
        self.directory = directory
        self._pieces: list[tuple[str, Place, bytes]] = []
        config = directory / CONFIG
        if not config.is_file():
            raise UserError(f"{directory}: holds no {CONFIG}")
        self._pieces.append((CONFIG, Place(config, 0, config.stat().st_size), b""))
        shards = shards_of(directory)
        for file in sorted(set(shards.values())):
            wanted = {name for name, shard in shards.items() if shard == file and needs(name)}
            self._pieces += _tensors(file, wanted)
        self._pieces.sort(key=lambda piece: piece[0])

    def manifest(self, digests: Digests) -> Manifest:
        """Args: ``digests``: of these files, as far as they are known."""
        found = [
            ModelPiece(name, place.size, digests.of(head, place), head)
            for name, place, head in self._pieces
        ]
        return Manifest(self.directory.name, tuple(found))

    def chunk(self, piece: int, offset: int) -> bytes:
        """Some bytes of a piece; none beyond its end, or where there is no such piece."""
        if not 0 <= piece < len(self._pieces):
            return b""
        return next(self._pieces[piece][1].chunks(offset), b"")


def _tensors(file: Path, wanted: Collection[str]) -> Iterator[tuple[str, Place, bytes]]:
    """Tensors of a safetensors file, each with the head of a file of its own."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    for name in wanted:
        entry = header[name]
        begin, end = entry["data_offsets"]
        text = json.dumps({name: {**entry, "data_offsets": [0, end - begin]}}).encode()
        text += b" " * (-len(text) % 8)
        head = struct.pack("<Q", len(text)) + text
        yield name, Place(file, 8 + length + begin, end - begin), head


Ask = Callable[[int, int], bytes]
"""For a piece's bytes from an offset on: as many as come at once."""


def found_or_received(
    manifest: Manifest, folders: Collection[Path], models: Path | None, ask: Ask
) -> CheckpointSource:
    """The checkpoint on this host, received first if it is not here.

    Args:
        folders: that may hold it as a folder of its name, besides ``models``.
        models: this host's folder of models; None: nothing is received.

    Raises:
        UserError: a folder of its name in ``models`` holds another model; there is none and no
            place for one; what was received is not what was announced.
    """
    digests = Digests(None if models is None else models / RECEIVED / DIGESTS)
    try:
        return _found_or_received(manifest, folders, models, ask, digests)
    finally:
        digests.keep()


def _found_or_received(
    manifest: Manifest,
    folders: Collection[Path],
    models: Path | None,
    ask: Ask,
    digests: Digests,
) -> CheckpointSource:
    held = frozenset(piece.name for piece in manifest.pieces)
    for folder in (*folders, *([] if models is None else [models])):
        here = folder / manifest.name
        if not (here / CONFIG).is_file():
            continue
        fault = manifest.difference(ModelFiles(here, held.__contains__).manifest(digests))
        if fault is None:
            return CheckpointSource(here, only=held)
        if folder == models:
            raise UserError(f"{here} holds another model than the coordinator has: {fault}")
    if models is None:
        raise UserError(
            f"model {manifest.name} is not on this host, and its worker has no folder to receive "
            f"it in (treepipe worker --models)"
        )
    return CheckpointSource(_received(manifest, models / RECEIVED, ask, digests), only=held)


def _received(manifest: Manifest, folder: Path, ask: Ask, digests: Digests) -> Path:
    """A checkpoint's directory whose tensors are in ``pieces``, by their digests."""
    store, home = folder / "pieces", folder / f"{manifest.name}-{manifest.digest[:16]}"
    for each in (store, home):
        each.mkdir(parents=True, exist_ok=True)
    weights = dict[str, str]()
    with alone(store):
        for number, piece in enumerate(manifest.pieces):
            file = _receive(piece, store, partial(ask, number), digests)
            if piece.name == CONFIG:
                put(home / CONFIG, file.read_bytes())
            else:
                weights[piece.name] = f"../{store.name}/{file.name}"
        put(home / INDEX, json.dumps({"weight_map": weights}).encode())
    return home


def _receive(piece: ModelPiece, store: Path, ask: Callable[[int], bytes], digests: Digests) -> Path:
    """Have a piece whole, and of its digest."""
    whole = store / piece.digest.hex()
    part = whole.with_suffix(".part")
    if piece.is_in(whole, digests):
        return whole
    with part.open("ab") as file:
        if file.tell() < len(piece.head):
            file.truncate(0)
            file.write(piece.head)
        while (offset := file.tell() - len(piece.head)) < piece.size:
            data = ask(offset)
            if not data or len(data) > piece.size - offset:
                raise UserError(f"{part}: {piece.name} ended at {offset} of {piece.size} bytes")
            file.write(data)
    if not piece.is_in(part, digests):
        part.unlink()
        raise UserError(f"what was received of {piece.name} has not the digest announced for it")
    return part.replace(whole)
