"""Addresses of hosts: their notation, and their reachability."""

from __future__ import annotations

import ipaddress
import socket

from treepipe.core.errors import UserError
from treepipe.scenario.schema import endpoint

LOOPBACK = "127.0.0.1"
ANY_HOST = "0.0.0.0"
"""Address that listens on all addresses of this host."""


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse host and port.

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
    """Write the address of a port.

    >>> tcp("::1", 5000)
    'tcp://[::1]:5000'
    """
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def route(host: str) -> str:
    """Find this host's address on the route to another. Raises ``UserError`` without one."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"there is no way from this host to {host}: {error.strerror}") from None
