"""Records as bytes: a mark for the kind of record, then MessagePack; no pickles.

Law of this file: bytes become a record of one of the kinds asked for, every value of its declared
type, or ``BrokenRecordError`` is raised; nothing that they say is ever called or imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from treepipe.core.schedules import Chosen, systems
from treepipe.physics.timing import ServiceTable, TimeTable
from treepipe.scenario.schema import SamplingSection, SourceSection


class BrokenRecordError(Exception):
    """These bytes are no record of the kinds that may come here; no word of them is told."""


class Codec:
    """Turns records of some kinds into bytes and back."""

    def __init__(self, kinds: Sequence[type]) -> None:
        """Args: ``kinds``: dataclasses, in the same order at both ends."""
        self._kinds = tuple(kinds)
        self._marks = {kind: bytes([place]) for place, kind in enumerate(kinds)}
        self._encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode

    def encoded(self, record: object) -> bytes:
        return self._marks[type(record)] + self._encode(record)

    def decoded(self, data: bytes | memoryview) -> Any:
        """Raises ``BrokenRecordError``."""
        view = memoryview(data)
        if not len(view) or view[0] >= len(self._kinds):
            raise BrokenRecordError("is of no known kind")
        kind = self._kinds[view[0]]
        try:
            return _decoder(kind).decode(view[1:])
        except Exception:  # whatever making a class of values that do not fit raises
            raise BrokenRecordError(f"is no {kind.__name__}") from None


@cache
def _decoder(kind: type) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_made)


def _plain(value: Any) -> Any:
    """What MessagePack has no word for, in words that it has."""
    match value:
        case range():
            return value.start, value.stop
        case Path():
            return str(value)
        case ServiceTable():
            return [(context, table.points) for context, table in value.by_context.items()]
        case TimeTable():
            return [(-1, value.points)]
        case SamplingSection() | SourceSection():
            return value.model_dump()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _table(tables: Sequence[Sequence[Any]]) -> TimeTable:
    found = {int(context): _points(points) for context, points in tables}
    return TimeTable(found[-1]) if -1 in found else ServiceTable(found)


def _points(points: Mapping[Any, Any]) -> dict[int, float]:
    found = {int(tokens): float(ms) for tokens, ms in points.items()}
    if not found:
        raise ValueError("a table has a point")
    return found


def _chosen(value: Mapping[str, Any]) -> Chosen:
    parameters = systems()[value["name"]].parameters
    given = msgspec.convert(value["parameters"], parameters, strict=True)
    drawn, reads_states = bool(value["drawn"]), bool(value["reads_states"])
    return Chosen(value["name"], given, drawn, reads_states)


_MADE: Mapping[Any, Callable[[Any], Any]] = {
    range: lambda ends: range(*map(int, ends)),
    Path: Path,
    TimeTable: _table,
    SamplingSection: SamplingSection.model_validate,
    SourceSection: SourceSection.model_validate,
}


def _made(kind: Any, value: Any) -> Any:
    """A value of a class that MessagePack knows nothing of; what is left is a ``NewSchedule``."""
    make: Callable[[Any], Any] = _MADE.get(kind, _chosen)
    return make(value)
