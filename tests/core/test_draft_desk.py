"""What a draft server's desk does with requests that come back in one flight."""

from __future__ import annotations

from math import inf

import pytest

from treepipe.core.cache_room import CacheBook, CacheRoom
from treepipe.core.dock import Dock
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import Close, Flight
from treepipe.core.protocol import Drafted, Started
from treepipe.scenario.schema import ScheduleSection

GAMMA, SESSIONS = 2, (1, 2, 3)


def _begun(batch: int, wanted: dict[int, int], gamma: int = GAMMA) -> tuple[DraftDesk, Flight]:
    """Requests whose prompts are under way in one flight, as a stage has put them together."""
    desk = DraftDesk(0, [1], ArrivalQueue(), dock=Dock(batch))
    section = ScheduleSection.model_validate({"name": "chain", "gamma": gamma})
    fed = []
    for session in SESSIONS:
        started = Started((4, 5), wanted[session])
        desk.open(session, 0, section.choose()(session, 1), started, 0.0)
        work = desk.next(0.0)
        assert isinstance(work, Begin)
        fed += _flights(desk.began(work))
    return desk, Flight(0, 0, tuple(segment for each in fed for segment in each.segments))


def _flights(orders: Orders) -> list[Flight]:
    return [message for _, message in orders.messages if isinstance(message, Flight)]


def _back(desk: DraftDesk, flight: Flight) -> Orders:
    """It comes back, and the target says 6 behind every last row."""
    desk.receive(flight, None, 0.0)
    assert isinstance(desk.next(0.0), Evaluate)
    return desk.returned(flight, [(6,)] * len(flight.segments))


def _drafted(desk: DraftDesk) -> tuple[list[list[int]], list[list[int]]]:
    """Sessions of the draft's passes, and of the flights that leave behind them."""
    passes, flights = list[list[int]](), list[list[int]]()
    while isinstance(work := desk.next(0.0), Draft):
        assert len(passes) < len(SESSIONS) * GAMMA, "a round has an end"
        passes.append([session for session, _ in work.passes])
        answers = [(session, Drafted(each.ticket, [[6]], [[0.0]])) for session, each in work.passes]
        left = _flights(desk.drafted(answers))
        flights += [[segment.session for segment in flight.segments] for flight in left]
    assert work is None
    return passes, flights


@pytest.mark.parametrize(
    ("batch", "leaving"), [(1, [[1], [2], [3]]), (2, [[1, 2], [3]]), (3, [[1, 2, 3]])]
)
def test_requests_that_came_back_together_stay_together(
    batch: int, leaving: list[list[int]]
) -> None:
    """One turn, one pass of the draft for all, and flights of at most ``batch`` requests."""
    desk, flight = _begun(batch, dict.fromkeys(SESSIONS, 9))
    assert not _flights(_back(desk, flight))
    passes, flights = _drafted(desk)
    assert passes == [[*SESSIONS]] * GAMMA
    assert flights == leaving
    assert len(desk.turns) == 1 + len(SESSIONS), "and one for the beginning of each"


@pytest.mark.parametrize("lengths", [(0, 3, 1), (1, 1, 3), (3, 0, 0), (0, 0, 0), (2, 3, 3)])
def test_requests_whose_drafts_differ_in_length_stay_together(lengths: tuple[int, ...]) -> None:
    """A look-up finds as many candidates as it finds; what is ready waits for the longest."""
    desk, flight = _begun(3, dict.fromkeys(SESSIONS, 9), gamma=3)
    assert not _flights(_back(desk, flight))
    found, flights = dict(zip(SESSIONS, lengths, strict=True)), list[Flight]()
    while isinstance(work := desk.next(0.0), Draft):
        assert not flights, "all leave behind the last pass"
        answers = []
        for session, each in work.passes:
            found[session] -= 1
            log_prob = 0.0 if found[session] >= 0 else -inf
            answers.append((session, Drafted(each.ticket, [[6]], [[log_prob]])))
        flights = _flights(desk.drafted(answers))
    left = {each.session: len(each.tokens) for flight in flights for each in flight.segments}
    assert len(flights) == 1
    assert left == {session: 1 + n for session, n in zip(SESSIONS, lengths, strict=True)}


def test_what_waits_is_gone_with_its_pipeline() -> None:
    """Nothing is sent of requests that a loss ends."""
    desk, flight = _begun(3, dict.fromkeys(SESSIONS, 9), gamma=3)
    _back(desk, flight)
    work = desk.next(0.0)
    assert isinstance(work, Draft)
    none = {session: [[-inf if session < 3 else 0.0]] for session in SESSIONS}
    answers = [(s, Drafted(each.ticket, [[6]], none[s])) for s, each in work.passes]
    assert not _flights(desk.drafted(answers)), "1 and 2 wait for 3"
    orders = desk.lose(0, "pipeline0.stage1")
    assert not _flights(orders)
    assert desk.at_rest


def test_a_flight_whose_first_request_is_over_is_served_for_the_others() -> None:
    """One new token is all that request 1 wants, so it ends with its prompt."""
    desk, flight = _begun(3, {1: 1, 2: 9, 3: 9})
    orders = _back(desk, Flight(0, 0, flight.segments[:1]))
    assert [message for _, message in orders.messages] == [Close(1)]
    _back(desk, flight)
    passes, flights = _drafted(desk)
    assert passes == [[2, 3]] * GAMMA
    assert flights == [[2, 3]]


@pytest.mark.parametrize("name", ["pp", "chain", "specpipe_db"])
def test_requests_that_wait_for_room_end_with_their_pipeline(name: str) -> None:
    """Room for one: the others wait, and a lost worker ends all of them; its room is free then."""
    room = CacheRoom((2 + 9,), tree_tokens=0)
    desk = DraftDesk(0, [1, 1], ArrivalQueue(), CacheBook(room))
    make = ScheduleSection.model_validate({"name": name}).choose()
    for session in SESSIONS:
        desk.open(session, 0, make(session, 1), Started((4, 5), 9), 0.0)
    assert desk.next(0.0) == Begin(1)
    desk.began(Begin(1))
    assert desk.next(0.0) is None, "the others wait"
    desk.open(4, 1, make(4, 1), Started((4, 5), 9), 0.0)
    assert desk.next(0.0) == Begin(4), "at another pipeline there is room"
    orders = desk.lose(0, "pipeline0.stage1")
    assert orders.finished == [(session, "worker lost") for session in SESSIONS]
    assert {*desk.sessions} == {4}
    assert desk.next(0.0) is None
