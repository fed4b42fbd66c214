"""What a stage's desk does with flights of several sessions when one of them ends."""

from __future__ import annotations

import pytest

from treepipe.core.messages import NO_PARENT, Close, Flight, Segment
from treepipe.core.stage_desk import Move, StageDesk


def _segment(session: int, version: int) -> Segment:
    return Segment(
        session=session,
        ticket=1,
        round=0,
        version=version,
        start=0,
        tokens=(5, 6),
        positions=(3, 4),
        parents=(NO_PARENT, 0),
    )


@pytest.mark.parametrize("closed", [1, 2])
def test_others_of_a_flight_go_on_with_their_own_payload(closed: int) -> None:
    """One session's segment is due, the other's waits for a word when one of them is closed."""
    desk = StageDesk(1, 1)
    flight = Flight(0, 0, (_segment(1, version=0), _segment(2, version=1)))
    desk.receive(flight, ["payload of 1", "payload of 2"])
    assert desk.next_action() is None
    desk.receive(Close(closed))
    move = desk.next_action()
    if closed == 1:
        assert move is None  # what is left still waits for its word
        return
    assert isinstance(move, Move)
    assert [segment.session for segment in move.flight.segments] == [1]
    assert move.payloads == ("payload of 1",)
    assert len(move.rows) == 1
