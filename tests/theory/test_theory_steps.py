"""Steps that end for all stages together, however uneven these are: by hand, simulated, and by the
closed form, with PipeDec's central scheduler and without it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.worlds.theory_scenarios import (
    ENDS,
    EXACTLY,
    Written,
    assert_equal,
    draft_of,
    gaps,
    links_of,
    stages_of,
)
from treepipe.results.metrics import run_metrics

CHAIN = ("schedule.width=1", "schedule.children=1")
CENTRAL = "schedule.central_transfers=true"
STAGES = (12.0, 20.0, 16.0, 9.0)
"""Milliseconds of uneven stages; a step of equal ones of 20 ms is as long."""


def last_gap(name: str, *keys: str, rel: float = EXACTLY) -> float:
    """Between the last two tokens, where all hit; the closed form must say the same."""
    chain = () if name == "spd" else CHAIN
    written = Written(name, *chain, draft_of(3.0), "acceptance.beta=1", *keys)
    (trace,) = written.simulated()
    found = gaps(trace.requests[0])[-1]
    assert written.expected().terms["hit_ms"] == pytest.approx(found, rel=rel)
    return found


@pytest.mark.parametrize("hop_ms", [1.0, 10.0])
@pytest.mark.parametrize("times_ms", [STAGES, (20.0,) * 4])
def test_a_step_waits_for_its_slowest_stage(hop_ms: float, times_ms: tuple[float, ...]) -> None:
    """PipeDec, section 3.4.3: all nodes are through before any goes on.

    By hand, from a step's beginning: at 20 the slowest stage is through; a hop later the draft
    server knows of all, and another hop later all stages do. In phases layers go on then, a third
    hop; else they have gone on before. In the central scheduler the stages know when the draft
    server does, and layers go on in two turns, since each stage takes part in two of the transfers.
    """
    keys = (stages_of(*times_ms), f"links.default.latency_ms={hop_ms}")
    assert last_gap("specpipe", *keys) == pytest.approx(20.0 + 2 * hop_ms)
    assert last_gap("pipedec", *keys) == pytest.approx(20.0 + 3 * hop_ms)
    assert last_gap("pipedec", *keys, CENTRAL) == pytest.approx(20.0 + 3 * hop_ms)


@pytest.mark.parametrize(("stages", "source"), [(4, "model"), (8, "model"), (4, "eagle3")])
def test_the_states_of_anchor_layers_queue_at_the_draft_server(stages: int, source: str) -> None:
    """By hand: a state takes 2 ms, and those of layers 0, l, 3 l and 6 l, as far as the last stage
    does not hold them, come to the draft server's port with the result, the first ones a little
    before it, since the words leave one after another (64 bytes in 0.06 ms)."""
    rate = "links.default={ latency_ms = 0.0, bandwidth_mbit_s = 8.192 }"
    keys = (stages_of(*[20.0] * stages), rate, "target.hidden_size=1024", "target.dtype=float16")
    keys = (*keys, f"drafts.0.source={source}")
    lean = last_gap("spd", *keys, "schedule.anchors=false", rel=0.02)
    expected = 2.0 * sum(each < stages - 1 for each in (0, 1, 3, 6))
    anchored = last_gap("spd", *keys, rel=0.02)  # the form lets words and reports wait for ports
    assert anchored - lean == pytest.approx(expected, abs=0.4)


def test_a_step_of_uneven_stages_by_hand() -> None:
    """Stages of 12, 20, 16 and 9 ms, hops of 5: when each computes, between two decisions."""
    keys = (*CHAIN, stages_of(*STAGES), "links.default.latency_ms=5.0", "acceptance.beta=1")
    (trace,) = Written("pipedec", *keys).simulated()
    begin, end = (when for when, _ in trace.requests[0].emitted[-5:-3])
    assert end - begin == pytest.approx(35.0)
    inside = {
        span.device[-6:]: (span.start_ms - begin, span.end_ms - begin)
        for span in trace.spans
        if span.kind == "compute" and begin <= span.start_ms < end
    }
    assert inside == {
        "stage1": (pytest.approx(5.0), pytest.approx(17.0)),  # its layer leaves the draft at once
        "stage2": (pytest.approx(10.0), pytest.approx(30.0)),  # word, and the layer behind it
        "stage3": (pytest.approx(10.0), pytest.approx(26.0)),
        "stage4": (pytest.approx(10.0), pytest.approx(19.0)),
    }


def test_the_scheduler_makes_no_step_longer_with_the_number_of_stages() -> None:
    """Words are the last stage's broadcast, and no transfer of the scheduler's (appendix A)."""
    keys = (CENTRAL, "target.layers=28", "links.default.latency_ms=2.0")
    for count in (2, 14):
        assert last_gap("pipedec", *keys, stages_of(*[20.0] * count)) == pytest.approx(26.0)


@pytest.mark.parametrize(("chunk", "late_ms"), [(30, 0.0), (15, 6.0)])
def test_chunks_of_a_prompt_wait_for_each_other_in_the_scheduler(
    chunk: int, late_ms: float
) -> None:
    """The closed form leaves it out and says so. By hand, two chunks over two stages of 2 ms with
    hops of 5 ms: the first stage receives the second chunk until 10, so the first one leaves it
    then and the second one at 15, which the second stage has computed at 22; results are not the
    scheduler's. The closed form has both at the first stage at 5, and the last one back at 21
    instead of 27.
    """
    keys = (f"schedule.prefill_chunk={chunk}", "workload.prompt_tokens=30", CENTRAL)
    more = (stages_of(2.0, 2.0), "links.default.latency_ms=5.0", "acceptance.beta=1")
    written = Written("pipedec", *CHAIN, *keys, *more)
    (trace,) = written.simulated()
    found, expected = run_metrics(trace), written.expected()
    late = found["time_to_first_token_ms"] - expected.metrics["time_to_first_token_ms"]
    assert late == pytest.approx(late_ms)
    assert any("prompt's chunks may wait" in warning for warning in written.bent) == (late_ms > 0)


def times(low: float, high: float) -> st.SearchStrategy[float]:
    """Of a device or a link (ms), in thousandths: what is written is what is read."""
    return st.integers(round(1000 * low), round(1000 * high)).map(lambda each: each / 1000)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, ...]:
    """Settings of any stages, links and groups. In the scheduler no link takes no time: which of
    two transfers is first would hang on which event of a moment is."""
    count = draw(st.integers(1, 5))
    central = draw(st.booleans())
    latency = times(0.1 if central else 0, 20)
    ends = f"evaluate_ms = {{ 1 = {draw(times(0, 3))} }}, decide_ms = {draw(times(0, 2))}"
    stages = stages_of(
        *draw(st.lists(times(3, 30), min_size=count, max_size=count)),
        more=f", prune_ms = {draw(times(0, 3))}, {ends}",
    )
    uneven = draw(st.lists(latency, min_size=count - 1, max_size=count - 1))
    overlapped = not central and draw(st.booleans())
    cuts = draw(st.sets(st.integers(1, count - 1))) if count > 1 and not central else set()
    groups = [b - a for a, b in itertools.pairwise([0, *sorted(cuts), count])]
    width = draw(st.sampled_from([1, 8]))
    return (
        stages,
        f"drafts=[{{ device = {{ draft_ms = {{ 1 = {draw(times(0.001, 40))} }}, {ends} }} }}]",
        links_of(draw(latency), *uneven),
        f"schedule.ends={draw(st.sampled_from(ENDS))}",
        f"schedule.groups={1 if central else groups}",
        f"schedule.width={width}",
        f"schedule.children={width}",
        f"schedule.central_transfers={str(central).lower()}",
        f"schedule.overlapped_pruning={str(overlapped).lower()}",
        f"workload.new_tokens={draw(st.sampled_from([1, 2, 17]))}",
        "workload.prompt_tokens=30",
        "target={ layers = 60, hidden_size = 2048 }",
    )


def test_steps_that_alternate_are_said_to() -> None:
    """By hand: the second group takes 9 ms over a layer, which it has 7 ms after the first group
    computed it, 3 ms behind a decision. Behind a step of 9 ms it has it 1 ms after the decision, so
    the step takes 10; behind one of 10 ms it has it at the decision."""
    keys = ("schedule.groups=[1, 3]", "schedule.ends=draft", "schedule.overlapped_pruning=true")
    written = Written(
        "pipedec",
        *CHAIN,
        *keys,
        stages_of(*[3.0] * 4),
        draft_of(0.0),
        links_of(0.0, 7.0, 0.0, 0.0),
        "acceptance.beta=1",
        "schedule.central_transfers=false",
    )
    (trace,) = written.simulated()
    assert gaps(trace.requests[0])[-4:] == pytest.approx([9.0, 10.0] * 2)
    assert written.expected().terms["hit_ms"] == pytest.approx(9.5)
    assert any("take different times in turn" in warning for warning in written.bent)


@given(pipelines(), st.sampled_from([0, 1]))
def test_all_hit_or_all_miss(keys: tuple[str, ...], beta: int) -> None:
    written = Written("pipedec", *keys, f"acceptance.beta={beta}")
    assume(written.bent == [])
    assert_equal(written)
