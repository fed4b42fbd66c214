"""From what workers of real runs were at to a host's terms (``physics/host.py``).

A piece of work is told by its time alone and its company: the milliseconds that it was under way
while 1, 2, ... roles of the host were at work. What it would have taken alone is the sum of these,
each over its factor. Pieces alike (a role, rows) are equally long alone but for chance, which is
what the factors are found by (least squares). Everything else is a mean without the rarest at both
ends; passes' level over all rows is that of all their time, as time is lost by the mean, moments
in which something else had the processor among it.

Law of this file: it knows runs only by their traces, so it cannot tell where they were made.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from statistics import harmonic_mean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import least_squares

from treepipe.core.messages import HEADER_BYTES, ROW_BYTES
from treepipe.physics.host import Factor
from treepipe.physics.timing import TimeTable
from treepipe.results.trace import Kind, Span, Trace, gauges_ms
from treepipe.scenario.deployment import Deployment

Floats: TypeAlias = npt.NDArray[np.float64]
AT_REST: frozenset[Kind] = frozenset({"wait", "wake"})
"""What needs no processor."""
LEAST = 5
"""Pieces alike, for a median."""
EDGE_MS = 0.02
"""Between two entries of a ledger, and between two clocks' readings of one moment."""
RARE = 0.05
"""Of the longest and of the shortest pieces: left out of a mean."""
WARM = 5
"""Passes without a wait, from which on the next one is as warm as they become."""
LEAST_SHARE = 0.1
"""Of its speed alone, whatever the company; keeps the fit away from none."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work, and what it is one of.

    Attributes:
        of: the role's kind of work; pieces of the same are compared with the same table.
        rows: rows, or bytes of a message.
        shared_ms: milliseconds under way by the number of roles at work, from 1 on.
        place: of a draft pass, counted from 1 since the role last waited, ``WARM`` at most.
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
    """The terms of a host, as ``HostProfile`` holds them.

    Attributes:
        factors: by kind of work ("stage", "draft", "evaluate"), rows -> factor on the table.
        cold: a draft pass's place since the role last waited -> further factor.
        messages: "send" and "receive": bytes -> ms.
        desk: rows -> ms of the draft's decisions.
        together: number of roles at work -> factor.
        wake: ms, behind the message's packing.
        gauge: ms of the workers' fixed piece of work, if they timed it.
        variation: of a piece's time, standard deviation over mean.
        spread: by key, interquartile range over the median, at its knots.
        pieces: that all of it rests on.
    """

    factors: Mapping[str, Mapping[int, float]]
    cold: Mapping[int, float]
    messages: Mapping[str, Mapping[int, float]]
    desk: Mapping[int, float]
    together: Mapping[int, float]
    wake: float
    gauge: float | None
    variation: float
    spread: Mapping[str, Mapping[int, float]]
    pieces: int


@dataclass(slots=True)
class Observed:
    """What is taken of one host from the traces, one after another."""

    passes: list[Piece] = field(default_factory=list)
    messages: list[Piece] = field(default_factory=list)
    decisions: list[Piece] = field(default_factory=list)
    between: list[Piece] = field(default_factory=list)
    arrived: int = 0
    wakes: list[float] = field(default_factory=list)
    gauges: list[float] = field(default_factory=list)
    tables: dict[str, TimeTable] = field(default_factory=dict)

    def add(self, trace: Trace, deployment: Deployment, roles: Collection[str]) -> None:
        """Args: ``deployment``: that was run; ``roles``: names of those on the host."""
        own = {name: [s for s in trace.spans if s.device == name] for name in roles}
        for spans in own.values():
            spans.sort(key=lambda span: span.start_ms)
        company = Company(own.values())
        packing = Packing([s for s in itertools.chain(*own.values()) if s.kind == "send"])
        sent: dict[str, list[tuple[float, int]]] = {name: [] for name in own}
        heard: dict[str, list[tuple[float, int]]] = {name: [] for name in own}
        strange: dict[str, list[tuple[float, bool]]] = {name: [] for name in own}
        for span in trace.spans:
            if span.kind == "transfer":
                sender, receiver = span.device.split("->")
                row_bytes = ROW_BYTES + deployment.sent_row_bytes(sender)
                size = HEADER_BYTES + span.tokens * row_bytes
                if sender in own:
                    sent[sender].append((span.start_ms, size))
                if receiver in own:
                    heard[receiver].append((span.end_ms, size))
                    strange[receiver].append((span.end_ms, sender not in own))
        self.gauges += gauges_ms(itertools.chain(*own.values()))
        for placed in deployment.placed:
            name, times = placed.name, placed.times
            if name not in own:
                continue
            self.wakes += [
                max(0.0, span.length_ms - packing.at(span.start_ms))
                for span in _woken(own[name], strange[name])
            ]
            tables = {"stage": times.stage, "draft": times.draft, "evaluate": times.evaluate}
            self.tables |= {f"{kind} {name}": table for kind, table in tables.items()}
            self.passes += [
                Piece(f"{kind} {name}", rows, company.of(start, end), place)
                for kind, rows, start, end, place in _passes(own[name])
            ]
            self.messages += _messages("send", own[name], sent[name], company)
            self.messages += _messages("receive", own[name], heard[name], company)
            self.arrived += len(heard[name])
            self.between += [
                Piece("between", 1, company.of(span.start_ms, span.end_ms))
                for span in _between(own[name], heard[name], placed in deployment.drafts)
            ]
            if placed in deployment.drafts:
                self.decisions += _decisions(own[name], heard[name], company)

    def fit(self) -> FittedHost:
        """All terms; of a kind of work with too few pieces there are none."""
        together = _together(self.passes)
        divisor = np.array([together[k] for k in sorted(together)])
        factors: dict[str, dict[int, float]] = {}
        cold: dict[int, float] = {}
        spread: dict[str, dict[int, float]] = {}
        residuals: list[float] = []
        for kind in ("stage", "draft", "evaluate"):
            pieces = [p for p in self.passes if p.of.split()[0] == kind]
            tables = [self.tables[piece.of](piece.rows) for piece in pieces]
            own = [
                (piece.rows, piece.place, _alone(piece, divisor) / table_ms)
                for piece, table_ms in zip(pieces, tables, strict=True)
                if table_ms
            ]
            warm = _seen_warm(own) if kind == "draft" else own
            further = _cold(warm) if kind == "draft" else {}
            binned = _binned((rows, ratio / further.get(place, 1)) for rows, place, ratio in warm)
            usual = Factor({rows: _mean(each) for rows, each in binned.items()})
            further = _with_first(further, own, usual)
            level = _level(own, [table_ms for table_ms in tables if table_ms], usual, further)
            factors[kind] = {rows: level * usual(rows) for rows in binned}
            cold |= further
            spread[f"{kind}_factor"] = {rows: spread_of(each) for rows, each in binned.items()}
            for each in binned.values():
                residuals += list(np.log(np.array(each) / np.median(each)))
        looks = sum(_alone(piece, divisor) for piece in self.between) / max(1, self.arrived)
        messages = {
            what: {size: ms + more for size, ms in _line(pieces, divisor).items()}
            for what, more in (("send", 0.0), ("receive", looks))
            if (pieces := [piece for piece in self.messages if piece.of == what])
        }
        desk = _binned((piece.rows, _alone(piece, divisor)) for piece in self.decisions)
        return FittedHost(
            factors,
            cold,
            messages,
            {rows: _mean(each) for rows, each in desk.items()},
            together,
            _mean(self.wakes) if self.wakes else 0.0,
            harmonic_mean(self.gauges) if self.gauges else None,
            float(stats.iqr(residuals)) / 1.349 if residuals else 0.0,
            spread,
            len(self.passes) + len(self.messages) + len(self.decisions),
        )


class Packing:
    """Messages being packed: a worker notes that it was woken from when the message's packing
    began, which is the sender's time."""

    def __init__(self, sends: Sequence[Span]) -> None:
        sends = sorted(sends, key=lambda span: span.start_ms)
        self._starts = np.array([span.start_ms for span in sends])
        self._lengths = [span.length_ms for span in sends]

    def at(self, moment_ms: float) -> float:
        """Milliseconds of the message whose packing began then; 0 if none did."""
        first = int(np.searchsorted(self._starts, moment_ms - EDGE_MS))
        if first < len(self._lengths) and self._starts[first] <= moment_ms + EDGE_MS:
            return self._lengths[first]
        return 0.0


class Company:
    """How many roles of the host were at work, at any time of a run."""

    def __init__(self, roles: Iterable[Sequence[Span]]) -> None:
        roles = list(roles)
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
        """Milliseconds between two moments with 1, 2, ... roles at work."""
        ends = np.array([start_ms, end_ms])
        return np.array([np.diff(np.interp(ends, self._times, row))[0] for row in self._spent])


def _woken(spans: Sequence[Span], arrived: Sequence[tuple[float, bool]]) -> Iterator[Span]:
    """Wakings by messages of the same host: another one's were on their way meanwhile, which is
    the link's. Args: ``arrived``: when messages did, and whether they are of another host."""
    arrived = sorted(arrived)
    times = [at for at, _ in arrived]
    for span in spans:
        if span.kind == "wake":
            place = bisect_left(times, span.end_ms - EDGE_MS)
            if place == len(arrived) or not arrived[place][1]:
                yield span


def _passes(spans: Sequence[Span]) -> Iterator[tuple[str, int, float, float, int]]:
    """Kind, rows, start, end, and a draft pass's place since the last wait; a stage's pass begins
    with its masks and caches."""
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
    """The passes of octaves of rows that were seen behind others, not only behind a wait; all of
    them if none was.

    The first pass behind a wait reads what was committed, of which it projects the last row alone,
    and finds the caches full of other things, which costs it about the same whatever its rows: it
    does not tell how long a later pass of as many rows takes. Args: ``passes``: as of ``_cold``.
    """
    warm = {_octave(rows) for rows, place, _ in passes if place > 1}
    return [each for each in passes if _octave(each[0]) in warm] or list(passes)


def _cold(passes: Sequence[tuple[int, int, float]]) -> dict[int, float]:
    """The factor by a pass's place since the last wait, over the last place's; never rising.

    Rows and places are told apart by least squares of logarithms, one term for each octave of rows
    and one for each place. Args: ``passes``: rows, place and ratio to the table.
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
    """The same, with what first passes of all numbers of rows took in the mean. Args: ``passes``:
    as of ``_cold``; ``factor``: of later ones, by rows."""
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
    """The time of all passes over what they usually take: what is lost in rare long ones, too rare
    to be told by rows, is lost all the same. Args: ``passes``: as of ``_cold``; ``tables``: their
    milliseconds by the device's table; ``usual``: their factors by rows."""
    took = sum(ratio * ms for (_, _, ratio), ms in zip(passes, tables, strict=True))
    told = sum(
        usual(rows) * cold.get(place, 1.0) * ms
        for (rows, place, _), ms in zip(passes, tables, strict=True)
    )
    return took / told if told else 1.0


def _messages(
    what: Kind, spans: Sequence[Span], moments: Sequence[tuple[float, int]], company: Company
) -> Iterator[Piece]:
    """Packing or unpacking, where one message falls into it. Args: ``moments``: when, and bytes."""
    times = np.sort(np.array([at for at, _ in moments]))
    sizes = [size for _, size in sorted(moments)]
    for span in spans:
        if span.kind == what:
            first, stop = np.searchsorted(times, [span.start_ms - EDGE_MS, span.end_ms + EDGE_MS])
            if stop - first == 1:
                yield Piece(what, sizes[first], company.of(span.start_ms, span.end_ms))


def _between(
    spans: Sequence[Span], heard: Sequence[tuple[float, int]], drafts: bool
) -> Iterator[Span]:
    """What is spent on messages beside unpacking them: looking in vain, and a stage's rules."""
    times = np.sort(np.array([at for at, _ in heard]))
    for span in spans:
        if span.kind == "receive":
            first, stop = np.searchsorted(times, [span.start_ms - EDGE_MS, span.end_ms + EDGE_MS])
            if first == stop:
                yield span
        elif span.kind in ("desk", "control") and not drafts:
            yield span


def _decisions(
    spans: Sequence[Span], heard: Sequence[tuple[float, int]], company: Company
) -> Iterator[Piece]:
    """What the draft server decides after a pass, or after rows came back."""
    rows = 0
    parts: list[Floats] = []
    arrivals = np.sort(np.array([at for at, _ in heard]))
    for span in spans:
        if span.kind in ("desk", "decide", "control"):
            if rows:
                parts.append(company.of(span.start_ms, span.end_ms))
            continue
        came = np.searchsorted(arrivals, [span.start_ms, span.end_ms + EDGE_MS])
        heard_now = span.kind == "receive" and came[0] < came[1]
        begins = span.kind in ("draft", "evaluate") or heard_now
        if begins or span.kind == "wait":
            if rows and parts:
                yield Piece("desk", rows, np.sum(parts, axis=0))
            rows, parts = (max(1, span.tokens) if begins else 0), []


def _together(pieces: Sequence[Piece]) -> dict[int, float]:
    """The factor by the number of roles at work, so that pieces alike are equally long alone."""
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
        """How far each piece is from those alike, as a logarithm. Args: ``speeds``: of 2, 3, ...
        roles at work, over one's alone."""
        factors = np.concatenate([[1.0], speeds])
        alone = [each + np.log(part @ factors) for each, part in zip(lengths, shares, strict=True)]
        return np.concatenate([each - each.mean() for each in alone])

    start, lower = np.full(roles - 1, 0.7), np.full(roles - 1, LEAST_SHARE)
    found = least_squares(unlike, start, bounds=(lower, 1.0), loss="soft_l1", f_scale=0.1).x
    slowest = np.maximum.accumulate(1 / found)  # more company never helps
    return {1: 1.0, **{k: float(each) for k, each in enumerate(slowest, start=2)}}


def _usual(group: Sequence[Piece]) -> list[Piece]:
    """All but those that took more than three times the median: something else was at work."""
    most = 3 * np.median([piece.length for piece in group])
    return [piece for piece in group if piece.length <= most]


def _alone(piece: Piece, divisor: Floats) -> float:
    return float((piece.shared_ms / divisor[: len(piece.shared_ms)]).sum())


def _octave(rows: int) -> int:
    return round(log2(rows))


def _binned(pairs: Iterable[tuple[int, float]]) -> dict[int, list[float]]:
    """Values by the median number of rows of each octave that has enough of them.

    Args: ``pairs``: rows and value.
    """
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
    """The interquartile range over the median."""
    return float(stats.iqr(values) / np.median(values))


def _line(pieces: Sequence[Piece], divisor: Floats) -> dict[int, float]:
    """Milliseconds at the smallest and the largest size, by a line with the median of slopes."""
    sizes = np.array([piece.rows for piece in pieces])
    times = np.array([_alone(piece, divisor) for piece in pieces])
    ends = sorted({int(sizes.min()), int(sizes.max())})
    if len(ends) == 1:
        return {ends[0]: _mean(times)}
    slope = stats.theilslopes(times, sizes)[0]
    intercept = _mean(times - slope * sizes)
    return {end: max(0.0, float(intercept + slope * end)) for end in ends}
