"""The study ``which-system``: all systems on the same clusters, each with its best parameters.

Each paper has a testbed of its own, so none compares all systems. The planner
(``treepipe/planner``) finds every system's parameters in a small grid, on the same texts for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple, TypeAlias

from matplotlib.figure import Figure

from treepipe.core.schedules import systems
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.planner.plan import Plan, Ranked, search
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC, metric
from treepipe.results.sheet import CellValue, Sheet, columns
from treepipe.results.statistics import Interval, ratio_observations
from treepipe.scenario.schema import PoolSection, ScheduleName
from treepipe.sim.points import Point, simulate_points
from treepipe.studies.plots import gain_figure
from treepipe.studies.reproduction import Reproduction, predicted, published
from treepipe.studies.study import Entry, StudyResult

CLUSTERS = Path(__file__).with_name("clusters")
SCHEDULES: tuple[str, ...] = tuple(systems())
Goal: TypeAlias = Literal["latency", "throughput"]
METRICS: Mapping[Goal, str] = {"latency": METRIC, "throughput": "throughput_tokens_s"}
PLAIN: ScheduleName = "pp"
FIVE = ("flowspec", "pipedec", "specpipe", "specpipe_db", "starsd", "dsd")
"""The five systems of the papers (SpecPipe's batched variant is its own)."""
NEW = ("spd", "engine_pp", "ssd", "pearl")
"""The systems that were added to them."""
EAGLE_FILE = "five-jetsons"
"""Cluster file whose acceptance all EAGLE heads here have."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of the study: its file, with changes by dotted key."""

    name: str
    file: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)


PLACES = tuple(
    Place(**each) for each in read_toml(Path(__file__).with_name("which-system.toml"))["place"]
)
(SMALL_DRAFT,) = (place for place in PLACES if "drafts.0.model" in place.changes)
"""The place with a draft of 1B."""


class Amount(NamedTuple):
    """The size of a search for one goal: the last rung's runs, each request's new tokens, and the
    number of concurrent requests (times pipelines, if the file has several)."""

    runs: int
    new_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job; ``grid``: values of parameters, instead of the planner's own; ``cases``:
    number of cases drawn from the inputs' uncertainty."""

    amounts: Mapping[Goal, Amount]
    grid: Mapping[str, Sequence[int]]
    places: Sequence[Place] = PLACES
    schedules: Sequence[ScheduleName] = SCHEDULES
    cases: int = 20


GRID = {
    "gamma": (2, 4, 8),
    "width": (4, 16, 64),
    "children": (8,),
    "layers_per_step": (1,),
    "expand_depth": (3,),
}
"""Values of parameters; SpecPipe has one layer per step, as published (plans try up to three)."""
SHORT = Settings({"latency": Amount(6, 40, 1), "throughput": Amount(4, 16, 8)}, GRID)
FULL = Settings({"latency": Amount(18, 40, 1), "throughput": Amount(12, 16, 8)}, GRID)


def load(file: str) -> Cluster:
    """Load a cluster file without changes."""
    return Cluster.load(CLUSTERS / f"{file}.toml")


def cluster(settings: Settings, place: Place, goal: Goal) -> Cluster:
    """Make the file's cluster with the study's search and workload."""
    loaded, amount = load(place.file), settings.amounts[goal]
    names = [n for n in settings.schedules if goal == "throughput" or n != "specpipe_db"]
    targets = sum(pipeline.count for pipeline in loaded.pipelines)
    requests = amount.requests * (targets if goal == "latency" else 1)
    changes = {
        **place.changes,
        "runs": amount.runs,
        "workload.new_tokens": amount.new_tokens,
        "workload.requests": requests,
        "workload.concurrency": requests,
        "search.goal": METRICS[goal],
        "search.schedules": names,
        "search.grid": {f"schedule.{key}": list(each) for key, each in settings.grid.items()},
        "search.limits": {},
        "search.cases": settings.cases,
    }
    return loaded.with_(**changes)


NAME = "which-system"
PAGE = Path(__file__).with_name("which-system.md")
Results: TypeAlias = dict[tuple[Place, Goal], Plan]
Needs: TypeAlias = Mapping[ScheduleName, Mapping[str, Interval]]
"""A new system's gain over the best of the five, as stated and with each better draft."""
NeedsOf: TypeAlias = Mapping[tuple[Place, Goal], Needs]
BETTER: Mapping[str, Mapping[str, float]] = {
    "a quarter of the misses": {"scale.misses": 0.25},
    "a quarter of the draft's time": {"scale.drafts": 0.25},
    "both": {"scale.misses": 0.25, "scale.drafts": 0.25},
}
"""Drafts that the new systems alone are given."""
STATED = "as stated"


def study(settings: Settings, say: Progress) -> StudyResult:
    """Search every cluster for every goal, and compare the systems' best plans."""
    plans: Results = {}
    for place in settings.places:
        for goal in settings.amounts:
            plans[place, goal] = search(cluster(settings, place, goal), say)
    needed = {key: needs(each, say) for key, each in plans.items()}
    made = Reproduction(NAME, PAGE)
    made.add([entry for key, each in plans.items() for entry in _entries(*key, each)])
    made.add(
        [
            predicted(f"{place.name}/{goal}/{name}/over_five/{what.replace(' ', '-')}", "1", value)
            for (place, goal), own in needed.items()
            for name, values in own.items()
            for what, value in values.items()
        ]
    )
    made.tables += _winners(plans), _needs(plans, needed), _one_everywhere(settings, plans)
    made.tables.append(_all_plans(plans))
    fields = {**_fields(settings, plans), "new": _answer(plans, needed)}
    return made.result(fields, _map(settings, plans))


def _verdict(settings: Settings, plans: Results, goal: Goal) -> dict[str, Any]:
    """Return the page's fields for a goal: on which clusters the winner is ``clear``; the ``first``
    choice if one system must serve all clusters, and the ``mean`` and ``worst`` share of the
    winner's gain that it reaches."""
    clusters = {place.name: each for (place, its), each in plans.items() if its == goal}
    shares = {name: shares_of(plans, name, goal) for name in settings.schedules}
    means = {n: geometric_mean(s) for n, s in shares.items() if len(s) == len(clusters)}
    first = max(means, key=lambda name: means[name])
    return {
        "clear": ", ".join(n for n, each in clusters.items() if not rivals(each)) or "nowhere",
        "first": first,
        "mean": means[first],
        "worst": min(shares[first]),
    }


# --- gains, winners, and what the new systems would need ------------------------------------------


def gain(plan: Plan, schedule: ScheduleName, over: ScheduleName = PLAIN) -> Interval:
    """Return the ratio of a system's best plan to another's, on the same runs; its interval
    includes the inputs' uncertainty."""
    best, goal = plan.best_of_each, plan.goal.name
    observed = [best[name].outcome.observations[goal] for name in (schedule, over)]
    sampled = _ratio(plan, *observed)
    if plan.cases is None or schedule == over:
        return sampled
    above, below = (over, schedule) if plan.goal.less_is_better else (schedule, over)
    return plan.cases.ratio_widened(above, below, sampled)


def _ratio(plan: Plan, own: Sequence[float], others: Sequence[float]) -> Interval:
    """Return how many times as good as ``others`` the goal of the same runs is: of the first ones,
    where a plan far behind has no more."""
    both = min(len(own), len(others))
    pair = (others[:both], own[:both]) if plan.goal.less_is_better else (own[:both], others[:both])
    return Interval.over(ratio_observations(*pair))


def winner(plan: Plan) -> ScheduleName:
    return plan.winner.candidate.schedule


def rivals(plan: Plan) -> list[str]:
    """Return other systems indistinguishable from the best, by runs or inputs' uncertainty."""
    best, names = winner(plan), []
    for name, ranked in plan.best_of_each.items():
        if name != best:
            high = gain(plan, name, best).ends[1]
            if ranked.tied or high is None or high >= 1:
                names.append(name)
    return names


def shares_of(plans: Results, schedule: ScheduleName, goal: Goal) -> list[float]:
    """Return the share of the winner's gain that a system reaches, for each cluster."""
    return [
        gain(each, schedule, winner(each)).mean
        for (_, its), each in plans.items()
        if its == goal and schedule in each.best_of_each
    ]


def best_of_five(plan: Plan) -> ScheduleName | None:
    """Return the best of the papers' five systems; None if the search had none of them."""
    return next((name for name in plan.best_of_each if name in FIVE), None)


def needs(plan: Plan, say: Progress) -> Needs:
    """Compare each new system's best plan with that of the best of the five; then give the new one
    a better draft, on the same texts. Its parameters are not searched again.

    Raises:
        RunError: see ``simulate_points``.
    """
    five, plans = best_of_five(plan), plan.best_of_each
    new = [name for name in NEW if name in plans]
    if five is None:
        return {}
    points = [
        Point(f"{name}, {what}", plans[name].candidate.scenario.with_(**changes, runs=plan.runs))
        for name in new
        for what, changes in BETTER.items()
    ]
    better = simulate_points(points, say, f"better drafts for {len(new)} plans")
    goal = plan.goal.name
    stated = plans[five].outcome.observations[goal]
    gains = {name: {STATED: gain(plan, name, five)} for name in new}
    for name in new:
        for what in BETTER:
            own = better[f"{name}, {what}"].observations[goal]
            gains[name][what] = _ratio(plan, own, stated)
    return gains


# --- entries, tables, fields and the plot --------------------------------------------------------


def _entries(place: Place, goal: Goal, plan: Plan) -> list[Entry]:
    name, key, entries = METRICS[goal], f"{place.name}/{goal}", []
    for schedule, ranked in plan.best_of_each.items():
        value, over = ranked.outcome.metrics[name], gain(plan, schedule)
        entries.append(predicted(f"{key}/{schedule}/{name}", metric(name).unit, value))
        entries.append(predicted(f"{key}/{schedule}/over_pp", "1", over))
    return entries


_GAIN = columns(
    *(f"{each}|.4g" for each in ("ms or tokens/s", "low", "high")),
    *(f"{each}|.2f" for each in ("times pp", "times pp, low", "times pp, high")),
)


def _gain_cells(plan: Plan, ranked: Ranked, goal: Goal) -> list[CellValue]:
    values = ranked.outcome.metrics[METRICS[goal]], gain(plan, ranked.candidate.schedule)
    return [cell for value in values for cell in (value.mean, value.low, value.high)]


def _winners(plans: Results) -> Sheet:
    """Show each cluster's best plans; their times, rates and intervals are among all plans'."""
    heads = *columns("cluster", "goal", "best plan"), _GAIN[3]
    title = "Who wins where: every system with its best parameters, against plain decoding (pp)"
    sheet = Sheet(title, [*heads, *columns("not distinguishable from it (95 %)")], name=NAME)
    for (place, goal), each in plans.items():
        plan, over = each.winner.candidate, gain(each, winner(each)).mean
        others = ", ".join(rivals(each)) or "-"
        sheet.add(place.name, goal, plan.label, over, others)
    return sheet


def _needs(plans: Results, needed: NeedsOf) -> Sheet:
    """Show a row per new system and cluster, and the five's best."""
    heads = columns("cluster", "goal", "of the five", "new", "times the five|.2f", "low|.2f")
    what = columns("high|.2f", *(f"{each}|.2f" for each in BETTER))
    title = "The systems of 2026 against the best of the five, and with better drafts of their own"
    sheet = Sheet(title, [*heads, *what], name=f"{NAME}-new")
    for (place, goal), each in needed.items():
        for name, values in each.items():
            stated, better = values[STATED], [values[what].mean for what in BETTER]
            five = best_of_five(plans[place, goal])
            ends = stated.mean, stated.low, stated.high
            sheet.add(place.name, goal, five, name, *ends, *better)
    return sheet


def _answer(plans: Results, needed: NeedsOf) -> dict[str, Any]:
    """Return the page's fields of the new systems: a sentence, ``head``, says whether they beat the
    five beyond doubt, which is the best, and with which drafts they would lead; None if none of
    them was searched."""
    cells = {key: each for key, each in needed.items() if each}
    best, leads = list[tuple[Interval, str]](), dict.fromkeys((STATED, *BETTER), 0)
    for (place, goal), each in cells.items():
        for what in leads:
            leads[what] += max(values[what].mean for values in each.values()) > 1
        name = max(each, key=lambda name: each[name][STATED].mean)
        value, five = each[name][STATED], best_of_five(plans[place, goal])
        where = f"{name} with {value.mean:.2f} times {five} on {place.name} for {goal}"
        best.append((value, where))
    if not best:
        return {"head": None}
    beats = [where for value, where in best if (low := value.ends[0]) is not None and low > 1]
    who, where = "no system of 2026 beats", "any"
    if beats:
        who, where = "systems of 2026 beat", f"{len(beats)} ({'; '.join(beats)})"
    drafts = ", ".join(f"on {leads[what]} with {what}" for what in BETTER)
    return {
        "head": f"{who} the best of the five beyond doubt on {where} of {len(cells)} clusters and "
        f"goals; the best is {max(best, key=lambda each: each[0].mean)[1]}; in the mean one of "
        f"them leads on {leads[STATED]} as they are, and would lead {drafts}, the five staying as "
        f"they are",
    }


def _all_plans(plans: Results) -> Sheet:
    heads = [*columns("cluster", "goal", "plan"), *_GAIN, *columns("draft busy|.0%")]
    sheet = Sheet("Every system's best plan", heads, name=f"{NAME}-all")
    for (place, goal), each in plans.items():
        for ranked in each.best_of_each.values():
            cells = _gain_cells(each, ranked, goal)
            busy = ranked.outcome.utilization["draft0"].mean
            sheet.add(place.name, goal, ranked.candidate.label, *cells, busy)
    return sheet


def _one_everywhere(settings: Settings, plans: Results) -> Sheet:
    """Show the result of choosing the same system on every cluster, without a planner."""
    shown = [f"{goal}, {what}|.0%" for goal in settings.amounts for what in ("mean", "worst")]
    title = "One system for all clusters: what share of the winner's speed it reaches"
    sheet = Sheet(title, columns("system", *shown), name=f"{NAME}-everywhere")
    for schedule in settings.schedules:
        row: list[float | None] = []
        for goal in settings.amounts:
            shares = shares_of(plans, schedule, goal)
            row += [geometric_mean(shares), min(shares)] if shares else [None, None]
        sheet.add(schedule, *row)
    return sheet


def _fields(settings: Settings, plans: Results) -> dict[str, Any]:
    hit_ratios = published()["specpipe"]["hit_ratio"]
    uncertain = {
        f"{of} ±{share:.0%}"
        for each in plans.values()
        if each.cases is not None
        for of, share in each.cases.inputs.items()
    }
    heads = load(EAGLE_FILE).acceptance
    assert isinstance(heads, PoolSection)
    return {
        **{goal: _verdict(settings, plans, goal) for goal in settings.amounts},
        "uncertain": "; ".join(sorted(uncertain)),
        "cases": settings.cases,
        "hits": [*hit_ratios["llama-3.1-8b -> llama-3.1-70b"].values()],
        "small_hits": [*SMALL_DRAFT.changes["acceptance"]["hit_ratio"].values()],
        "eagle_hits": heads.hit_ratio,
    }


def _map(settings: Settings, plans: Results) -> Figure:
    """Plot the gain over plain decoding, a panel per goal; a solid frame marks the best plan, dots
    those indistinguishable from it."""
    panels: dict[str, dict[tuple[str, str], float]] = {
        goal: {
            (name, place.name): gain(each, name).mean
            for name in settings.schedules
            for (place, its), each in plans.items()
            if its == goal and name in each.best_of_each
        }
        for goal in settings.amounts
    }
    frames: dict[tuple[str, tuple[str, str]], str] = {}
    for (place, goal), each in plans.items():
        frames[goal, (winner(each), place.name)] = "-"
        frames |= {(goal, (name, place.name)): ":" for name in rivals(each)}
    return gain_figure(
        "Every system with its best parameters, against plain decoding.\n"
        "Framed: the best; dotted: not distinguishable from it (95 %, the inputs' "
        "uncertainty included)",
        panels,
        frames=frames,
    )
