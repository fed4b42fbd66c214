"""Key pairs: of a cluster, in a file, and of a run.

Invariant: neither ``repr`` nor an error shows a key.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from treepipe.core.errors import UserError
from treepipe.files.reading import read_bytes

HEAD = (
    "# A key of treepipe: who holds it can give work to the cluster's workers. Copy it to the\n"
    "# cluster's hosts by a safe way (scp), and let nobody else read it.\n"
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in Z85, 40 characters each.

    A cluster's pair is in a file that coordinator and workers share. A run makes its own pair for
    the ports between its workers.
    """

    public: str = field(repr=False)
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.public) != 40 or len(self.secret) != 40:
            raise ValueError("a key has 40 characters")
        if zmq.curve_public(self.secret.encode()).decode() != self.public:
            raise ValueError("the public key is not the secret one's")

    @classmethod
    def new(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path) -> KeyPair:
        """Read a key file. Raises ``UserError`` if it is missing, no key, or open to others."""
        try:
            mode = path.stat().st_mode
            found = msgspec.toml.decode(read_bytes(path), type=cls)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, ValueError, zmq.ZMQError):
            raise UserError(
                f"{path}: is no key file; treepipe worker --make-key makes one"
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"{path}: others can read this key; chmod 600 {path}")
        return found

    def save(self, path: Path) -> None:
        """Write a file that only its owner can read. Raises ``UserError`` if the file exists."""
        try:
            path.touch(0o600, exist_ok=False)
            path.write_text(f'{HEAD}public = "{self.public}"\nsecret = "{self.secret}"\n')
        except FileExistsError:
            raise UserError(f"{path}: exists; a key is not overwritten") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
