"""Output of a search: tables, the file ``treepipe.plan/1``, and the best plan as a scenario."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from os.path import relpath
from pathlib import Path
from typing import Any

import numpy as np

from treepipe.core.errors import RunError
from treepipe.core.schedules import systems
from treepipe.files.outputs import write_file
from treepipe.files.toml_file import toml_text
from treepipe.planner.analysis import Finding, with_empty
from treepipe.planner.candidates import Candidate
from treepipe.planner.cluster import published_price
from treepipe.planner.drawn import FEWEST_CASES, QUANTILE
from treepipe.planner.front import Front
from treepipe.planner.gaps import shown, shown_factor, shown_interval
from treepipe.planner.halving import Ranked, SearchResult
from treepipe.planner.uncertain import Cases
from treepipe.profiles.library import is_path
from treepipe.results.metrics import METRIC, PRICES, in_words, metric
from treepipe.results.screen import Screen
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import CONFIDENCE, FEWEST
from treepipe.results.units import DIGITS, SHARE, ends, in_brackets, number, speed
from treepipe.scenario.making import share_warnings, taken_as_exact

SCHEMA = "treepipe.plan/1"
CUT = "Interrupted: the best so far, and its inputs' uncertainty was not looked at."
NOT_LOOKED_AT = "Its inputs' uncertainty was not looked at (search.cases = 0)."


def plan_content(result: SearchResult, done: Mapping[str, Finding] | None = None) -> dict[str, Any]:
    """Return the JSON file's content (keys: ``docs/planning.md``); ``done``: findings by name."""
    findings = with_empty(done or {}).values()
    return {
        "schema": SCHEMA,
        "cluster": result.cluster.name,
        "answer": plan_screen(result).answer,
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


def plan_screen(result: SearchResult) -> Screen:
    """Make the screen of a search."""
    best, front = result.winner, front_table(result.front)
    says = headline(result) if result.feasible else f"no plan keeps the limits: {best.missed}"
    refused = [f"refused: {each}" for each in refusals(result)]
    every = [f"all {len(result.ranking)} plans by all goals"] * (front is not None)
    return Screen(
        says,
        best_table(result),
        [*verdict(result), *binding(result)],
        plan_warnings(result),
        all_taken_as_exact(result),
        [ranking_table(result), *([] if front is None else [front])],
        [*verdict(result), *binding(result), *best.path.sentences[:1], *prices(result), *refused],
        [*every, *[f"{len(result.refused)} refused"] * bool(result.refused)],
    )


def best_table(result: SearchResult) -> Sheet:
    """Show the best plan of each schedule and split, with both intervals and the share of cases it
    wins; those with equal figures share a row."""
    goal, cases, seen = result.goal, result.cases, set[tuple[str, str]]()
    unit = goal.in_unit
    heads = [*words("plan", "split"), *figures("groups x rows", unit, "gap"), *words("worse")]
    more = figures("best in", "gap, 95%", f"{unit} with inputs, 95%")
    sheet = Sheet("the best plan of each schedule", [*heads, *more])
    for rank, each in enumerate(result.ranking):
        plans = {_kind(plan): plan.schedule for plan in (each.candidate, *each.candidate.same)}
        names = [*dict.fromkeys(name for kind, name in plans.items() if kind not in seen)]
        if not names:
            continue
        value, split, (gap, spread) = result.value(each), _kind(each.candidate)[1], _gap(each)
        groups = " x ".join(map(str, each.candidate.groups or ()))
        first = " = ".join(names), split, groups, number(value.mean), gap, _worse(rank, each)
        wins = wide = ""
        if cases is not None and names[0] not in {name for name, _ in seen}:  # of its best plan
            wins = _share(max(map(cases.best_in(goal).__getitem__, names)), cases)
            wide = ends(cases.widened(names[0], value), SHARE)
        seen |= {*plans}
        sheet.add(*first, wins, spread, wide)
    return sheet.filled


def _gap(ranked: Ranked) -> tuple[str, str]:
    gap = ranked.gap
    return ("", "") if gap is None else (shown(gap.mean), shown_interval(gap))


def _worse(rank: int, ranked: Ranked) -> str:
    """Say whether a plan is worse than the best one, or what limits it breaks."""
    if ranked.misses:
        return f"breaks {', '.join(in_words(miss.limit) for miss in ranked.misses)}"
    return "best" if not rank else "maybe" if ranked.tied else "yes"


def _kind(plan: Candidate) -> tuple[str, str]:
    """Return what tells rows of a screen apart: a plan's schedule, and its devices or split."""
    return plan.schedule, str(plan.settings.get("split") or plan.settings.get("devices") or "")


def hangs_on(result: SearchResult) -> list[str]:
    """Name the two inputs that move the best plan's figure most over the cases: the slopes of its
    logarithm, by least squares, at the ends of each input's 95 % range."""
    cases, winner = result.cases, result.winner.candidate.schedule
    if cases is None or cases.count <= len(cases.inputs) or min(cases.values[winner]) <= 0:
        return []
    moved = np.log(cases.values[winner] / cases.stated[winner])
    slopes = np.linalg.lstsq(cases.levels, moved, rcond=None)[0]
    halves = dict(zip(cases.inputs, slopes * QUANTILE, strict=True))
    most = [
        f"{of} ±{cases.inputs[of]:.0%} ({np.expm1(-half):+.0%} to {np.expm1(half):+.0%})"
        for of, half in sorted(halves.items(), key=lambda each: -abs(each[1]))[:2]
        if abs(half) >= 0.005  # else it is shown as 0 %
    ]
    return [f"It hangs most on: {', '.join(most)}."] if most else []


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
    goals = [f"{in_words(goal)} ({metric(goal).in_unit})" for goal in front.goals]
    title = "all goals: plans of the ranking, and what beats them in every goal (?: not surely)"
    sheet = Sheet(title, [*figures("", *goals), *words("beaten by")])
    beaten = {
        each.plan: f"{each.by + 1}{'' if each.beyond_doubt else '?'}" for each in front.beaten
    }
    for place, values in enumerate(front.values):
        cells = [number(values[goal]) for goal in front.goals]
        sheet.add(str(place + 1), *cells, beaten.get(place, ""))
    return sheet


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
    if goal.name != METRIC or not value.mean:
        return f"{goal.in_words} {number(value.mean, DIGITS)} {goal.in_unit}{in_brackets(value)}"
    several = workload.arriving or min(workload.concurrency, workload.requests) > 1
    return speed(value, each=several)


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
    times, ends = shown_factor(factor.mean), in_brackets(factor, shown_factor)
    if goal.name.endswith("_ms"):
        return f", {times} times as fast as plain decoding{ends}"
    if goal.less_is_better:
        return f"; plain decoding takes {times} times as much{ends}"
    return f", {times} times that of plain decoding{ends}"


def verdict(result: SearchResult) -> list[str]:
    """Return the winner's settings, how sure the choice is, and what it hangs on; or the plan
    nearest to the limits."""
    best = result.winner.candidate
    if not result.feasible:
        return [f"The nearest plan: {best.label}."]
    dealt = " | ".join(" ".join(map(str, counts)) for counts in best.layers)
    layers = "" if best.partition == "even" else f"; its layers per stage: {dealt}"
    sentences = [*[CUT] * result.interrupted, f"Its plan: {best.label}{layers}."]
    others = [each for each in result.ranking if each.tied and each.gap is not result.winner.gap]
    if any(each.gap is None or not each.gap.fixed for each in others):
        names = "1 other (maybe) is" if len(others) == 1 else f"{len(others)} others (maybe) are"
        more = "more may" if result.runs >= FEWEST else f"{FEWEST} or more may"
        sentences.append(f"{result.runs} runs cannot tell whether {names} worse; {more} (--runs).")
    return [*sentences, *by_inputs(result), *hangs_on(result)]


def by_inputs(result: SearchResult) -> list[str]:
    """Say how the uncertain inputs change the verdict."""
    cases, winner = result.cases, result.winner.candidate.schedule
    if cases is None:
        tried = result.cluster.search.cases
        known = "No input states its uncertainty; --sensitivity tells what would change the answer."
        return [] if result.interrupted else [known if tried else NOT_LOOKED_AT]
    wide, shares = cases.widened(winner, result.value(result.winner)), cases.best_in(result.goal)
    others = {name: share for name, share in shares.items() if share and name != winner}
    winners = [f"{winner} is the best in {_share(shares[winner], cases)}"]
    winners += [
        f"{name} in {_share(others[name], cases)}"
        for name in sorted(others, key=lambda n: -others[n])
    ]
    inputs = ", ".join(f"{of} ±{share:.0%}" for of, share in cases.inputs.items())
    spread = f"{ends(wide, SHARE)} {result.goal.in_unit}"
    if wide.low is None:
        few = f" (search.cases: {FEWEST_CASES} or more)" * (cases.count < FEWEST_CASES)
        spread = f"{cases.count} cases give no range{few}"
    return [
        f"With its inputs' uncertainty: {spread}; {', '.join(winners)} of {cases.count} cases that "
        f"the inputs allow ({inputs})."
    ]


def _share(share: float, cases: Cases) -> str:
    """Format a share of the cases, of few cases as their number."""
    return f"{share:.0%}" if cases.count >= FEWEST_CASES else f"{round(share * cases.count)}"


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
    """Name what binds the best plan, with its share."""
    best, goal = result.winner, result.goal
    name, busy = best.binds(goal.name), best.outcome.utilization
    if name is None or name == best.path.binds:
        return best.path.note
    return [f"What binds the {goal.in_words}: {name}, busy {busy[name].mean:.0%} of the time."]


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


def ranking_table(result: SearchResult) -> Sheet:
    """Show the ranking with all settings; plans with equal figures share a row."""
    title = _ranking_title(result)
    if result.comparisons:
        title += "; gaps to the best: intervals that hold for all pairs together"
    unit = result.goal.in_unit
    heads = [*words("", "plan"), *figures(unit, "95 % interval", "gap", "gap, 95 %")]
    sheet = Sheet(title, [*heads, *words("worse")])
    for rank, each in enumerate(result.ranking):
        value = result.value(each)
        missed = "; ".join(map(str, each.misses))
        cells = _named(each), number(value.mean), ends(value, SHARE), *_gap(each)
        sheet.add(str(rank + 1), *cells, missed or _worse(rank, each))
    return sheet.filled


def _named(ranked: Ranked) -> str:
    """Name a plan, and those with the same figures by what they have otherwise."""
    plan = ranked.candidate
    mine = {plan.schedule, *plan.chosen}
    others = [
        " ".join(part for part in (same.schedule, *same.chosen) if part not in mine)
        for same in plan.same
    ]
    return f"{plan.label}; the same on all texts: {', '.join(others)}" if others else plan.label


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
        f"Predicted: {mean} {goal.in_unit} (mean of {result.runs} runs).",
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
