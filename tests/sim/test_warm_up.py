"""Passes in vain that keep a draft warm: when they run, what they spare, and what they cost."""

from __future__ import annotations

import itertools

from tests.worlds.theory_scenarios import Written, targets_of
from treepipe.core.draft_desk import MOST_IN_VAIN, DraftDesk
from treepipe.core.draft_work import Begin, WarmUp
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.protocol import Started
from treepipe.core.schedules import systems
from treepipe.core.system import ScheduleContext
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import deploy, input_warnings

COLD = (
    "drafts=[{ device = { draft_ms = { 1 = 3.0 }, "
    "idle_factor = { 0 = 1.0, 10 = 1.0, 30 = 2.0 } } }]"
)


def simulated(*settings: str, targets: int = 1, back_ms: float = 30.0) -> Trace:
    written = Written("starsd", *targets_of(targets, back_ms), COLD, *settings)
    (trace,) = written.simulated()
    return trace


def drafts(trace: Trace) -> list[tuple[float, float, int]]:
    return [(s.start_ms, s.end_ms, s.session) for s in trace.spans if s.kind == "draft"]


def service_ms(trace: Trace) -> set[float]:
    """Of the turns that draft, but for the first ones."""
    return {round(t.ended_ms - t.started_ms, 9) for t in trace.turns[3:-1]}


def test_a_draft_that_is_kept_warm_is_as_fast_as_one_that_never_idles() -> None:
    """By hand: 30 ms away. Cold, 4 passes of 6 ms; warm, gaps of 10, 10 and 4 ms: passes of 3."""
    cold, warm = simulated(), simulated("serving.warm_up_ms=10")
    assert service_ms(cold) == {24.0}
    assert service_ms(warm) == {12.0}
    assert warm.requests[0].finished_ms < 0.85 * cold.requests[0].finished_ms
    vain = [(start, end) for start, end, session in drafts(warm) if not session]
    lengths = [round(end - start, 9) for start, end in vain]
    assert lengths[0] == 6.0, "nothing ran before"
    assert set(lengths[1:]) == {3.0}
    times = drafts(warm)
    gaps = {round(b[0] - a[1], 9) for a, b in itertools.pairwise(times) if not b[2]}
    assert gaps == {10.0}, "one after every 10 ms"
    assert not any(not session for _, _, session in drafts(cold))


def test_what_comes_back_during_a_pass_in_vain_waits_for_its_end() -> None:
    """24 ms away, gaps of 10: passes in vain at 10 to 13 and 23 to 26, so 2 ms are waited."""
    trace = simulated("serving.warm_up_ms=10", back_ms=24.0)
    waits = {round(turn.started_ms - turn.arrived_ms, 9) for turn in trace.turns[3:-1]}
    assert waits == {2.0}


def test_a_busy_draft_runs_none() -> None:
    trace = simulated("serving.warm_up_ms=10", targets=4)
    usual = simulated(targets=4)
    between = [t for t in trace.turns if t.pipeline is not None]
    vain = [s for s in drafts(trace) if not s[2] and between[8].started_ms < s[0]]
    last = min(r.finished_ms for r in trace.requests)
    assert not [each for each in vain if each[0] < last]
    assert len(usual.requests) == 4


def test_a_server_that_waits_for_ever_is_given_up() -> None:
    """So a deadlock is found; real work begins the count anew, and nobody open needs none."""
    desk = DraftDesk(0, [1], ArrivalQueue(), warm_up_ms=5.0)
    assert desk.next(0.0) is None
    assert desk.wake_ms is None, "no request is open"
    chain = systems()["chain"]
    schedule = chain.make(chain.parameters(), ScheduleContext(1, 1))
    desk.open(1, 0, schedule, Started((1,), 4), 0.0)
    work = desk.next(1.0)
    assert isinstance(work, Begin)
    desk.began(work)
    now = 1.0
    for _ in range(MOST_IN_VAIN):
        assert desk.next(now) is None
        assert desk.next(now + 4.9) is None
        assert desk.wake_ms == now + 5.0
        now += 5.0
        assert desk.next(now) == WarmUp()
    assert desk.next(now) is None
    assert desk.wake_ms is None


def test_plain_decoding_warns_that_it_has_no_effect() -> None:
    plain = Written("pp", "serving.warm_up_ms=10").scenario
    words = "have no effect: they are read only where something is drafted (schedule.name)"
    assert f"keys acceptance, serving.warm_up_ms {words}" in input_warnings(plain, deploy(plain))
