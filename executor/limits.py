"""Between what the numbers of a run's messages lie; asked before anything is made of them.

Law of this file: a message within its limits indexes nothing that is not there by its size alone,
and allocates no more than the run was started for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treepipe.core.messages import (
    NO_PARENT,
    NO_TOKEN,
    Beat,
    Close,
    Flight,
    Message,
    Segment,
    Through,
    Verified,
    Word,
)

COUNT = 2**60
"""Of sessions, tickets, rounds, words and beats; more are none."""
SPARE = 1024
"""Positions beyond the cache's entries, for nodes that never enter it."""


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The bounds of one worker's messages in a run.

    Attributes:
        vocabulary: tokens' ids are less.
        entries: of a session's cache, tree and committed rows together.
        rows: of one message.
        drafts, pipelines: so many there are.
    """

    vocabulary: int
    entries: int
    rows: int
    drafts: int
    pipelines: int

    def hold(self, body: Message) -> bool:
        """Whether all of a message's numbers are within them."""
        match body:
            case Flight():
                return self._flight(body)
            case Verified():
                return self._flight(body.flight) and self._answered(body)
            case Beat():
                counted = _counts(body.number or 0) and 0 <= body.draft < self.drafts
                return counted and all(self._word(word) for word in body.words)
            case Through():
                known = 0 <= body.draft < self.drafts and 0 <= body.pipeline < self.pipelines
                return known and _counts(body.group, body.beat)
            case Close():
                return _counts(body.session)

    def _flight(self, flight: Flight) -> bool:
        known = 0 <= flight.draft < self.drafts and 0 <= flight.pipeline < self.pipelines
        few = flight.rows <= self.rows and len(flight.segments) <= self.rows
        beats = _counts(flight.beat or 0)
        return known and few and beats and all(map(self._segment, flight.segments))

    def _segment(self, segment: Segment) -> bool:
        counts = segment.session, segment.ticket, segment.round, segment.version, segment.step or 0
        return (
            _counts(*counts)
            and 0 <= segment.start <= self.entries
            and _between(segment.tokens, 0, self.vocabulary)
            and _between(segment.positions, 0, self.entries + SPARE)
            and _between(segment.parents, NO_PARENT, segment.start + len(segment.tokens))
        )

    def _answered(self, verified: Verified) -> bool:
        segments = verified.flight.segments
        return (
            len(verified.answers) == len(segments)
            and len(verified.states) in (0, len(segments))
            and all(_between(each, NO_TOKEN, self.vocabulary) for each in verified.answers)
            and all(_between(each, 0, self.rows) for each in verified.states)
            and verified.state_rows <= self.rows
        )

    def _word(self, word: Word) -> bool:
        retained = word.retained or ()
        return _counts(word.session, word.round, word.number) and (
            len(retained) <= self.entries and _between(retained, 0, self.entries)
        )


def _counts(*values: int) -> bool:
    return min(values) >= 0 and max(values) < COUNT


def _between(values: Sequence[int], least: int, end: int) -> bool:
    return not values or (min(values) >= least and max(values) < end)
