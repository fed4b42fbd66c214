"""A world of one request on one pipeline, which a test can look into after the request's end."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.messages import Close, Message
from treepipe.core.protocol import Schedule, Started
from treepipe.testing.law import hold
from treepipe.testing.pipeline import Logits
from treepipe.testing.timeless_world import Choose, TimelessRequest, TimelessWorld, first


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

    def decode(
        self, prompt: Sequence[int], wanted: int, ends: frozenset[int] = frozenset()
    ) -> list[int]:
        """The text; the messages that are under way at its end are left where they are."""
        self.open(self.session, self.schedule, Started(tuple(prompt), wanted, ends))
        while self.request.reason is None:
            hold(self.step(), "termination", "nothing moves, and the request is not over")
        return self.request.text

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
