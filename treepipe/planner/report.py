"""Output of a search: tables, the file ``treepipe.plan/1``, and the best plan as a scenario."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from os.path import relpath
from pathlib import Path
from typing import Any

from rich.console import Console

from treepipe.core.errors import RunError
from treepipe.core.schedules import systems
from treepipe.files.outputs import write_file
from treepipe.files.toml_file import toml_text
from treepipe.planner.analysis import Finding, with_empty
from treepipe.planner.candidates import Candidate
from treepipe.planner.cluster import published_price
from treepipe.planner.front import Front
from treepipe.planner.gaps import shown, shown_factor, shown_interval
from treepipe.planner.halving import Ranked, SearchResult
from treepipe.planner.uncertain import FEWEST_CASES, Cases
from treepipe.profiles.library import is_path
from treepipe.results.metrics import METRIC, PRICES, in_words, metric
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.show import print_sheet, print_taken_as_exact
from treepipe.results.statistics import CONFIDENCE, FEWEST, Interval
from treepipe.results.units import number
from treepipe.scenario.making import share_warnings, taken_as_exact

SCHEMA = "treepipe.plan/1"
NAMED = 4
"""Number of indistinguishable plans that are named; further ones are counted."""
CUT = "interrupted: the best so far, and its inputs' uncertainty was not looked at"
DIGITS = 3
"""Digits of a figure in a sentence; tables have more."""


def plan_content(result: SearchResult, done: Mapping[str, Finding] | None = None) -> dict[str, Any]:
    """Return the JSON file's content (keys: ``docs/planning.md``); ``done``: findings by name."""
    findings = with_empty(done or {}).values()
    return {
        "schema": SCHEMA,
        "cluster": result.cluster.name,
        "goal": result.goal.name,
        "unit": result.goal.unit,
        "seed": result.cluster.seed,
        "feasible": result.feasible,
        "interrupted": result.interrupted,
        "rungs": [asdict(rung) for rung in result.rungs],
        "confidence": CONFIDENCE,
        "taken_as_exact": all_taken_as_exact(result),
        "comparisons": result.comparisons,
        "uncertain_inputs": {} if result.cases is None else _uncertain_inputs(result, result.cases),
        **{key: value for each in findings for key, value in each.as_dict().items()},
        "warnings": plan_warnings(result),
        "ranking": [_entry(each, result.goal.name) for each in result.ranking],
        **result.front.as_dict(),
        "refused": [{**each.as_dict(), "reason": each.reason} for each in result.refused],
    }


def _uncertain_inputs(result: SearchResult, cases: Cases) -> dict[str, Any]:
    """Return the uncertain inputs, and the best plan of each schedule over the cases."""
    best_in, goal = cases.best_in(result.goal), result.goal.name
    wide = {n: cases.widened(n, result.value(each)) for n, each in result.best_of_each.items()}
    return {
        "estimates": {str(of): share for of, share in cases.inputs.items()},
        "cases": cases.count,
        "simulated": cases.simulated,
        "plans": {n: {goal: each.as_dict(), "best_in": best_in[n]} for n, each in wide.items()},
    }


def _entry(ranked: Ranked, goal: str) -> dict[str, Any]:
    candidate, outcome = ranked.candidate, ranked.outcome
    return {
        **candidate.as_dict(),
        "same": [each.as_dict() for each in candidate.same],
        goal: outcome.metrics[goal].as_dict(),
        "relative_to_best": None if ranked.gap is None else ranked.gap.as_dict(),
        "indistinguishable": ranked.tied,
        "misses": [miss.as_dict() for miss in ranked.misses],
        **{name: candidate.prices.get(name) for name in PRICES},
        "lossless": candidate.scenario.sampling.lossless,
        "metrics": {name: value.as_dict() for name, value in outcome.metrics.items()},
        "utilization": {name: value.as_dict() for name, value in outcome.utilization.items()},
        **ranked.path.to_json(),
        "binds": ranked.binds(goal),
        "warnings": list(outcome.warnings),
    }


def show_plan(result: SearchResult, console: Console) -> None:
    """Print what is taken as exact, the ranking, the refused plans, and the verdict."""
    print_taken_as_exact(all_taken_as_exact(result), console)
    print_sheet(console, ranking_table(result, short=True))
    for sentence in equal_plans(result):
        console.print(sentence, highlight=False)
    of_inputs = by_inputs(result)  # printed last
    found = [sentence for sentence in verdict(result) if sentence not in of_inputs]
    for sentence in [*found, *prices(result), *binding(result)]:
        console.print(sentence, highlight=False)
    if (table := front_table(result.front)) is not None:
        print_sheet(console, table)
    for sentence in refusals(result):
        console.print(f"refused: {sentence}", highlight=False)
    for warning in plan_warnings(result):
        console.print(f"warning, {warning}", highlight=False)
    for sentence in of_inputs:
        console.print(sentence, highlight=False)


def all_taken_as_exact(result: SearchResult) -> list[str]:
    """Name the inputs of any plan that no interval includes."""
    scenarios = (each.candidate.scenario for each in result.ranking)
    return list(dict.fromkeys(each for own in scenarios for each in taken_as_exact(own)))


def plan_warnings(result: SearchResult) -> list[str]:
    """Return reasons to doubt the comparison, then warnings of the best (or nearest) plan."""
    scenarios = [each.candidate.scenario for each in result.ranking]
    of_all = dict.fromkeys(sentence for each in scenarios for sentence in share_warnings(each))
    which = "best" if result.feasible else "nearest"
    own = [each for each in result.winner.outcome.warnings if each not in of_all]
    return [*(f"all plans: {each}" for each in of_all), *(f"{which} plan: {each}" for each in own)]


def front_table(front: Front) -> Sheet | None:
    """Return each plan's goals, and which plan beats it; None if there is one plan or one goal."""
    if len(front.values) < 2 or len(front.goals) < 2:
        return None
    goals = [f"{in_words(goal)} ({metric(goal).unit})" for goal in front.goals]
    title = "all goals: plans of the ranking, and what beats them in every goal (?: not surely)"
    sheet = Sheet(title, [*figures("", *goals), *words("beaten by")])
    beaten = {
        each.plan: f"{each.by + 1}{'' if each.beyond_doubt else '?'}" for each in front.beaten
    }
    for place, values in enumerate(front.values):
        cells = [number(values[goal]) for goal in front.goals]
        sheet.add(str(place + 1), *cells, beaten.get(place, ""))
    return sheet


def show_finding(result: SearchResult, finding: Finding, console: Console) -> None:
    """Print the tables and sentences of an analysis, as far as there are any."""
    for table in finding.tables(result):
        print_sheet(console, table)
    for sentence in finding.sentences():
        console.print(sentence, highlight=False)


def headline(result: SearchResult) -> str:
    """Return the first sentence: the best plan's figure, how much better it is than plain decoding,
    and which simpler schedule is as good. Requires a feasible plan."""
    best = result.winner.candidate
    system = systems()[best.schedule]
    known = system.summary.lower() == system.name
    called = system.name if known else f"{system.name} ({system.summary})"
    sentence = f"{called}: {_figure(result)}{_over_plain(result)}"
    tied = [each.candidate for each in result.best_of_each.values() if each.tied]
    simpler = min(tied, key=lambda each: each.parameters, default=best)
    if result.runs >= FEWEST and simpler.parameters < best.parameters:
        runs = result.runs
        sentence += f"; {simpler.schedule} is as good as far as {runs} runs can tell, and simpler"
    return sentence


def _figure(result: SearchResult) -> str:
    """Format the goal with its interval; the time between tokens also as a rate."""
    goal, workload, value = result.goal, result.cluster.workload, result.value(result.winner)
    mean = number(value.mean, DIGITS)
    if goal.name != METRIC or not value.mean:
        return f"{goal.in_words} {mean} {goal.unit}{_in_brackets(value)}"
    alone = not workload.arriving and min(workload.concurrency, workload.requests) == 1
    rate, each = value.inverse(1e3), "" if alone else " for each request"
    per_second = f"{number(rate.mean, DIGITS)} tokens/s{each}{_in_brackets(rate)}"
    return f"{per_second}, a token every {mean} ms"


def _over_plain(result: SearchResult) -> str:
    """Say by which factor the best plan beats plain decoding, if that is ranked."""
    goal, best_of_each = result.goal, result.best_of_each
    plain = [each for name, each in best_of_each.items() if not systems()[name].drafts]
    if not plain:
        return ""
    if plain[0].gap is None:
        return ", and no schedule that drafts is better" if len(best_of_each) > 1 else ""
    over = plain[0].gap.shifted(1.0)
    factor = over if goal.less_is_better else over.inverse()
    times, ends = shown_factor(factor.mean), _in_brackets(factor, shown_factor)
    if goal.name.endswith("_ms"):
        return f", {times} times as fast as plain decoding{ends}"
    if goal.less_is_better:
        return f"; plain decoding takes {times} times as much{ends}"
    return f", {times} times that of plain decoding{ends}"


def _digits(value: float) -> str:
    return number(value, DIGITS)


def _in_brackets(interval: Interval, text: Callable[[float], str] = _digits) -> str:
    if interval.low is None or interval.high is None:
        return f" ({interval.fixed})" if interval.fixed else ""
    return f" ({CONFIDENCE:.0%}: {text(interval.low)} to {text(interval.high)})"


def in_two_sentences(result: SearchResult) -> list[str]:
    """Return the winner's figure, and its plan with the certainty of the choice."""
    best = result.winner
    if not result.feasible:
        return ["No plan keeps the limits.", f"The nearest one is {best.label}: {best.missed}."]
    known = CUT if result.interrupted else "its inputs state no uncertainty"
    if not result.cluster.search.cases:
        known = "its inputs' uncertainty was not looked at (search.cases = 0)"
    sure = "; ".join([*_apart(result), *(by_inputs(result) or [known])])
    return [f"{headline(result)}.", f"The best plan is {best.label}; {sure}."]


def verdict(result: SearchResult) -> list[str]:
    """Describe the winner and its certainty, or the plan nearest to the limits."""
    if not result.feasible:
        return [f"no plan keeps the limits; the nearest one: {result.winner.label}"]
    return [f"best: {headline(result)}", *ranking_notes(result), *by_inputs(result)]


def ranking_notes(result: SearchResult) -> list[str]:
    """Return the sentences of the verdict beyond the winner."""
    if not result.feasible:
        return []
    best, others = result.winner.candidate, result.ranking[1:]
    sentences = [CUT] if result.interrupted else []
    sentences.append(f"its plan: {best.label}")
    sentences += [f"{key} makes no difference to it on these texts" for key in _idle_keys(best)]
    if best.partition != "even":
        dealt = " | ".join(" ".join(map(str, counts)) for counts in best.layers)
        sentences.append(f"its layers per stage: {dealt}")
    apart = _apart(result)
    if any(each.tied and (each.gap is None or not each.gap.fixed) for each in others):
        more = "more may" if result.runs >= FEWEST else f"{FEWEST} or more may"
        apart.insert(1, f"{result.runs} runs cannot tell whether these are worse; {more} (--runs)")
    if any(each.gap is not None and each.gap.low is not None for each in others):
        apart.append(
            f"differences: {CONFIDENCE:.0%} intervals that hold for all pairs of these plans "
            f"({result.comparisons}) together, over {result.runs} runs on the same texts"
        )
    return sentences + apart


def _idle_keys(plan: Candidate) -> list[str]:
    """List the keys in which alone a plan with the same figures differs from this one."""
    found = dict[str, None]()
    for same in plan.same:
        differ = [key for key, value in same.settings.items() if plan.settings.get(key) != value]
        if same.schedule == plan.schedule and len(differ) == 1:
            found[differ[0].removeprefix("schedule.")] = None
    return list(found)


def _apart(result: SearchResult) -> list[str]:
    """Name the plans that are indistinguishable from the best one, and those that are worse."""
    others, sentences = result.ranking[1:], list[str]()
    tied = [each for each in others if each.tied]
    if tied:
        labels = "; ".join(each.label for each in tied)
        if len(tied) > NAMED:
            some = len(tied) < len(others)
            labels = f"{len(tied)} of the other {len(others)} plans" if some else "all others"
        sentences.append(f"not distinguishable from it: {labels}")
    if len(tied) < len(others):
        worse = f"the other {len(others) - len(tied)}" if tied else "all others"
        verb = "is" if worse == "the other 1" else "are"
        sentences.append(f"{worse} {verb} worse beyond doubt")
    return sentences


def by_inputs(result: SearchResult) -> list[str]:
    """Say how the uncertain inputs change the verdict."""
    cases, winner = result.cases, result.winner.candidate.schedule
    if cases is None:
        return []
    wide, shares = cases.widened(winner, result.value(result.winner)), cases.best_in(result.goal)
    others = {name: share for name, share in shares.items() if share and name != winner}
    winners = [f"{winner} is the best schedule in {_share(shares[winner], cases)}"]
    winners += [
        f"{name} in {_share(others[name], cases)}"
        for name in sorted(others, key=lambda n: -others[n])
    ]
    inputs = ", ".join(f"{of} ±{share:.0%}" for of, share in cases.inputs.items())
    ends = f"{_ends(wide)} {result.goal.unit}"
    if wide.low is None:
        ends = f"{cases.count} cases give no range (search.cases: {FEWEST_CASES} or more)"
    return [
        f"with its inputs' uncertainty: {ends}; {', '.join(winners)} of {cases.count} cases that "
        f"the inputs allow ({inputs})"
    ]


def _share(share: float, cases: Cases) -> str:
    """Format a share of the cases, of few cases as their number."""
    return f"{share:.0%}" if cases.count >= FEWEST_CASES else f"{round(share * cases.count)}"


def cases_table(result: SearchResult) -> Sheet:
    """Show the best plan of each schedule with both intervals, and the share of cases it wins."""
    cases = result.cases
    assert cases is not None
    shares = cases.best_in(result.goal)
    title = f"the best plan of each schedule in {cases.count} cases that the inputs allow"
    columns = (result.goal.unit, "95 %, by the runs", "95 %, by runs and inputs", "best in")
    sheet = Sheet(title, [*words("schedule"), *figures(*columns)])
    for name, each in result.best_of_each.items():
        value = result.value(each)
        both = _ends(cases.widened(name, value))
        sheet.add(name, number(value.mean), _ends(value), both, _share(shares[name], cases))
    return sheet.filled


def prices(result: SearchResult) -> list[str]:
    """Return the sources of prices that the cluster file does not state itself."""
    cluster = result.cluster
    devices = cluster.search.devices
    if devices is None:
        return []
    stated, base = cluster.content["search"]["devices"]["kinds"], cluster.path.parent
    return [
        f"price of {k.label}: {published_price(own['device'], f'{cluster.path}: {k.label}', base)}"
        for k, own in zip(devices.kinds, stated, strict=True)
        if k.price_usd is not None and "price_usd" not in own
    ]


def binding(result: SearchResult) -> list[str]:
    """Name the parts of a token's time in the best plan and its bottleneck, if time passes."""
    best, goal = result.winner, result.goal
    name, busy = best.binds(goal.name), best.outcome.utilization
    if name is None or name == best.path.binds:
        return best.path.sentences
    busiest = f"what binds the {goal.in_words}: {name}, busy {busy[name].mean:.0%} of the time"
    return [*best.path.sentences, busiest]


def check_feasible(result: SearchResult) -> None:
    """Raise ``RunError`` if no plan keeps the limits."""
    if not result.feasible:
        raise RunError(
            f"{result.cluster.path}: no plan keeps the limits; of the nearest one, "
            f"{result.winner.label}, {result.winner.missed}"
        )


def _ranking_title(result: SearchResult) -> str:
    rungs = ", ".join(map(str, result.rungs))
    return f"{result.cluster.name}: {result.goal.in_words} (plans simulated: {rungs})"


def ranking_table(result: SearchResult, *, short: bool = False) -> Sheet:
    """Show the ranking; if no plan keeps the limits, with each one's excess.

    Args:
        short: in a terminal's width: of each plan the settings that others of its schedule have
            otherwise, and how far it is behind the best one in one column.
    """
    title, heads, unit = _ranking_title(result), words("", "plan"), figures(result.goal.unit)
    short = short and result.feasible
    if not result.feasible:
        title += ": no plan keeps the limits, nearest first"
        heads += [*unit, *words("limits missed, the worst first")]
    elif short:
        heads += [*unit, *figures("against the best (95 %, all together)"), *words("worse")]
    else:
        more = figures("95 % interval", "against the best", "95 %, all together", "")
        heads += [*unit, *more]
    sheet = Sheet(title, heads)
    for rank, each in enumerate(result.ranking, 1):
        value, gap = result.value(each), each.gap
        cells = [_in_short(each, result) if short else _named(each), number(value.mean)]
        relative, ends = ("", "") if gap is None else (shown(gap.mean), shown_interval(gap))
        if not result.feasible:
            cells += ["; ".join(map(str, each.misses))]
        elif short:
            worse = "best" if rank == 1 else "maybe" if each.tied else "yes"
            cells += [f"{relative} ({ends})" if ends else relative, worse]
        else:
            tied = "best" if rank == 1 else "not distinguishable" if each.tied else ""
            cells += [_ends(value), relative, ends, tied]
        sheet.add(str(rank), *cells)
    return sheet


def _in_short(ranked: Ranked, result: SearchResult) -> str:
    """Name a plan by its schedule, and by the settings in which ranked plans of it differ."""
    plan = ranked.candidate
    every = [x.candidate.chosen for x in result.ranking if x.candidate.schedule == plan.schedule]
    differ = [x for x in plan.chosen if any(x not in chosen for chosen in every)]
    return " ".join([plan.schedule, *differ])


def equal_plans(result: SearchResult) -> list[str]:
    """Name the plans that have all figures of a ranked one, by its place in the ranking."""
    found = [
        f"{rank} = {', '.join(others)}"
        for rank, each in enumerate(result.ranking, 1)
        if (others := _equals(each))
    ]
    return [f"the same on all texts: {'; '.join(found)}"] if found else []


def _ends(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return interval.fixed
    return f"{number(interval.low)} … {number(interval.high)}"


def _named(ranked: Ranked) -> str:
    others = _equals(ranked)
    label = ranked.candidate.label
    return f"{label}; the same on all texts: {', '.join(others)}" if others else label


def _equals(ranked: Ranked) -> list[str]:
    """Name a plan's equals: those of the same schedule by the settings that differ, others by
    schedule and settings, or by their number."""
    by_schedule: dict[str, list[Candidate]] = {}
    for same in ranked.candidate.same:
        by_schedule.setdefault(same.schedule, []).append(same)
    plan, others = ranked.candidate, list[str]()
    for schedule, each in by_schedule.items():
        if schedule == plan.schedule:
            others += [" ".join(x for x in same.chosen if x not in plan.chosen) for same in each]
        else:
            others.append(each[0].label if len(each) == 1 else f"{schedule} ({len(each)} settings)")
    return others


def refusals(result: SearchResult) -> list[str]:
    """List the refused plans with reasons; plans that share a reason are counted by schedule."""
    shared = dict[str, Counter[str]]()
    for each in result.refused:
        shared.setdefault(each.reason, Counter())[each.schedule] += 1
    return [
        f"{', '.join(s if n == 1 else f'{s} ({n} plans)' for s, n in counts.items())}: {reason}"
        for reason, counts in shared.items()
    ]


FOUND_BY = "Found by treepipe plan"
UNCHANGED = "# Not edited since: "
"""What the last line of a written plan begins with; a digest of the lines before it follows."""


def is_written(out: Path) -> bool:
    """Whether a file is a plan that treepipe wrote, and that nobody has edited since."""
    try:
        body, mark, digest = out.read_text(encoding="utf-8").rpartition(UNCHANGED)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(mark) and body.startswith(f"# {FOUND_BY}") and digest.strip() == _digest(body)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_out(cluster: Path) -> Path:
    """Return the plan's path, beside the cluster's, to which its file names are relative."""
    return cluster.with_name(f"{cluster.stem}-best.toml")


def write_best(result: SearchResult, out: Path) -> None:
    """Write the best plan as a scenario file; do nothing if no plan keeps the limits.

    Raises:
        WriteError: the file cannot be written.
    """
    if not result.feasible:
        return
    cluster, plan, goal = result.cluster, result.winner.candidate, result.goal
    mean = number(result.value(result.winner).mean)
    comment = [
        f"{FOUND_BY} {cluster.path.name}: the best of {result.rungs[0].candidates} "
        f"plans for {goal.in_words}.",
        f"Predicted: {mean} {goal.unit} (mean of {result.runs} runs).",
    ]
    faults = {key: value for key, value in cluster.content.items() if key == "faults"}
    content = {**plan.scenario.content, **faults, "name": f"{cluster.name}: {plan.schedule}"}
    moved = _moved(content, cluster.path.resolve().parent, out.resolve().parent)
    text = f"{toml_text(moved, comment)}\n"
    write_file(out, f"{text}{UNCHANGED}{_digest(text)}\n", "--out")


def _moved(value: Any, old: Path, new: Path, key: str = "") -> Any:
    """Rewrite file names in a file's content from relative to ``old`` to relative to ``new``."""
    if isinstance(value, Mapping):
        return {name: _moved(each, old, new, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(each, old, new, key) for each in value]
    if isinstance(value, str) and (is_path(value) or key == "file") and (old / value).exists():
        return value if Path(value).is_absolute() else relpath(old / value, new)
    return value
