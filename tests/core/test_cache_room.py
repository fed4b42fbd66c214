"""Which requests begin, and which are preempted, where there is room for few."""

from __future__ import annotations

from treepipe.core.cache_room import DRAFT, PAGE, CacheBook, CacheRoom
from treepipe.core.draft_work import Orders
from treepipe.core.protocol import Started


def asked(tokens: int) -> Started:
    return Started((7,) * (tokens - 1), 1)


def test_requests_begin_in_order_where_there_is_room() -> None:
    """The second lacks room in pipeline 0 and blocks it for the third; pipeline 1 goes on, until
    one lacks room at the draft, which all share."""
    book = CacheBook(CacheRoom((10, 10), draft=20))
    for session, (pipeline, tokens) in enumerate([(0, 8), (0, 5), (0, 2), (1, 8)], start=1):
        book.wait(session, pipeline, asked(tokens))
    assert book.next() == [(1, 0), (4, 1)]
    book.wait(5, 1, asked(2), first=True)
    assert book.next() == [(5, 1)]
    book.left(1)
    book.wait(6, 1, asked(20), first=True)
    assert book.next() == [], "the draft's room is asked for in order, too"
    book.left(6)
    assert book.next() == [(2, 0), (3, 0)]
    assert (book.taken(0), book.taken(1), book.taken(DRAFT)) == (7, 10, 17)


def test_the_request_admitted_last_makes_room_for_grown_text() -> None:
    """Three of one page each fill the room; a fourth page is one too many. The first stays."""
    book = CacheBook(CacheRoom((3 * PAGE,), paged=True))
    for session in (1, 2, 3):
        book.wait(session, 0, Started((7,) * PAGE, 99))
    assert len(book.next()) == 3
    orders = Orders(emitted=[(1, (8,))])
    book.take(orders)
    assert orders.preempted == [3]
    orders = Orders(emitted=[(1, (8,) * PAGE)])
    book.take(orders)
    assert orders.preempted == [2]
    assert (len(book), book.taken(0)) == (1, 3 * PAGE)
