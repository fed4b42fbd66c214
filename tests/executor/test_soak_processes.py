"""Faults of every kind, in every role, at random moments of runs that follow each other on the same
workers: no run hangs, no token is wrong, and neither a process nor a session is left.

A few in every test; `make soak` lets 16 come under each schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pytest

from tests.worlds.any_section import SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment
from tests.worlds.examples import THOROUGH
from tests.worlds.real_runs import TIMEOUT_MS, assert_greedy, controller_of
from treepipe.core.failover import Fault, FaultKind, noticed_after_ms
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.faults import Injected

pytestmark = pytest.mark.processes

KINDS: tuple[FaultKind, ...] = ("kill", "stop", "cut")
SOAKED = SCHEDULES if THOROUGH else ("flowspec", "specpipe_db")
"""One whose stages go on by themselves, one in lock-step; in memory every system loses its workers
(``tests/sim/test_sim_faults.py``)."""
FAULTS = 16 if THOROUGH else 3
"""Of each schedule; the kinds take turns."""
SPAN_MS = 120.0
"""A fault comes so long after a run's start at most."""
ASKED = tuple(RequestSpec(PROMPT[n : 2 * n + 9], 12 + 8 * n) for n in range(3))


@pytest.fixture(scope="module")
def found() -> Iterator[list[Fault]]:
    """All that was noticed; told in the end, by kind."""
    faults: list[Fault] = []
    yield faults
    print()
    for kind in KINDS:
        own = [fault for fault in faults if fault.kind == kind]
        noticed = [f.detected_ms - f.at_ms for f in own if f.detected_ms and f.at_ms is not None]
        taken = [f.recovered_ms - f.detected_ms for f in own if f.detected_ms and f.recovered_ms]
        if taken:
            print(
                f"{kind}: {len(own)} faults; noticed after {median(noticed):.0f} ms (predicted "
                f"{noticed_after_ms(kind, TIMEOUT_MS):.0f}), made good {median(taken):.0f} ms later"
            )


@pytest.mark.parametrize("name", SOAKED)
def test_no_fault_leaves_anything_but_the_text(
    pair: tuple[Path, Path], name: str, found: list[Fault]
) -> None:
    deployment = changed(small_deployment(name, clients=3), requests=ASKED)
    rng, seen, pids = np.random.default_rng([*name.encode()]), list[Fault](), set[int]()
    with controller_of(pair, deployment, emulate=False, timeout_ms=TIMEOUT_MS) as running:
        for number in range(4 * FAULTS):
            if len(seen) >= FAULTS:
                break
            lost, kind = str(rng.choice(deployment.roles.devices)), KINDS[number % 3]
            fault = Injected(lost, kind, rng.uniform(0.0, SPAN_MS))
            failing = changed(deployment, timeout_ms=TIMEOUT_MS, spares=1, injected=(fault,))
            pids |= {host.pid(name) or 0 for name, host in running.lines.hosts.items()}
            trace, recording = running.run(failing)
            assert_greedy(trace, deployment, pair[0])
            assert [fault.worker for fault in trace.faults] in ([], [lost])
            for request in trace.requests:
                assert recording.requests[request.session].text == request.tokens
            assert recording.complete or lost == "draft0"
            assert not any(running.open_sessions().values())
            seen += trace.faults
        pids |= {host.pid(name) or 0 for name, host in running.lines.hosts.items()}
    assert len(seen) >= FAULTS
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    found += seen
