"""The dispatch of events in a schedule that drafts trees; prompt and end.

The subclasses decide what follows from a draft pass or a returned segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from treepipe.core.decoding.drafting import PendingPass
from treepipe.core.decoding.in_flight import TreeInFlight
from treepipe.core.decoding.request import RequestState
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Segment
from treepipe.core.protocol import (
    Command,
    Drafted,
    Event,
    Gauge,
    Offer,
    Returned,
    RoundRecord,
    Started,
    Stepped,
    WorkerLost,
)


class TreeDecoding(ABC):
    """A request, its tree in flight, and the events of both."""

    def __init__(self, session: int, prefill_chunk: int, *, keeps: bool = False) -> None:
        """Make the schedule of one request; ``keeps`` is as in ``PendingPass``."""
        self._request = RequestState(session, prefill_chunk)
        self._flying = TreeInFlight(self._request)
        self._pending = PendingPass(self._flying.text, keeps=keeps)
        self._seen: Any = None  # the gauge's note at the last returned segment

    @property
    def done(self) -> bool:
        return self._request.finished is not None

    @property
    def listens(self) -> bool:
        return False

    @property
    def gauge(self) -> type[Gauge]:
        return Gauge

    @property
    def in_step(self) -> bool:
        return False

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        return self._flying.rounds

    def offers(self, returned: Segment, *, children: bool) -> Sequence[Offer | None]:
        return self._flying.offers(returned, children=children)

    def handle(self, event: Event) -> Sequence[Command]:
        if self.done:
            raise ProtocolError("the request is done")
        if isinstance(event, Drafted):
            self._pending.answered(event)
            return self._drafted(event)
        if isinstance(event, Returned):
            if self._pending.under_way and not self.listens:
                raise ProtocolError("a segment is back before the draft pass under way")
            return self._prefilled(event) if self._request.prefill else self._returned(event)
        if isinstance(event, Stepped):
            return self._stepped(event)
        if isinstance(event, Started):
            return self._start(event)
        if isinstance(event, WorkerLost):
            return self._request.lose()
        raise ProtocolError(f"{type(event).__name__} is no event of a schedule")

    def _start(self, event: Started) -> list[Command]:
        commands = self._request.start(event)
        self._flying.text.extend(event.prompt)
        return commands

    def _prefilled(self, event: Returned) -> list[Command]:
        token = self._request.prefilled(event)
        self._seen = event.seen
        if token is None:
            return []
        commands = self._request.emit((token,))
        return commands if self.done else commands + self._begin(token)

    @abstractmethod
    def _begin(self, root_token: int) -> list[Command]:
        """Decode below the first new token, which came with the prompt."""

    @abstractmethod
    def _drafted(self, event: Drafted) -> list[Command]:
        """Take the answer to the draft pass under way."""

    @abstractmethod
    def _returned(self, event: Returned) -> list[Command]:
        """Take a returned segment of tree nodes."""

    def _stepped(self, event: Stepped) -> list[Command]:
        """End a step of the pipeline, if the schedule takes part in it."""
        raise ProtocolError("this schedule takes no part in a pipeline's steps")
