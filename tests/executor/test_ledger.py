"""A worker's ledger: at every moment exactly one thing."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from treepipe.executor.clock import now_ms
from treepipe.executor.ledger import Ledger

turns = st.sampled_from(["desk", "wait", "receive", "mask", "compute", "send", "woken", "take"])


@given(st.lists(turns, max_size=30), st.floats(-5, 5))
def test_entries_leave_no_gap_and_do_not_overlap(turned: list[str], sent_before_ms: float) -> None:
    start = now_ms()
    ledger, spans = Ledger(), []
    for turn in turned:
        if turn == "take":
            spans += ledger.take("a")
        elif turn == "woken":
            ledger.woken(now_ms() - sent_before_ms)
        else:
            ledger.turn_to(turn, session=int(turn == "compute"), tokens=3)  # type: ignore[arg-type]
    spans += ledger.take("a")
    assert start <= spans[0].start_ms
    assert all(one.end_ms == other.start_ms for one, other in pairwise(spans))
    assert spans[-1].end_ms <= now_ms()
    assert all(span.tokens == 3 for span in spans if span.kind == "compute")


def test_the_end_of_a_wait_is_waking_up_from_when_the_message_was_sent() -> None:
    ledger = Ledger()
    ledger.turn_to("wait")
    waiting = now_ms()
    while now_ms() == waiting:
        pass
    sent = now_ms()
    while now_ms() == sent:
        pass
    ledger.turn_to("receive")
    ledger.woken(sent)
    spans = {span.kind: span for span in ledger.take("a")}
    assert spans["wait"].end_ms == spans["wake"].start_ms == sent
    assert spans["wake"].end_ms == spans["receive"].start_ms
