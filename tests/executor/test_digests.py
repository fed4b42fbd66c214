"""Digests that are kept: answered without reading a file that is as it was, and only then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.worlds.tiny_models import save_random_checkpoint
from treepipe.executor import digests as digests_module
from treepipe.executor.digests import Digests, Place
from treepipe.executor.manifest import DIGESTS, RECEIVED, ModelFiles, everything, found_or_received

DATA = bytes(range(200))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read, in order; files just written count as settled."""
    found, chunks = list[Path](), Place.chunks

    def noted(self: Place, offset: int = 0) -> Iterator[bytes]:
        found.append(self.file)
        return chunks(self, offset)

    monkeypatch.setattr(Place, "chunks", noted)
    monkeypatch.setattr(digests_module, "SETTLED_S", -1.0)
    return found


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def test_a_file_that_is_as_it_was_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    """In memory, and by the next process; its pieces are told apart by place, size and head."""
    file, kept = tmp_path / "data", tmp_path / "new" / "digests.json"
    file.write_bytes(DATA)
    pieces = [(b"", 0, 200), (b"", 0, 100), (b"", 100, 100), (b"head", 0, 100), (b"", 0, 0)]
    known = Digests(kept)
    for opened in (lambda: known, lambda: known, lambda: Digests(kept)):
        found = opened()
        for head, begin, size in pieces:
            expected = digest(head + DATA[begin : begin + size])
            assert found.of(head, Place(file, begin, size)) == expected
        found.keep()
        assert len(reads) == len(pieces)


@pytest.mark.parametrize("touched", [True, False])
def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[Path], touched: bool) -> None:
    """Of the same size; also where its time of change was set back (``cp -p``)."""
    file, found = tmp_path / "data", Digests(tmp_path / "digests.json")
    file.write_bytes(DATA)
    before = file.stat()
    assert found.of(b"", Place(file, 0, 200)) == digest(DATA)
    found.keep()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files is coarse
        file.write_bytes(DATA[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + touched))
    for each in (found, Digests(tmp_path / "digests.json")):
        assert each.of(b"", Place(file, 0, 200)) == digest(DATA[::-1])
    assert len(reads) == 3


def test_a_file_that_was_just_written_is_not_trusted(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests_module, "SETTLED_S", 3600.0)
    file, found = tmp_path / "data", Digests()
    file.write_bytes(DATA)
    for _ in range(2):
        assert found.of(b"", Place(file, 0, 200)) == digest(DATA)
    assert len(reads) == 2


@pytest.mark.parametrize("said", ["", "[]", '{"a": 1}', None, '{"a":{"stamp":[1,2,3]}}'])
def test_a_file_of_digests_that_is_none_is_as_good_as_empty(
    tmp_path: Path, reads: list[Path], said: str | None
) -> None:
    """``None``: what it says of the file is no digest."""
    file, kept = tmp_path / "data", tmp_path / "digests.json"
    file.write_bytes(DATA)
    Digests(kept).of(b"", Place(file, 0, 200))
    known = {str(file): {"stamp": [200, 1, 1], "digests": {"0:200:": "ab"}}}
    kept.write_text(json.dumps(known) if said is None else said)
    found = Digests(kept)
    assert found.of(b"", Place(file, 0, 200)) == digest(DATA)
    found.keep()
    assert [*json.loads(kept.read_text())] == [str(file)]


def test_what_is_gone_is_forgotten(tmp_path: Path, reads: list[Path]) -> None:
    files, kept = [tmp_path / name for name in "ab"], tmp_path / "digests.json"
    for file in files:
        file.write_bytes(DATA)
        found = Digests(kept)
        found.of(b"", Place(file, 0, 200))
        found.keep()
    files[0].unlink()
    found.of(b"", Place(files[1], 0, 9))
    found.keep()
    assert [*json.loads(kept.read_text())] == [str(files[1])]


def test_a_worker_hashes_what_it_has_once(tmp_path: Path, reads: list[Path]) -> None:
    """A checkpoint in its folder, or what it received; nothing of either when it is met again."""
    held = ModelFiles(save_random_checkpoint(tmp_path / "model", layers=1, seed=3), everything)
    manifest = held.manifest(Digests())
    for models, own in ((tmp_path, True), (tmp_path / "here", False)):
        first = found_or_received(manifest, [], models, held.chunk)
        assert (models / RECEIVED / DIGESTS).is_file()
        if not own:
            found_or_received(manifest, [], models, held.chunk)  # reads what it received by now
        reads.clear()
        assert found_or_received(manifest, [], models, held.chunk) == first
        assert reads == []
