"""Faults of workers on other hosts: daemons on the loopback, of which one is a spare or gone."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.hosts import Serving, at, free_port, roles_at, serving
from tests.worlds.real_runs import assert_greedy, controller_of, one_by_one
from treepipe.core.losses import FaultKind
from treepipe.executor import fleet
from treepipe.executor.controller import Controller, RunEndedError
from treepipe.executor.remote import RemoteHost, status
from treepipe.executor.station import RoleSettings
from treepipe.executor.transport import KeyPair
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import Faults, Injected

pytestmark = pytest.mark.processes

ASKED = (RequestSpec(PROMPT[:20], 12), RequestSpec(PROMPT[:9], 60))
"""The first is over while the second has some tokens and wants many more."""
AWAY = "pipeline0.stage2", "pipeline0.stage3"
"""The stages of the first host; all other roles are on this one."""

TIMEOUT_MS = 1000.0
"""A worker may be silent for so long."""


@pytest.fixture
def hosts(pair: tuple[Path, Path]) -> Iterator[list[Serving]]:
    """Two of them, which share a folder of models."""
    with ExitStack() as stack:
        yield [stack.enter_context(serving(pair[0].parent)) for _ in range(2)]


def _roles(
    pair: tuple[Path, Path], plain: Deployment, deployment: Deployment
) -> list[RoleSettings]:
    """Those of the plain deployment, as the other one places them."""
    roles = worker_roles(pair, plain, emulate=False, timeout_ms=TIMEOUT_MS)
    return roles_at(roles, deployment)


@pytest.mark.parametrize("lost", ["a role's process", "the daemon"])
def test_a_spare_on_another_host_takes_the_place_of_what_is_lost(
    pair: tuple[Path, Path], hosts: list[Serving], lost: str
) -> None:
    """A daemon that is killed takes two stages along."""
    first, spare = hosts
    plan = Faults(spares=1, spare_workers=(spare.address,))
    plain = replace(small_deployment("specpipe_db", clients=2), requests=ASKED, faults=plan)
    deployment = at(plain, dict.fromkeys(AWAY, first.address))
    roles = _roles(pair, plain, deployment)

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


def test_a_spare_that_is_there_only_later_takes_a_place(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon starts when the run has begun without it, and then a stage is lost."""
    monkeypatch.setattr(fleet, "SPARE_S", 0.2)
    port = free_port()
    plan = Faults(spares=1, spare_workers=(f"127.0.0.1:{port}",))
    deployment = replace(small_deployment("pp", clients=2), requests=ASKED, faults=plan)
    awaited = {*plan.all_spares}
    with ExitStack() as stack, controller_of(pair, deployment, emulate=False) as running:
        assert not awaited & {*running.waiting()}

        def lose() -> None:
            stack.enter_context(serving(pair[0].parent, port=port))
            until = time.monotonic() + 30
            while not awaited & {*running.waiting()}:
                assert time.monotonic() < until
                time.sleep(0.02)
            running.lines.processes[AWAY[0]].kill()

        trace, _ = running.run(deployment, one_by_one(lose))
        assert status(plan.spare_workers[0], None).roles == AWAY[:1]
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == (AWAY[0], "kill")
    assert any("took its place" in each for each in trace.warnings)
    assert_greedy(trace, deployment, pair[0])


def test_a_draft_whose_host_is_gone_and_comes_back_drafts_again(pair: tuple[Path, Path]) -> None:
    """Its daemon is killed: a stand-in here decodes plainly until another daemon listens there."""
    stand_in = small_deployment("pp").service.new_schedule
    asked = (ASKED[0], *[replace(ASKED[1], max_new_tokens=40)] * 5)
    plain = changed(small_deployment("specpipe_db"), requests=asked, stand_in=stand_in)
    with ExitStack() as stack:
        first = stack.enter_context(serving(pair[0].parent))
        deployment = at(plain, {"draft0": first.address})
        roles = _roles(pair, plain, deployment)
        port = int(first.address.rpartition(":")[2])

        def end_daemon() -> None:
            first.process.kill()
            first.process.wait()

        with Controller(roles, deployment) as running:
            begin = partial(serving, pair[0].parent, port=port)
            events = one_by_one(end_daemon, lambda: stack.enter_context(begin()))
            trace, _ = running.run(deployment, events)
            away = running.deployment.plain
            again, _ = running.run(deployment)
            assert not running.deployment.plain
            assert first.roles() == ("draft0",)
    (fault,) = trace.faults
    assert fault.worker == "draft0"
    assert fault.plain_from_ms is not None
    warnings = [*trace.warnings, *again.warnings]
    assert any("draft0 was back" in each for each in (again if away else trace).warnings)
    assert any("decoded plainly until it is back" in each for each in warnings)
    assert_greedy(trace, deployment, pair[0])
    assert_greedy(again, deployment, pair[0])


def test_what_fails_over_there_is_named_and_leaves_nothing(pair: tuple[Path, Path]) -> None:
    """Session after session of one daemon, the last of which nobody disturbs."""
    kinds: tuple[FaultKind, ...] = ("kill", "stop", "cut")
    plain = replace(small_deployment("pp", clients=2), requests=ASKED)
    with serving(pair[0].parent) as host:
        deployment = at(plain, dict.fromkeys(AWAY, host.address))
        roles = _roles(pair, plain, deployment)
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
            _, left = psutil.wait_procs(host.process.children(), timeout=5)
            assert (host.roles(), left) == ((), [])
        with Controller(roles, deployment) as running:
            trace, _ = running.run(deployment)
    assert_greedy(trace, deployment, pair[0])


MOST_DESCRIPTORS = 96
"""Of a daemon that must not have more; half of them are its own."""


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))


def test_connections_of_strangers_do_not_keep_a_daemon_from_starting_a_process() -> None:
    """More of them than it has descriptors for; they say nothing, and need no key for that. Those
    that wait are fewer than it keeps for its own work: more could take these while it starts."""
    key, port = KeyPair.new(), free_port()
    with ExitStack() as stack:
        serves = stack.enter_context(serving(port=port, key=key, change=_few_descriptors))
        daemon = serves.process
        host = stack.enter_context(closing(RemoteHost(serves.address, key)))
        before = daemon.num_fds()
        for _ in range(MOST_DESCRIPTORS - 2 * before):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", port))
        until = time.monotonic() + 10
        while daemon.num_fds() < MOST_DESCRIPTORS // 2:
            assert time.monotonic() < until
        assert before < MOST_DESCRIPTORS // 2
        started = host.start(AWAY[0])
        while not daemon.children():
            assert started.process.is_alive(), host.refusal
            assert time.monotonic() < until
        started.control.close()  # so that it ends
        started.process.join()
        assert started.process.exitcode == 0
        assert daemon.is_running()
        started.look.close()
