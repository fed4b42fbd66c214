"""Plain decoding over a pipeline (PP): one token goes through all stages; no draft."""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.decoding.request import RequestState
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Segment
from treepipe.core.protocol import (
    Command,
    Event,
    Feed,
    Gauge,
    Offer,
    Returned,
    RoundRecord,
    Started,
    WorkerLost,
)
from treepipe.core.system import Parameters, ScheduleContext, System


class Autoregressive:
    """A schedule that feeds each token as a committed row, so that no prune is ever announced."""

    listens = False
    in_step = False
    gauge = Gauge

    def __init__(self, session: int, prefill_chunk: int) -> None:
        self._request = RequestState(session, prefill_chunk)
        self._outstanding: int | None = None
        self._rounds: list[RoundRecord] = []

    @property
    def done(self) -> bool:
        return self._request.finished is not None

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        return self._rounds

    def offers(self, returned: Segment, *, children: bool) -> Sequence[Offer | None]:
        return [None] * len(returned.tokens)

    def handle(self, event: Event) -> Sequence[Command]:
        if self.done:
            raise ProtocolError("the request is done")
        if isinstance(event, Started):
            return self._request.start(event)
        if isinstance(event, Returned):
            return self._returned(event)
        if isinstance(event, WorkerLost):
            return self._request.lose()
        raise ProtocolError(f"plain decoding has no draft to answer {type(event).__name__}")

    def _returned(self, event: Returned) -> list[Command]:
        if self._request.prefill:
            token = self._request.prefilled(event)
            return [] if token is None else self._go_on(token)
        if event.ticket != self._outstanding:
            raise ProtocolError(f"no segment with ticket {event.ticket} is next to come back")
        if not event.next_tokens:
            raise ProtocolError("a committed segment comes back with the target's next token")
        self._rounds.append(RoundRecord(1, 1, (1,), 1, 1))
        return self._go_on(event.next_tokens[-1])

    def _go_on(self, token: int) -> list[Command]:
        commands = self._request.emit((token,))
        if not self.done:
            segment = self._request.committed_segment((token,), self._request.length)
            self._request.length += 1
            self._outstanding = segment.ticket
            commands.append(Feed(segment))
        return commands


def _make(parameters: Parameters, context: ScheduleContext) -> Autoregressive:
    return Autoregressive(context.session, parameters.prefill_chunk)


def _tree_tokens(parameters: Parameters, stages: int) -> int:
    """Return 0: every row is a committed one."""
    return 0


def _segment_tokens(parameters: Parameters, stages: int) -> int:
    return 1


PLAIN = System(
    name="pp",
    year=2019,
    order=0,
    source="GPipe and after; the baseline of all five papers",
    summary="plain decoding",
    parameters=Parameters,
    make=_make,
    tree_tokens=_tree_tokens,
    segment_tokens=_segment_tokens,
    drafts=False,
    closed_form="plain",
)

SYSTEMS = (PLAIN,)
