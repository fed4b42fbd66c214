"""Hosts for tests: workers' daemons in processes of their own, in network namespaces where asked.

A daemon here forks its roles from itself instead of from a fork server of its own, which would
import all libraries once more per host.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worlds.changed import changed
from treepipe.executor.hosts import daemon as daemon_module
from treepipe.executor.hosts import processes
from treepipe.executor.hosts.daemon import Daemon
from treepipe.executor.hosts.fork_server import end_with_fork_server, fork_server, start
from treepipe.executor.hosts.remote import status
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.keys import KeyPair
from treepipe.scenario.deployment import Deployment, Placed

PORT = 5600
MINE = f"tp{os.getpid()}"
"""Begins all names that are made on this host: other tests make theirs at the same time."""
NETWORK = f"10.77.{os.getpid() % 256}"
CLONE_NEWNET = 0x40000000


def as_it_is() -> None:
    """Changes nothing of a daemon's process."""


def serve_in(
    namespace: str | None,
    host: str,
    port: int,
    key: Any,
    models: Path | None,
    change: Callable[[], None],
    ready: Any,
) -> None:
    """The body of a daemon's process, which sets the event ``ready`` when it listens."""
    end_with_fork_server()
    change()
    if namespace is not None:
        with open(f"/run/netns/{namespace}") as file:  # noqa: PTH123
            assert not ctypes.CDLL(None).setns(file.fileno(), CLONE_NEWNET)
    for module in (daemon_module, processes):
        module.fork_server = lambda: multiprocessing.get_context("fork")  # type: ignore[assignment, return-value, misc]
    with Daemon(host, port, key, models) as serving:
        ready.set()
        serving.serve()


@dataclass(frozen=True, slots=True)
class Serving:
    """A host's daemon while it serves.

    Attributes:
        process: the daemon's; its children are the roles'.
    """

    address: str
    process: psutil.Process

    def roles(self) -> tuple[str, ...]:
        """Of a daemon without a key."""
        return status(self.address, None).roles


@contextmanager
def serving(
    models: Path | None = None,
    *,
    namespace: str | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    key: KeyPair | None = None,
    change: Callable[[], None] = as_it_is,
) -> Iterator[Serving]:
    """A daemon in a process of its own.

    Args:
        models: its folder of checkpoints.
        port: None: any free one.
        change: what is done there before, also to the roles.
    """
    port = free_port() if port is None else port
    ready = fork_server().Event()
    args = namespace, host, port, key, models, change, ready
    process = fork_server().Process(target=serve_in, args=args)
    start(process)
    try:
        assert ready.wait(60)
        yield Serving(f"{host}:{port}", psutil.Process(process.pid))
    finally:
        process.kill()
        process.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def at(deployment: Deployment, addresses: dict[str, str]) -> Deployment:
    """The deployment with these roles on workers at these addresses."""

    def placed(role: Placed) -> Placed:
        return replace(role, worker=addresses.get(role.name))

    return changed(
        deployment,
        drafts=tuple(map(placed, deployment.roles.drafts)),
        pipelines=tuple(tuple(map(placed, stages)) for stages in deployment.roles.pipelines),
    )


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def skip_without_namespaces() -> None:
    """Skip the test, with the reason, where this machine does not let us make them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need root, ip and tc")
    tried = subprocess.run(["ip", "netns", "add", MINE], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted: {tried.stderr.decode().strip()}")
    _ip("netns", "del", MINE)


@contextmanager
def namespaces(count: int, mbit: int, burst_kb: int = 128) -> Iterator[list[tuple[str, str]]]:
    """(Namespace, its address) of hosts on one bridge, each with so many Mbit/s in and out, beyond
    a burst that is sent at once; this host is the bridge's own."""
    with ExitStack() as made:
        _ip("link", "add", MINE, "type", "bridge")
        made.callback(_ip, "link", "del", MINE)
        _ip("addr", "add", f"{NETWORK}.1/24", "dev", MINE)
        _ip("link", "set", MINE, "up")
        found = []
        for number in range(count):
            name, host = f"{MINE}h{number}", f"{NETWORK}.{10 + number}"
            _ip("netns", "add", name)
            made.callback(_ip, "netns", "del", name)
            _ip("link", "add", f"{MINE}v{number}", "type", "veth", "peer", "eth0", "netns", name)
            _ip("link", "set", f"{MINE}v{number}", "master", MINE, "up")
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", name, "link", "set", link, "up")
            limit = ["rate", f"{mbit}mbit", "burst", f"{burst_kb}kb", "latency", "400ms"]
            for tc, device in (("tc", f"{MINE}v{number}"), (f"tc -n {name}", "eth0")):
                bucket = [*tc.split(), "qdisc", "add", "dev", device, "root", "tbf", *limit]
                subprocess.run(bucket, check=True, capture_output=True)
            found.append((name, host))
        yield found
