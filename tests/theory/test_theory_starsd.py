"""StarSD's equations against the simulator, turn by turn: constant times, so exactly."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from tests.worlds.theory_scenarios import EXACTLY, Written, assert_within, stages_of, targets_of
from treepipe.core.draft_work import Turn
from treepipe.results.estimates import summarize
from treepipe.results.trace import Trace, steady
from treepipe.sim.theory.starsd import Cycle
from treepipe.sim.theory.tokens import accepted, committed

SERVICE_MS, GAMMA = 12.0, 4


def whole_iterations(trace: Trace, targets: int, count: int = 5) -> list[Turn]:
    """So many of the steady state, and the turn that follows them; not the very last ones, since
    a request's last turn drafts nothing."""
    turns = [turn for turn in steady(trace).turns if turn.pipeline is not None]
    first = len(turns) - (count + 2) * targets
    assert first > 2 * targets
    return turns[first : first + count * targets + 1]


def draft_idle_ms(turns: list[Turn]) -> float:
    return sum(b.started_ms - a.ended_ms for a, b in itertools.pairwise(turns))


def waits_ms(trace: Trace, turns: list[Turn]) -> list[float]:
    """From the delivery to the service. A turn's own ``arrived_ms`` is when the server looks up,
    which it does between two draft passes."""
    arrived: dict[int, list[float]] = {}
    for span in trace.spans:
        if span.kind == "transfer" and span.device.endswith("->draft0"):
            arrived.setdefault(int(span.device[len("pipeline")]), []).append(span.end_ms)
    found = []
    for turn in turns:
        last = max(at for at in arrived[turn.pipeline] if at <= turn.started_ms + EXACTLY)
        assert last <= turn.arrived_ms + EXACTLY
        found.append(turn.started_ms - last)
    return found


@examples(100)
@given(
    st.integers(1, 6),
    st.sampled_from([5.0, 12.0, 24.0, 24.6, 30.0, 36.0]),
    st.sampled_from([0.0, 0.7, 1.0]),
)
def test_iteration_idle_wait_and_load(targets: int, back_ms: float, beta: float) -> None:
    """Eq. 7-10 and 12, whole multiples of S included, hold whatever is accepted: a round's times
    do not depend on it."""
    written = Written("starsd", *targets_of(targets, back_ms, f"acceptance.beta={beta}"))
    (trace,) = written.simulated()
    turns = whole_iterations(trace, targets)
    cycle = Cycle(back_ms, SERVICE_MS, committed(beta, GAMMA))
    iteration = (turns[-1].started_ms - turns[0].started_ms) / 5
    assert iteration == pytest.approx(cycle.iteration_ms(targets), rel=EXACTLY)
    idle = draft_idle_ms(turns) / 5
    assert idle == pytest.approx(cycle.idle_ms(targets), rel=EXACTLY, abs=EXACTLY)
    assert cycle.n_full == math.ceil(back_ms / SERVICE_MS) + 1
    assert (idle < 1e-6) == (targets >= cycle.n_full), "eq. 7 and 12"
    waits = waits_ms(trace, turns)
    assert waits == pytest.approx([cycle.wait_ms(targets)] * len(turns), rel=EXACTLY, abs=EXACTLY)
    busy = sum(turn.ended_ms - turn.started_ms for turn in turns[:-1]) / 5
    assert busy / iteration == pytest.approx(cycle.load(targets), rel=EXACTLY)
    assert 5e3 * targets / (turns[-1].started_ms - turns[0].started_ms) == pytest.approx(
        cycle.draft_rounds(targets), rel=EXACTLY
    )


@pytest.mark.long
@pytest.mark.parametrize("targets", [2, 5])
def test_all_metrics_of_a_saturated_and_an_idle_draft(targets: int) -> None:
    """With everything accepted every figure is constant. Windows begin and end with a turn, so
    rates over them are those of whole iterations only up to one turn in hundreds. (The metric of
    waiting begins when the server looks up: up to a draft pass late.)"""
    settings = ("acceptance.beta=1", "workload.new_tokens=2001")
    written = Written("starsd", *targets_of(targets, 30.0, *settings))
    expected = written.expected()
    metrics, shares = summarize([steady(trace) for trace in written.simulated()])
    late = metrics["draft_wait_ms"].mean - expected.metrics["draft_wait_ms"]
    assert -3.1 < late < 0.1
    for name in expected.metrics.keys() - {"draft_wait_ms"}:
        value = expected.metrics[name]
        assert metrics[name].mean == pytest.approx(value, rel=5e-3, abs=1e-6), name
    load = min(1.0, targets * SERVICE_MS / (30.0 + SERVICE_MS))  # by hand
    assert shares["draft0"].mean == pytest.approx(load, rel=5e-3)


@pytest.mark.long
def test_expected_tokens_of_a_round_lie_in_the_simulated_interval() -> None:
    """Eq. 3 counts the accepted tokens; the target's own one comes on top."""
    settings = ("workload.new_tokens=500", "runs=10")
    written = Written("starsd", *targets_of(3, 30.0, *settings))
    metrics, _ = summarize(written.simulated())
    found = metrics["tokens_per_round"]
    assert_within({"tokens": found}, {"tokens": 1 + accepted(0.7, GAMMA)}, 0.04)


# --- where the targets' verification is ----------------------------------------------------------


def verified(ends: str, targets: int) -> Written:
    """Targets of 40 ms, the same work of verification at either place, links of 1 ms."""
    verify = ", evaluate_ms = { 1 = 1.1 }, decide_ms = 2.0"
    return Written(
        "starsd",
        *targets_of(targets, 40.0),
        f"drafts=[{{ device = {{ draft_ms = {{ 1 = 3.0 }}{verify} }} }}]",
        stages_of(40.0, more=verify),
        f"pipelines.0.count={targets}",
        "links.default.latency_ms=1.0",
        f"schedule.ends={ends}",
    )


@pytest.mark.parametrize(("ends", "service_ms"), [("draft", 15.1), ("pipeline", 12.0)])
def test_verification_at_the_targets_leaves_the_draft_room_for_more_of_them(
    ends: str, service_ms: float
) -> None:
    """By hand: 4 passes of 3 ms, with or without 3.1 ms; a round takes 57.1 ms at either place."""
    four = verified(ends, 4).expected()
    assert four.terms["n_full"] == math.ceil(57.1 / service_ms)
    cycle = Cycle(four.terms["return_ms"], four.terms["service_ms"], 1.0)
    assert cycle.load(4) == pytest.approx(min(1.0, 4 * service_ms / 57.1))
    written = verified(ends, 6)
    (trace,) = written.simulated()
    turns = whole_iterations(trace, 6)
    assert turns[-1].started_ms - turns[0].started_ms == pytest.approx(5 * 6 * service_ms)
