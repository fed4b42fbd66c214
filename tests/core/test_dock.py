"""A bounded number of flights: which leave, which wait, and what joins them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.dock import Dock
from treepipe.core.draft_work import Orders
from treepipe.core.messages import Flight, Segment


def fed(*sessions: int) -> Orders:
    """Orders that feed a row of each session."""
    flights = [Flight(0, 0, (Segment(each, 1, 0, 0, 0, (7,), (9,)),)) for each in sessions]
    return Orders([(0, flight) for flight in flights])


def sessions_of(orders: Orders) -> list[list[int]]:
    flights = [message for _, message in orders.messages if isinstance(message, Flight)]
    return [[segment.session for segment in flight.segments] for flight in flights]


def test_requests_wait_for_a_slot_and_leave_together() -> None:
    dock = Dock([2], batch=2)
    assert sessions_of(dock.release(fed(1))) == [[1]]
    assert sessions_of(dock.release(fed(2))) == [[2]]
    for session in (3, 4, 5):
        assert sessions_of(dock.release(fed(session))) == []
    dock.landed(Flight(0, 0, (Segment(1, 1, 0, 0, 0, (7,), (9,)),)))
    assert sessions_of(dock.release(Orders())) == [[3, 4]]
    assert sessions_of(dock.release(Orders())) == []


def test_segments_of_one_session_share_no_flight() -> None:
    """Chunks of a prompt are fed at once, and each is a pass of its own."""
    dock = Dock([1], batch=4)
    assert sessions_of(dock.release(fed(1, 1, 2))) == [[1, 2]]
    dock.landed(Flight(0, 0, (Segment(2, 1, 0, 0, 0, (7,), (9,)),)))
    assert sessions_of(dock.release(Orders())) == []  # the other half of that flight is not back
    dock.landed(Flight(0, 0, (Segment(1, 1, 0, 0, 0, (7,), (9,)),)))
    assert sessions_of(dock.release(Orders())) == [[1]]


@given(st.lists(st.sampled_from(["feed", "land", "leave"]), max_size=40), st.integers(1, 3))
def test_slots_are_neither_lost_nor_exceeded(moves: list[str], most: int) -> None:
    """Whatever comes back, joined by a stage or not, or is closed on its way."""
    dock, flying, next_session = Dock([most], batch=2), list[list[int]](), 0
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
        flying += sessions_of(dock.release(orders))
        assert len(flying) <= most
    while flying:
        back = flying.pop(0)
        dock.landed(Flight(0, 0, tuple(Segment(s, 1, 0, 0, 0, (7,), (9,)) for s in back)))
        flying += sessions_of(dock.release(Orders()))
    assert sessions_of(dock.release(fed(next_session + 1))) == [[next_session + 1]]
