"""The first sentence of a search's answer: what the best plan reaches, how much better that is than
plain decoding, and which simpler schedule would do as well."""

from __future__ import annotations

from treepipe.core.schedules import systems
from treepipe.planner.halving import Found, Ranked
from treepipe.results.metrics import METRIC, in_words, metric
from treepipe.results.show import number
from treepipe.results.statistics import CONFIDENCE, Interval

DIGITS = 3
"""Of a figure in the sentence; tables have more."""


def headline(found: Found) -> str:
    """Args: ``found``: with a plan that keeps the limits."""
    best = found.best
    parts = [f"{_called(best)}: {_figure(found)}{_over_plain(found)}"]
    simpler = [
        each
        for each in found.best_of_each.values()
        if each.tied and each.candidate.parameters < best.candidate.parameters
    ]
    if simpler:
        name = min(simpler, key=lambda each: each.candidate.parameters).candidate.schedule
        parts.append(f"{name} is as good as far as {found.runs} runs can tell, and simpler")
    return "; ".join(parts)


def _called(ranked: Ranked) -> str:
    """The schedule's name, with what it does."""
    system = systems()[ranked.candidate.schedule]
    known = system.summary.lower() == system.name
    return system.name if known else f"{system.name} ({system.summary})"


def _figure(found: Found) -> str:
    """The goal with its interval; the time between tokens also as a rate."""
    goal, workload = found.cluster.search.goal, found.cluster.workload
    value = found.best.outcome.metrics[goal]
    if goal != METRIC or not value.mean:
        return f"{in_words(goal)} {number(value.mean, DIGITS)} {metric(goal).unit}{_ends(value)}"
    alone = workload.arrivals is None and min(workload.concurrency, workload.requests) == 1
    rate = value.inverse(1e3)
    return (
        f"{number(rate.mean, DIGITS)} tokens/s{'' if alone else ' for each request'}{_ends(rate)}, "
        f"a token every {number(value.mean, DIGITS)} ms"
    )


def _over_plain(found: Found) -> str:
    """The factor by which the best plan is better than plain decoding, if that is ranked."""
    goal = found.cluster.search.goal
    plain = [each for name, each in found.best_of_each.items() if not systems()[name].drafts]
    if not plain:
        return ""
    if plain[0].gap is None:
        drafting = len(found.best_of_each) > 1
        return ", and no schedule that drafts is better" if drafting else ""
    over = plain[0].gap.shifted(1.0)
    factor = over if metric(goal).less_is_better else over.inverse()
    told, name = number(factor.mean, DIGITS), "plain decoding"
    if goal.endswith("_ms"):
        return f", {told} times as fast as {name}{_ends(factor)}"
    if metric(goal).less_is_better:
        return f"; {name} takes {told} times as much{_ends(factor)}"
    return f", {told} times that of {name}{_ends(factor)}"


def _ends(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    low, high = number(interval.low, DIGITS), number(interval.high, DIGITS)
    return f" ({CONFIDENCE:.0%}: {low} to {high})"
