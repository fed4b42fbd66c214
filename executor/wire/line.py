"""A line: the records between the coordinator and a worker or a daemon, by the table.

A record of a worker's line follows a secret of the two ends and its number, since a transport that
reconnects may lose, double or overtake.

Invariant: ``take`` returns the records that the other end has sent, in order, each once, and only
those that ``records.py`` lets come in the line's state. It raises ``BrokenLineError`` where the
other end is at fault, and counts and drops the rest; so does either end alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hmac import compare_digest
from typing import Any

from treepipe.core.errors import RunError
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.link_order import LinkOrder
from treepipe.executor.wire.records import CODEC, RULES, End, Heartbeat, RecordRule, State

SECRET_BYTES = 16
HEAD = struct.Struct(f"!{SECRET_BYTES}sQ")
"""In front of a record: the line's secret, and the record's number from 0 (a beat has none)."""
LINK = "", ""


class BrokenLineError(Exception):
    """The other end sent something that the table refuses; the error repeats none of it."""


class Rules:
    """One end of a line's conversation by the table: its state, and bounds.

    Attributes:
        state: of the line, as this end knows it.
        dropped: records that were ignored.
    """

    def __init__(self, end: End, state: State) -> None:
        self.state, self.dropped, self._end = state, 0, end

    def encoded(self, record: object, receiver: End) -> bytes:
        """Encode a record that this end may send now. Raises ``RunError`` beyond its bound."""
        rule = RULES[type(record), receiver]
        assert rule.sender == self._end, record
        assert self.state in rule.states, (record, self.state)
        data = CODEC.encoded(record)
        if len(data) > rule.most_bytes:
            raise RunError(
                f"a record {rule.kind.__name__} of {len(data)} bytes is longer than the "
                f"{rule.most_bytes} that its receiver takes"
            )
        self.state = rule.then or self.state
        return data

    def decoded(self, data: bytes | memoryview) -> tuple[Any, RecordRule]:
        """Decode a record for this end, whatever the state. Raises ``BrokenRecordError``."""
        rule = RULES.get((CODEC.kind(data), self._end))
        if rule is None or len(data) > rule.most_bytes:
            raise BrokenRecordError("is no record for this end, or too long")
        return CODEC.decoded(data), rule

    def admits(self, record: Any, rule: RecordRule) -> bool:
        """Whether the record may come now; then it has. Raises ``BrokenLineError``."""
        if self.state in rule.states:
            self.state = rule.then or self.state
            return True
        if rule.otherwise == "refused" and self.state != "over":
            raise BrokenLineError(f"sent {rule.kind.__name__} where the line is {self.state}")
        self.dropped += 1
        return False


class Line(Rules):
    """One end of the line between the coordinator and a worker.

    Attributes:
        sent, taken: numbers of records, so far.
    """

    def __init__(self, end: End, secret: bytes) -> None:
        super().__init__(end, "started")
        self.other: End = "worker" if end == "coordinator" else "coordinator"
        self.sent = self.taken = 0
        self._secret = secret
        self._order: LinkOrder[tuple[Any, RecordRule]] = LinkOrder()

    def put(self, record: object) -> bytes:
        """Encode the next record, with its head. Raises ``RunError`` beyond its bound."""
        data = self.encoded(record, self.other)
        self.sent += 1
        return HEAD.pack(self._secret, self.sent - 1) + data

    def take(self, data: bytes | memoryview, now_ms: float) -> Iterator[Any]:
        """Yield the records whose turn comes with this one. Raises ``BrokenLineError``."""
        view = memoryview(data)
        if len(view) < HEAD.size or not compare_digest(view[:SECRET_BYTES], self._secret):
            self.dropped += 1
            return
        try:
            record, rule = self.decoded(view[HEAD.size :])
        except BrokenRecordError as error:
            raise BrokenLineError(f"sent something that {error}") from None
        turn: list[tuple[Any, RecordRule]] | str = [(record, rule)]
        if not isinstance(record, Heartbeat):
            turn = self._order.take(LINK, HEAD.unpack_from(view)[1], (record, rule), now_ms)
            self.taken += len(turn) if isinstance(turn, list) else 0
        if isinstance(turn, str):
            self.dropped += 1
            return
        yield from (each for each, its_rule in turn if self.admits(each, its_rule))

    def beat(self, idle: bool) -> bytes:
        """Encode a sign of life; it has no number, since a thread sends it on another
        connection, and no state, since it may come at any time."""
        return HEAD.pack(self._secret, 0) + CODEC.encoded(Heartbeat(idle, self.sent, self.taken))

    def missing(self, now_ms: float) -> int | None:
        """Return the number of a record that did not come, though later ones did; once."""
        found = self._order.missing(now_ms)
        return found[0][1] if found else None


def secret_of(data: bytes | memoryview) -> bytes:
    """Return the secret that something sent on a line begins with."""
    return bytes(data[:SECRET_BYTES])
