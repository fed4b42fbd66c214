"""A draft server's flights: segments that share one, and how many a pipeline takes at once."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.draft_work import Orders
from treepipe.core.messages import Flight, Message


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
    """The flights under way, and those that wait until their pipeline takes another one."""

    def __init__(self, most: Sequence[int | None], batch: int) -> None:
        """Make the dock of one draft server.

        Args:
            most: maximum number of flights under way, per pipeline; None or empty: no bound.
            batch: maximum number of requests of a flight.
        """
        self._most, self._batch = most, batch
        self._bounded = any(each is not None for each in most)
        self._waiting: list[Flight] = []
        self._flying: list[tuple[int, set[int]]] = []  # pipeline, and sessions not yet back

    def release(self, orders: Orders) -> Orders:
        """Take the flights of orders, and add those that may leave, behind all words."""
        if not self._bounded:
            return orders
        others = list[tuple[int, Message]]()
        for pipeline, message in orders.messages:
            if isinstance(message, Flight) and self._most[pipeline] is not None:
                board(self._waiting, message, self._batch)
            else:
                others.append((pipeline, message))
        orders.messages = others + [(flight.pipeline, flight) for flight in self._leaving()]
        return orders

    def _leaving(self) -> list[Flight]:
        found, waiting = list[Flight](), list[Flight]()
        for flight in self._waiting:
            most = self._most[flight.pipeline]
            under_way = sum(pipeline == flight.pipeline for pipeline, _ in self._flying)
            if most is not None and under_way >= most:
                waiting.append(flight)
                continue
            self._flying.append((flight.pipeline, {s.session for s in flight.segments}))
            found.append(flight)
        self._waiting = waiting
        return found

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
        if not self._bounded:
            return
        for _, held in self._flying:
            held.discard(session)
        self._flying = [each for each in self._flying if each[1]]
        kept = [
            flight.holding(tuple([s for s in flight.segments if s.session != session]))
            for flight in self._waiting
        ]
        self._waiting = [flight for flight in kept if flight.segments]
