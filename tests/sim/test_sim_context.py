"""Service times that grow with the context, at stages and drafts, prefill in chunks: by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import demo
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.profile_files import device_file
from tests.worlds.timed_pipeline import (
    DECIDE,
    EVALUATE,
    make_deployment,
    plain,
    run,
    static,
)
from treepipe.executor.run.controller import Controller
from treepipe.physics.timing import DeviceTimes, ServiceTable, TimeTable
from treepipe.results.metrics import run_metrics
from treepipe.results.trace import Span, Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.resolve import deploy
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

PROMPT, PASS, PER_TOKEN = 10, 20.0, 0.01
"""Tokens; milliseconds of a pass without context, and what each cached token adds."""


def growing(base: float, per_token: float) -> ServiceTable:
    return ServiceTable({0: {1: base}, 1000: {1: base + 1000 * per_token}})


def with_times(deployment: Deployment, stage: TimeTable, draft: TimeTable) -> Deployment:
    times = DeviceTimes(stage, draft, TimeTable({1: EVALUATE}), DECIDE, 0.0)
    pipelines = tuple(
        tuple(replace(stage, times=times) for stage in stages)
        for stages in deployment.roles.pipelines
    )
    drafts = tuple(replace(draft, times=times) for draft in deployment.roles.drafts)
    return changed(deployment, drafts=drafts, pipelines=pipelines)


def in_context(new_schedule: object = plain, tokens: int = 6) -> Deployment:
    deployment = make_deployment(new_schedule, tokens=tokens)  # type: ignore[arg-type]
    return with_times(deployment, growing(PASS, PER_TOKEN), growing(3.0, 0.1))


def spans(trace: Trace, device: str, kind: str) -> list[Span]:
    return [s for s in trace.spans if s.device == device and s.kind == kind]


def lengths(found: list[Span]) -> list[float]:
    return [span.end_ms - span.start_ms for span in found]


def test_requests_in_one_pass_add_what_their_contexts_add_alone() -> None:
    table = ServiceTable({0: {1: 10.0, 11: 20.0}, 100: {1: 11.0, 11: 31.0}})
    assert table.over([(1, 50)]) == table(1, 50) == 10.5
    assert table.over([(1, 50), (10, 100)]) == pytest.approx(20.0 + 0.5 + (table(10, 100) - 19.0))
    assert TimeTable({1: 10.0, 11: 20.0}).over([(1, 50), (10, 100)]) == 20.0


def test_each_further_request_adds_its_own_time_to_a_pass() -> None:
    """A segment without rows is no request's; a host's factor scales this time, too."""
    table = ServiceTable({0: {1: 10.0, 11: 20.0}}, request_ms=0.5)
    assert table.by_parts
    assert table.over([(9, 0)]) == 18.0
    assert table.over([(3, 0), (3, 0), (0, 0), (3, 0)]) == 19.0
    assert table.scaled(2.0).over([(3, 0), (6, 0)]) == 37.0


def test_a_prompt_in_chunks_flows_through_the_pipeline() -> None:
    """Two chunks of 50: 20 ms and, behind 50 tokens, 20.5 ms per stage."""
    deployment = replace(in_context(), requests=(RequestSpec((0,) * 100, 1),))
    trace = run(deployment, 1.0)
    # The second leaves the stages at 41.5, 63, 84.5 and 106: it is the slower one, so that no
    # stage lets it wait behind the first but stage 1.
    assert run_metrics(trace)["time_to_first_token_ms"] == pytest.approx(106 + 1 + 2 + 1)
    assert [span.tokens for span in spans(trace, "stage2", "compute")] == [50, 50]
    assert lengths(spans(trace, "stage2", "compute")) == pytest.approx([20.0, 20.5])


def test_segments_of_a_tree_see_committed_tokens_and_the_tree_before_them() -> None:
    """81 nodes in five segments behind the prompt of 10 (static tree, algorithms section 8)."""
    trace = run(in_context(static, 30), 1.0)
    for stage in ("stage1", "stage4"):
        found = spans(trace, stage, "compute")[:6]
        assert [span.tokens for span in found] == [10, 16, 16, 16, 16, 17]
        contexts = [0, 10, 26, 42, 58, 74]
        expected = [PASS + PER_TOKEN * context for context in contexts]
        assert lengths(found) == pytest.approx(expected)


def test_draft_passes_see_what_the_draft_has_read_and_its_scratch_nodes() -> None:
    """Catch-up over prompt and root, then six layers of ten nodes."""
    trace = run(in_context(static, 30), 1.0)
    found = spans(trace, "draft", "draft")[:7]
    assert [span.tokens for span in found] == [11, 10, 10, 10, 10, 10, 10]
    contexts = [0, 11, 21, 31, 41, 51, 61]
    assert lengths(found) == pytest.approx([3.0 + 0.1 * context for context in contexts])


@pytest.mark.processes
def test_both_worlds_agree_on_every_context(pair: tuple[Path, Path]) -> None:
    """The replay of an emulated run takes the same passes at the same contexts."""
    deployment = with_times(
        small_deployment("naive_pp", clients=2), growing(6.0, 0.02), growing(2.0, 0.02)
    )
    with Controller(worker_roles(pair, deployment), deployment) as controller:
        trace, recording = controller.run(deployment)
    replay = simulate(deployment, ReplaySource(recording))
    for placed in deployment.roles.placed:
        kind = "draft" if placed in deployment.roles.drafts else "compute"
        real, simulated = (
            sorted(lengths(spans(each, placed.name, kind))) for each in (trace, replay)
        )
        assert len(real) == len(simulated)
        for ours, theirs in zip(real, simulated, strict=True):
            assert ours >= theirs - 1e-6, "padded to at least the time of its context"


def test_no_extrapolation_falls() -> None:
    falling = TimeTable({1: 20.0, 64: 10.0})
    assert [falling(tokens) for tokens in (1, 64, 65, 1024, 5000)] == [20.0, 10.0, 10.0, 10.0, 10.0]
    assert falling.falls
    assert not TimeTable({1: 20.0, 64: 10.0, 80: 11.0}).falls
    table = ServiceTable({0: {1: 20.0}, 100: {1: 1.0}})
    assert [table(1, context) for context in (0, 50, 100, 9000)] == [20.0, 10.5, 1.0, 1.0]
    assert table.over([(1, 100)] * 5) == 1.0, "not 5 times 19 ms less than 20"


def test_a_context_beyond_the_table_is_warned_of() -> None:
    times = {"model": "llama-2-7b", "dtype": "float16", "ms": {0: {1: 1.0}, 100: {1: 1.1}}}
    hardware = f"pipelines=[{{stages=[{{device='{device_file({'layer': [times]})}',count=2}}]}}]"
    scenario = demo(
        hardware,
        'target={profile="llama-2-7b"}',
        "workload={requests=1,prompt_tokens=90,new_tokens=40}",
        'schedule={name="pp",ends="draft"}',
        "runs=1",
    )
    assert deploy(scenario).roles.pipelines[0][0].times.stage.last_context == 100
    (trace,) = predict(scenario)
    expected = "compute times were extrapolated to a context of 130 tokens, the table ends at 100"
    assert [w for w in trace.warnings if expected in w]
