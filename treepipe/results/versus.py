"""Two simulated scenarios -> their difference, metric by metric (``treepipe.versus/1``).

Law of this file: observations of the two belong together in pairs: runs of the same seed, or
batches of the same requests. What makes pairs alike (common random numbers) is the simulator's
matter: a run's seed and a request's number decide what the target says, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treepipe.core.errors import UserError
from treepipe.results.estimates import UNSETTLED, Estimates, find_warmup, observe, possible_batches
from treepipe.results.metrics import UNITS, Floats, range_of
from treepipe.results.result import Result, make_result
from treepipe.results.statistics import SHARE, Paired, Range
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay

SCHEMA = "treepipe.versus/1"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its scenario and its simulated runs."""

    scenario: Scenario
    traces: Sequence[Trace]

    @property
    def warmup(self) -> tuple[int, bool]:
        """The warm-up as ``find_warmup`` finds it, unless the scenario sets it."""
        given = self.scenario.workload.warmup_requests
        return find_warmup(self.traces) if given is None else (given, True)


def check_pairs(a: Scenario, b: Scenario) -> None:
    """Raises ``UserError`` if the two have no pairs of runs or of requests."""
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


def named_apart(a: Scenario, b: Scenario, changed: Sequence[str]) -> Scenario:
    """``b`` under a name of its own: with the keys that only it has changed, or with its file.

    Args:
        changed: ``KEY=VALUE`` of ``b`` only.
    """
    if a.name != b.name:
        return b
    differs = ", ".join(changed) or ("" if a.path == b.path else str(b.path))
    return b.with_(name=f"{b.name} ({differs})") if differs else b


def make_versus(a: Side, b: Side) -> dict[str, Any]:
    """The content of a comparison's file: both results, and b - a.

    Both are measured alike: the longer of the two warm-ups is left out of both, and one run each is
    cut into the same batches of requests.

    Raises ``UserError`` if the two have no metric in common.
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
    differences = _differences(first, second, first.metrics, second.metrics, range_of)
    return {
        "schema": SCHEMA,
        "a": _result(a, first).to_json(),
        "b": _result(b, second).to_json(),
        "intervals_over": first.over,
        "warmup_requests": warmup,
        "differences": {name: {**each, "unit": UNITS[name]} for name, each in differences.items()},
        "utilization_differences": _differences(
            first, second, first.utilization, second.utilization, lambda _: SHARE
        ),
        "warnings": [*_missing(first, second), *([] if settled and also_settled else [UNSETTLED])],
    }


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
    )


def _differences(
    first: Estimates,
    second: Estimates,
    ours: Mapping[str, Floats],
    theirs: Mapping[str, Floats],
    within: Callable[[str], Range],
) -> dict[str, dict[str, Any]]:
    """What both have; a value that only one has an interval for is compared without one."""
    found = {}
    for name in (name for name in ours if name in theirs):
        a, b = ours[name], theirs[name]
        if len(a) != len(b):
            a, b = a.mean(keepdims=True), b.mean(keepdims=True)
        paired = Paired.of(
            a, b, batches="batches" in (first.over, second.over), within=within(name)
        )
        found[name] = {
            "a": float(a.mean()),
            "b": float(b.mean()),
            "difference": paired.difference.as_dict(),
            "relative": None if paired.relative is None else paired.relative.as_dict(),
            "variance_reduction": paired.variance_reduction,
        }
    return found


def _missing(first: Estimates, second: Estimates) -> list[str]:
    """Metrics that only one of the two has."""
    found = []
    for label, ours, theirs in (("A", first, second), ("B", second, first)):
        names = [name for name in ours.metrics if name not in theirs.metrics]
        if names:
            found.append(f"only {label} has {', '.join(names)}")
    return found
