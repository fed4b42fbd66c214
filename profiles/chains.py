"""Counts of chains' steps, added up to shares of accepted tokens by depth (``hit_ratio.py``).

What reports tell, and what is made of it, belong here; ``engines.py`` reads the reports, and shares
with ``cost_tables.py`` the reader of tables in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treepipe.files.reading import parse_json
from treepipe.profiles.hit_ratio import (
    MOST_DRAFTED,
    at_depth,
    conditional,
    even_share,
    round_tokens,
)

ALIKE = 0.02
"""Relative variation below which draft lengths count as fixed."""


def json_entries(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables of a JSON value, or of the lines that hold one each, behind the words that
    name their places. Raises ``ValueError`` if there are none."""
    try:
        content = parse_json(text)
        each = content if isinstance(content, list) else [content]
        placed = [(f"entry {number}", entry) for number, entry in enumerate(each, 1)]
    except json.JSONDecodeError:
        # Engines print such lines among their other messages, and texts in them may hold other
        # line ends, such as U+2028.
        lines = [(f"line {n}", line) for n, line in enumerate(text.split("\n"), 1)]
        placed = [(place, _line(place, s)) for place, s in lines if s.lstrip().startswith("{")]
    for place, entry in placed:
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: is no table")
    if not placed and text.lstrip().startswith("|"):
        raise ValueError("is a Markdown table; llama-bench writes JSON with -o json")
    if not placed:
        raise ValueError("there is no JSON in it")
    return placed


def _line(place: str, line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"{place}: is not valid JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Imported:
    """The content of an export.

    Attributes:
        shares: P(accepted at a depth | all above it accepted), of the draft's first candidate; the
            last one holds below.
        drafted: tokens of the longest step.
        rounds: counted steps; None if unknown.
        model: the engine's name of the model; empty if unknown.
        notes: a sentence per assumption.
    """

    shares: tuple[float, ...]
    drafted: int
    rounds: int | None
    model: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> float:
        """Mean tokens of a step, including the target's own."""
        return round_tokens(at_depth(self.shares, depth) for depth in range(self.drafted))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller says of a file: the model of several, and a step's drafted tokens."""

    model: str | None = None
    draft_tokens: int | None = None


ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Chains:
    """What a report tells of its steps; 0 and (): nothing.

    Attributes:
        steps: those that drafted nothing among them.
        drafts: steps with a draft; without it their number follows from the rest.
        length: mean tokens of a step with a draft, the target's own among them.
        reached: share of the steps with a draft in which a position was accepted.
        longest: drafted tokens of the longest step.
        running: requests at work meanwhile, to weigh reports that tell no counts.
    """

    steps: float = 0.0
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    length: float = 0.0
    reached: tuple[float, ...] = ()
    longest: int = 0
    running: float = 0.0

    @property
    def counted(self) -> float:
        """Number of steps with a draft, or what weighs as much beside other reports."""
        of_step = sum(self.reached) or self.length - 1  # accepted ones
        if self.drafts or self.running:
            return self.drafts or self.running
        if self.accepted and of_step > 0:
            return self.accepted / of_step
        return self.drafted / self.longest if self.longest else 0.0

    @property
    def mean_length(self) -> float:
        return self.length or (1 + self.accepted / self.counted if self.counted else 1.0)


def added_up(
    reports: Sequence[Chains], wanted: Wanted, model: str = "", notes: Sequence[str] = ()
) -> Imported:
    """Add reports up: by position if they tell positions, else by their mean length."""
    all_notes, longest = [*notes], _longest(reports, wanted)
    if not any(each.drafts or each.length or each.reached for each in reports):
        all_notes.append(f"every step is taken to have drafted {longest} tokens")
    reports = [replace(each, longest=longest) for each in reports]
    for each in reports:
        conditional((1.0, *each.reached))  # raises where a share rises
    weights = [each.counted for each in reports]
    if len(reports) == 1:
        weights = [weights[0] or 1.0]
    elif not all(weights):
        raise ValueError("reports without counts cannot be added up; import one at a time")
    drafts, drafted = sum(weights), sum(each.drafted for each in reports)
    steps = sum(max(each.steps, n) for each, n in zip(reports, weights, strict=True))
    if steps > drafts:
        all_notes.append(
            f"{steps - drafts:.0f} of {steps:.0f} steps drafted nothing: they count as misses"
        )
    if drafted and abs(drafted / (drafts * longest) - 1) > ALIKE:
        all_notes.append(
            f"draft lengths vary ({drafted / drafts:.3g} of {longest} on average), and nothing "
            f"tells which steps were short: shares, above all of deep positions, are lower bounds"
        )

    def summed(told: Iterable[float]) -> float:
        return sum(each * n for each, n in zip(told, weights, strict=True))

    if all(each.reached for each in reports):
        shares = conditional([steps, *map(summed, zip(*(r.reached for r in reports), strict=True))])
    else:
        all_notes.append("one mean length: the share is taken to be the same at every depth")
        further = summed(each.mean_length - 1 for each in reports)
        shares = (even_share(1 + further / steps, longest),)
    counts = any(each.drafts or each.drafted for each in reports)
    return Imported(shares, longest, round(steps) if counts else None, model, tuple(all_notes))


def _longest(reports: Sequence[Chains], wanted: Wanted) -> int:
    """Drafted tokens of the longest step; where no report tells them, their mean if it is a whole
    number but for rounding."""
    lengths = {len(each.reached) or each.longest for each in reports} - {0}
    if len(lengths) > 1:
        told = " and of ".join(map(str, sorted(lengths)))
        raise ValueError(f"it tells of chains of {told} tokens; import one of them at a time")
    drafted, drafts = sum(r.drafted for r in reports), sum(r.counted for r in reports)
    mean = drafted / drafts if drafts else 0.0
    fixed = round(mean) if abs(mean - round(mean)) <= ALIKE else 0
    longest = next(iter(lengths), 0) or wanted.draft_tokens or fixed
    if not longest:
        raise ValueError("it does not tell how many tokens a step drafts; give --draft-tokens")
    if not 0 < longest <= MOST_DRAFTED:
        raise ValueError(
            f"the longest step drafted {longest:.4g} tokens; there may be 1 to {MOST_DRAFTED}"
        )
    return longest
