"""The process of a draft that drafts for another draft.

``core/levels.py`` chooses its passes, as in the simulator.
"""

from __future__ import annotations

from collections.abc import Collection

from treepipe.core.draft_work import Draft
from treepipe.core.messages import Close, Message, Text
from treepipe.executor.models.sources import open_source
from treepipe.executor.run.station import Station
from treepipe.executor.wire.mailbox import Received
from treepipe.scenario.desks import level_desk


class LevelWorker:
    """The server of the requests whose texts the draft above sends."""

    def __init__(self, station: Station) -> None:
        settings = station.settings
        self._station = station
        self._desk = level_desk(settings.deployment, settings.placed.name)
        sizes = settings.vocabulary, settings.capacity
        self._source = open_source(settings.source, None, *sizes, settings.placed.compute)
        self._opened = set[int]()

    @property
    def open_sessions(self) -> int:
        return len(self._desk.levels)

    def serve(self) -> None:
        """Draft until the coordinator sends an order."""
        station = self._station
        while not station.called:
            while (received := station.due()) is not None:
                self._arrive(received)
            work = self._desk.next()
            if work is not None:
                self._draft(work)
                continue
            station.fresh = True  # its device idles
            received = station.wait()
            if received is None:
                return
            self._arrive(received)

    def _arrive(self, received: Received) -> None:
        message = received.message
        assert isinstance(message, Text | Close)
        self._tell(self._desk.hear(message))
        for session in self._opened - self._desk.levels.keys():
            self._source.close(session)
            self._opened.remove(session)

    def _draft(self, work: Draft) -> None:
        ((session, _),), placed = work.passes, self._station.settings.placed
        if session not in self._opened:
            self._source.open(session)
            self._opened.add(session)
        duration = placed.draft_ms(work, self._desk.parts(work))
        with self._station.work("draft", session, work.rows, duration):
            (drafted,) = self._source.draft_batch(work.passes)
        self._tell(self._desk.drafted(work, drafted))

    def _tell(self, letters: Collection[tuple[str, Message]]) -> None:
        for receiver, message in letters:
            self._station.send(receiver, message)
