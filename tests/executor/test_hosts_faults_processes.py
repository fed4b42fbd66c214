"""Faults of workers on other hosts: daemons on the loopback, of which one is a spare or gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.hosts import at, daemon_process, free_port, roles_at
from tests.worlds.tiny_models import greedy
from treepipe.executor.controller import Controller
from treepipe.executor.remote import status
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.faults import FaultPlan

pytestmark = pytest.mark.processes

ASKED = (RequestSpec(PROMPT[:20], 20), RequestSpec(PROMPT[:9], 100))
"""The first is over while the second has some tokens and wants many more."""
AWAY = "pipeline0.stage2", "pipeline0.stage3"
"""The stages of the first host; all other roles are on this one."""


@dataclass(frozen=True, slots=True)
class _Host:
    """A daemon on the loopback."""

    address: str
    process: psutil.Process

    def roles(self) -> tuple[str, ...]:
        return status(self.address, None).roles


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[_Host]]:
    """Two of them, each with a folder of models of its own."""
    with ExitStack() as stack:
        found = []
        for name in ("first", "second"):
            port, models = free_port(), tmp_path / name
            process = stack.enter_context(daemon_process(None, "127.0.0.1", port, None, models))
            found.append(_Host(f"127.0.0.1:{port}", process))
        yield found


def _assert_greedy(trace: Trace, deployment: Deployment, target: Path) -> None:
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(target, list(spec.prompt), spec.max_new_tokens)
        assert request.reason == "length"


@pytest.mark.parametrize("lost", ["a role's process", "the daemon"])
def test_a_spare_on_another_host_takes_the_place_of_what_is_lost(
    pair: tuple[Path, Path], hosts: list[_Host], lost: str
) -> None:
    """It has nothing of the model before; a daemon that is killed takes two stages along."""
    first, spare = hosts
    plan = FaultPlan(spares=1, spare_workers=(spare.address,))
    plain = replace(small_deployment("flowspec", clients=2), requests=ASKED, faults=plan)
    deployment = at(plain, dict.fromkeys(AWAY, first.address))
    roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
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
