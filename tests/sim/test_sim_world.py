"""Time in the simulated world: equal to hand calculations, and repeatable.

Every expected figure is written out from the stage, link and draft times (``algorithms``:
"Timeline"); none is copied from a run. How requests end is tested in ``test_sim_sessions.py``.
"""

from __future__ import annotations

import gc
import itertools
from collections import Counter

import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import deployed
from tests.worlds.timed_pipeline import (
    DECIDE,
    EVALUATE,
    HOP,
    PRUNE,
    STAGES,
    chain_flowspec,
    every,
    flowspec,
    gaps,
    make_deployment,
    plain,
    pruned,
    run,
    static,
    times,
)
from treepipe.core.captures import NORMED
from treepipe.core.draft_work import Turn
from treepipe.core.messages import Beat, Flight, Segment, Word
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import RequestTrace
from treepipe.core.system import Ends
from treepipe.physics.timing import LinkTimes
from treepipe.results.trace import Span, Trace
from treepipe.scenario.deployment import Deployment, NewSchedule, RequestSpec
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import Simulation, simulate

# --- hand calculations ---------------------------------------------------------------------------


def test_plain_decoding_is_the_sum_of_uneven_stages_and_links() -> None:
    devices = [times(), times(10.0), times(25.0), times(7.0), times(31.0)]
    deployment = make_deployment(plain, devices)
    deployment = changed(deployment, pairs={("stage2", "stage3"): LinkTimes(4.5)})
    (request,) = run(deployment, 1.0).requests
    # Stages 10 + 25 + 7 + 31, four hops of 1 and one of 4.5, the row's evaluation, the decision.
    period = 73.0 + 4 * HOP + 4.5 + EVALUATE + DECIDE
    assert request.first_token_ms == pytest.approx(period)  # the prompt is one segment
    assert gaps(request) == every(period, 20)


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("reads_states", [False, True])
def test_of_a_prompt_one_row_is_judged_and_goes_back(ends: Ends, reads_states: bool) -> None:
    """Three chunks of 50 rows; a row's states weigh 992 bytes, its id 8, a header 64; 1 kB/ms."""
    deployment = changed(
        make_deployment(plain, [times(0.0)] * (STAGES + 1), tokens=1),
        requests=(RequestSpec((0,) * 150, 1),),
        row_bytes=992,
        ends=ends,
        captured=(NORMED,) * reads_states,
        default=LinkTimes(0.0),
        pairs={("stage4", "draft"): LinkTimes(0.0, 8.0)},
    )
    trace = run(deployment, 1.0)
    assert [span.tokens for span in trace.spans if span.kind == "evaluate"] == [1]
    decided = EVALUATE + 3 * DECIDE
    if not reads_states and ends == "draft":
        expected = 0.064 + decided  # the other chunks come while it decides on the first
    elif not reads_states:
        expected = decided + 0.064 + 0.008
    elif ends == "draft":  # the link is what all wait for
        expected = 3 * 0.064 + 150 * 1.0 + EVALUATE + DECIDE
    else:
        expected = DECIDE + 3 * 0.064 + 150 * 1.0
    assert trace.requests[0].first_token_ms == pytest.approx(expected)


def test_naive_round_follows_the_timeline_of_uneven_stages() -> None:
    # c_n(rows) = base_n + 0.1 ms per row beyond the first; the segments have 16, 16, 16, 16, 17.
    bases = [12.0, 30.0, 9.0, 18.0]
    devices = [times(), *(times({1: base, 101: base + 10.0}) for base in bases)]
    (request,) = run(make_deployment(static, devices), 0.0).requests
    free = [0.0] * STAGES
    for rows in (16, 16, 16, 16, 17):
        arrival = 7 * 3.0 + HOP  # all enter at once, after catch-up and 6 layers
        for stage, base in enumerate(bases):
            free[stage] = max(arrival, free[stage]) + base + 0.1 * (rows - 1)
            arrival = free[stage] + HOP
    # Stage 2 is the slowest (30 ms), so the earlier segments are decided on (3 ms) in between.
    assert gaps(request) == every(arrival + EVALUATE + DECIDE, 20)


@pytest.mark.parametrize(("beta", "tokens_per_round"), [(0.0, 1), (1.0, 8)])
def test_naive_round_waits_for_pruning_that_drafting_does_not_hide(
    beta: float, tokens_per_round: int
) -> None:
    # A word and the next round's segments take the same hop; drafting lasts 7 * 0.5 ms after the
    # word was sent, pruning 10 ms. So stage 1 starts 10 ms after the word's arrival, and the last
    # of 5 segments leaves stage 4 after 8 passes and 3 hops.
    deployment = make_deployment(static, times(draft=0.5, prune=10.0), tokens=33)
    (request,) = run(deployment, beta).requests
    period = HOP + 10.0 + 8 * 20.0 + 4 * HOP + EVALUATE + DECIDE
    assert gaps(request)[1:] == every(period, 32 // tokens_per_round - 1)
    assert {record.tokens for record in request.rounds} == {tokens_per_round}


@pytest.mark.parametrize("schedule", [pruned, flowspec])
@pytest.mark.parametrize(("draft", "hidden"), [(3.0, 7 * 3.0), (0.5, 10.0)])
def test_a_miss_costs_the_pipeline_fill(schedule: NewSchedule, draft: float, hidden: float) -> None:
    # The first segment's way (4 passes, 5 hops), evaluation, decision; before it the longer of
    # drafting (7 passes) and pruning at stage 1 (10 ms), both from the word on. By the time the
    # word comes every stage is done with what it may run before (4, 3, 2 and 1 segments).
    (request,) = run(make_deployment(schedule, times(draft=draft, prune=10.0)), 0.0).requests
    period = hidden + 4 * 20.0 + 5 * HOP + EVALUATE + DECIDE
    assert gaps(request)[1:] == every(period, 19)
    assert {record.committed_per_step for record in request.rounds} == {(1,)}


def test_flowspec_step_of_equal_stages() -> None:
    # A segment is evaluated and decided on, the word takes a hop to stage 4, which prunes, runs
    # the segment that waits there, and sends it back over a hop.
    (request,) = run(make_deployment(chain_flowspec, tokens=60), 1.0).requests
    period = EVALUATE + DECIDE + HOP + PRUNE + 20.0 + HOP
    assert gaps(request)[1:-1] == every(period, len(request.emitted) - 3)


def test_flowspec_step_is_bound_by_the_slowest_stage() -> None:
    # Stage 3 prunes and runs (45.5 ms) without a pause: a segment it has sent is back at the draft
    # after a hop, stage 4 (20.5 ms), and a hop; evaluation, decision and the word's hop bring the
    # next but one word to it after 26.5 ms, before it is done with the segment in its hands.
    devices = [times(), times(), times(), times(45.0), times()]
    (request,) = run(make_deployment(chain_flowspec, devices, tokens=60), 1.0).requests
    found = gaps(request)[3:-1]  # the fill runs free, without words
    assert found == every(PRUNE + 45.0, len(found))
    assert len(found) > 20


def test_flowspec_step_is_bound_by_drafting_where_that_is_slower() -> None:
    # Catch-up and 6 layers of 10 ms against 20 ms at the stages: the next segment is back before
    # the draft device is ready, so a step is evaluation, decision and drafting.
    deployment = make_deployment(chain_flowspec, times(draft=10.0), tokens=60)
    (request,) = run(deployment, 1.0).requests
    (only,) = request.rounds
    assert only.tokens == 59
    assert gaps(request)[1:-1] == every(EVALUATE + DECIDE + 7 * 10.0, len(request.emitted) - 3)


# --- repeatability -------------------------------------------------------------------------------


def _shaky(seed: int) -> Deployment:
    deployment = make_deployment(flowspec, requests=2)
    return changed(deployment, default=LinkTimes(1.0, 100.0, 0.3), seed=seed)


def test_equal_seeds_give_equal_traces_and_other_seeds_do_not() -> None:
    def trace(links: int, source: int) -> Trace:
        pool = hit_ratio_pool({1: 0.7, 8: 0.95})
        return simulate(_shaky(links), PoolSource(pool, 1, source))

    assert trace(1, 1) == trace(1, 1)
    others = [trace(1, 1), trace(2, 1), trace(1, 2)]
    assert all(one != other for one, other in itertools.combinations(others, 2))


def test_jitter_does_not_shift_the_stream_of_acceptance() -> None:
    pool = hit_ratio_pool({1: 0.7, 8: 0.95})
    found = [simulate(_shaky(seed), PoolSource(pool, 1, 1)) for seed in (1, 2)]
    assert [r.rounds for r in found[0].requests] == [r.rounds for r in found[1].requests]


def test_leaving_out_spans_changes_nothing_else() -> None:
    with_spans = run(_shaky(1), 0.7)
    without = run(_shaky(1), 0.7, record_spans=False)
    assert without.requests == with_spans.requests
    assert with_spans.spans
    assert not without.spans


# --- what is remembered ---------------------------------------------------------------------------

RECORDS = (Beat, Drafted, DraftPass, Flight, Segment, Span, Turn, Word)


class Counting(Simulation):
    """Counts the records that are alive when the first request ends."""

    alive: Counter[str] | None = None

    def finished(self, request: RequestTrace) -> None:
        if self.alive is None:
            kinds = [type(each) for each in gc.get_objects()]
            self.alive = Counter(kind.__name__ for kind in kinds if kind in RECORDS)
        super().finished(request)


def _alive(schedule: str, new_tokens: int) -> Counter[str]:
    overrides = [f'schedule.name="{schedule}"', f"workload.new_tokens={new_tokens}"]
    deployment = deployed("workload.requests=1", *overrides)
    source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, 0)
    gc.collect()
    gc.freeze()  # what is there already is not gone through again
    simulation = Counting(deployment, source, record_spans=False)
    simulation.run()
    assert simulation.alive
    return simulation.alive


@pytest.mark.parametrize("schedule", ["flowspec", "pipeinfer", "specpipe", "starsd", "dsd"])
def test_a_long_request_keeps_no_more_than_a_short_one(schedule: str) -> None:
    short, long = _alive(schedule, 60), _alive(schedule, 360)
    # What is under way when a request ends differs from request to request.
    assert sum(long.values()) < sum(short.values()) + 60, f"{short} grew to {long}"
