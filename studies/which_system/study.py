"""The study: search every cluster for every goal, and say who wins.

None of the papers answers this, as each has a testbed of its own. Every system's parameters are
found by the planner (``planner``) in a small grid, on the same texts for all.
"""

from __future__ import annotations

from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import Found, search
from treepipe.results.metrics import UNITS
from treepipe.results.show import Say
from treepipe.studies.reproduction import predicted
from treepipe.studies.study import Entry, StudyResult
from treepipe.studies.which_system.gains import (
    Results,
    draft_busy,
    gain,
    geometric_mean,
    rivals,
    shares_of,
    slower_than_plain,
)
from treepipe.studies.which_system.map import draw_map
from treepipe.studies.which_system.places import (
    CLUSTERS,
    FULL,
    METRICS,
    NAME,
    PLAIN,
    SHORT,
    Goal,
    Place,
    Settings,
    changes,
)
from treepipe.studies.which_system.tables import all_plans, one_everywhere, winners

BUSY = 0.9
"""A server that is busy for a larger share of the time limits what depends on it."""


def run(say: Say, full: bool) -> StudyResult:
    """A small grid on few runs, or a finer one on many."""
    return study(FULL if full else SHORT, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Search every cluster for every goal, and compare the systems' best."""
    found: Results = {}
    for place in settings.places:
        for goal in settings.amounts:
            path = CLUSTERS / f"{place.file}.toml"
            found[place, goal] = search(Cluster.load(path, changes(settings, place, goal)), say)
    entries = [entry for key in found for entry in _entries(*key, found[key])]
    return StudyResult(
        NAME,
        entries,
        [winners(found), one_everywhere(settings, found), all_plans(found)],
        {NAME: draw_map(settings, found)},
        _findings(settings, found),
        sections={
            "Calibrated on": ["nothing: no published figure was fitted"],
            "True predictions": ["all figures; no paper has measured these clusters"],
            "Assumptions": ASSUMPTIONS,
            "Not predicted, and why": NOT_PREDICTED,
        },
    )


ASSUMPTIONS = [
    "stage and draft times: measured layers (RTX 3090, RTX 4090, A100) or the roofline (Jetson, "
    "L40), which leaves out what software adds; SpecPipe's authors measured 67 ms per token of the "
    "8B draft on an L40 and 17 ms of the 1B one, the roofline says 25 and 4 ms",
    "acceptance, 8B draft: the published hit ratios 0.81 (top 1) and 0.99 (top 8), reached by "
    "drawing passages of the bundled pair's recorded pool; 1B draft: 0.7 and 0.95, assumed; EAGLE "
    "heads: the bundled head's recorded pool, drawn to reach 0.7",
    "greedy decoding; prompts of 64 or 128 tokens; throughput: 8 requests that are asked for at "
    "once, prefill included",
    "the draft server holds embedding and output projection in every system, plain decoding "
    "included; it is a device more than the pipeline's",
    "PipeDec: with central transfers and groups of one or two devices; SpecPipe: without",
    "between two servers: 10 GbE instead of PCI Express; hidden states are small, so that hardly "
    "shows",
    "a system's parameters are the best of a small grid on the same texts, so its figure is "
    "slightly too good, and more so for systems with many parameters",
]
NOT_PREDICTED = [
    "continuous batching: only specpipe_db computes several requests in one pass; the others' "
    "requests follow each other through the stages, so their throughput is a lower bound",
    "specpipe_db for latency: one request alone is specpipe",
    "tensor parallelism inside a server: no system here uses it",
    "quality of a published EAGLE head deep below the last known state: the bundled head's decay "
    "stands for it",
]


def _entries(place: Place, goal: Goal, found: Found) -> list[Entry]:
    metric, key = METRICS[goal], f"{place.name}/{goal}"
    entries = []
    for schedule, ranked in found.best_of_each.items():
        value = ranked.outcome.metrics[metric]
        entries.append(predicted(f"{key}/{schedule}/{metric}", UNITS[metric], value))
        over = gain(ranked, found.best_of_each[PLAIN], metric)
        entries.append(predicted(f"{key}/{schedule}/over_pp", "1", over))
    return entries


def _findings(settings: Settings, found: Results) -> list[str]:
    sentences = []
    for goal in settings.amounts:
        places = [(place, each) for (place, its), each in found.items() if its == goal]
        won: dict[str, list[str]] = {}
        for place, each in places:
            won.setdefault(each.best.candidate.schedule, []).append(place.name)
        who = "; ".join(f"{name}: {', '.join(names)}" for name, names in won.items())
        sentences.append(f"{goal}, who is best: {who}")
        clear = [place.name for place, each in places if not rivals(each)]
        where = ", ".join(clear) or "nowhere"
        sentences.append(f"{goal}, beyond doubt (95 %) against all other systems: {where}")
        means = {
            name: geometric_mean(shares)
            for name in settings.schedules
            if len(shares := shares_of(found, name, goal)) == len(places)
        }
        first = max(means, key=lambda name: means[name])
        sentences.append(
            f"{goal}, if one system must serve all clusters: {first}, at {means[first]:.0%} of the "
            f"winners' speed (geometric mean), at worst {min(shares_of(found, first, goal)):.0%}"
        )
        losers = slower_than_plain(found, goal)
        if losers:
            busy = sum(draft_busy(ranked) > BUSY for ranked in losers)
            sentences.append(
                f"{goal}, slower than plain decoding: {len(losers)} of "
                f"{sum(len(each.best_of_each) - 1 for _, each in places)} plans; the draft server "
                f"is busy for more than {BUSY:.0%} of the time in {busy} of them"
            )
    return sentences
