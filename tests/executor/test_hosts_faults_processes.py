"""Faults of workers on other hosts: daemons on the loopback, of which one is a spare or gone."""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.hosts import as_it_is, at, daemon_process, free_port, roles_at
from tests.worlds.tiny_models import greedy
from treepipe.core.losses import FaultKind
from treepipe.executor import fleet
from treepipe.executor.controller import Controller, RunEndedError
from treepipe.executor.keys import KeyPair
from treepipe.executor.remote import RemoteHost, status
from treepipe.executor.stage_model import StageModel
from treepipe.executor.station import RoleSettings
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import FaultPlan, Injected

pytestmark = pytest.mark.processes

ASKED = (RequestSpec(PROMPT[:20], 12), RequestSpec(PROMPT[:9], 60))
"""The first is over while the second has some tokens and wants many more."""
AWAY = "pipeline0.stage2", "pipeline0.stage3"
"""The stages of the first host; all other roles are on this one."""


TIMEOUT_MS, LATE_MS = 1000.0, 1000.0
"""A worker may be silent for so long; a busy host may look so much later."""


@dataclass(frozen=True, slots=True)
class _Host:
    """A daemon on the loopback."""

    address: str
    process: psutil.Process

    def roles(self) -> tuple[str, ...]:
        return status(self.address, None).roles


@contextmanager
def _host(
    models: Path, change: Callable[[], None] = as_it_is, port: int | None = None
) -> Iterator[_Host]:
    port = free_port() if port is None else port
    with daemon_process(None, "127.0.0.1", port, None, models, change) as process:
        yield _Host(f"127.0.0.1:{port}", process)


@pytest.fixture
def hosts(pair: tuple[Path, Path]) -> Iterator[list[_Host]]:
    """Two of them, which share a folder of models."""
    with ExitStack() as stack:
        yield [stack.enter_context(_host(pair[0].parent)) for _ in range(2)]


def _roles(
    pair: tuple[Path, Path], plain: Deployment, deployment: Deployment
) -> list[RoleSettings]:
    """Those of the plain deployment, as the other one places them."""
    roles = worker_roles(pair, plain, emulate=False, timeout_ms=TIMEOUT_MS)
    return roles_at(roles, deployment)


def _assert_greedy(trace: Trace, deployment: Deployment, target: Path) -> None:
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(target, list(spec.prompt), spec.max_new_tokens)
        assert request.reason == "length"


@pytest.mark.parametrize("lost", ["a role's process", "the daemon"])
def test_a_spare_on_another_host_takes_the_place_of_what_is_lost(
    pair: tuple[Path, Path], hosts: list[_Host], lost: str
) -> None:
    """A daemon that is killed takes two stages along."""
    first, spare = hosts
    plan = FaultPlan(spares=1, spare_workers=(spare.address,))
    plain = replace(small_deployment("specpipe_db", clients=2), requests=ASKED, faults=plan)
    deployment = at(plain, dict.fromkeys(AWAY, first.address))
    roles = _roles(pair, plain, deployment)
    done = 0

    with Controller(roles, deployment) as running:

        def once() -> None:
            nonlocal done
            done += 1
            if done == 1:
                whom = first.process
                if lost == "a role's process":
                    whom = whom.children()[0]  # in the order of their start: stage 2
                whom.kill()

        assert (first.roles(), spare.roles()) == (AWAY, ())
        trace, _ = running.run(deployment, once)
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
    _assert_greedy(trace, deployment, pair[0])
    _assert_greedy(again, deployment, pair[0])
    assert not again.faults
    assert len([w for w in again.warnings if "are aligned" in w]) == 3 - len(moved)


def test_a_spare_that_is_there_only_later_takes_a_place(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon starts when the run has begun without it, and then a stage is lost."""
    monkeypatch.setattr(fleet, "SPARE_S", 0.2)
    port = free_port()
    plan = FaultPlan(spares=1, spare_workers=(f"127.0.0.1:{port}",))
    deployment = replace(small_deployment("pp", clients=2), requests=ASKED, faults=plan)
    roles, late = worker_roles(pair, deployment, emulate=False), list[int]()
    awaited = {*plan.all_spares}
    with ExitStack() as stack, Controller(roles, deployment) as running:
        assert not awaited & {*running.crew.waiting()}

        def once() -> None:
            if late:
                return  # the second request is over
            late.append(port)
            stack.enter_context(_host(pair[0].parent, port=port))
            until = time.monotonic() + 30
            while not awaited & {*running.crew.waiting()}:
                assert time.monotonic() < until
                time.sleep(0.02)
            running.crew.lines.processes[AWAY[0]].kill()

        trace, _ = running.run(deployment, once)
        assert status(plan.spare_workers[0], None).roles == AWAY[:1]
    (fault,) = trace.faults
    assert (fault.worker, fault.kind) == (AWAY[0], "kill")
    assert any("took its place" in each for each in trace.warnings)
    _assert_greedy(trace, deployment, pair[0])


def test_a_draft_whose_host_is_gone_and_comes_back_drafts_again(pair: tuple[Path, Path]) -> None:
    """Its daemon is killed: a stand-in here decodes plainly until another daemon listens there."""
    stand_in = small_deployment("pp").new_schedule
    asked = (ASKED[0], *[replace(ASKED[1], max_new_tokens=40)] * 5)
    plain = replace(small_deployment("specpipe_db"), requests=asked, stand_in=stand_in)
    with ExitStack() as stack:
        first = stack.enter_context(_host(pair[0].parent))
        deployment = at(plain, {"draft0": first.address})
        roles = _roles(pair, plain, deployment)
        done, port = 0, int(first.address.rpartition(":")[2])
        with Controller(roles, deployment) as running:

            def once() -> None:
                nonlocal done
                done += 1
                if done == 1:
                    first.process.kill()
                    first.process.wait()
                if done == 2:
                    stack.enter_context(_host(pair[0].parent, port=port))

            trace, _ = running.run(deployment, once)
            away = running.crew.deployment.plain
            again, _ = running.run(deployment)
            assert not running.crew.deployment.plain
            assert first.roles() == ("draft0",)
    (fault,) = trace.faults
    assert fault.worker == "draft0"
    assert fault.plain_from_ms is not None
    warnings = [*trace.warnings, *again.warnings]
    assert any("draft0 was back" in each for each in (again if away else trace).warnings)
    assert any("decoded plainly until it is back" in each for each in warnings)
    _assert_greedy(trace, deployment, pair[0])
    _assert_greedy(again, deployment, pair[0])


def test_what_fails_over_there_is_named_in_time_and_leaves_nothing(pair: tuple[Path, Path]) -> None:
    """Session after session of one daemon, the last of which nobody disturbs."""
    kinds: tuple[FaultKind, ...] = ("kill", "stop", "cut")
    plain = replace(small_deployment("pp", clients=2), requests=ASKED)
    with _host(pair[0].parent) as host:
        deployment = at(plain, dict.fromkeys(AWAY, host.address))
        roles = _roles(pair, plain, deployment)
        for kind in kinds:
            plan = FaultPlan(injected=(Injected(AWAY[1], kind, 60.0),))
            with (
                Controller(roles, deployment) as running,
                pytest.raises(RunEndedError, match=rf"^{AWAY[1]} ") as ended,
            ):
                running.run(replace(deployment, faults=plan))
            (fault,) = ended.value.trace.faults
            assert (fault.worker, fault.kind) == (AWAY[1], kind)
            assert fault.at_ms is not None
            assert fault.detected_ms is not None
            noticed_ms = fault.detected_ms - fault.at_ms
            assert noticed_ms < (TIMEOUT_MS if kind != "kill" else 0.0) + LATE_MS
            _, left = psutil.wait_procs(host.process.children(), timeout=5)
            assert (host.roles(), left) == ((), [])
        with Controller(roles, deployment) as running:
            trace, _ = running.run(deployment)
    _assert_greedy(trace, deployment, pair[0])


def _hold_the_interpreter() -> None:
    """A stage's first pass lasts longer than a worker may be silent, and no other thread runs."""
    compute, begun = StageModel.run, list[float]()

    def computing(self: StageModel, opened: Any) -> Any:
        if not begun:
            begun.append(time.monotonic())
            sys.setswitchinterval(60.0)
            while time.monotonic() - begun[0] < 1.5 * TIMEOUT_MS / 1e3:
                pass
            sys.setswitchinterval(0.005)
        return compute(self, opened)

    StageModel.run = computing  # type: ignore[method-assign]


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_a_long_pass_over_there_is_no_silence(pair: tuple[Path, Path]) -> None:
    """Not even one in which the worker's thread cannot show itself."""
    plain = replace(small_deployment("pp"), requests=ASKED[:1])
    with _host(pair[0].parent, _hold_the_interpreter) as host:
        deployment = at(plain, {AWAY[0]: host.address})
        roles = _roles(pair, plain, deployment)
        with Controller(roles, deployment) as running:
            trace, _ = running.run(deployment)
    _assert_greedy(trace, deployment, pair[0])
    assert trace.requests[0].finished_ms > 1.5 * TIMEOUT_MS
    assert not trace.faults


MOST_DESCRIPTORS = 96
"""Of a daemon that must not have more; half of them are its own."""


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))


def test_connections_of_strangers_do_not_keep_a_daemon_from_starting_a_process() -> None:
    """More of them than it has descriptors for; they say nothing, and need no key for that. Those
    that wait are fewer than it keeps for its own work: more could take these while it starts."""
    key, port = KeyPair.new(), free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        daemon = stack.enter_context(
            daemon_process(None, "127.0.0.1", port, key, None, _few_descriptors)
        )
        host = stack.enter_context(closing(RemoteHost(address, key)))
        before = daemon.num_fds()
        for _ in range(MOST_DESCRIPTORS - 2 * before):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", port))
        until = time.monotonic() + 10
        while daemon.num_fds() < MOST_DESCRIPTORS // 2:
            assert time.monotonic() < until
        assert before < MOST_DESCRIPTORS // 2
        process, line, look = host.start(AWAY[0])
        while not daemon.children():
            assert process.is_alive(), host.refusal
            assert time.monotonic() < until
        line.close()  # so that it ends
        process.join()
        assert process.exitcode == 0
        assert daemon.is_running()
        look.close()
