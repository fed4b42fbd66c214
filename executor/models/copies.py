"""Copies of checkpoints on other hosts, found by the folder's name and compared by a digest.

The user copies the folders.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.executor.models.shards import PICKLED, shards_of
from treepipe.files.outputs import cache_folder
from treepipe.profiles.library import REFERENCE

CHUNK_BYTES = 2**20
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class NeededCheckpoint:
    """A checkpoint's folder on the coordinator's host, of which a worker needs a copy."""

    directory: Path
    digest: str

    def __post_init__(self) -> None:
        if self.directory.name in ("", ".."):
            raise ValueError("a checkpoint's folder has a name")

    @classmethod
    def of(cls, directory: Path) -> NeededCheckpoint:
        """Describe a folder. Raises ``UserError`` as ``digest_of``."""
        return cls(Path(os.path.normpath(directory.absolute())), digest_of(directory))

    def copy(self, models: Path | None, worker: str) -> Path:
        """Find the folder with the same checkpoint on this host: a bundled one, or one of its name.

        Args:
            models: this host's folder of checkpoints.
            worker: this host's address in the scenario.

        Raises:
            UserError: there is none; the sentence gives the command that copies it.
        """
        bundled = REFERENCE / self.directory.name
        if self._fault(bundled) is None:
            return bundled
        here = (models or Path("FOLDER")) / self.directory.name
        fault = self._fault(here) if models else "it has no folder of checkpoints (--models FOLDER)"
        if fault is None:
            return here
        host = worker.rpartition(":")[0]
        command = shlex.join(["rsync", "-aL", f"{self.directory}/", f"{host}:{here}/"])
        raise UserError(f"worker {worker}: {fault}; copy the coordinator's: {command}")

    def _fault(self, folder: Path) -> str | None:
        try:
            same = digest_of(folder) == self.digest
        except (OSError, UserError) as error:
            return str(error)
        return None if same else f"{folder} holds another checkpoint than the coordinator has"


def digest_of(directory: Path) -> str:
    """BLAKE2b digest of a checkpoint's configuration and weights, in hexadecimal digits.

    The user's cache folder keeps it while the files' sizes and times are the same. Raises
    ``UserError`` if a file is missing or holds no weights.
    """
    config = directory / "config.json"
    if not config.is_file():
        raise UserError(f"{directory}: holds no {config.name}")
    pickled = directory / PICKLED
    single = pickled.is_file() and not (directory / "model.safetensors").is_file()
    files = [config, *([pickled] if single else sorted(set(shards_of(directory).values())))]
    stats = [(str(file.absolute()), file.stat()) for file in files]
    stamps = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats]
    memory = cache_folder() / "digests" / blake2b(repr(stamps).encode(), digest_size=16).hexdigest()
    with suppress(OSError):
        if len(known := memory.read_text()) == 2 * DIGEST_BYTES:  # its writer may be interrupted
            return known
    whole = blake2b(digest_size=DIGEST_BYTES)
    for file, (_, size, *_times) in zip(files, stamps, strict=True):
        whole.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                whole.update(chunk)
    with suppress(OSError):  # the next run computes it again
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(whole.hexdigest())
    return whole.hexdigest()
