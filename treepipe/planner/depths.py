"""The number of tokens to draft by the number of streams, from acceptance and times by rows alone.

The closed form of batched chains (``sim/theory/batched.py``) answers in the place of a search. If
inputs are estimates, it is evaluated in the search's cases (``uncertain.py``), too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.planner.drawn import Floats, drawn_factors, in_case
from treepipe.profiles.hit_ratio import round_tokens
from treepipe.results.statistics import Interval
from treepipe.scenario.passage import Passage
from treepipe.scenario.resolve import estimate_warnings, resolve
from treepipe.scenario.rows import rows_of_formula, with_guessed_rows
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory.batched import Batches, period_ms, shares_of

MOST_STREAMS = 256
DEEPEST = 16
GOOD_ENOUGH = 0.01
"""Loss of speed for which a range of streams keeps the depth of its neighbours, since an engine
captures its graphs anew for every depth."""
ENOUGH_CASES = 20
"""Fewest cases of which the middle 95 % are told, since fewer do not reach that far."""
SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of streams in tables."""


class DepthRange(NamedTuple):
    """From ``first`` to ``last`` streams ``depth`` tokens are drafted; 0: none."""

    first: int
    last: int
    depth: int


@dataclass(frozen=True, slots=True)
class Depths:
    """Periods of all depths, and what follows from them.

    Attributes:
        scenario: the cluster with a schedule of chains.
        tokens: [1 + depths] expected tokens of a round.
        periods_ms: [streams, 1 + depths].
        inputs: relative uncertainty of each estimated input that the cases vary.
        cases: the same two in cases of uncertain inputs.
        warnings: of rows that no time was given for.
    """

    scenario: Scenario
    tokens: Floats
    periods_ms: Floats
    inputs: Mapping[Estimated, float] = field(default_factory=dict)
    cases: Sequence[tuple[Floats, Floats]] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Depths:
        """Compute them for a cluster; raises ``UserError`` if something that it names is wrong."""
        scenario = _chains(cluster)
        deployment = resolve(scenario)
        tokens, periods = _periods(scenario)
        made, stages = cls(scenario, tokens, periods), deployment.roles.pipelines[0]
        rows = {n: Batches.of(n, len(stages)).batch * (1 + made.best(n)) for n in SHOWN}
        bare = [n for n in SHOWN if any(s.times.stage.extrapolates(rows[n]) for s in stages)]
        beyond = [
            f"from {n} streams on passes have more rows than times are given for" for n in bare
        ]
        deployment = with_guessed_rows(deployment, rows_of_formula(deployment, max(rows.values())))
        inputs = {of: share for of, share in deployment.estimates.items() if of.kind != "model"}
        drawn = drawn_factors(inputs, cases_of(cluster), cluster.seed) if inputs else []
        cases = [_periods(in_case(scenario, inputs, factors)) for factors in drawn]
        warnings = (*estimate_warnings(deployment), *deployment.warnings, *beyond[:1])
        return replace(made, inputs=inputs, cases=cases, warnings=warnings)

    @property
    def gains(self) -> Floats:
        """[streams, 1 + depths]: speed over plain decoding."""
        return gains(self.tokens, self.periods_ms)

    def best(self, streams: int) -> int:
        """Return the depth at which so many streams are the fastest."""
        return int(self.gains[streams - 1].argmax())

    def gain(self, streams: int, depth: int) -> Interval:
        """Return the speed over plain decoding, with the interval that inputs put on it."""
        mean = float(self.gains[streams - 1, depth])
        found = [float(gains(*case)[streams - 1, depth]) for case in self.cases]
        return middle(mean, found)

    @property
    def last_paying(self) -> Interval:
        """The largest number of streams up to which drafting pays, 0 if it never does."""
        return middle(_last(self.gains), [_last(gains(*case)) for case in self.cases])

    @property
    def ranges(self) -> list[DepthRange]:
        """As few ranges of streams as lose at most ``GOOD_ENOUGH`` of the best depth's speed."""
        lost = 1 - self.gains / self.gains.max(axis=1, keepdims=True)
        found, first = list[DepthRange](), 0
        while first < len(lost):
            last, able = first, lost[first] <= GOOD_ENOUGH
            while last + 1 < len(lost) and (able & (lost[last + 1] <= GOOD_ENOUGH)).any():
                last += 1
                able &= lost[last] <= GOOD_ENOUGH
            total = np.where(able, lost[first : last + 1].sum(axis=0), np.inf)
            found.append(DepthRange(first + 1, last + 1, int(total.argmin())))
            first = last + 1
        return found

    def as_dict(self) -> dict[str, Any]:
        paying = self.last_paying
        return {
            "depths": [
                {**each._asdict(), "gain": float(self.gains[each.first - 1, each.depth])}
                for each in self.ranges
            ],
            "pays_up_to": {"mean": paying.mean, "low": paying.low, "high": paying.high},
        }


def gains(tokens: Floats, periods_ms: Floats) -> Floats:
    speeds = tokens / periods_ms
    found: Floats = speeds / speeds[:, :1]
    return found


def times(interval: Interval, to: str = " to ", form: str = ".2f") -> str:
    """Format a ratio with its interval; ``to`` stands between the ends.

    >>> times(Interval(1.5, None, None)), times(Interval(4, 3, 5), form=".0f")
    ('1.50', '4 (3 to 5)')
    """
    if interval.low is None or interval.high is None:
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} ({interval.low:{form}}{to}{interval.high:{form}})"


def cases_of(cluster: Cluster) -> int:
    """Return the number of cases: the file's, else enough of them."""
    given = "cases" in cluster.search.model_fields_set
    return cluster.search.cases if given else ENOUGH_CASES


def _last(table: Floats) -> float:
    """Return the number of streams behind which drafting never pays again."""
    pays = table.max(axis=1) > 1
    return float(np.flatnonzero(pays).max(initial=-1) + 1)


def middle(mean: float, found: Sequence[float]) -> Interval:
    """Return the range of the middle 95 % of the cases; none from few cases, nor where they hardly
    differ, since the uncertain inputs do not decide the figure then."""
    if len(found) < ENOUGH_CASES:
        return Interval(mean, None, None)
    ends = [mean, *np.quantile(found, (0.025, 0.975)).tolist()]
    low, high = min(ends), max(ends)
    if high <= low * (1 + GOOD_ENOUGH):
        return Interval(mean, None, None)
    return Interval(mean, low, high)


def _chains(cluster: Cluster) -> Scenario:
    """Return a cluster as a scenario of chains for one request at a time."""
    if len(cluster.pipelines) != 1 or cluster.pipelines[0].count != 1:
        raise UserError(f"{cluster.path}: key pipelines: the question is about one pipeline")
    if [draft.count for draft in cluster.drafts] != [1]:
        raise UserError(f"{cluster.path}: key drafts: the question is about one draft server")
    data = cluster.content
    for key in ("search", "faults"):
        data.pop(key, None)
    data["schedule"] = {"name": "chain"}
    return Scenario.of(data, cluster.path)


def _periods(scenario: Scenario) -> tuple[Floats, Floats]:
    passage = Passage(resolve(scenario))
    block = passage.draft.block
    deepest = min(DEEPEST, block - 1) if block else DEEPEST
    shares = shares_of(scenario, deepest)
    tokens = np.array([round_tokens(shares[:depth]) for depth in range(deepest + 1)])
    divided = [Batches.of(n, len(passage.stages)) for n in range(1, MOST_STREAMS + 1)]
    rounds = {
        batches: [period_ms(passage, batches, depth, shares) for depth in range(deepest + 1)]
        for batches in dict.fromkeys(divided)
    }
    periods = np.array([rounds[batches] for batches in divided])
    if not periods.all():
        raise UserError(f"{scenario.path}: key pipelines: a round takes no time (all times are 0)")
    return tokens, periods
