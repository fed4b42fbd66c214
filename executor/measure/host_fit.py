"""Fit a host's terms (``physics/timing.py``) to the traces of real runs.

Each piece of work is split into the milliseconds during which 1, 2, ... roles of the host were
busy. While more were busy than there are processors, it had one for its share of the time. Its time
alone is the sum of these, each divided by the factor of that number of roles. Equal
pieces (same role and rows) should then take equally long, so least squares find the factors. All
other terms are trimmed means. The level of passes over all rows is fitted to their total time,
which includes moments in which other programs had the processor.

A role's small work (polls that find nothing, and a stage's rules) belongs to what follows it: to a
wait, to a message, or to a pass. The first of messages that are read together takes longer.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from statistics import harmonic_mean
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import least_squares

from treepipe.core.messages import HEADER_BYTES, ROW_BYTES
from treepipe.physics.timing import Factor, TimeTable
from treepipe.results.trace import Kind, Span, Trace, gauges_ms
from treepipe.scenario.deployment import Deployment

Value = TypeVar("Value")
Floats: TypeAlias = npt.NDArray[np.float64]
_KindFit: TypeAlias = tuple[dict[int, float], dict[int, float], dict[int, list[float]]]
"""Factors by rows, factors by place, and the single ratios by rows."""
AT_REST: frozenset[Kind] = frozenset({"wait", "wake"})
"""Kinds of spans that need no processor."""
EVENTS: Mapping[Kind, str] = {"wake": "wait", "compute": "stage", "draft": "draft"}
"""What the spans tell that a role's small work belongs to, beside messages: a wait that ends, a
stage's pass, a draft pass."""
LEAST = 5
"""Fewest equal pieces for which a median is computed."""
EDGE_MS = 0.02
"""Readings closer than this belong to one moment."""
RARE = 0.05
"""Share of the longest and of the shortest pieces that a mean leaves out."""
WARM = 5
"""Place after a wait from which draft passes no longer become faster."""
LEAST_SHARE = 0.1
"""Lower bound of a role's speed beside others, relative to its speed alone."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work.

    Attributes:
        of: kind of work and role; pieces with the same value share a table.
        rows: rows, or bytes of a message.
        shared_ms: milliseconds of the piece by the number of busy roles, from 1 on.
        place: number of a draft pass since the role last waited, from 1 to ``WARM``; of a received
            message 1 if it is the first of those read together, else 2.
    """

    of: str
    rows: int
    shared_ms: Floats
    place: int = 1

    @property
    def length(self) -> float:
        return float(self.shared_ms.sum())


@dataclass(frozen=True, slots=True)
class FittedHost:
    """A host's fitted terms, as ``HostProfile`` documents them; times are milliseconds.

    Attributes:
        factors: kind of work ("stage", "draft", "evaluate") -> rows -> factor on the table.
        messages: "send" and "receive": bytes -> ms.
        look: further, of the first of messages that are read together.
        spread: key -> knots -> interquartile range over the median.
        pieces: number of pieces that the fit rests on.
    """

    factors: Mapping[str, Mapping[int, float]]
    cold: Mapping[int, float]
    messages: Mapping[str, Mapping[int, float]]
    look: float
    desk: Mapping[int, float]
    together: Mapping[int, float]
    wake: float
    gauge: float | None
    variation: float
    spread: Mapping[str, Mapping[int, float]]
    pieces: int


@dataclass(slots=True)
class Observed:
    """Pieces of one host's work, collected from one trace after another; ``processors`` is the
    number of roles that can be at work at once, and ``heard`` the processors' worth of other
    processes' work, run by run."""

    processors: int | None = None
    passes: list[Piece] = field(default_factory=list)
    messages: list[Piece] = field(default_factory=list)
    decisions: list[Piece] = field(default_factory=list)
    between: list[Piece] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    wakes: list[float] = field(default_factory=list)
    gauges: list[float] = field(default_factory=list)
    tables: dict[str, TimeTable] = field(default_factory=dict)
    heard: list[float] = field(default_factory=list)

    def add(self, trace: Trace, deployment: Deployment, roles: Collection[str]) -> None:
        """Collect the pieces of the host's ``roles`` from a run of the deployment."""
        own = {name: [s for s in trace.spans if s.device == name] for name in roles}
        for spans in own.values():
            spans.sort(key=lambda span: span.start_ms)
        everything = list(itertools.chain(*own.values()))
        company = Concurrency(own.values(), self.processors)
        here = all(each.worker is None for each in deployment.roles.placed if each.name in own)
        if here and trace.company is not None:
            self.heard.append(trace.company)
        packed = Moments((s.start_ms, s.length_ms) for s in everything if s.kind == "send")
        messages = [*_sizes(trace, deployment)]
        self.gauges += gauges_ms(everything)
        for placed in deployment.roles.placed:
            if placed.name not in own:
                continue
            name, times, spans = placed.name, placed.times, own[placed.name]
            sent = Moments((span.start_ms, size) for at, _, span, size in messages if at == name)
            came = [(span.end_ms, size, at) for at, to, span, size in messages if to == name]
            heard = Moments((at, size) for at, size, _ in came)
            strange = Moments((at, sender not in own) for at, _, sender in came)
            self.wakes += [
                # A wake-up includes the packing of its message, which it begins with.
                max(0.0, woken.length_ms - sum(packed.within(woken.start_ms, woken.start_ms)[:1]))
                for woken in _woken(spans, strange)
                if company.leaves_room(woken.start_ms)  # else it may have waited, too
            ]
            tables = {"stage": times.stage, "draft": times.draft, "evaluate": times.evaluate}
            self.tables |= {f"{kind} {name}": table for kind, table in tables.items()}
            self.passes += [
                Piece(f"{kind} {name}", rows, company.of(start, end), place)
                for kind, rows, start, end, place in _passes(spans)
            ]
            self.messages += _messages("send", spans, sent, company)
            self.messages += _messages("receive", spans, heard, company)
            self.events["receive"] += len(came)
            self.events += Counter(EVENTS[s.kind] for s in spans if s.kind in EVENTS)
            drafts = placed in deployment.roles.drafts
            self.between += [
                Piece(event, 1, company.of(span.start_ms, span.end_ms))
                for event, span in _between(spans, heard, drafts)
            ]
            if drafts:
                self.decisions += _decisions(spans, heard, company)

    def fit(self) -> FittedHost:
        """Fit all terms except those of kinds of work with too few pieces."""
        together = _together(self.passes)
        divisor = np.array([together[k] for k in sorted(together)])
        small = defaultdict[str, float](float)
        for piece in self.between:
            small[piece.of] += _alone(piece, divisor) / max(1, self.events[piece.of])
        kinds = ("stage", "draft", "evaluate")
        fits = {kind: self._fit_kind(kind, divisor, small[kind]) for kind in kinds}
        residuals = [
            float(value)
            for _, _, binned in fits.values()
            for each in binned.values()
            for value in np.log(np.array(each) / np.median(each))
        ]
        sent, received = (
            [piece for piece in self.messages if piece.of == what] for what in ("send", "receive")
        )
        first = [piece for piece in received if piece.place == 1]
        later = [piece for piece in received if piece.place > 1]
        apart = bool(first) and len(later) >= LEAST
        lines = {"send": sent, "receive": later if apart else received}
        messages = {what: _line(pieces, divisor) for what, pieces in lines.items() if pieces}
        look = 0.0
        if apart:
            usual = TimeTable(messages["receive"])
            look = max(0.0, _mean([_alone(piece, divisor) - usual(piece.rows) for piece in first]))
        desk = _binned((piece.rows, _alone(piece, divisor)) for piece in self.decisions)
        return FittedHost(
            {kind: factors for kind, (factors, _, _) in fits.items()},
            fits["draft"][1],
            messages,
            look,
            {rows: _mean(each) for rows, each in desk.items()},
            together,
            (_mean(self.wakes) if self.wakes else 0.0) + small["wait"],
            harmonic_mean(self.gauges) if self.gauges else None,
            float(stats.iqr(residuals)) / 1.349 if residuals else 0.0,
            {
                f"{kind}_factor": {rows: spread_of(each) for rows, each in binned.items()}
                for kind, (_, _, binned) in fits.items()
            },
            len(self.passes) + len(self.messages) + len(self.decisions),
        )

    def _fit_kind(self, kind: str, divisor: Floats, small_ms: float) -> _KindFit:
        pieces = [p for p in self.passes if p.of.split()[0] == kind]
        timed = [(piece, ms) for piece in pieces if (ms := self.tables[piece.of](piece.rows))]
        own = [
            (piece.rows, piece.place, (_alone(piece, divisor) + small_ms) / ms)
            for piece, ms in timed
        ]
        warm = _seen_warm(own) if kind == "draft" else own
        further = _cold(warm) if kind == "draft" else {}
        binned = _binned((rows, ratio / further.get(place, 1)) for rows, place, ratio in warm)
        usual = Factor({rows: _mean(each) for rows, each in binned.items()})
        further = _with_first(further, own, usual)
        level = _level(own, [ms for _, ms in timed], usual, further)
        return {rows: level * usual(rows) for rows in binned}, further, binned


def _sizes(trace: Trace, deployment: Deployment) -> Iterator[tuple[str, str, Span, int]]:
    """Yield sender, receiver, span and bytes of each message."""
    for span in trace.spans:
        if span.kind == "transfer":
            sender, receiver = span.device.split("->")
            row = ROW_BYTES + deployment.roles.sent_row_bytes(sender)
            yield sender, receiver, span, HEADER_BYTES + span.tokens * row


class Moments(Generic[Value]):
    """Values at moments of a run, as bytes of messages when they were sent."""

    def __init__(self, pairs: Iterable[tuple[float, Value]]) -> None:
        ordered = sorted(pairs, key=lambda pair: pair[0])
        self._times, self._values = [at for at, _ in ordered], [value for _, value in ordered]

    def within(self, start_ms: float, end_ms: float) -> list[Value]:
        """Return the values from ``EDGE_MS`` before an interval to ``EDGE_MS`` after it."""
        first = bisect_left(self._times, start_ms - EDGE_MS)
        return self._values[first : bisect_left(self._times, end_ms + EDGE_MS)]

    def following(self, at_ms: float) -> Value | None:
        """Return the first value since ``EDGE_MS`` before a moment, or None."""
        first = bisect_left(self._times, at_ms - EDGE_MS)
        return self._values[first] if first < len(self._values) else None


class Concurrency:
    """Number of the host's busy roles over the time of a run."""

    def __init__(self, roles: Iterable[Sequence[Span]], processors: int | None = None) -> None:
        roles = list(roles)
        self._most = min(processors or len(roles), len(roles))
        edges = [
            (at, step)
            for spans in roles
            for span in spans
            if span.kind not in AT_REST
            for at, step in ((span.start_ms, 1), (span.end_ms, -1))
        ]
        edges.sort()
        self._times = np.array([at for at, _ in edges] or [0.0])
        count = np.clip(np.cumsum([step for _, step in edges] or [0]), 0, len(roles))
        lengths = np.diff(self._times, append=self._times[-1])
        self._spent = np.array(
            [
                np.concatenate([[0.0], np.cumsum(np.where(count == k, lengths, 0.0))[:-1]])
                for k in range(1, len(roles) + 1)
            ]
        )

    def of(self, start_ms: float, end_ms: float) -> Floats:
        """Split a piece's milliseconds at a processor by the number of processors at work."""
        found, most = self._split(start_ms, end_ms), self._most
        shares = most / np.arange(most, len(found) + 1)
        return np.append(found[: most - 1], found[most - 1 :] @ shares)

    def leaves_room(self, at_ms: float) -> bool:
        """Whether a processor was free just after this time."""
        return not self._split(at_ms, at_ms + EDGE_MS)[self._most - 1 :].any()

    def _split(self, start_ms: float, end_ms: float) -> Floats:
        """Split an interval into its milliseconds with 1, 2, ... busy roles."""
        ends = np.array([start_ms, end_ms])
        return np.array([np.diff(np.interp(ends, self._times, row))[0] for row in self._spent])


def _woken(spans: Sequence[Span], arrived: Moments[bool]) -> Iterator[Span]:
    """Yield wake-ups by messages of the same host; ``arrived`` marks those from another host."""
    return (s for s in spans if s.kind == "wake" and not arrived.following(s.end_ms))


def _passes(spans: Sequence[Span]) -> Iterator[tuple[str, int, float, float, int]]:
    """Yield kind, rows, start, end and place of each pass; a stage's pass includes its masks."""
    place = 0
    for before, span in itertools.pairwise([*spans[:1], *spans]):
        if span.kind in AT_REST or span.start_ms - before.end_ms > EDGE_MS:
            place = 0
        if span.kind == "compute":
            masked = before.kind == "mask" and span.start_ms - before.end_ms < EDGE_MS
            yield "stage", span.tokens, (before if masked else span).start_ms, span.end_ms, 1
        elif span.kind in ("draft", "evaluate") and span.tokens:
            drafts = span.kind == "draft"
            place = min(place + drafts, WARM)
            yield span.kind, span.tokens, span.start_ms, span.end_ms, place if drafts else 1


def _seen_warm(passes: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Keep passes in octaves of rows that also occur directly after other passes.

    The first pass after a wait reads committed rows, projects only the last one, and finds cold
    caches, which costs about the same for any number of rows; it does not predict later passes.
    Without any later pass, all passes are kept.
    """
    warm = {_octave(rows) for rows, place, _ in passes if place > 1}
    return [each for each in passes if _octave(each[0]) in warm] or list(passes)


def _cold(passes: Sequence[tuple[int, int, float]]) -> dict[int, float]:
    """Factor by a pass's place since the last wait, relative to the last place; never rising.

    Each pass has rows, place, and ratio to the table. Least squares of logarithms have one term for
    each octave of rows and one for each place.
    """
    counts = Counter(_octave(rows) for rows, _, _ in passes)
    octaves = [octave for octave, count in sorted(counts.items()) if count >= LEAST]
    kept = [each for each in passes if _octave(each[0]) in octaves]
    found = sorted({place for _, place, _ in kept})
    if len(found) < 2:
        return {}
    terms = np.zeros((len(kept), len(octaves) + len(found)))
    for row, (rows, place, _) in zip(terms, kept, strict=True):
        row[octaves.index(_octave(rows))] = row[len(octaves) + found.index(place)] = 1
    ratios = np.log([ratio for _, _, ratio in kept])

    def away(values: Floats) -> Floats:
        return terms @ values - ratios

    solved = least_squares(away, np.zeros(terms.shape[1]), loss="soft_l1", f_scale=0.1).x
    cold = np.exp(solved[len(octaves) :] - solved[-1])
    falling = np.maximum.accumulate(cold[::-1])[::-1]
    return dict(zip(found, map(float, falling), strict=True))


def _with_first(
    cold: Mapping[int, float], passes: Sequence[tuple[int, int, float]], factor: Factor
) -> dict[int, float]:
    """Set the factor of first passes in ``cold`` to their mean; ``factor`` holds for later ones."""
    first = [ratio / factor(rows) for rows, place, ratio in passes if place == 1]
    if 1 not in cold or not first:
        return dict(cold)
    return {**cold, 1: max(_mean(first), *(cold[place] for place in cold if place > 1))}


def _level(
    passes: Sequence[tuple[int, int, float]],
    tables: Sequence[float],
    usual: Factor,
    cold: Mapping[int, float],
) -> float:
    """Ratio of all passes' total time to their ``usual`` time, so that rare long passes count."""
    took = sum(ratio * ms for (_, _, ratio), ms in zip(passes, tables, strict=True))
    told = sum(
        usual(rows) * cold.get(place, 1.0) * ms
        for (rows, place, _), ms in zip(passes, tables, strict=True)
    )
    return took / told if told else 1.0


def _messages(
    what: Kind, spans: Sequence[Span], sizes: Moments[int], company: Concurrency
) -> Iterator[Piece]:
    """Yield the packing or unpacking of single messages, given their bytes."""
    place = 1
    for span in spans:
        begun = span.start_ms + (EDGE_MS if what == "receive" else 0.0)
        if span.kind == what and len(sized := sizes.within(begun, span.end_ms)) == 1:
            yield Piece(what, sized[0], company.of(span.start_ms, span.end_ms), place)
            place = 2
        elif span.kind not in ("receive", "desk", "control"):
            place = 1


def _between(
    spans: Sequence[Span], heard: Moments[int], drafts: bool
) -> Iterator[tuple[str, Span]]:
    """Yield polls without a message, and a stage's rules, each with the event that follows it."""
    small: list[Span] = []
    for span in spans:
        reads = span.kind == "receive" and heard.within(span.start_ms + EDGE_MS, span.end_ms)
        if (span.kind == "receive" and not reads) or (
            span.kind in ("desk", "control") and not drafts
        ):
            small.append(span)
        elif event := "receive" if reads else EVENTS.get(span.kind):
            yield from ((event, each) for each in small)
            small = []


def _decisions(spans: Sequence[Span], heard: Moments[int], company: Concurrency) -> Iterator[Piece]:
    """Yield the draft server's decisions after each pass and each arrival of rows."""
    rows = 0
    parts: list[Floats] = []
    for span in spans:
        if span.kind in ("desk", "decide", "control"):
            if rows:
                parts.append(company.of(span.start_ms, span.end_ms))
            continue
        receives = span.kind == "receive" and heard.within(span.start_ms + EDGE_MS, span.end_ms)
        begins = span.kind in ("draft", "evaluate") or receives
        if begins or span.kind == "wait":
            if rows and parts:
                yield Piece("desk", rows, np.sum(parts, axis=0))
            rows, parts = (max(1, span.tokens) if begins else 0), []


def _together(pieces: Sequence[Piece]) -> dict[int, float]:
    """Factors by the number of busy roles, fitted so that equal pieces take equally long alone."""
    groups: dict[tuple[str, int, int], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.of, piece.rows, piece.place), []).append(piece)
    alike = [_usual(group) for group in groups.values() if len(group) >= LEAST]
    roles = max((len(piece.shared_ms) for piece in pieces), default=1)
    if not alike or roles == 1:
        return {1: 1.0}
    lengths = [np.log([piece.length for piece in group]) for group in alike]
    shares = [np.array([piece.shared_ms / piece.length for piece in group]) for group in alike]

    def unlike(speeds: Floats) -> Floats:
        """Log deviation of pieces from equal ones, given the speeds with 2, 3, ... busy roles."""
        factors = np.concatenate([[1.0], speeds])
        alone = [each + np.log(part @ factors) for each, part in zip(lengths, shares, strict=True)]
        return np.concatenate([each - each.mean() for each in alone])

    start, lower = np.full(roles - 1, 0.7), np.full(roles - 1, LEAST_SHARE)
    found = least_squares(unlike, start, bounds=(lower, 1.0), loss="soft_l1", f_scale=0.1).x
    slowest = np.maximum.accumulate(1 / found)  # more busy roles never help
    return {1: 1.0, **{k: float(each) for k, each in enumerate(slowest, start=2)}}


def _usual(group: Sequence[Piece]) -> list[Piece]:
    """Drop pieces longer than three times the median, which other programs disturbed."""
    most = 3 * np.median([piece.length for piece in group])
    return [piece for piece in group if piece.length <= most]


def _alone(piece: Piece, divisor: Floats) -> float:
    return float((piece.shared_ms / divisor[: len(piece.shared_ms)]).sum())


def _octave(rows: int) -> int:
    return round(log2(rows))


def _binned(pairs: Iterable[tuple[int, float]]) -> dict[int, list[float]]:
    """Group values by octave of rows, keyed by the octave's median; small octaves are dropped."""
    octaves: dict[int, list[tuple[int, float]]] = {}
    for rows, value in pairs:
        octaves.setdefault(_octave(rows), []).append((rows, value))
    return {
        round(float(np.median([rows for rows, _ in each]))): [value for _, value in each]
        for _, each in sorted(octaves.items())
        if len(each) >= LEAST
    }


def _mean(values: Sequence[float] | Floats) -> float:
    return float(stats.trim_mean(values, RARE))


def spread_of(values: Sequence[float]) -> float:
    """Interquartile range over the median."""
    return float(stats.iqr(values) / np.median(values))


def _line(pieces: Sequence[Piece], divisor: Floats) -> dict[int, float]:
    """Fit a line by the median of slopes; return its value at the smallest and largest size."""
    sizes = np.array([piece.rows for piece in pieces])
    times = np.array([_alone(piece, divisor) for piece in pieces])
    ends = sorted({int(sizes.min()), int(sizes.max())})
    if len(ends) == 1:
        return {ends[0]: _mean(times)}
    slope = stats.theilslopes(times, sizes)[0]
    intercept = _mean(times - slope * sizes)
    return {end: max(0.0, float(intercept + slope * end)) for end in ends}
