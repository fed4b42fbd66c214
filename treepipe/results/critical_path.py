"""Shares of a token's time along its critical path, by place and reason.

Only shares of recorded time are computed here, which add up to 1; ``sim/causes.py`` finds what
released each step. The time is that from a request's first token to its end, as in the time between
tokens, and each request has a weight proportional to its length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from treepipe.core.requests import RequestTrace

ARRIVALS = "arrivals"
"""The place of waits for the next request, which comes from outside the system."""
Why: TypeAlias = Literal["work", "refill", "barrier", "queueing"]
"""Why a moment is on the path. ``barrier``: a segment waited at its stage for a word; ``queueing``:
something waited for a busy place; ``refill``: neither, but it is the first step of a round, after a
miss that left nothing under way; ``work``: all else."""
REASONS: tuple[Why, ...] = get_args(Why)
WORDS: Mapping[Why, str] = {
    "work": "work",
    "refill": "refills after misses",
    "barrier": "waiting for the barrier",
    "queueing": "queueing",
}
NEGLIGIBLE = 0.005
"""Share of a reason below which a sentence does not name it."""
SMALL = 0.02
"""Share of a place below which a sentence does not name it; there are many places."""
Place = TypeVar("Place", bound=str)


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time of a request's critical path at a place (a role, or a link "a->b"), and its reason."""

    session: int
    place: str
    why: Why
    time_ms: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Shares of the time on critical paths; empty where no time passed.

    Attributes:
        places: shares by place, the largest first.
        reasons: shares of the same time by reason, zero shares left out.
    """

    places: Mapping[str, float]
    reasons: Mapping[Why, float]

    @property
    def binds(self) -> str | None:
        """Place with the largest share; None where no time passed."""
        return next(iter(self.places), None)

    def to_json(self) -> dict[str, Any]:
        """Return the entries for a result and for a plan."""
        return {
            "critical_path": dict(self.places),
            "critical_path_reasons": dict(self.reasons),
            "binds": self.binds,
        }

    @property
    def note(self) -> list[str]:
        """What binds, with its share of a token's time, and the reasons on the path."""
        if self.binds is None:
            return []
        whys = ", ".join(f"{WORDS[y]} {s:.0%}" for y, s in self.reasons.items() if s >= NEGLIGIBLE)
        return [f"Binds: {self.binds}, {self.places[self.binds]:.0%} of a token's time ({whys})."]

    @property
    def sentences(self) -> list[str]:
        """The path in words."""
        if not self.places:
            return []
        named = {name: share for name, share in self.places.items() if share >= SMALL}
        rest = 1.0 - sum(named.values())
        shown = ", ".join(f"{name} {share:.0%}" for name, share in named.items())
        others = f", {len(self.places) - len(named)} others {rest:.0%}" if rest > NEGLIGIBLE else ""
        return [f"Critical path of a token: {shown}{others}.", *self.note]


def added_up(parts: Iterable[PathPart]) -> CriticalPath:
    """Add up the paths of several requests.

    >>> found = added_up([PathPart(1, "a", "work", 1.0), PathPart(1, "b", "barrier", 3.0)])
    >>> found.binds, found.places, found.reasons
    ('b', {'b': 0.75, 'a': 0.25}, {'work': 0.25, 'barrier': 0.75})
    """
    kept = list(parts)
    places = _shares(kept, lambda part: part.place)
    reasons = _shares(kept, lambda part: part.why)
    ranked = dict(sorted(places.items(), key=lambda item: (-item[1], item[0])))
    return CriticalPath(ranked, {why: reasons[why] for why in REASONS if why in reasons})


def edges(request: RequestTrace) -> list[tuple[float, float, Why]]:
    """Return the times between a request's emissions, and whether each is a refill: the first of a
    round with several emissions (in others, every step begins with nothing under way)."""
    times = [time for time, _ in request.emitted]
    steps = [sum(map(bool, each.committed_per_step)) for each in request.rounds]
    firsts = set(itertools.accumulate([0, *steps])) if len(times) - 1 > len(steps) else set[int]()
    edges: list[tuple[float, float, Why]] = [
        (begin, end, "refill" if number in firsts else "work")
        for number, (begin, end) in enumerate(itertools.pairwise(times))
    ]
    if times and request.finished_ms > times[-1]:
        edges.append((times[-1], request.finished_ms, "work"))
    return edges


def _shares(parts: Iterable[PathPart], key: Callable[[PathPart], Place]) -> dict[Place, float]:
    found = dict[Place, float]()
    for part in parts:
        found[key(part)] = found.get(key(part), 0.0) + part.time_ms
    whole = sum(found.values())
    return {name: time / whole for name, time in found.items()} if whole else {}
