"""The study: search every cluster for every goal, and say who wins.

None of the papers answers this, as each has a testbed of its own. Every system's parameters are
found by the planner (``treepipe/planner``) in a small grid, on the same texts for all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.planner.halving import Found, search
from treepipe.results.metrics import metric as of_name
from treepipe.results.show import Say
from treepipe.scenario.schema import PoolSection
from treepipe.studies.plots import gain_figure
from treepipe.studies.reproduction import Reproduction, predicted, published
from treepipe.studies.study import Entry, StudyResult
from treepipe.studies.which_system.gains import BUSY, Results, Verdict, gain, rivals, winner
from treepipe.studies.which_system.places import (
    EAGLE_FILE,
    FULL,
    METRICS,
    NAME,
    SHORT,
    SMALL_HITS,
    Goal,
    Place,
    Settings,
    cluster,
    load,
)
from treepipe.studies.which_system.tables import all_plans, one_everywhere, winners

PAGE = Path(__file__).with_name("page.md")


def run(say: Say, full: bool) -> StudyResult:
    """A small grid on few runs, or a finer one on many."""
    return study(FULL if full else SHORT, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Search every cluster for every goal, and compare the systems' best."""
    found: Results = {}
    for place in settings.places:
        for goal in settings.amounts:
            found[place, goal] = search(cluster(settings, place, goal), say)
    made = Reproduction(NAME, PAGE)
    for key in found:
        made.add(_entries(*key, found[key]))
    for sheet in (winners(found), one_everywhere(settings, found), all_plans(found)):
        made.table(sheet)
    return made.result(_fields(settings, found), {NAME: _map(settings, found)})


def _map(settings: Settings, found: Results) -> Figure:
    """Gain over plain decoding, a panel per goal; the best plan framed, those that cannot be told
    from it in dots."""
    panels: dict[str, dict[tuple[str, str], float]] = {
        goal: {
            (name, place.name): gain(each, name).mean
            for name in settings.schedules
            for (place, its), each in found.items()
            if its == goal and name in each.best_of_each
        }
        for goal in settings.amounts
    }
    frames: dict[tuple[str, tuple[str, str]], str] = {}
    for (place, goal), each in found.items():
        for name in (winner(each), *rivals(each)):
            frames[goal, (name, place.name)] = "-" if name == winner(each) else ":"
    return gain_figure(
        "Every system with its best parameters, against plain decoding.\n"
        "Framed: the best; dotted: not distinguishable from it (95 %, the inputs' "
        "uncertainty included)",
        panels,
        frames=frames,
    )


def _fields(settings: Settings, found: Results) -> dict[str, Any]:
    """What the page says."""
    hit_ratios = published()["specpipe"]["hit_ratio"]
    prompts = {each.cluster.content["workload"]["prompt_tokens"] for each in found.values()}
    uncertain = {
        f"{of} ±{share:.0%}"
        for each in found.values()
        if each.cases is not None
        for of, share in each.cases.inputs.items()
    }
    heads = load(EAGLE_FILE).acceptance
    assert isinstance(heads, PoolSection)
    return {
        **{goal: Verdict.of(settings, found, goal) for goal in settings.amounts},
        "busy": BUSY,
        "uncertain": "; ".join(sorted(uncertain)),
        "cases": settings.cases,
        "hits": [*hit_ratios["llama-3.1-8b -> llama-3.1-70b"].values()],
        "small_hits": SMALL_HITS,
        "eagle_hits": heads.hit_ratio,
        "prompts": " or ".join(map(str, sorted(prompts))),
        "requests": settings.amounts["throughput"].requests,
    }


def _entries(place: Place, goal: Goal, found: Found) -> list[Entry]:
    metric, key = METRICS[goal], f"{place.name}/{goal}"
    entries = []
    for schedule, ranked in found.best_of_each.items():
        value = ranked.outcome.metrics[metric]
        entries.append(predicted(f"{key}/{schedule}/{metric}", of_name(metric).unit, value))
        over = gain(found, schedule)
        entries.append(predicted(f"{key}/{schedule}/over_pp", "1", over))
    return entries
