"""Runs whose workers are on other hosts, on the loopback and in namespaces: the same texts, and
what happens when a host, or one of its workers, is lost."""

from __future__ import annotations

import resource
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import TIMES, small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import (
    PORT,
    Serving,
    at,
    free_port,
    namespaces,
    serving,
    skip_without_namespaces,
)
from tests.worlds.real_runs import LONG, SHORT, TIMEOUT_MS, assert_greedy, one_by_one
from treepipe.core.errors import RunError, UserError
from treepipe.core.failover import FaultKind
from treepipe.core.schedules import systems
from treepipe.executor.hosts.remote import status
from treepipe.executor.run.controller import Controller, RunEndedError
from treepipe.executor.run.fleet import Fleet
from treepipe.executor.run.lines import Lines
from treepipe.executor.wire.keys import KeyPair
from treepipe.scenario.deployment import Placed
from treepipe.scenario.faults import Faults, Injected

pytestmark = pytest.mark.processes


def test_workers_on_another_host_serve_run_after_run_from_their_own_copies(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """One process of this host among them; a second coordinator is told to wait its turn. Without
    the copies there is a sentence, and no run."""
    plain = small_deployment("flowspec")
    away = "draft0", *(f"pipeline0.stage{n}" for n in (2, 3, 4))
    with serving(tmp_path) as host:
        deployment = at(plain, dict.fromkeys(away, host.address))
        roles = worker_roles(pair, deployment, emulate=False)
        with pytest.raises(
            UserError, match=rf"^worker {host.address}: .*; copy the .*: rsync -aL "
        ):
            Controller(roles, deployment).__enter__()
        shutil.copytree(pair[0].parent, tmp_path, dirs_exist_ok=True)
        for _ in range(2):
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
                assert_greedy(trace, deployment, pair[0])
                assert host.roles() == away
                with (
                    pytest.raises(RunError, match=r"refuses: it is at work for another coordin"),
                    Controller(roles, deployment),
                ):
                    pass
            assert host.roles() == ()
        assert status(host.address, None).sessions == 3
    aligned = f"times of worker {host.address} are aligned"
    said = [each for each in trace.warnings if each.startswith(aligned)]
    assert len(said) == 1


def test_every_schedule_is_lossless_over_six_hosts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Namespaces with links of 1 Gbit/s, keys, and this host as the coordinator."""
    skip_without_namespaces()
    key_file, key = tmp_path / "key", KeyPair.new()
    key.save(key_file)
    names = list(systems()) if THOROUGH else ["flowspec"]
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(6, 1000))
        addresses = [
            stack.enter_context(
                serving(pair[0].parent, namespace=name, host=host, port=PORT, key=key)
            ).address
            for name, host in hosts
        ]
        for name in names:
            plain = small_deployment(name, clients=2)
            plain = changed(plain, drafts=(*plain.roles.drafts, Placed("draft1", TIMES)))
            places = dict(zip(plain.roles.devices, addresses, strict=True))
            deployment = changed(at(plain, places), key=key_file)
            roles = worker_roles(pair, deployment, emulate=False)
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
            assert_greedy(trace, deployment, pair[0])


# --- faults ---------------------------------------------------------------------------------------

ASKED = (SHORT, LONG)
AWAY = "pipeline0.stage2", "pipeline0.stage3"
"""The stages of the first host; all other roles are on this one."""


@pytest.fixture
def hosts(pair: tuple[Path, Path]) -> Iterator[list[Serving]]:
    """Two of them, which share a folder of models."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(pair[0].parent)) for _ in range(2)]


@pytest.mark.parametrize("lost", ["a role's process", "the daemon"])
def test_a_spare_on_another_host_takes_the_place_of_what_is_lost(
    pair: tuple[Path, Path], hosts: list[Serving], lost: str
) -> None:
    """A daemon that is killed takes two stages along."""
    first, spare = hosts
    plan = Faults(spares=1, spare_workers=(spare.address,))
    plain = replace(small_deployment("specpipe_db", clients=2), requests=ASKED, faults=plan)
    deployment = at(plain, dict.fromkeys(AWAY, first.address))
    roles = worker_roles(pair, deployment, emulate=False, timeout_ms=TIMEOUT_MS)

    def lose() -> None:
        """Its processes are in the order of their start: stage 2 is the first."""
        (first.process.children()[0] if lost == "a role's process" else first.process).kill()

    with Controller(roles, deployment) as running:
        assert (first.roles(), spare.roles()) == (AWAY, ())
        trace, _ = running.run(deployment, one_by_one(lose))
        moved = AWAY[:1] if lost == "a role's process" else AWAY
        assert spare.roles() == moved
        if moved != AWAY:
            assert first.roles() == AWAY[1:]
        again, _ = running.run(deployment)
        assert spare.roles() == moved, "it stays there"
    assert spare.roles() == ()
    (fault,) = trace.faults
    assert fault.worker in moved
    assert fault.recovered_ms is not None
    assert any(f"a spare at {spare.address} took its place" in each for each in trace.warnings)
    assert_greedy(trace, deployment, pair[0])
    assert_greedy(again, deployment, pair[0])
    assert not again.faults
    assert len([w for w in again.warnings if "are aligned" in w]) == 3 - len(moved)


def test_what_fails_over_there_is_named_and_leaves_nothing(pair: tuple[Path, Path]) -> None:
    """Session after session of one daemon, the last of which nobody disturbs."""
    kinds: tuple[FaultKind, ...] = ("kill", "stop", "cut")
    plain = replace(small_deployment("pp", clients=2), requests=ASKED)
    with serving(pair[0].parent) as host:
        deployment = at(plain, dict.fromkeys(AWAY, host.address))
        roles = worker_roles(pair, deployment, emulate=False, timeout_ms=TIMEOUT_MS)
        for kind in kinds:
            plan = Faults(injected=(Injected(AWAY[1], kind, 60.0),))
            with (
                Controller(roles, deployment) as running,
                pytest.raises(RunEndedError, match=rf"^{AWAY[1]} ") as ended,
            ):
                running.run(replace(deployment, faults=plan))
            (fault,) = ended.value.trace.faults
            assert (fault.worker, fault.kind) == (AWAY[1], kind)
            assert fault.detected_ms is not None
            _, left = psutil.wait_procs(host.process.children(), timeout=30)
            assert (host.roles(), left) == ((), [])
        with Controller(roles, deployment) as running:
            trace, _ = running.run(deployment)
    assert_greedy(trace, deployment, pair[0])


MOST_DESCRIPTORS = 96
"""Of a daemon that must not have more; half of them are its own."""


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))


def test_connections_of_strangers_do_not_keep_a_daemon_from_starting_a_process(
    tmp_path: Path,
) -> None:
    """More of them than it has descriptors for; they say nothing, and need no key for that. Those
    that wait are fewer than it keeps for its own work: more could take these while it starts."""
    key, port = KeyPair.new(), free_port()
    with ExitStack() as stack:
        serves = stack.enter_context(serving(port=port, key=key, change=_few_descriptors))
        daemon = serves.process
        fleet = stack.enter_context(closing(Fleet([serves.address])))
        key.save(tmp_path / "key")
        fleet.meet(tmp_path / "key")
        lines = Lines(TIMEOUT_MS, {})
        lines.open()
        before = daemon.num_fds()
        for _ in range(MOST_DESCRIPTORS - 2 * before):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", port))
        until = time.monotonic() + 60
        while daemon.num_fds() < MOST_DESCRIPTORS // 2:
            assert time.monotonic() < until
        assert before < MOST_DESCRIPTORS // 2
        lines.start(AWAY[0], fleet.host(serves.address), lines.address)
        while not daemon.children():
            lines.listen()
            assert time.monotonic() < until
        assert lines.end() == []
        assert daemon.is_running()
