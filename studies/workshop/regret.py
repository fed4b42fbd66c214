"""The regret of halving: the plan that a search chooses, against all plans simulated to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import FAR_RUNS
from treepipe.planner.limits import misses
from treepipe.planner.plan import search
from treepipe.results.metrics import metric
from treepipe.sim.points import Point, simulate_points
from treepipe.studies.workshop.simulator_speed import Figure, figure

SHIPPED = Path(__file__).parents[1] / "clusters"
OWN = Path(__file__).parent / "clusters"
"""Clusters that the planner was not made on."""
CLUSTERS = (
    SHIPPED / "five-jetsons.toml",
    SHIPPED / "eight-3090-two-servers.toml",
    OWN / "six-nano-wifi.toml",
    OWN / "four-3090-32b.toml",
)


@dataclass(frozen=True, slots=True)
class Regret:
    """The distance of a search's choice from the best of all plans.

    Attributes:
        share: relative difference of the goal, on the runs of the last rung; 0 if the search chose
            the best plan.
        simulated: runs of the search, over those of the exhaustive one.
    """

    share: float
    simulated: float


def regret(cluster: Cluster, say: Callable[[str, int], None]) -> Regret:
    """Search a cluster, and simulate every one of its plans on all runs.

    Raises:
        UserError, RunError: see ``search``.
    """
    cluster = cluster.with_(**{"search.cases": 0})
    found, goal = search(cluster, say), cluster.search.goal
    points = [
        Point(str(number), each.scenario.with_(runs=cluster.runs))
        for number, each in enumerate(find_candidates(cluster)[0])
    ]
    outcomes = simulate_points(points, say, f"all {len(points)} plans").values()
    kept = [each for each in outcomes if not misses(each, cluster.search.limits)]
    values = [each.metrics[goal].mean for each in kept]
    chosen = found.winner.outcome.metrics[goal].mean
    share = chosen / min(values) - 1 if metric(goal).less_is_better else max(values) / chosen - 1
    tokens = cluster.workload.new_tokens
    whole = tokens if isinstance(tokens, int) else 1
    shares = [(rung.new_tokens or whole) / whole for rung in found.rungs]
    runs = [each.candidates * each.runs + each.far * FAR_RUNS for each in found.rungs]
    searched = sum(count * share for count, share in zip(runs, shares, strict=True))
    return Regret(share, searched / (len(points) * cluster.runs))


def regret_figures(say: Callable[[str, int], None]) -> list[Figure]:
    """Measure the regret on clusters that ship and on some that do not."""
    figures = []
    for path in CLUSTERS:
        name, told = path.stem, regret(Cluster.load(path), say)
        figures.append(figure(f"plan: regret, {name}", told.share, "1", "at most 0.01"))
        figures.append(figure(f"plan: runs, of all plans' ({name})", told.simulated, "1"))
    return figures
