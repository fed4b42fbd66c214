"""A bounded number of flights: which leave, which wait, and what joins them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.dock import Dock
from treepipe.core.draft_work import Orders
from treepipe.core.messages import Close, Flight, Segment


def fed(*sessions: int) -> Orders:
    """Orders that feed a row of each session."""
    flights = [Flight(0, 0, (Segment(each, 1, 0, 0, 0, (7,), (9,)),)) for each in sessions]
    return Orders([(0, flight) for flight in flights])


def sent(dock: Dock, orders: Orders, *, awaited: bool = False) -> list[list[int]]:
    """The sessions of each flight that leaves."""
    dock.take(orders, lambda: awaited)
    flights = [message for _, message in orders.messages if isinstance(message, Flight)]
    return [[segment.session for segment in flight.segments] for flight in flights]


def test_requests_wait_for_a_slot_and_leave_together() -> None:
    dock = Dock(2, [2])
    assert sent(dock, fed(1)) == [[1]]
    assert sent(dock, fed(2)) == [[2]]
    for session in (3, 4, 5):
        assert sent(dock, fed(session)) == []
    dock.landed(Flight(0, 0, (Segment(1, 1, 0, 0, 0, (7,), (9,)),)))
    assert sent(dock, Orders()) == [[3, 4]]
    assert sent(dock, Orders()) == []


def test_segments_of_one_session_share_no_flight() -> None:
    """Chunks of a prompt are fed at once, and each is a pass of its own."""
    dock = Dock(4, [1])
    assert sent(dock, fed(1, 1, 2)) == [[1, 2]]
    dock.landed(Flight(0, 0, (Segment(2, 1, 0, 0, 0, (7,), (9,)),)))
    assert sent(dock, Orders()) == []  # the other half of that flight is not back
    dock.landed(Flight(0, 0, (Segment(1, 1, 0, 0, 0, (7,), (9,)),)))
    assert sent(dock, Orders()) == [[1]]


@given(st.lists(st.sampled_from(["feed", "land", "leave"]), max_size=40), st.integers(1, 3))
def test_slots_are_neither_lost_nor_exceeded(moves: list[str], most: int) -> None:
    """Whatever comes back, joined by a stage or not, or is closed on its way."""
    dock, flying, next_session = Dock(2, [most]), list[list[int]](), 0
    for move in moves:
        orders = Orders()
        if move == "feed":
            next_session += 1
            orders = fed(next_session)
        elif flying and move == "land":
            back = flying.pop(0)
            dock.landed(Flight(0, 0, tuple(Segment(s, 1, 0, 0, 0, (7,), (9,)) for s in back)))
        elif flying:
            dock.left(flying[0].pop())
            flying = [each for each in flying if each]
        flying += sent(dock, orders)
        assert len(flying) <= most
    while flying:
        back = flying.pop(0)
        dock.landed(Flight(0, 0, tuple(Segment(s, 1, 0, 0, 0, (7,), (9,)) for s in back)))
        flying += sent(dock, Orders())
    assert sent(dock, fed(next_session + 1)) == [[next_session + 1]]


def test_segments_of_a_turn_wait_for_those_that_are_still_drafted() -> None:
    """They leave behind the words that came meanwhile, without what is closed by then."""
    dock = Dock(2)
    assert sent(dock, fed(1), awaited=True) == []
    assert sent(dock, fed(2, 3), awaited=True) == []
    assert not dock.empty
    dock.left(2)
    last = fed(4, 5)
    last.preempted.append(5)
    last.messages.append((0, Close(5)))
    assert sent(dock, last) == [[1, 3], [4]]
    assert last.messages[0] == (0, Close(5))
    assert dock.empty


def test_what_a_preempted_session_feeds_takes_no_slot() -> None:
    dock, orders = Dock(1, [1]), fed(1)
    orders.preempted.append(1)
    assert sent(dock, orders) == []
    assert sent(dock, fed(2)) == [[2]]
