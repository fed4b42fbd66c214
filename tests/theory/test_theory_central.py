"""PipeDec's central scheduler: the recursion of the closed form against the simulator.

The simulator asks a queue of transfers at every event; the recursion knows none.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.worlds.theory_scenarios import (
    ENDS,
    EXACTLY,
    Written,
    assert_equal,
    assert_within,
    gaps,
)
from treepipe.core.requests import RequestTrace
from treepipe.results.estimates import summarize
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.sim.theory.central import CentralLockStep
from treepipe.sim.theory.passage import Passage
from treepipe.sim.theory.stepped import steps_of

CENTRAL = ("schedule.central_transfers=true", "schedule.width=1", "schedule.children=1")
OVERLAPPED = "schedule.overlapped_pruning=true"


def times(low: float, high: float) -> st.SearchStrategy[float]:
    """Of a device or a link (ms), in thousandths: what is written is what is read."""
    return st.integers(round(1000 * low), round(1000 * high)).map(lambda each: each / 1000)


@st.composite
def chains(draw: st.DrawFn) -> tuple[str, ...]:
    """Settings of equal stages and links, layers of one node, steps in phases; mostly all steps
    are alike (some are not where a row takes much longer on a link than a word)."""
    stages = draw(st.integers(1, 6))
    ends = f"evaluate_ms = {{ 1 = {draw(times(0, 3))} }}, decide_ms = {draw(times(0, 2))}"
    stage = f"stage_ms = {{ 1 = {draw(times(3, 30))} }}, prune_ms = {draw(times(0, 3))}"
    link = f"latency_ms = {draw(times(0, 40))}"
    if draw(st.booleans()):
        link += f", bandwidth_mbit_s = {draw(times(2, 300))}"
    whole = [size for size in range(1, stages + 1) if stages % size == 0]
    return (
        f"pipelines=[{{ stages = [{{ device = {{ {stage}, {ends} }}, count = {stages} }}] }}]",
        f"drafts=[{{ device = {{ draft_ms = {{ 1 = {draw(times(0.001, 9))} }}, {ends} }} }}]",
        f"links={{ default = {{ {link} }} }}",
        f"schedule.ends={draw(st.sampled_from(ENDS))}",
        f"schedule.groups={draw(st.sampled_from(whole))}",
        f"schedule.parallel_prefill={str(draw(st.booleans())).lower()}",
        f"workload.new_tokens={draw(st.sampled_from([1, 2, 17]))}",
        "target={ layers = 60, hidden_size = 2048 }",
    )


@given(chains(), st.sampled_from([0, 1]))
def test_all_hit_or_all_miss(keys: tuple[str, ...], beta: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = Written(Path(folder), "pipedec", *CENTRAL, *keys, f"acceptance.beta={beta}")
        assume(written.bent == [])
        assert_equal(written)


@given(chains(), st.integers(0, 1000))
def test_every_gap_is_a_hit_or_a_miss(keys: tuple[str, ...], seed: int) -> None:
    """At any probability: each decision's time depends on the one before alone, from the third on:
    the first two find the rhythm."""
    with tempfile.TemporaryDirectory() as folder:
        more = ("acceptance.beta=0.6", f"seed={seed}", "workload.new_tokens=30")
        written = Written(Path(folder), "pipedec", *CENTRAL, *keys, *more)
        assume(written.bent == [])
        (trace,) = written.simulated()
        (request,) = trace.requests
        steps = written.expected().terms
        missed = {*roots_missed(request, 1)}
        decided = range(len(request.emitted) - 1)
        expected = [steps["miss_ms" if n - 1 in missed else "hit_ms"] for n in decided]
        assert gaps(request)[2:] == pytest.approx(expected[2:], rel=1e-6)


def roots_missed(request: RequestTrace, groups: int) -> list[int]:
    """Numbers of the flights whose root missed, where the first root is in flight G - 1 and the
    next one G flights behind a miss."""
    found, root = [], groups - 1
    for each in request.rounds[:-1]:
        found.append(root + each.accepted - 1)
        root = found[-1] + groups
    return found


@pytest.mark.long
def test_expected_values(tmp_path: Path) -> None:
    keys = ("acceptance.beta=0.5", "runs=30", "workload.new_tokens=32")
    written = Written(tmp_path, "pipedec", *CENTRAL, *keys)
    metrics, _ = summarize(written.simulated())
    assert_within(metrics, written.expected().metrics)


def test_each_stage_and_each_link_makes_a_step_longer(tmp_path: Path) -> None:
    """Words leave one after another, so a step grows with the stages; without the scheduler it does
    not."""
    found = {}
    for central in ("true", "false"):
        for stages in (4, 6):
            device = "{ stage_ms = { 1 = 20.0 } }"
            written = Written(
                tmp_path,
                "pipedec",
                f"pipelines=[{{ stages = [{{ device = {device}, count = {stages} }}] }}]",
                f"schedule.central_transfers={central}",
            )
            found[central, stages] = written.expected().terms["hit_ms"]
    assert found["false", 4] == found["false", 6]
    assert found["true", 6] == pytest.approx(found["true", 4] + 2 * 1.5, rel=EXACTLY)


# --- layers that go on while stages prune --------------------------------------------------------


def recursion(deployment: Deployment) -> CentralLockStep:
    steps = steps_of(Passage(deployment), 1, 3.0)  # the draft's pass over the first token
    assert isinstance(steps, CentralLockStep)
    return steps


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("latency_ms", [0.0, 1.37, 5.81, 23.9])
@pytest.mark.parametrize("phases", [False, True])
def test_every_decision_of_any_text(
    tmp_path: Path, ends: str, stages: int, latency_ms: float, phases: bool
) -> None:
    """The recursion follows the simulator where steps differ, too, given the same misses."""
    device = "{ stage_ms = { 1 = 17.3 }, prune_ms = 0.71, evaluate_ms = { 1 = 1.9 } }"
    keys = (
        f"schedule.overlapped_pruning={str(not phases).lower()}",
        f"schedule.ends={ends}",
        f"links.default.latency_ms={latency_ms}",
        f"pipelines=[{{ stages = [{{ device = {device}, count = {stages} }}] }}]",
    )
    written = Written(tmp_path, "pipedec", *CENTRAL, *keys)
    (trace,) = written.simulated()
    (request,) = trace.requests
    missed = roots_missed(request, stages)
    decided = recursion(deploy(written.scenario)).decided_ms(400, missed)
    emptied = {n for miss in missed for n in range(miss + 1, miss + stages)}
    roots = [n for n in range(stages - 1, 400) if n not in emptied]
    start = request.emitted[0][0]
    found = [when - start for when, _ in request.emitted[1:]]
    assert found == pytest.approx([decided[n] for n in roots[: len(found)]], rel=1e-6)


def test_steps_that_differ_are_named(tmp_path: Path) -> None:
    keys = (*CENTRAL, "links.default.latency_ms=6.0", "schedule.ends=draft")
    assert Written(tmp_path, "pipedec", *keys).bent == []
    device = "{ stage_ms = { 1 = 20.0 } }"
    rows = (  # a row takes as long on a link as 20 words do
        f"pipelines=[{{ stages = [{{ device = {device}, count = 6 }}] }}]",
        "links.default={ latency_ms = 0.1, bandwidth_mbit_s = 16.0 }",
        "target.hidden_size=2048",
        "schedule.ends=pipeline",
    )
    for more in ((OVERLAPPED,), rows):
        (warning,) = Written(tmp_path, "pipedec", *keys, *more).bent
        assert "in an order that changes from step to step" in warning
    (warning,) = Written(tmp_path, "pipedec", *keys, "schedule.groups=3").bent
    assert "groups differ in size" in warning


def test_the_long_run_of_steps_that_differ(tmp_path: Path) -> None:
    """Groups of two: every other step is longer."""
    keys = ("links.default.latency_ms=6.0", "schedule.groups=2", "acceptance.beta=1")
    written = Written(tmp_path, "pipedec", *CENTRAL, *keys, OVERLAPPED, "workload.new_tokens=64")
    (trace,) = written.simulated()
    found = gaps(trace.requests[0])[-20:]
    assert found[-1] != pytest.approx(found[-2])
    assert written.expected().terms["hit_ms"] == pytest.approx(sum(found) / 20, rel=1e-6)


def test_pipeline_and_draft_are_told_apart(tmp_path: Path) -> None:
    """A draft that is slower than a step is what a step waits for, and no assumption breaks."""
    slow = "drafts=[{ device = { draft_ms = { 1 = 50.0 } } }]"
    written = Written(tmp_path, "pipedec", *CENTRAL, slow, "acceptance.beta=1")
    assert written.bent == []
    steps = recursion(deploy(written.scenario))
    assert steps.hit_ms == pytest.approx(50.0, rel=EXACTLY)
    assert steps.pipeline_ms == replace(steps, draft_ms=0.0).hit_ms < 50.0
    assert_equal(written)
