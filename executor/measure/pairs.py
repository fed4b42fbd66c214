"""Links between all pairs of hosts of a scenario, each timed by processes of the two hosts.

The hosts' daemons start a pair's two ends like roles: with a token and, where others can reach
them, a key, so that a message costs as much as in a run.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError, UserError
from treepipe.executor.measure.link import End, link_profile
from treepipe.executor.measure.run import beside
from treepipe.executor.run.fleet import Fleet
from treepipe.executor.run.lines import Lines
from treepipe.executor.wire import records
from treepipe.executor.wire.envelope import TOKEN_BYTES
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.profiles.schema import LinkProfile
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import DEFAULT_TIMEOUT_MS
from treepipe.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class HostPair:
    """Two hosts that exchange a run's messages.

    Attributes:
        hosts: addresses of their workers; None is the coordinator's own host.
        roles: senders and receivers, either way; the first two name the link. A spare that has no
            role yet is named by its address.
    """

    hosts: tuple[str | None, str | None]
    roles: tuple[tuple[str, str], ...]

    @property
    def file(self) -> str:
        return f"{'-'.join(self.roles[0]).replace(':', '-')}.toml"

    def __str__(self) -> str:
        return " to ".join(host or "this host" for host in self.hosts)


def host_pairs(deployment: Deployment) -> list[HostPair]:
    """Return all pairs of hosts that exchange a run's messages, in the order of its roles.

    Pairs of spares come last, since each spare may take any role's place.

    Raises:
        UserError: all roles are on one host.
    """
    places = {placed.name: placed.worker for placed in deployment.roles.placed}
    hosts: dict[frozenset[str | None], tuple[str | None, str | None]] = {}
    roles: dict[frozenset[str | None], dict[frozenset[str], tuple[str, str]]] = {}
    spares = deployment.faults.spare_workers
    connections = [*deployment.roles.connections, *itertools.product(spares, places)]
    places |= {spare: spare for spare in spares}
    for ends in (*connections, *itertools.combinations(spares, 2)):
        sender, receiver = places[ends[0]], places[ends[1]]
        if sender != receiver:
            both = frozenset((sender, receiver))
            hosts.setdefault(both, (sender, receiver))
            roles.setdefault(both, {}).setdefault(frozenset(ends), ends)
    if not hosts:
        raise UserError(
            f"{deployment.path}: all roles are on one host, so that there is no link to measure; "
            f"key worker of a draft or a stage names another host's worker"
        )
    return [HostPair(ends, tuple(roles[both].values())) for both, ends in hosts.items()]


def pair_sections(deployment: Deployment, files: Mapping[HostPair, Path]) -> list[dict[str, Any]]:
    """Return a scenario's ``links.pairs`` for these links with the files of their profiles.

    They keep stated keys that were not measured: one direction at a time, a medium.
    """
    sections: list[dict[str, Any]] = []
    for pair, file in files.items():
        for ends in pair.roles:
            before = deployment.link(*ends)
            section = {"ends": list(ends), "profile": beside(deployment.path, file)}
            duplex = {"duplex": "half"} if before.half_duplex else {}
            medium = {} if before.medium is None else {"medium": before.medium}
            sections.append(section | duplex | medium)
    return sections


def summary(found: Mapping[HostPair, LinkProfile]) -> Iterator[str]:
    """Yield a line about each link."""
    for pair, link in found.items():
        rate = link.bandwidth_mbit_s
        size = "" if rate is None else f", {rate:.4g} Mbit/s"
        size += f" beyond {link.burst_kib:.3g} KiB" if link.burst_kib else ""
        yield (
            f"{pair}: {link.latency_ms:.3g} ms, jitter {link.jitter_ms:.2g} ms, "
            f"{link.message_ms:.2g} ms a message{size}"
        )


def with_pairs(scenario: Scenario, sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a scenario's content in which these ``links.pairs`` replace those of the same ends."""
    content = scenario.content
    links = dict(content.get("links", {}))
    new = {frozenset(section["ends"]) for section in sections}
    kept = [pair for pair in links.get("pairs", ()) if frozenset(pair["ends"]) not in new]
    return {**content, "links": {**links, "pairs": [*kept, *sections]}}


@dataclass(frozen=True, slots=True)
class _Process:
    """One end of a link: its name, the other end's name, and the address of its host's worker."""

    name: str
    peer: str
    host: str | None


@dataclass(slots=True)
class PairsSession:
    """A measurement of links between hosts with which ``fleet`` has sessions."""

    fleet: Fleet
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    base_port: int = 0
    token: bytes = field(default_factory=partial(secrets.token_bytes, TOKEN_BYTES))
    key: KeyPair | None = None

    def __post_init__(self) -> None:
        self.key = self.fleet.new_key()

    def measure(self, pair: HostPair, seconds: float) -> LinkProfile:
        """Time a pair's link.

        Raises:
            UserError: the two hosts do not reach each other.
            RunError: a host is gone, or there were too few round trips.
        """
        near, far = (".".join(ends) for ends in (pair.roles[0], pair.roles[0][::-1]))
        ends = _Process(near, far, pair.hosts[0]), _Process(far, near, pair.hosts[1])
        with self._started(ends, {}) as lines:
            lines.order(near, records.Measure(f"link {pair}", seconds))
            found = lines.answer(near, records.RoundTrips)
        samples = {(kind, size): taken for kind, size, taken in found.samples}
        profile = link_profile(samples, f"{found.node}, {pair}", found.seconds, found.versions)
        if profile is None:
            raise RunError(f"link {pair}: too few round trips in {found.seconds:.0f} s")
        return profile

    @contextlib.contextmanager
    def end_here(self, host: str | None) -> Iterator[End]:
        """Yield an end in this process; the other one is a process at ``host`` (None: here)."""
        near = self._end(_Process("here", "there", None))
        with contextlib.closing(ZeroMQ(self.key)) as transport:
            end = End(transport, self.fleet.listens_on(None), near)
            addresses = {near.name: end.inbox.address}
            with self._started([_Process("there", "here", host)], addresses):
                end.connect(self.fleet.way(addresses["there"], None))
                yield end

    def _end(self, process: _Process, number: int = 0) -> records.LinkEnd:
        port = self.base_port + number if self.base_port else 0
        ends = process.name, process.peer
        return records.LinkEnd(*ends, port, self.token)

    @contextlib.contextmanager
    def _started(self, processes: Sequence[_Process], addresses: dict[str, str]) -> Iterator[Lines]:
        """Start the ends of a link, send each the address of its other end, and end them."""
        lines, fleet = Lines(self.timeout_ms, {}), self.fleet
        try:
            port = self.base_port + len(processes) if self.base_port else 0
            lines.open(fleet.listens_on(None), port, self.key)
            for number, each in enumerate(processes):
                way = fleet.way(lines.address, each.host)
                lines.start(each.name, fleet.host(each.host), way)
                lines.order(each.name, self._end(each, number))
                lines.order(each.name, records.Listen(fleet.listens_on(each.host)))
            for each in processes:
                addresses[each.name] = lines.answer(each.name, records.Listening).address
            for each in processes:
                way = fleet.way(addresses[each.peer], each.host)
                lines.order(each.name, records.Connect({each.peer: way}, {}))
            for each in processes:
                lines.answer(each.name, records.Loaded)
                lines.watch.serves(each.name)
            yield lines
        finally:
            lines.end()
