"""The flights of one draft server: which segments share one, when it leaves, and how long it is.

Segments that came back together leave together: drafts of one turn may differ in length, so a
request that is ready waits for those that still draft for their first segment of the turn. Then up
to ``batch`` requests share a flight.

A pipeline may take a bounded number of flights. Those beyond it wait, and segments of other
requests join them. Chains are cut when their flight leaves, since all of them compete for its rows
(``verify_length.py``).

A flight of a step (``barrier.py``) does not come here: it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treepipe.core.draft_work import Orders
from treepipe.core.messages import Flight, Message
from treepipe.core.verify_length import RoundMs, shortened


def board(flights: list[Flight], fed: Flight, batch: int) -> None:
    """Put segments into the first flight with room behind their sessions' earlier segments."""
    own = {segment.session for segment in fed.segments}
    sessions = [{segment.session for segment in flight.segments} for flight in flights]
    behind = [place for place, held in enumerate(sessions) if held & own]
    for place in range(behind[-1] + 1 if behind else 0, len(flights)):
        flight = flights[place]
        fits = len(flight.segments) + len(fed.segments) <= batch
        if flight.pipeline == fed.pipeline and fits:
            flights[place] = flight.holding((*flight.segments, *fed.segments))
            return
    flights.append(fed)


class Dock:
    """The flights under way, and the segments and flights that wait to leave."""

    def __init__(
        self,
        batch: int = 1,
        most: Sequence[int | None] = (),
        rounds_ms: Sequence[RoundMs] = (),
    ) -> None:
        """Make the dock of one draft server.

        Args:
            batch: maximum number of requests of a flight.
            most: maximum number of flights under way, per pipeline; None or empty: no bound.
            rounds_ms: what a round takes, per pipeline, by which chains are cut; empty: none is.
        """
        self._batch, self._most, self._rounds_ms = batch, most, rounds_ms
        self._bounded = any(each is not None for each in most)
        self._held: list[Flight] = []  # segments that wait for others of the turn
        self._waiting: list[Flight] = []
        self._flying: list[tuple[int, set[int]]] = []  # pipeline, and sessions not yet back
        self._chances = dict[int, Sequence[float]]()

    @property
    def empty(self) -> bool:
        """Whether nothing waits to leave."""
        return not (self._held or self._waiting)

    def may_cut(self, session: int, chances: Sequence[float]) -> None:
        """Note the chances of a chain that the next orders hold (``Feed.chances``)."""
        if chances and self._rounds_ms:
            self._chances[session] = chances

    def take(self, orders: Orders, awaited: Callable[[], bool]) -> None:
        """Keep back the flights of orders that must wait, and add those that may leave, behind all
        words. ``awaited``: whether a request still drafts for its first segment of the turn."""
        if self._batch > 1:
            self._gather(orders, awaited)
        if self._bounded:
            self._bound(orders)
        if self._chances:
            orders.messages = [
                (pipeline, self._cut(each) if isinstance(each, Flight) else each)
                for pipeline, each in orders.messages
            ]

    def _gather(self, orders: Orders, awaited: Callable[[], bool]) -> None:
        """Let segments of one turn share flights, as soon as nothing is awaited any more."""
        others = list[tuple[int, Message]]()
        for pipeline, message in orders.messages:
            if isinstance(message, Flight):
                self._held.append(message)
            else:
                others.append((pipeline, message))
        self._held = _without(self._held, orders.preempted)
        if self._held and not awaited():
            flights = list[Flight]()
            for flight in self._held:
                if flight.beat is None:
                    board(flights, flight, self._batch)
                else:  # the first flights of a pipeline that was at rest
                    others.append((flight.pipeline, flight))
            others += [(flight.pipeline, flight) for flight in flights]
            self._held = []
        orders.messages = others

    def _bound(self, orders: Orders) -> None:
        """Let flights leave as far as their pipeline takes them."""
        others = list[tuple[int, Message]]()
        for pipeline, message in orders.messages:
            if isinstance(message, Flight) and self._most[pipeline] is not None:
                board(self._waiting, message, self._batch)
            else:
                others.append((pipeline, message))
        # What a session feeds in the event that preempts it would never come back.
        self._waiting = _without(self._waiting, orders.preempted)
        orders.messages = others + [(flight.pipeline, flight) for flight in self._leaving()]

    def _leaving(self) -> list[Flight]:
        leaving, waiting = list[Flight](), list[Flight]()
        for flight in self._waiting:
            most = self._most[flight.pipeline]
            under_way = sum(pipeline == flight.pipeline for pipeline, _ in self._flying)
            if most is not None and under_way >= most:
                waiting.append(flight)
                continue
            self._flying.append((flight.pipeline, {s.session for s in flight.segments}))
            leaving.append(flight)
        self._waiting = waiting
        return leaving

    def _cut(self, flight: Flight) -> Flight:
        own = [s.session for s in flight.segments if s.session in self._chances]
        chances = {session: self._chances.pop(session) for session in own}
        return shortened(flight, chances, self._rounds_ms[flight.pipeline])

    def landed(self, flight: Flight) -> None:
        """Note that segments are back, of several flights if a stage has joined them."""
        if not self._bounded:
            return
        for segment in flight.segments:
            own = next((held for _, held in self._flying if segment.session in held), None)
            if own is not None:
                own.remove(segment.session)
        self._flying = [each for each in self._flying if each[1]]

    def left(self, session: int) -> None:
        """Forget a session, whose segments do not come back."""
        self._chances.pop(session, None)
        self._held = _without(self._held, [session])
        if self._bounded:
            for _, held in self._flying:
                held.discard(session)
            self._flying = [each for each in self._flying if each[1]]
            self._waiting = _without(self._waiting, [session])


def _without(flights: list[Flight], sessions: Sequence[int]) -> list[Flight]:
    """Return the flights without these sessions' segments; those of a step fly empty, too."""
    if not sessions:
        return flights
    left = [
        flight.holding(tuple([s for s in flight.segments if s.session not in sessions]))
        for flight in flights
    ]
    return [flight for flight in left if flight.segments or flight.beat is not None]
