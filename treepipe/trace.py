"""What a run did, whichever world it ran in: spans of work, and the requests' results.

Both worlds write these records and ``metrics.py`` reads nothing else. Times are milliseconds
from the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from treepipe.draft_work import Turn
from treepipe.machine import Machine
from treepipe.protocol import RoundRecord

Kind: TypeAlias = Literal["compute", "draft", "evaluate", "decide", "prune", "transfer"]
BUSY: frozenset[str] = frozenset({"compute", "draft", "evaluate", "decide", "prune"})
"""Kinds that occupy the device they are on; transfers occupy a link."""


RUN_ENDED = "run ended"
"""Why a request ended that was open when its run failed."""


@dataclass(frozen=True, slots=True)
class Span:
    """A device (or a link, "a->b") was at one thing from ``start_ms`` to ``end_ms``.

    ``tokens`` counts the rows worked on, 0 where that means nothing.
    """

    device: str
    kind: Kind
    start_ms: float
    end_ms: float
    session: int
    tokens: int = 0

    def shifted(self, by_ms: float) -> Span:
        """The same with another origin of time."""
        return replace(self, start_ms=self.start_ms + by_ms, end_ms=self.end_ms + by_ms)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One finished request.

    Attributes:
        started_ms: when it was asked for; it may have waited since.
        emitted: (time, tokens) of each emission, in order.
        tokens: the text that was emitted.
        reason: why it ended ("length", "end of text", "worker lost", "refused", "run ended").
        pipeline: number of the pipeline that served it.
    """

    session: int
    prompt_tokens: int
    started_ms: float
    finished_ms: float
    emitted: tuple[tuple[float, int], ...]
    tokens: tuple[int, ...]
    rounds: tuple[RoundRecord, ...]
    reason: str
    pipeline: int = 0

    @classmethod
    def refused(cls, session: int, prompt_tokens: int, now_ms: float) -> RequestTrace:
        """A request that was not admitted."""
        return cls(session, prompt_tokens, now_ms, now_ms, (), (), (), "refused")

    def shifted(self, by_ms: float) -> RequestTrace:
        """The same with another origin of time."""
        return replace(
            self,
            started_ms=self.started_ms + by_ms,
            finished_ms=self.finished_ms + by_ms,
            emitted=tuple((time + by_ms, count) for time, count in self.emitted),
        )

    @property
    def first_token_ms(self) -> float:
        return self.emitted[0][0]


@dataclass(slots=True)
class Trace:
    """One run: devices in the order they are shown, spans, requests, turns, warnings.

    ``devices`` are roles; ``machines`` is what they work on, as far as it is known. A run
    that failed underway is not ``complete``: it holds requests with the text they had, no spans.
    """

    devices: tuple[str, ...]
    spans: list[Span] = field(default_factory=list)
    requests: list[RequestTrace] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    machines: tuple[Machine, ...] = ()
    complete: bool = True

    def dumps(self) -> str:
        """The whole trace as JSON text; equal runs give equal text, byte for byte."""
        return json.dumps(asdict(self), sort_keys=True)


def chrome_events(trace: Trace, process: str) -> list[dict[str, Any]]:
    """The trace as Chrome/Perfetto trace events (microseconds), one thread per device."""
    threads: dict[str, int] = {name: i for i, name in enumerate(trace.devices)}
    events: list[dict[str, Any]] = []
    for span in trace.spans:
        thread = threads.setdefault(span.device, len(threads))
        events.append(
            {
                "name": span.kind,
                "cat": span.kind,
                "ph": "X",
                "pid": process,
                "tid": thread,
                "ts": round(span.start_ms * 1e3, 3),
                "dur": round((span.end_ms - span.start_ms) * 1e3, 3),
                "args": {"session": span.session, "tokens": span.tokens},
            }
        )
    names = [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": i, "args": {"name": name}}
        for name, i in threads.items()
    ]
    return names + events


def write_chrome_trace(traces: Iterable[tuple[str, Trace]], path: Path) -> None:
    """Write named traces into one file that Perfetto and chrome://tracing open."""
    events = [event for name, trace in traces for event in chrome_events(trace, name)]
    path.write_text(json.dumps({"traceEvents": events}, indent=None))
