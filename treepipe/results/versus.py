"""The difference of two simulated scenarios, metric by metric (``treepipe.versus/1``).

Their observations are paired: runs of the same seed, or batches of the same requests (common random
numbers: a run's seed and a request's number determine the target's tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from treepipe.core.errors import UserError
from treepipe.results import units
from treepipe.results.estimates import UNSETTLED, Estimates, find_warmup, observe, possible_batches
from treepipe.results.metric import Floats
from treepipe.results.metrics import METRICS, in_words
from treepipe.results.result import NOT_LOSSLESS, Result, Tabular, basis, make_result
from treepipe.results.screen import Screen
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import SHARE, Interval, Paired, Range
from treepipe.results.trace import Trace
from treepipe.scenario.making import taken_as_exact
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay

SCHEMA = "treepipe.versus/1"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two scenarios, with its simulated runs."""

    scenario: Scenario
    traces: Sequence[Trace]

    @property
    def warmup(self) -> tuple[int, bool]:
        """The warm-up as ``find_warmup`` finds it, unless the scenario sets it."""
        given = self.scenario.workload.warmup_requests
        return find_warmup(self.traces) if given is None else (given, True)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both scenarios, and the difference B - A.

    Attributes:
        a, b: their means.
        difference, relative, variance_reduction: see ``Paired``.
        unit: None for a share of time.
    """

    a: float
    b: float
    difference: Interval
    relative: Interval | None
    variance_reduction: float | None
    unit: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the figure's entry in the file; a share of time has no unit there."""
        return {
            "a": self.a,
            "b": self.b,
            "difference": self.difference.as_dict(),
            "relative": None if self.relative is None else self.relative.as_dict(),
            "variance_reduction": self.variance_reduction,
            **({} if self.unit is None else {"unit": self.unit}),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Tabular):
    """Two simulated scenarios on common random numbers, and their paired differences (b - a).

    Attributes:
        intervals_over: kind of pairs, "runs" or "batches"; None if there is one pair.
        warmup_requests: requests left out of each run of both.
        differences, utilization_differences: by metric and by device that both have.

    >>> from treepipe import Scenario, compare
    >>> plain = Scenario.load("studies/scenarios/pp.toml")
    >>> found = compare(plain, plain.with_(name="again"), runs=2)
    >>> found.a.scenario, found.b.scenario, found.intervals_over
    ('pp', 'again', 'runs')
    """

    a: Result
    b: Result
    intervals_over: Literal["runs", "batches"] | None
    warmup_requests: int
    differences: dict[str, Difference]
    utilization_differences: dict[str, Difference]
    warnings: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The differences as a table: name, mean, low, high, unit."""
        return [
            {"name": name, **each.difference.as_dict(), "unit": each.unit}
            for name, each in self.differences.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.versus/1``."""
        return {
            "schema": SCHEMA,
            "answer": self.screen.answer,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "intervals_over": self.intervals_over,
            "warmup_requests": self.warmup_requests,
            "differences": {name: each.to_json() for name, each in self.differences.items()},
            "utilization_differences": {
                name: each.to_json() for name, each in self.utilization_differences.items()
            },
            "warnings": list(self.warnings),
        }

    @property
    def screen(self) -> Screen:
        table = versus_table(self)
        exact = [*self.a.taken_as_exact, *self.b.taken_as_exact]
        return Screen(_in_words(self), table, (), versus_warnings(self), exact, [table])


def check_pairs(a: Scenario, b: Scenario) -> None:
    """Raise ``UserError`` if the two have no pairs of runs or of requests."""
    runs = _runs(a), _runs(b)
    if runs[0] != runs[1]:
        raise UserError(
            f"key runs is {runs[0]} in {a.path} and {runs[1]} in {b.path}; runs are compared in "
            f"pairs, so both need as many: --runs N sets both (a replay has always 1)"
        )
    requests = a.workload.requests, b.workload.requests
    if runs[0] == 1 and requests[0] != requests[1]:
        raise UserError(
            f"key workload.requests is {requests[0]} in {a.path} and {requests[1]} in {b.path}; "
            f"with one run each, requests are compared in pairs, so both need as many"
        )


def distinct_names(a: Scenario, b: Scenario, changed: Sequence[str]) -> Scenario:
    """Return ``b`` under a name made of its changed keys (``KEY=VALUE``) or of its file."""
    if a.name != b.name:
        return b
    differs = ", ".join(changed) or ("" if a.path == b.path else str(b.path))
    return b.with_(name=f"{b.name} ({differs})") if differs else b


def make_comparison(a: Side, b: Side) -> Comparison:
    """Make both results, and b - a.

    Both are measured alike: the longer of the two warm-ups is left out of both, and a single run of
    each is cut into the same batches of requests. Raises ``UserError`` if they have no common
    metric.
    """
    (ours, settled), (theirs, also_settled) = a.warmup, b.warmup
    warmup = max(ours, theirs)
    batches = None
    if len(a.traces) == len(b.traces) == 1:
        batches = min(possible_batches(side.traces[0], warmup) for side in (a, b))
    first, second = (observe(side.traces, warmup, batches) for side in (a, b))
    common = [name for name in first.metrics if name in second.metrics]
    if not common:
        raise UserError(
            f"{a.scenario.path} and {b.scenario.path} have no metric in common: no request has a "
            f"token"
        )
    batched, shared = "batches" in (first.over, second.over), max(first.common, second.common)
    difference = partial(_difference, batched, shared, first.exact and second.exact)
    return Comparison(
        _result(a, first),
        _result(b, second),
        first.over,
        warmup,
        {
            name: difference(each.range, each.unit, first.metrics[name], second.metrics[name])
            for name, each in METRICS.items()
            if name in common
        },
        {
            name: difference(SHARE, None, ours, second.utilization[name])
            for name, ours in first.utilization.items()
            if name in second.utilization
        },
        (*_missing(first, second), *([] if settled and also_settled else [UNSETTLED])),
    )


def _runs(scenario: Scenario) -> int:
    return 1 if isinstance(scenario.acceptance, Replay) else scenario.runs


def _result(side: Side, estimates: Estimates) -> Result:
    return make_result(
        "simulation",
        side.scenario.name,
        side.scenario.seed,
        side.traces,
        lossless=side.scenario.sampling.lossless,
        estimates=estimates,
        taken_as_exact=taken_as_exact(side.scenario),
        schedule=side.scenario.schedule.name,
    )


def _difference(
    batched: bool,
    common: float,
    exact: bool,
    within: Range,
    unit: str | None,
    a: Floats,
    b: Floats,
) -> Difference:
    """Compare a figure; it has no interval if only one of the two has one."""
    if len(a) != len(b):
        a, b = a.mean(keepdims=True), b.mean(keepdims=True)
    paired = Paired.of(a, b, batches=batched, within=within, common=common, exact=exact)
    means = float(a.mean()), float(b.mean())
    return Difference(*means, paired.difference, paired.relative, paired.variance_reduction, unit)


def _missing(first: Estimates, second: Estimates) -> list[str]:
    """Return the metrics that only one of the two has."""
    found = []
    for label, ours, theirs in (("A", first, second), ("B", second, first)):
        names = [name for name in ours.metrics if name not in theirs.metrics]
        if names:
            found.append(f"only {label} has {', '.join(names)}")
    return found


# --- as a table and sentences ---------------------------------------------------------------------


def versus_table(comparison: Comparison) -> Sheet:
    """Make a table of every figure of both scenarios, and the difference."""
    columns = [*words("metric"), *figures("A", "B", "B - A", "95 % interval"), *words("unit")]
    columns += figures("relative", "paired off")
    title = f"A: {comparison.a.title}, B: {comparison.b.title} (simulation, {basis(comparison.a)})"
    sheet = Sheet(title, columns)
    for name in units.means_first(comparison.differences):
        each = comparison.differences[name]
        scale = units.Scale.of(each.unit or "", each.a, each.b)
        sheet.add(scale.name(name), *_difference_cells(each, scale))
    for device, each in comparison.utilization_differences.items():
        sheet.add(f"utilization {device}", *_difference_cells(each, units.SHARE))
    return sheet


def versus_warnings(comparison: Comparison) -> list[str]:
    """Return the warnings of each side, and of both together."""
    sides = {"A": comparison.a, "B": comparison.b}
    lossy = [f"{label} is {NOT_LOSSLESS}" for label, side in sides.items() if not side.lossless]
    own = [f"{label}: {each}" for label, side in sides.items() for each in side.warnings]
    return [*lossy, *own, *comparison.warnings]


def _in_words(comparison: Comparison) -> str:
    """Return the answer by the first metric: both figures, and B's as a factor of A's."""
    name, each = next(iter(comparison.differences.items()))
    a, b = comparison.a.title, comparison.b.title
    mean = [f"{units.number(value)} {each.unit or ''}".rstrip() for value in (each.a, each.b)]
    both = f"{in_words(name)} {mean[0]} of A ({a}), {mean[1]} of B ({b})"
    if each.relative is None:
        return both
    factor = each.relative.shifted(1.0)
    spread = units.in_brackets(factor)
    return f"{both}: B has {units.number(factor.mean, units.DIGITS)} times A's{spread}"


def _difference_cells(each: Difference, scale: units.Scale) -> tuple[str, ...]:
    """Return a difference's cells, ending with the share of its variance that pairing removes."""
    apart, reduction = each.difference.mean / scale.size, each.variance_reduction
    return (
        units.number(each.a / scale.size),
        units.number(each.b / scale.size),
        f"{'+' if apart >= 0 else ''}{units.number(apart)}",
        units.ends(each.difference, scale, digits=3),
        scale.unit,
        "" if each.relative is None else f"{each.relative.mean:+.1%}",
        "" if reduction is None else f"{reduction:.0%}",
    )
