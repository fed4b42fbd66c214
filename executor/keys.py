"""Keys that close sockets to strangers: CURVE, of ZeroMQ, with one pair for who belong together.

A worker's key file holds the pair of a cluster, which coordinator and workers share; a run has a
pair of its own, made anew, for the ports between its workers. Who does not hold the pair is refused
in the handshake, before any message of theirs is read (ZeroMQ's ZAP), and is counted.

Law of this file: a key is never shown, by ``repr`` or in an error.
"""

from __future__ import annotations

import ipaddress
import logging
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from treepipe.core.errors import UserError
from treepipe.files.reading import read_bytes
from treepipe.scenario.schema import endpoint

ANY_HOST = "0.0.0.0"
"""Listens on every address of this host."""
HEAD = (
    "# A key of treepipe: who holds it can give work to the cluster's workers. Copy it to the\n"
    "# cluster's hosts by a safe way (scp), and let nobody else read it.\n"
)
_SILENT = logging.Logger("treepipe.silent", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in Z85, 40 characters each."""

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
        """Raises ``UserError`` if the file is missing, no key, or open to others."""
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
        """Write a file that only its owner can read. Raises ``UserError`` if there is one."""
        try:
            path.touch(0o600, exist_ok=False)
            path.write_text(f'{HEAD}public = "{self.public}"\nsecret = "{self.secret}"\n')
        except FileExistsError:
            raise UserError(f"{path}: exists; a key is not overwritten") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None

    def open(self, socket: Any) -> None:
        """Let in only who holds this pair; the context's ``Porter`` asks."""
        self._own(socket)
        socket.curve_server = True

    def enter(self, socket: Any) -> None:
        """Connect as one who holds this pair, to nobody but who holds it."""
        self._own(socket)
        socket.curve_serverkey = self.public.encode()

    def _own(self, socket: Any) -> None:
        socket.curve_publickey, socket.curve_secretkey = self.public.encode(), self.secret.encode()


class Porter:
    """Answers a context's handshakes, in a thread of its own.

    Attributes:
        refused: how many strangers were turned away.
    """

    def __init__(self, context: Any, key: KeyPair) -> None:
        self.refused = 0
        self._public = key.public.encode()
        self._authenticator = ThreadAuthenticator(context, log=_SILENT)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the holder of this public key may come in; called by pyzmq."""
        known = key == self._public
        self.refused += not known
        return known

    def take_refused(self) -> int:
        """How many strangers were turned away since this was last asked."""
        refused, self.refused = self.refused, 0
        return refused

    def close(self) -> None:
        self._authenticator.stop()


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port.

    >>> parse_address("10.0.0.7:5000", "--peer")
    ('10.0.0.7', 5000)

    Raises:
        UserError: it is something else.
    """
    try:
        return endpoint(text.removeprefix("tcp://"))
    except ValueError:
        raise UserError(f"{option} {text}: must be HOST:PORT, e.g. 192.168.1.20:5555") from None


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tcp(host: str, port: int | str) -> str:
    """The address as ZeroMQ writes it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
