"""Records as bytes: a mark for the kind of record, then MessagePack; no pickles.

Invariant: bytes decode to a record of one of the given kinds, with every value of its declared
type, or raise ``BrokenRecordError``; no name in them is called or imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from treepipe.core.schedules import ScheduleSpec, systems
from treepipe.physics.timing import ServiceTable, TimeTable
from treepipe.scenario.schema import SamplingSection, SourceSection


class BrokenRecordError(Exception):
    """These bytes are no record of the expected kinds; the error repeats none of them."""


class Codec:
    """An encoder and decoder of some kinds of records."""

    def __init__(self, kinds: Sequence[type]) -> None:
        """Prepare kinds: dataclasses, in the same order at both ends."""
        self._kinds = tuple(kinds)
        self._marks = {kind: bytes([place]) for place, kind in enumerate(kinds)}
        self._encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode

    def encoded(self, record: object) -> bytes:
        return self._marks[type(record)] + self._encode(record)

    def kind(self, data: bytes | memoryview) -> type:
        """Return the kind of a record that is not decoded yet. Raises ``BrokenRecordError``."""
        if not len(data) or data[0] >= len(self._kinds):
            raise BrokenRecordError("is of no known kind")
        return self._kinds[data[0]]

    def decoded(self, data: bytes | memoryview) -> Any:
        """Decode a record. Raises ``BrokenRecordError``."""
        kind = self.kind(data)
        try:
            return _decoder(kind).decode(memoryview(data)[1:])
        except Exception:  # a class may raise any error for unfit values
            raise BrokenRecordError(f"is no {kind.__name__}") from None


@cache
def _decoder(kind: type) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_made)


def _plain(value: Any) -> Any:
    """Convert a value to MessagePack's own types."""
    match value:
        case range():
            return value.start, value.stop
        case Path():
            return str(value)
        case ServiceTable():
            tables = [(context, table.points) for context, table in value.by_context.items()]
            return value.request_ms, tables
        case TimeTable():
            return 0.0, [(-1, value.points)]
        case SamplingSection() | SourceSection():
            return value.model_dump()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _table(value: Sequence[Any]) -> TimeTable:
    request_ms, tables = value
    found = {int(context): _points(points) for context, points in tables}
    return TimeTable(found[-1]) if -1 in found else ServiceTable(found, float(request_ms))


def _points(points: Mapping[Any, Any]) -> dict[int, float]:
    found = {int(tokens): float(ms) for tokens, ms in points.items()}
    if not found:
        raise ValueError("a table has a point")
    return found


def _chosen(value: Mapping[str, Any]) -> ScheduleSpec:
    parameters = systems()[value["name"]].parameters
    given = msgspec.convert(value["parameters"], parameters, strict=True)
    of_draft = [
        bool(value[name]) for name in ("drawn", "reads_states", "independent_levels", "below")
    ]
    return ScheduleSpec(value["name"], given, *of_draft)


_MADE: Mapping[Any, Callable[[Any], Any]] = {
    range: lambda ends: range(*map(int, ends)),
    Path: Path,
    TimeTable: _table,
    SamplingSection: SamplingSection.model_validate,
    SourceSection: SourceSection.model_validate,
}


def _made(kind: Any, value: Any) -> Any:
    """Reverse ``_plain``; any other class is a ``NewSchedule``."""
    make: Callable[[Any], Any] = _MADE.get(kind, _chosen)
    return make(value)
