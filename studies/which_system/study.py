"""The study: search every cluster for every goal, and say who wins.

None of the papers answers this, as each has a testbed of its own. Every system's parameters are
found by the planner (``treepipe/planner``) in a small grid, on the same texts for all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treepipe.planner.halving import Found, search
from treepipe.results.metrics import metric as of_name
from treepipe.results.show import Say
from treepipe.scenario.schema import PoolSection
from treepipe.studies.page import result
from treepipe.studies.reproduction import predicted, published
from treepipe.studies.study import Entry, StudyResult
from treepipe.studies.which_system.gains import BUSY, Results, Verdict, gain
from treepipe.studies.which_system.map import draw_map
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
from treepipe.studies.which_system.tables import all_plans, changes, one_everywhere, winners

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
    return result(
        NAME,
        PAGE,
        [entry for key in found for entry in _entries(*key, found[key])],
        _fields(settings, found),
        [winners(found), one_everywhere(settings, found), changes(found), all_plans(found)],
        {NAME: draw_map(settings, found)},
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
