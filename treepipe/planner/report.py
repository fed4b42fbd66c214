"""What a search says: a table, the file ``treepipe.plan/1``, and the best plan as a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from os.path import relpath
from pathlib import Path
from typing import Any

from rich.console import Console

from treepipe.core.errors import RunError
from treepipe.files.outputs import write_file
from treepipe.files.toml_file import toml_text
from treepipe.planner.analysis import Analysis
from treepipe.planner.answer import headline
from treepipe.planner.break_even import BreakEvenAnalysis
from treepipe.planner.candidates import Candidate
from treepipe.planner.capacity import CapacityAnalysis
from treepipe.planner.cluster import Goal, published_price
from treepipe.planner.front import Front
from treepipe.planner.gaps import shown_interval
from treepipe.planner.halving import Found, Ranked
from treepipe.planner.robustness import RobustnessAnalysis
from treepipe.planner.sensitivity import SensitivityAnalysis
from treepipe.planner.uncertain import Cases
from treepipe.profiles.library import is_path
from treepipe.results.metrics import METRICS, in_words, metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.show import number, print_sheet
from treepipe.results.statistics import CONFIDENCE, Interval
from treepipe.scenario.making import share_warnings

SCHEMA = "treepipe.plan/1"
NAMED = 4
"""More plans that cannot be told apart are counted, as the table marks them."""


ANALYSES: tuple[type[Analysis], ...] = (
    SensitivityAnalysis,
    BreakEvenAnalysis,
    CapacityAnalysis,
    RobustnessAnalysis,
)
"""In the order in which they are shown."""


def with_empty(done: Sequence[Analysis]) -> list[Analysis]:
    """Every analysis in its order; those that were not asked for have found nothing."""
    by_kind = {type(each): each for each in done}
    return [by_kind.get(kind) or kind() for kind in ANALYSES]


def plan_content(found: Found, analyses: Sequence[Analysis] = ()) -> dict[str, Any]:
    """The content of the JSON file; keys as in ``docs/planning.md``."""
    search = found.cluster.search
    return {
        "schema": SCHEMA,
        "cluster": found.cluster.name,
        "goal": search.goal,
        "unit": METRICS[search.goal].unit,
        "seed": found.cluster.seed,
        "feasible": found.feasible,
        "rungs": [{"candidates": rung.candidates, "runs": rung.runs} for rung in found.rungs],
        "confidence": CONFIDENCE,
        "comparisons": found.comparisons,
        "uncertain_inputs": {} if found.cases is None else _uncertain_inputs(found, found.cases),
        **{key: value for each in with_empty(analyses) for key, value in each.as_dict().items()},
        "warnings": plan_warnings(found),
        "ranking": [_entry(each, search.goal) for each in found.ranking],
        **found.front.as_dict(),
        "refused": [
            {
                "schedule": each.schedule,
                "settings": dict(each.settings),
                "partition": each.partition,
                "reason": each.reason,
            }
            for each in found.refused
        ],
    }


def _uncertain_inputs(found: Found, cases: Cases) -> dict[str, Any]:
    """What is estimated, and what that leaves of the best plan of each schedule."""
    goal, plans = found.cluster.search.goal, found.best_of_each
    best_in = cases.best_in(least=metric(goal).less_is_better)
    return {
        "estimates": {str(of): share for of, share in cases.inputs.items()},
        "cases": len(next(iter(cases.values.values()))),
        "plans": {
            name: {
                goal: cases.widened(name, each.outcome.metrics[goal]).as_dict(),
                "best_in": best_in[name],
            }
            for name, each in plans.items()
        },
    }


def _entry(ranked: Ranked, goal: Goal) -> dict[str, Any]:
    candidate, outcome = ranked.candidate, ranked.outcome
    return {
        "schedule": candidate.schedule,
        "settings": dict(candidate.settings),
        "partition": candidate.partition,
        "layers": [list(counts) for counts in candidate.layers],
        "same": [
            {
                "schedule": each.schedule,
                "settings": dict(each.settings),
                "partition": each.partition,
                "layers": [list(counts) for counts in each.layers],
            }
            for each in candidate.same
        ],
        goal: outcome.metrics[goal].as_dict(),
        "relative_to_best": None if ranked.gap is None else ranked.gap.as_dict(),
        "indistinguishable": ranked.tied,
        "misses": [
            {
                "limit": miss.limit,
                "value": miss.value,
                "bound": miss.bound,
                "excess": miss.excess if isfinite(miss.excess) else None,
            }
            for miss in ranked.misses
        ],
        **{name: candidate.prices.get(name) for name in ("price_usd", "price_usd_per_hour")},
        "lossless": candidate.scenario.sampling.lossless,
        "metrics": {name: value.as_dict() for name, value in outcome.metrics.items()},
        "utilization": {name: value.as_dict() for name, value in outcome.utilization.items()},
        **ranked.path.to_json(),
        "binds": ranked.binds(goal),
        "warnings": list(outcome.warnings),
    }


def show_plan(found: Found, console: Console) -> None:
    """Print the ranking, what was refused, and the verdict."""
    print_sheet(console, ranking_table(found))
    for sentence in [*verdict(found), *prices(found), *binding(found)]:
        console.print(sentence, highlight=False)
    if (table := front_table(found.front)) is not None:
        print_sheet(console, table)
    for sentence in refusals(found):
        console.print(f"refused: {sentence}", highlight=False)
    for warning in plan_warnings(found):
        console.print(f"warning, {warning}", highlight=False)


def show_cases(found: Found, console: Console) -> None:
    """Print what the uncertainty of inputs leaves of the verdict."""
    for sentence in _by_inputs(found):
        console.print(sentence, highlight=False)


def plan_warnings(found: Found) -> list[str]:
    """Those of the best plan (or the nearest), behind what makes the plans' comparison doubtful."""
    scenarios = [each.candidate.scenario for each in found.ranking]
    of_all = dict.fromkeys(sentence for each in scenarios for sentence in share_warnings(each))
    which = "best" if found.feasible else "nearest"
    own = [each for each in found.best.outcome.warnings if each not in of_all]
    return [*(f"all plans: {each}" for each in of_all), *(f"{which} plan: {each}" for each in own)]


def front_table(front: Front) -> Sheet | None:
    """What each plan has to say for itself, and which one beats it in all goals; None where there
    is one plan, or one goal."""
    if len(front.values) < 2 or len(front.goals) < 2:
        return None
    goals = [f"{in_words(goal)} ({metric(goal).unit})" for goal in front.goals]
    title = "all goals: plans of the ranking, and what beats them in every goal"
    sheet = Sheet("", title, [*figures("", *goals), *words("beaten by")])
    by = {each.plan: each for each in front.beaten}
    for place, values in enumerate(front.values):
        cells = [number(values[goal]) for goal in front.goals]
        beaten = ""
        if place in by:
            doubt = "" if by[place].certain else ", not beyond doubt"
            beaten = f"{by[place].by + 1}{doubt}"
        sheet.add(str(place + 1), *cells, beaten)
    return sheet


def show_analysis(found: Found, analysis: Analysis, console: Console) -> None:
    """Print what else was asked for, as far as there is an answer."""
    for table in analysis.tables(found):
        print_sheet(console, table)
    for sentence in analysis.sentences():
        console.print(sentence, highlight=False)


def front_title(found: Found) -> str:
    """What the plot of the front is headed by."""
    return f"{found.cluster.name}: plans by their places in the ranking ({found.runs} runs)"


def in_two_sentences(found: Found) -> list[str]:
    """The verdict for who reads nothing else: the winner's figure, and its plan and how sure it
    is."""
    best = found.best
    if not found.feasible:
        missed = " and ".join(str(miss) for miss in best.misses)
        return [
            "No plan keeps the limits.",
            f"The nearest one is {best.candidate.label}: {missed}.",
        ]
    known = "its inputs state no uncertainty"
    if not found.cluster.search.cases:
        known = "its inputs' uncertainty was not looked at (search.cases = 0)"
    sure = "; ".join([*_apart(found), *(_by_inputs(found) or [known])])
    return [f"{headline(found)}.", f"The best plan is {best.candidate.label}; {sure}."]


def verdict(found: Found) -> list[str]:
    """Who wins, and who cannot be told from it; or which plan is the nearest to the limits."""
    best = found.best
    if not found.feasible:
        return [f"no plan keeps the limits; the nearest one: {best.candidate.label}"]
    sentences = [f"best: {headline(found)}", f"its plan: {best.candidate.label}"]
    if best.candidate.partition != "even":
        dealt = " | ".join(" ".join(map(str, counts)) for counts in best.candidate.layers)
        sentences.append(f"its layers per stage: {dealt}")
    return sentences + _comparison(found) + _by_inputs(found)


def prices(found: Found) -> list[str]:
    """Prices that the cluster file does not state itself, with their sources."""
    cluster = found.cluster
    devices = cluster.search.devices
    if devices is None:
        return []
    stated, base = cluster.content["search"]["devices"]["kinds"], cluster.path.parent
    told = []
    for kind, given in zip(devices.kinds, stated, strict=True):
        if kind.price_usd is not None and "price_usd" not in given:
            price = published_price(given["device"], f"{cluster.path}: {kind.label}", base)
            told.append(f"price of {kind.label}: {price}")
    return told


def binding(found: Found) -> list[str]:
    """Where a token's time goes in the best plan, and what binds; nothing where no time passes."""
    best, goal = found.best, found.cluster.search.goal
    name, busy = best.binds(goal), best.outcome.utilization
    sentences = best.path.sentences
    if name is not None and name != best.path.binds:
        sentences.append(
            f"what binds the {in_words(goal)}: {name}, busy {busy[name].mean:.0%} of the time"
        )
    return sentences


def _by_inputs(found: Found) -> list[str]:
    """What is left of the verdict as inputs that are estimates vary."""
    if found.cases is None:
        return []
    best, goal = found.best, found.cluster.search.goal
    wide = found.cases.widened(best.candidate.schedule, best.outcome.metrics[goal])
    shares = found.cases.best_in(least=metric(goal).less_is_better)
    others = [
        f"{name} in {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share and name != best.candidate.schedule
    ]
    winner = best.candidate.schedule
    first = f"{winner} is the best schedule in {shares[winner]:.0%}"
    inputs = ", ".join(f"{of} ±{share:.0%}" for of, share in found.cases.inputs.items())
    return [
        f"with its inputs' uncertainty: {_ends(wide)} {METRICS[goal].unit}; "
        f"{', '.join([first, *others])} of {len(next(iter(found.cases.values.values())))} cases "
        f"that the inputs allow ({inputs})"
    ]


def ranking_notes(found: Found) -> list[str]:
    """What the verdict says beyond the winner, and what only the ranking's runs leave of it."""
    return [each for each in verdict(found)[1:] if each not in _by_inputs(found)]


def cases_table(found: Found) -> Sheet:
    """The best plan of each schedule with both intervals, and how often it is the best one."""
    cases, goal = found.cases, found.cluster.search.goal
    assert cases is not None
    shares = cases.best_in(least=metric(goal).less_is_better)
    count = len(next(iter(cases.values.values())))
    title = f"the best plan of each schedule in {count} cases that the inputs allow"
    told = (METRICS[goal].unit, "95 %, by the runs", "95 %, by runs and inputs", "best in")
    sheet = Sheet("", title, [*words("schedule"), *figures(*told)])
    for name, each in found.best_of_each.items():
        value = each.outcome.metrics[goal]
        both = _ends(cases.widened(name, value))
        sheet.add(name, number(value.mean), _ends(value), both, f"{shares[name]:.0%}")
    return sheet


def _comparison(found: Found) -> list[str]:
    """What the intervals of the ranking say, and what they rest on."""
    others, sentences = found.ranking[1:], _apart(found)
    tied = [each for each in others if each.tied]
    if any(each.gap is None or each.gap.low != each.gap.high for each in tied):
        sentences.insert(
            1, f"{found.runs} runs cannot tell whether these are worse; more may (--runs)"
        )
    if others:
        sentences.append(
            f"differences: {CONFIDENCE:.0%} intervals that hold for all pairs of these plans "
            f"({found.comparisons}) together, over {found.runs} runs on the same texts"
        )
    return sentences


def _apart(found: Found) -> list[str]:
    """Which plans cannot be told from the best one, and which are worse."""
    others, sentences = found.ranking[1:], list[str]()
    tied = [each for each in others if each.tied]
    if tied:
        labels = "; ".join(each.candidate.label for each in tied)
        if len(tied) > NAMED:
            some = len(tied) < len(others)
            labels = f"{len(tied)} of the other {len(others)} plans" if some else "all others"
        sentences.append(f"not distinguishable from it: {labels}")
    if len(tied) < len(others):
        worse = f"the other {len(others) - len(tied)}" if tied else "all others"
        verb = "is" if worse == "the other 1" else "are"
        sentences.append(f"{worse} {verb} worse beyond doubt")
    return sentences


def check_feasible(found: Found) -> None:
    """Raises ``RunError`` if no plan keeps the limits."""
    if not found.feasible:
        nearest = found.best
        reasons = " and ".join(str(miss) for miss in nearest.misses)
        raise RunError(
            f"{found.cluster.path}: no plan keeps the limits; of the nearest one, "
            f"{nearest.candidate.label}, {reasons}"
        )


def ranking_table(found: Found) -> Sheet:
    """The ranking; where no plan keeps the limits, how far each of them is off."""
    return _ordered_table(found) if found.feasible else _misses_table(found)


def _ordered_table(found: Found) -> Sheet:
    goal = found.cluster.search.goal
    told = (METRICS[goal].unit, "95 % interval", "against the best", "95 %, all together", "")
    sheet = Sheet("", _title(found), [*words("", "plan"), *figures(*told)])
    for rank, each in enumerate(found.ranking, 1):
        value = each.outcome.metrics[goal]
        cells = ("", "", "best") if rank == 1 else _gap_cells(each)
        sheet.add(str(rank), _named(each), number(value.mean), _ends(value), *cells)
    return sheet


def _ends(interval: Interval) -> str:
    return " … ".join(number(end) for end in (interval.low, interval.high) if end is not None)


def _gap_cells(ranked: Ranked) -> tuple[str, str, str]:
    gap, tied = ranked.gap, "not distinguishable" if ranked.tied else ""
    if gap is None:
        return "", "", tied
    return f"{gap.mean:+.1%}", shown_interval(gap.low, gap.high), tied


def _misses_table(found: Found) -> Sheet:
    goal = found.cluster.search.goal
    title = f"{_title(found)}: no plan keeps the limits, nearest first"
    columns = [*words("", "plan"), *figures(METRICS[goal].unit)]
    sheet = Sheet("", title, [*columns, *words("limits missed, the worst first")])
    for rank, each in enumerate(found.ranking, 1):
        value = each.outcome.metrics[goal].mean
        missed = "; ".join(str(miss) for miss in each.misses)
        sheet.add(str(rank), _named(each), number(value), missed)
    return sheet


def _named(ranked: Ranked) -> str:
    """A plan, and those that are the same: of its own schedule what they set otherwise, else the
    schedule with its settings, or with their number."""
    by_schedule: dict[str, list[Candidate]] = {}
    for same in ranked.candidate.same:
        by_schedule.setdefault(same.schedule, []).append(same)
    plan, told = ranked.candidate, list[str]()
    for schedule, each in by_schedule.items():
        if schedule == plan.schedule:
            told += [" ".join(x for x in same.chosen if x not in plan.chosen) for same in each]
        else:
            told.append(each[0].label if len(each) == 1 else f"{schedule} ({len(each)} settings)")
    return f"{plan.label}; the same on all texts: {', '.join(told)}" if told else plan.label


def _title(found: Found) -> str:
    rungs = ", ".join(f"{rung.candidates} on {rung.runs} runs" for rung in found.rungs)
    goal = in_words(found.cluster.search.goal)
    return f"{found.cluster.name}: {goal} (plans simulated: {rungs})"


def refusals(found: Found) -> list[str]:
    """What was refused and why; plans of a schedule that share a reason are counted."""
    counts = Counter((each.schedule, each.reason) for each in found.refused)
    return [
        f"{schedule}{'' if count == 1 else f' ({count} plans)'}: {reason}"
        for (schedule, reason), count in counts.items()
    ]


def default_out(cluster: Path) -> Path:
    """The plan's file, beside the cluster's, as names in it count from there."""
    return cluster.with_name(f"{cluster.stem}-best.toml")


def write_best(found: Found, out: Path) -> None:
    """The best plan as a scenario file; nothing where no plan keeps the limits.

    Raises:
        WriteError: it cannot be written there.
    """
    if not found.feasible:
        return
    best, search = found.best, found.cluster.search
    value = best.outcome.metrics[search.goal]
    comment = [
        f"Found by treepipe plan {found.cluster.path.name}: the best of "
        f"{found.rungs[0].candidates} plans for {in_words(search.goal)}.",
        f"Predicted: {number(value.mean)} {METRICS[search.goal].unit} (mean of {found.runs} runs).",
    ]
    name = f"{found.cluster.name}: {best.candidate.schedule}"
    faults = {key: value for key, value in found.cluster.content.items() if key == "faults"}
    content = {**best.candidate.scenario.content, **faults}
    data = _moved(content, found.cluster.path.resolve().parent, out.resolve().parent)
    write_file(out, toml_text({**data, "name": name}, comment), "--out")


def _moved(value: Any, old: Path, new: Path, key: str = "") -> Any:
    """A file's content; names of files that count from ``old`` are made to count from ``new``."""
    if isinstance(value, Mapping):
        return {name: _moved(each, old, new, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(each, old, new, key) for each in value]
    if isinstance(value, str) and (is_path(value) or key == "file") and (old / value).exists():
        return value if Path(value).is_absolute() else relpath(old / value, new)
    return value
