"""Where a token's time goes along its critical path: what released it, and what released that.

Law of this file: only shares of recorded time are made here, which add up to 1; what released what
is for the simulator to say (``sim/causes.py``). The time is that from a request's first token to
its end, as in the time between tokens, and each request's weighs as much as it is long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from treepipe.core.requests import RequestTrace

ARRIVALS = "arrivals"
"""Whoever waits for nothing but the next request: the outside world."""
Why: TypeAlias = Literal["work", "refill", "barrier", "queueing"]
"""Why a moment is on the path. ``barrier``: a segment was at its stage and waited for a word;
``queueing``: something waited for a place that was at something else; ``refill``: neither, but it
is the first step of a round, behind a miss that left nothing under way; ``work``: none of these."""
REASONS: tuple[Why, ...] = get_args(Why)
WORDS: Mapping[Why, str] = {
    "work": "work",
    "refill": "refills after misses",
    "barrier": "waiting for the barrier",
    "queueing": "queueing",
}
NEGLIGIBLE = 0.005
"""Of a reason; a smaller share is not named in a sentence."""
SMALL = 0.02
"""Of a place, of which there are many."""
Place = TypeVar("Place", bound=str)


@dataclass(frozen=True, slots=True)
class PathPart:
    """How long a request's critical path led over a place (a role, or a link "a->b") and why."""

    session: int
    place: str
    why: Why
    time_ms: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Shares of the time on critical paths; empty where no time passed.

    Attributes:
        places: by place, the largest first.
        reasons: the same time by reasons; those that were none left out.
    """

    places: Mapping[str, float]
    reasons: Mapping[Why, float]

    @property
    def binds(self) -> str | None:
        """The place of the largest share, None where no time passed."""
        return next(iter(self.places), None)

    def to_json(self) -> dict[str, Any]:
        """The entries of a result and of a plan."""
        return {
            "critical_path": dict(self.places),
            "critical_path_reasons": dict(self.reasons),
            "binds": self.binds,
        }

    @property
    def sentences(self) -> list[str]:
        """The path in words: its places, and why."""
        if not self.places:
            return []
        told = {name: share for name, share in self.places.items() if share >= SMALL}
        rest = 1.0 - sum(told.values())
        shown = ", ".join(f"{name} {share:.0%}" for name, share in told.items())
        others = f", {len(self.places) - len(told)} others {rest:.0%}" if rest > NEGLIGIBLE else ""
        whys = [f"{WORDS[why]} {s:.0%}" for why, s in self.reasons.items() if s >= NEGLIGIBLE]
        return [
            f"critical path of a token: {shown}{others}",
            f"on it: {', '.join(whys)}; what binds: {self.binds}",
        ]


def added_up(parts: Iterable[PathPart]) -> CriticalPath:
    """The path of several requests together.

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
    """The times between a request's emissions, and whether each is a refill: the first of a round
    where rounds have several, as all steps of others begin with nothing under way."""
    times = [time for time, _ in request.emitted]
    steps = [sum(map(bool, each.committed_per_step)) for each in request.rounds]
    firsts = set(itertools.accumulate([0, *steps])) if len(times) - 1 > len(steps) else set[int]()
    found: list[tuple[float, float, Why]] = [
        (begin, end, "refill" if number in firsts else "work")
        for number, (begin, end) in enumerate(itertools.pairwise(times))
    ]
    if times and request.finished_ms > times[-1]:
        found.append((times[-1], request.finished_ms, "work"))
    return found


def _shares(parts: Iterable[PathPart], key: Callable[[PathPart], Place]) -> dict[Place, float]:
    found = dict[Place, float]()
    for part in parts:
        found[key(part)] = found.get(key(part), 0.0) + part.time_ms
    whole = sum(found.values())
    return {name: time / whole for name, time in found.items()} if whole else {}
