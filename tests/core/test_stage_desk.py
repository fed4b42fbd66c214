"""What a stage's desk does with flights of several sessions when one of them ends."""

from __future__ import annotations

import pytest

from treepipe.core.messages import NO_PARENT, Beat, Close, Flight, Segment, Word
from treepipe.core.stage import Prune
from treepipe.core.stage_desk import KEPT_CLOSED, Move, Place, StageDesk


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


def _word(session: int, retained: tuple[int, ...], *, ends_round: bool = False) -> Beat:
    accepted = len(retained) if ends_round else 0
    return Beat(0, (Word(session, 0, 0, retained, accepted, ends_round, False),))


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ((_word(1, (0,)),), None),
        ((_word(1, ()),), [1, 2]),
        ((_word(1, (), ends_round=True),), [1, 2]),
        ((Close(1),), [2]),
    ],
    ids=["a row stays", "no row", "the round ends", "the request ends"],
)
@pytest.mark.parametrize("other_lives", [False, True])
def test_a_flight_under_way_is_given_up_when_no_row_of_it_is_left(
    said: tuple[Beat | Close, ...], left: list[int] | None, other_lives: bool
) -> None:
    """Two requests share the pass; a word, or an end, comes for the one and then for the other. The
    markers that go on take the words into account, so that the next stage waits for these."""
    desk = StageDesk(1, 2)
    desk.receive(Flight(0, 0, (_segment(1, 0), _segment(2, 0))))
    move = desk.next_action()
    assert isinstance(move, Move)
    for message in (*said, _word(2, (1,) if other_lives else ())):
        desk.receive(message)
    markers = desk.given_up(move.flight)
    if left is None or other_lives:
        assert markers is None
        return
    assert markers is not None
    assert [(s.session, s.ticket, s.version, s.tokens) for s in markers.segments] == [
        (session, 1, 1, ()) for session in left
    ]
    while (prune := desk.next_action()) is not None:
        assert isinstance(prune, Prune)
    assert not any(state.cached for state in desk.sessions.values())


def _rows(session: int, count: int, draft: int = 0) -> Flight:
    """Committed rows of a request: a prompt's chunk, or a row of a text."""
    tokens, positions = (7,) * count, tuple(range(count))
    return Flight(draft, 0, (Segment(session, 1, 0, 0, 0, tokens, positions),))


def _passes(desk: StageDesk) -> list[list[int]]:
    """Sessions of the passes that follow until the desk waits."""
    found = []
    while (move := desk.next_action()) is not None:
        assert isinstance(move, Move)
        assert len(move.rows) == len(move.payloads) == len(move.flight.segments)
        assert list(move.payloads) == [
            f"payload of {segment.session}" for segment in move.flight.segments
        ]
        found.append([segment.session for segment in move.flight.segments])
    return found


def _waiting(desk: StageDesk, flights: list[Flight]) -> None:
    for flight in flights:
        desk.receive(flight, [f"payload of {segment.session}" for segment in flight.segments])


@pytest.mark.parametrize(
    ("batch", "prompts", "expected"),
    [
        (1, "last", [[1], [2], [3], [4], [5]]),
        (2, "last", [[2, 3], [5, 1], [4]]),
        (2, "first", [[1, 4], [2, 3], [5]]),
        (4, "last", [[2, 3, 5, 1], [4]]),
        (8, "last", [[2, 3, 5, 1, 4]]),
    ],
)
def test_what_waits_is_gathered_and_prompts_have_their_place(
    batch: int, prompts: Place, expected: list[list[int]]
) -> None:
    """Requests 1 and 4 bring prompts, the others a row of their text."""
    desk = StageDesk(1, 1, batch=batch, prompts=prompts)
    _waiting(desk, [_rows(session, 9 if session in (1, 4) else 1) for session in range(1, 6)])
    assert _passes(desk) == expected


@pytest.mark.parametrize(
    ("prompts", "expected"), [("first", [[3], [4], [1, 2]]), ("last", [[1, 2], [3], [4]])]
)
def test_in_lock_step_prompts_have_their_place_before_or_behind_a_step(
    prompts: Place, expected: list[list[int]]
) -> None:
    """Requests 1 and 2 take part in the step that waits, 3 and 4 bring their prompts."""
    desk = StageDesk(1, 1, prompts=prompts)
    step = Flight(0, 0, (*_rows(1, 1).segments, *_rows(2, 1).segments), beat=0)
    _waiting(desk, [_rows(3, 9), step, _rows(4, 9)])
    assert _passes(desk) == expected


def test_a_pass_holds_rows_of_one_draft_server_and_whole_flights() -> None:
    """What goes to different servers goes apart, and no flight is taken apart for room."""
    desk = StageDesk(1, 1, batch=3)
    both = Flight(0, 0, (*_rows(3, 1).segments, *_rows(4, 1).segments))
    _waiting(desk, [_rows(1, 1), _rows(2, 1, draft=1), _rows(5, 1), both, _rows(6, 1, draft=1)])
    assert _passes(desk) == [[1, 5], [2, 6], [3, 4]]


def test_a_prune_comes_before_a_pass_of_others() -> None:
    """So what it drops is not computed, and nobody waits for it."""
    desk = StageDesk(1, 1, batch=4)
    _waiting(desk, [Flight(0, 0, (_segment(2, version=0),))])
    assert _passes(desk) == [[2]]
    _waiting(desk, [_rows(1, 1)])
    desk.receive(Beat(0, (Word(2, 0, 0, (0,), 1, ends_round=True, lock_step=False),)))
    assert desk.next_action() == Prune(2, (0,), 1)
    assert _passes(desk) == [[1]]


@pytest.mark.parametrize("kept", [0, 1])
def test_others_of_a_flight_go_on_when_a_round_ends(kept: int) -> None:
    """The segment of the ended round is dropped, whether or not the cache changes with its end."""
    desk = StageDesk(1, 1, batch=2)
    if kept:
        _waiting(desk, [Flight(0, 0, (_segment(2, version=0),))])
        assert _passes(desk) == [[2]]
    late = Segment(2, 2, 0, 1, 2 * kept, (5,), (9,), (NO_PARENT,))
    _waiting(desk, [Flight(0, 0, (*_rows(1, 1).segments, late))])
    assert desk.next_action() is None, "the second one is ahead of the words"
    word = Word(2, 0, 0, tuple(range(kept)), kept, ends_round=True, lock_step=False)
    desk.receive(Beat(0, (word,)))
    if kept:
        assert desk.next_action() == Prune(2, (0,), 1)
    assert _passes(desk) == [[1]]
    assert not desk.has_work


def test_a_request_that_ends_before_its_pass_leaves_it() -> None:
    """Its flight was complete, since another of its requests had ended before."""
    desk = StageDesk(1, 1, batch=3)
    segments = (*_rows(1, 1).segments, _segment(2, version=1), *_rows(3, 1).segments)
    _waiting(desk, [Flight(0, 0, segments)])
    assert desk.next_action() is None
    desk.receive(Close(2))
    desk.receive(Close(1))
    assert _passes(desk) == [[3]]
    assert {*desk.sessions} == {3}


def test_a_stage_remembers_a_bounded_number_of_closed_sessions() -> None:
    """And of the newest ones a late segment is still of no use."""
    desk = StageDesk(1, 1)
    for session in range(3 * KEPT_CLOSED):
        desk.receive(Close(session))
    assert len(desk._closed) == KEPT_CLOSED
    late = Segment(3 * KEPT_CLOSED - 1, 1, 0, 0, 0, (5,), (0,))
    assert desk.receive(Flight(0, 0, (late,))) == []
    assert not desk.sessions
