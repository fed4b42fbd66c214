"""A world of one request on one pipeline, which a test can look into after the request's end."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.messages import Close, Flight, Message
from treepipe.core.protocol import Returned, Schedule, Started, Stepped
from treepipe.testing.law import hold
from treepipe.testing.pipeline import Event, Logits, TimelessPipeline
from treepipe.testing.timeless_world import Choose, TimelessRequest, TimelessWorld, first


def travelling(pipeline: TimelessPipeline, session: int = 0) -> set[int]:
    """Tickets of the segments that are in a box or wait at a stage."""
    messages = [each for box in pipeline.boxes.values() for each in box]
    flights = [each for each in messages if isinstance(each, Flight)]
    flights += [flight for desk in pipeline.desks for flight in desk.flights]
    flights += pipeline._under_way.values()
    return {s.ticket for flight in flights for s in flight.segments if s.session == session}


class OneRequest(TimelessWorld):
    """The stages hear of the request's end after everything else."""

    def __init__(
        self,
        schedule: Schedule,
        stages: int,
        target: Logits,
        draft: Logits,
        choose: Choose = first,
        session: int = 0,
    ) -> None:
        super().__init__([stages], target, draft, choose)
        self.schedule, self.session, self.pipeline = schedule, session, self.pipelines[0]
        self._end_of_session: Close | None = None
        self.empty_returns = 0

    def decode(
        self, prompt: Sequence[int], wanted: int, ends: frozenset[int] = frozenset()
    ) -> list[int]:
        """The text; the messages that are under way at its end are left where they are."""
        self.open(self.session, self.schedule, Started(tuple(prompt), wanted, ends))
        while self.request.reason is None:
            hold(self.step(), "termination", "nothing moves, and the request is not over")
        return self.request.text

    @property
    def evaluated(self) -> list[int]:
        """Tickets of the segments whose answers the schedule was told."""
        events = [event for event, _ in self.request.schedule.told]
        returned = [e.returned if isinstance(e, Stepped) else e for e in events]
        return [each.ticket for each in returned if isinstance(each, Returned)]

    def travelling(self) -> set[int]:
        """Tickets of the segments that are in the pipeline or wait to be evaluated."""
        waiting = {ticket for _, ticket in self.pipeline.answered} - {*self.evaluated}
        return waiting | travelling(self.pipeline, self.session)

    def _move(self, number: int, event: Event) -> None:
        before = {*self.pipeline.answered}
        super()._move(number, event)
        new = self.pipeline.answered - before
        self.empty_returns += sum(not self.pipeline.answers.get(key) for key in new)

    @property
    def request(self) -> TimelessRequest:
        return self.requests[self.session]

    def drain(self) -> None:
        """After the end: let every message that is still under way reach its place."""
        empty = self.empty_returns
        while self.step():
            pass
        self.empty_returns = empty

    def close(self) -> None:
        """Tell the stages, at last, that the request is over."""
        assert self._end_of_session is not None
        super().post(0, self._end_of_session, 0)
        self.drain()

    def post(self, pipeline: int, message: Message, draft: int) -> None:
        if isinstance(message, Close):
            self._end_of_session = message
        else:
            super().post(pipeline, message, draft)
