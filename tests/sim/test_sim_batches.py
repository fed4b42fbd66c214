"""Requests that share passes in the simulated world, against times by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.any_section import LAYERED, SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.demo import demo, deployed, simulated
from tests.worlds.timed_pipeline import (
    DECIDE,
    EVALUATE,
    HOP,
    STAGES,
    gaps,
    make_deployment,
    plain,
    run,
    times,
)
from treepipe.scenario.resolve import deploy


@pytest.mark.parametrize(
    ("table", "clients", "batch", "stage_ms"),
    [
        ({1: 20.0}, 1, 1, 20.0),
        ({1: 20.0}, 8, 2, 20.0),
        ({1: 20.0}, 16, 4, 20.0),
        ({1: 20.0, 2: 25.0, 4: 35.0}, 8, 2, 25.0),
        ({1: 20.0, 2: 25.0, 4: 35.0}, 16, 4, 35.0),
    ],
)
def test_micro_batches_that_fill_the_stages_take_one_lap_per_token(
    table: dict[int, float], clients: int, batch: int, stage_ms: float
) -> None:
    """A micro-batch per stage: every request gets a token per lap, as if it were alone but for the
    decisions, which are one per request; flat stage times so give nearly ``clients`` times the
    tokens of one request."""
    deployment = changed(
        make_deployment(plain, times(table), requests=clients),
        clients=clients,
        batch=batch,
    )
    trace = run(deployment, 0.5)
    lap = STAGES * stage_ms + (STAGES + 1) * HOP + EVALUATE + batch * DECIDE
    for request in trace.requests:
        assert gaps(request)[2:] == pytest.approx([lap] * 18)
    passes = [span.tokens for span in trace.spans if span.kind == "compute"]
    assert passes.count(batch) == STAGES * 20 * clients / batch


def test_one_request_in_a_pass_is_bound_by_the_slowest_stage() -> None:
    """Without a batch eight requests take turns at every stage."""
    deployment = make_deployment(plain, times(), requests=8)
    trace = run(changed(deployment, clients=8), 0.5)
    assert gaps(trace.requests[0])[2:] == pytest.approx([8 * 20.0] * 18)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in LAYERED])
@pytest.mark.parametrize("ends", ["draft", "pipeline"])
def test_every_schedule_shares_passes(name: str, ends: str) -> None:
    """Fewer passes for texts of the same length."""
    asked = "workload={requests=6,concurrency=6,prompt_tokens=20,new_tokens=9}"
    schedule = f"schedule={{name='{name}',ends='{ends}'}}"
    traces = [simulated(deployed(asked, schedule, f"serving.batch={n}")) for n in (1, 3)]
    counts = [sum(span.kind == "compute" for span in trace.spans) for trace in traces]
    assert counts[1] < 0.75 * counts[0]
    assert [len(request.tokens) for request in traces[1].requests] == [9] * 6


def test_new_requests_of_specpipe_db_are_prefilled_first(tmp_path: Path) -> None:
    """SpecPipe, section 4: beside two running requests a long prompt waits for the steps that are
    under way when it comes, at most one per stage."""
    rows = {"beside": "0,40,90\n0.01,40,90\n1,1024,9\n", "alone": "1,1024,9\n"}
    first_ms = {}
    for name, asked in rows.items():
        (tmp_path / name).write_text("arrival_s,prompt_tokens,new_tokens\n" + asked)
        arrivals = f"workload={{arrivals={{process='trace',file='{tmp_path / name}'}}}}"
        trace = simulated(deploy(demo(arrivals, name="specpipe_db")))
        first_ms[name] = trace.requests[-1].emitted[0][0] - 1000.0
    late_ms, step_ms = first_ms["beside"] - first_ms["alone"], 25.0
    assert 0 <= late_ms < STAGES * step_ms


@pytest.mark.parametrize("name", ["flowspec_free", "specpipe_db"])
def test_the_last_stage_verifies_all_rows_that_it_computes(name: str) -> None:
    """Those of requests that are over, too, as long as nobody has told it so."""
    asked = "workload={requests=6,concurrency=3,prompt_tokens=1,new_tokens=7}"
    links = "links={default={latency_ms=15.0}}"
    settings = (asked, links, f"schedule={{name='{name}',ends='pipeline'}}")
    deployment = deployed(*settings)
    trace = simulated(deployment)
    last = deployment.roles.pipelines[0][-1].name
    computed, verified = (
        [span.tokens for span in trace.spans if (span.device, span.kind) == (last, kind)]
        for kind in ("compute", "evaluate")
    )
    assert verified == computed[: len(verified)]
    assert len(computed) - len(verified) <= 1, "what is under way at the end"
