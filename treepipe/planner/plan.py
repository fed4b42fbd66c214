"""The plan: what a search returns, and everything that is asked of it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepipe.core.errors import UserError
from treepipe.files.outputs import REPORT, REPORT_PAGE, check_outputs
from treepipe.planner.capacity import Capacity, capacities
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import Ranked as Ranked
from treepipe.planner.halving import SearchInterrupted, SearchResult, rank
from treepipe.planner.report import plan_content, plan_screen
from treepipe.planner.robustness import StressCase, stress_cases
from treepipe.planner.sensitivity import BreakEven, Sensitivity, sensitivities
from treepipe.planner.uncertain import in_cases
from treepipe.progress import Progress, silent
from treepipe.results.result import Tabular
from treepipe.results.screen import Screen
from treepipe.scenario.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plan(Tabular, SearchResult):
    """The result of a search, with its analyses.

    >>> from treepipe import plan
    >>> from treepipe.planner.cluster import Cluster
    >>> few = {"runs": 2, "workload.new_tokens": 4, "search.schedules": ["pp"]}
    >>> found = plan(Cluster.load("studies/clusters/five-emulated.toml").with_(**few))
    >>> found.rows[0]["name"], found.metrics["time_between_tokens_ms"].mean > 40
    ('pp', True)
    """

    __slots__ = ()

    @property
    def best(self) -> Scenario:
        """The best plan as a scenario; if no plan keeps the limits, the one nearest to them."""
        return self.winner.candidate.scenario

    @property
    def metrics(self) -> dict[str, Any]:
        """The best plan's figures with intervals, by name."""
        return dict(self.winner.outcome.metrics)

    @property
    def utilization(self) -> dict[str, Any]:
        """The busy shares of the best plan's devices."""
        return dict(self.winner.outcome.utilization)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The best plan's warnings."""
        return self.winner.outcome.warnings

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The ranking, best first: each plan's name and goal."""
        goal = self.cluster.search.goal
        return [
            {"name": each.candidate.label, **each.outcome.metrics[goal].as_dict()}
            for each in self.ranking
            if goal in each.outcome.metrics
        ]

    def sensitivity(self, *keys: str, say: Progress = silent) -> list[Sensitivity]:
        """Compute the effect of 10 % less and more of each input on the best plan's goal, and the
        value at which another schedule becomes the best; largest effect first, empty if no plan
        keeps the limits.

        Args: ``keys``: ``KEY`` or ``KEY=LOW:HIGH``, as for ``--break-even``; default: all inputs.

        Raises ``UserError``: a key does not exist, or a value is refused.
        """
        return sensitivities(self, say, keys)

    def break_even(self, key: str, say: Progress = silent) -> BreakEven | None:
        """Find where another schedule becomes the best as one input changes; None if no plan keeps
        the limits. ``key`` and errors as for ``sensitivity``."""
        rows = self.sensitivity(key, say=say)
        return rows[0].break_even if rows else None

    def capacity(self, say: Progress = silent) -> list[Capacity]:
        """Find the largest arrival rate that the best plan of each schedule serves within the
        limits, largest first.

        Raises ``UserError``: the cluster has no arrival rate, or no limit that depends on load.
        """
        return capacities(self, say)

    def robustness(self, say: Progress = silent) -> list[StressCase]:
        """Evaluate the best plan's goal with one thing wrong: jitter, a burst, a slow or a lost
        device; empty if no plan keeps the limits.

        Raises ``UserError``: a case is refused.
        """
        return stress_cases(self, say)

    def plot(self) -> Figure:
        """Draw the Pareto front: every plan by the goal and each other goal.

        Raises ``UserError``: no plan keeps the limits.
        """
        if not self.feasible:
            raise UserError(f"{self.cluster.path}: no plan keeps the limits; none is drawn")
        return self.front_figure()

    def report(self, folder: Path | str) -> Path:
        """Write the page of ``treepipe plan --report``, and return its path.

        Raises ``UserError``: such a page exists already, or it cannot be written there.
        """
        from treepipe.planner.page import plan_report
        from treepipe.report.page import write_report

        check_outputs({REPORT: folder}, keep=(REPORT,))
        write_report(lambda: plan_report(self), Path(folder))
        return Path(folder) / REPORT_PAGE

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.plan/1``."""
        return plan_content(self)

    @property
    def screen(self) -> Screen:
        return plan_screen(self)


def search(cluster: Cluster, say: Progress) -> Plan:
    """Find the best plans for a cluster, and vary its uncertain inputs.

    Raises:
        UserError, RunError: see ``rank`` and ``in_cases``.
        SearchInterrupted: Ctrl-C, once there is a best plan.
    """
    result = rank(cluster, say)
    try:
        if result.feasible:
            result = replace(result, cases=in_cases(result.best_of_each, result.cluster, say))
    except KeyboardInterrupt:
        raise SearchInterrupted(result) from None
    return Plan(*(getattr(result, each.name) for each in fields(result)))
