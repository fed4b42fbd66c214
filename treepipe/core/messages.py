"""The messages between a draft server and the stages: frozen records, validated when made.

Tree indices count the nodes of the tree part in sequence order, without committed tokens. A
``Segment``'s indices are valid after ``Segment.version`` words.

Every kind of message knows its bytes on a link (``size_bytes``), the number of rows whose hidden
states travel with it (``state_rows``), and whether its numbers are possible in a run (``within``).
A new kind is added to ``Message``, from which transports derive their tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from treepipe.core.errors import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10, the boards' own, lacks it in typing; only type checkers read it.

    def dataclass_transform(**_: Any) -> Any:
        return lambda decorated: decorated


Made = TypeVar("Made")


@dataclass_transform(frozen_default=True)
def record(made: type[Made]) -> type[Made]:
    """Make a dataclass with slots that is equal and hashed by value, and must not be changed.

    The type checker enforces the latter. A frozen dataclass would also check it at run time, but it
    sets each of its own fields through ``object.__setattr__``, and takes four times as long to be
    made: that was a tenth or more of a simulation.
    """
    return dataclass(slots=True, unsafe_hash=True)(made)


NO_PARENT = -1
"""Parent of a root, and of a draft node that hangs at the newest committed token."""
NO_TOKEN = -1
"""Token at a row without an answer (pruned, or off the true path); no draft proposes it."""

Feedback: TypeAlias = Literal["ring", "broadcast"]
"""The way of words: to the first stage and from there to each next one, or to every stage."""

HEADER_BYTES = 64
"""Bytes of a message besides its rows."""
ROW_BYTES = 8
"""Bytes of a row besides its hidden state: its token id and its position."""
COUNT = 2**60
"""Upper bound of sessions, tickets, rounds, words and beats."""
SPARE = 1024
"""Number of positions beyond a cache's entries, for tree nodes that never enter it."""


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ProtocolError(sentence)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Bounds of the numbers in the messages that one worker of a run can receive.

    Attributes:
        vocabulary: upper bound (exclusive) of token ids.
        entries: maximum number of a session's cache entries, tree and committed rows together.
        rows: maximum number of rows of one message.
        drafts, pipelines: number of draft servers and of pipelines in the run.
    """

    vocabulary: int
    entries: int
    rows: int
    drafts: int
    pipelines: int

    def name(self, draft: int, pipeline: int = 0) -> bool:
        """Whether the run has this draft server and this pipeline."""
        return 0 <= draft < self.drafts and 0 <= pipeline < self.pipelines


def _counts(*values: int) -> bool:
    return min(values) >= 0 and max(values) < COUNT


def _between(values: Sequence[int], least: int, end: int) -> bool:
    return not values or (min(values) >= least and max(values) < end)


@record
class Segment:
    """An ordered batch of rows that enters the pipeline as one message.

    Attributes:
        ticket: identifies the ``Returned`` that answers it.
        round: round in which it was fed; a stage drops segments of ended rounds.
        version: number of the session's words that its indices take into account.
        start: tree index of its first row; rows are contiguous. 0 for committed rows.
        positions: position id per row, counted from the prompt's first token.
        parents: tree index of each row's parent (``NO_PARENT`` for the root); empty for committed
            rows, which attend to everything before them.
        step: place in the round's sequence if the pipeline runs in lock-step (a stage then waits
            for the word of that step), None if it runs free.
        asked: whether the schedule wants the target's token at the last of committed rows; False
            for a chunk of a prompt behind which another one follows.
    """

    session: int
    ticket: int
    round: int
    version: int
    start: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    parents: tuple[int, ...] = ()
    step: int | None = None
    asked: bool = True

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.positions):
            raise ProtocolError("a segment has one position per token")
        if self.parents and len(self.parents) != len(self.tokens):
            raise ProtocolError("a segment has one parent per token, or none at all")

    @property
    def committed(self) -> bool:
        """Whether the rows are committed tokens (prompt or plain decoding), not tree nodes."""
        return bool(self.tokens) and not self.parents

    @property
    def answered(self) -> range:
        """Rows at which the target's token is taken: all of a tree; the last committed if asked."""
        count = len(self.tokens)
        if not self.committed:
            return range(count)
        return range(count - 1 if self.asked else count, count)

    @property
    def decided(self) -> bool:
        """Whether the schedule decides on it when it is back: not if words have left none of its
        rows, unless its decision ends a step. (A prompt's chunk comes back without its rows.)"""
        return bool(self.tokens) or self.step is not None or not self.asked

    @property
    def going_back(self) -> Segment:
        """The part that the last stage sends back where the other rows' states are not read."""
        first = self.answered.start
        if not first:
            return self
        return replace(self, tokens=self.tokens[first:], positions=self.positions[first:])

    def within(self, limits: MessageLimits) -> bool:
        return (
            _counts(self.session, self.ticket, self.round, self.version, self.step or 0)
            and 0 <= self.start <= limits.entries
            and _between(self.tokens, 0, limits.vocabulary)
            and _between(self.positions, 0, limits.entries + SPARE)
            and _between(self.parents, NO_PARENT, self.start + len(self.tokens))
        )


@record
class Word:
    """The draft's announcement to every stage: a prune, or "go on" (``retained`` is None).

    Attributes:
        round: round in which it was decided.
        number: count of the session's words before it (word k turns version k into k + 1).
        retained: ascending tree indices to keep, accepted nodes first; None keeps everything.
        accepted: number of retained nodes that become committed.
        ends_round: only the accepted nodes survive, and segments of the round are dropped.
        lock_step: stages apply it at their own step instead of as soon as it arrives.
    """

    session: int
    round: int
    number: int
    retained: tuple[int, ...] | None
    accepted: int
    ends_round: bool
    lock_step: bool

    def __post_init__(self) -> None:
        kept = len(self.retained) if self.retained is not None else 0
        require(0 <= self.accepted <= kept, "accepted nodes are among the retained ones")
        require(not self.ends_round or self.accepted == kept, "an ended round keeps no live node")

    def within(self, limits: MessageLimits) -> bool:
        retained = self.retained or ()
        return _counts(self.session, self.round, self.number) and (
            len(retained) <= limits.entries and _between(retained, 0, limits.entries)
        )


@record
class Flight:
    """Segments of different sessions that travel together and are computed in one pass.

    Attributes:
        draft: number of the draft server that feeds it and takes it back.
        segments: at most one per session; empty in the empty flights of a pipeline in lock-step.
        beat: its number if the whole pipeline runs in lock-step (a stage then waits for an earlier
            ``Beat``), None if it does not wait.
    """

    draft: int
    pipeline: int
    segments: tuple[Segment, ...]
    beat: int | None = None

    def holding(self, segments: tuple[Segment, ...]) -> Flight:
        return Flight(self.draft, self.pipeline, segments, self.beat)

    @property
    def going_back(self) -> Flight:
        """The same flight with the parts of its segments that go back."""
        kept = tuple([segment.going_back for segment in self.segments])
        return self if kept == self.segments else self.holding(kept)

    @property
    def answered_rows(self) -> int:
        return sum([len(segment.answered) for segment in self.segments])

    @property
    def decisions(self) -> int:
        """Number of its segments that are decided on."""
        return sum([segment.decided for segment in self.segments])

    @property
    def rows(self) -> int:
        segments = self.segments
        if len(segments) == 1:  # nearly always
            return len(segments[0].tokens)
        return sum([len(segment.tokens) for segment in segments])

    @property
    def state_rows(self) -> int:
        """Number of rows whose hidden states travel: those that the first stage does not embed."""
        return self.rows

    @property
    def session(self) -> int:
        """The first segment's session, 0 without segments; for traces."""
        return self.segments[0].session if self.segments else 0

    def size_bytes(self, row_bytes: int) -> int:
        """Bytes on a link: ids, and a hidden state of ``row_bytes``, per row."""
        return HEADER_BYTES + self.rows * (row_bytes + ROW_BYTES)

    def within(self, limits: MessageLimits) -> bool:
        few = self.rows <= limits.rows and len(self.segments) <= limits.rows
        known = limits.name(self.draft, self.pipeline) and _counts(self.beat or 0)
        return few and known and all(segment.within(limits) for segment in self.segments)


@record
class Verified:
    """A flight on its way back from a pipeline's end that has taken the target's tokens itself.

    Attributes:
        flight: the flight with the segments as they left the last stage.
        answers: per segment the target's token at each row that is ``answered``; empty for a
            session that is over.
        states: per segment the rows whose final hidden states travel, for a draft that reads them:
            all that the tokens so far accept.
        decided_ms: time at which the pipeline had decided, on the run's clock.
    """

    flight: Flight
    answers: tuple[tuple[int, ...], ...]
    states: tuple[tuple[int, ...], ...] = ()
    decided_ms: float = 0.0

    @property
    def going_back(self) -> Verified:
        """The same without the rows that are not ``answered``; without states."""
        return replace(self, flight=self.flight.going_back, states=())

    @property
    def rows(self) -> int:
        return self.flight.rows

    @property
    def state_rows(self) -> int:
        return sum([len(rows) for rows in self.states])

    @property
    def session(self) -> int:
        """The first segment's session, 0 without segments; for traces."""
        return self.flight.session

    def size_bytes(self, row_bytes: int) -> int:
        """Bytes on a link: ids per row, and the hidden states that travel."""
        return HEADER_BYTES + self.rows * ROW_BYTES + self.state_rows * row_bytes

    def within(self, limits: MessageLimits) -> bool:
        segments = self.flight.segments
        return (
            self.flight.within(limits)
            and len(self.answers) == len(segments)
            and len(self.states) in (0, len(segments))
            and all(_between(each, NO_TOKEN, limits.vocabulary) for each in self.answers)
            and all(_between(each, 0, limits.rows) for each in self.states)
            and self.state_rows <= limits.rows
            and math.isfinite(self.decided_ms)
        )


def judged_rows(answers: Sequence[Sequence[int]]) -> int:
    """Count the rows of all segments that have the target's token."""
    return sum([len(tokens) - tokens.count(NO_TOKEN) for tokens in answers])


class _Rowless:
    __slots__ = ()
    rows = state_rows = 0

    def size_bytes(self, row_bytes: int) -> int:
        return HEADER_BYTES


@record
class Beat(_Rowless):
    """Words of different sessions, broadcast together to all stages of a pipeline.

    Attributes:
        words: at most one per session.
        number: number of the returned flight, if the whole pipeline runs in lock-step.
    """

    draft: int
    words: tuple[Word, ...]
    number: int | None = None

    @property
    def session(self) -> int:
        """The first word's session, 0 without words; for traces."""
        return self.words[0].session if self.words else 0

    def size_bytes(self, row_bytes: int) -> int:
        """Bytes on a link: one index per retained node."""
        return HEADER_BYTES + 4 * sum([len(word.retained or ()) for word in self.words])

    def within(self, limits: MessageLimits) -> bool:
        known = limits.name(self.draft) and _counts(self.number or 0)
        return known and all(word.within(limits) for word in self.words)


@record
class Through:
    """Report that a group of stages has computed a flight of a pipeline in lock-step; the last
    group's result replaces its report. ``group`` counts from 0 along the pipeline; ``beat`` is the
    flight's number; ``state_rows`` is the number of hidden states of the flight that go with it."""

    draft: int
    pipeline: int
    group: int
    beat: int
    state_rows: int = 0

    rows: ClassVar[int] = 0

    @property
    def session(self) -> int:
        return 0

    def size_bytes(self, row_bytes: int) -> int:
        return HEADER_BYTES + self.state_rows * row_bytes

    def within(self, limits: MessageLimits) -> bool:
        known = limits.name(self.draft, self.pipeline) and _counts(self.group, self.beat)
        return known and 0 <= self.state_rows <= limits.rows


@record
class Close(_Rowless):
    """The end of a session: receivers free its resources."""

    session: int

    def within(self, limits: MessageLimits) -> bool:
        return _counts(self.session)


@record
class Text:
    """Tokens of a draft that its neighbour in a hierarchy of models hears of: ``tokens`` stand in
    its text (prompt included) from place ``start`` on, and nothing stands behind them. ``final``
    is the number of final tokens in the text; 0 in what a draft tells the one above it."""

    session: int
    start: int
    tokens: tuple[int, ...]
    final: int = 0

    state_rows: ClassVar[int] = 0

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def size_bytes(self, row_bytes: int) -> int:
        """Bytes on a link: one token id each."""
        return HEADER_BYTES + 4 * len(self.tokens)

    def within(self, limits: MessageLimits) -> bool:
        known = _counts(self.session, self.start, self.final)
        few = max(self.start, self.final) + len(self.tokens) <= 2 * (limits.entries + SPARE)
        return known and few and _between(self.tokens, 0, limits.vocabulary)


Message: TypeAlias = Flight | Verified | Beat | Through | Close | Text
