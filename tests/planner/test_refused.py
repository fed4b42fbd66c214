"""Clusters that the planner refuses: each in one sentence that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.searches import BOUGHT, CLUSTER, KINDS, SLOW
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.planner.analysis import ANALYSES
from treepipe.planner.cluster import Cluster
from treepipe.planner.plan import search
from treepipe.planner.sensitivity import sensitivities

SEARCHED = {"search.schedules": ["pp", "chain", "specpipe"]}
FAULT = {"worker": "draft0", "kind": "kill", "at_ms": 5.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"search.goal": "speed"}, 'key search.goal = "speed": input should be \'time_between_tok'),
    ({"search.gaol": 1}, "key search.gaol is unknown; did you mean 'goal'?"),
    ({"serch.goal": 1}, "key serch is unknown; did you mean 'search'?"),
    ({"search.schedules": ["specpip"]}, 'key search.schedules.0 = "specpip": there is no such'),
    ({"search.schedules": []}, "key search.schedules = []"),
    ({"search.grid": {"schedule.widht": [1]}}, "schedule.widht is unknown; did you mean"),
    ({"search.grid": {"schedule.tree_size": [1]}}, "tree_size is read by no schedule that"),
    ({"search.grid": {"schedule.width": []}}, "width = []"),
    ({"search.grid": {"schedule.width": [0]}}, "key schedule.width = 0: input should be greater"),
    ({"search.grid": {"drafts.0.device": ["l4"]}}, "no such profile in devices; did you mean 'l40"),
    ({"search.grid": {"links.defualt": ["wan"]}}, "key links.defualt is unknown"),
    ({"search.limits.memory_share": 1.5}, "key search.limits.memory_share = 1.5"),
    (
        {"search.goal": "usd_per_million_tokens"},
        "key search.goal = 'usd_per_million_tokens': the device of draft0 states no "
        "price_usd_per_hour, nor do those of pipeline0.stage1, pipeline0.stage2",
    ),
    ({"search.goal": "joules_per_token"}, "the device of draft0 states no power, nor do"),
    ({"search.limits.joules_per_token": 1}, "key search.limits.joules_per_token: the device of"),
    ({"search.limits.price_usd_per_hour": 1}, "the device of draft0 states no price_usd_per_hour"),
    ({"search.limits.price_usd": 1}, "price_usd is of devices in search.devices"),
    ({"search.first_runs": 1}, "key search.first_runs = 1"),
    ({"runs": 1}, "key runs = 1: a ranking needs at least search.first_runs = 2 runs"),
    ({"schedule.tree_sise": 1}, "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ({"schedule": 3}, "keys schedule and search are tables"),
    ({"acceptance": {"source": "replay", "file": "x"}}, "key acceptance.source = 'replay': a se"),
    ({"workload.new_tokens": 1}, "key search.goal = 'time_between_tokens_ms' does not apply"),
    (
        {"search.goal": "p99_request_latency_ms", "search.schedules": ["pp"]},
        "it takes 100 requests in all runs of a rung together",
    ),
    ({"search.goal": "goodput_requests_s"}, "key search.goal: goodput_requests_s needs serving.s"),
    ({"serving.slo": {}}, "key serving.slo promises nothing"),
    ({"faults.inject": [FAULT]}, "key faults.inject: no worker fails in a search"),
]
UNBUYABLE: list[tuple[dict[str, Any], str]] = [
    (
        {"search.front": ["price_usd"], "search.devices.kinds": [{"device": "l40"}]},
        "key search.front: l40 states no price_usd",
    ),
    ({"search.devices.kinds": [{"device": SLOW}]}, "without a profile needs a name"),
    ({"search.devices.kinds": [KINDS[0], KINDS[0]]}, "two kinds have one name"),
    ({"search.devices.kinds": [{**KINDS[0], "roles": ["draft"]}]}, "none has the role 'stage'"),
    (
        {"search.devices.kinds": [{"name": "failed", "device": {"stage_ms": {1: 1.0}}}]},
        "'stage' needs draft_ms of the first stage's device",
    ),
    ({"search.devices": {"kinds": KINDS}}, "key search.devices.counts is missing"),
    ({"search.drafts": ["stages"]}, 'key search.drafts.0 = "stages"'),
    ({"search.grid": {"pipelines.0.stages.0.count": [2]}}, "contradicts search.devices"),
    ({"search.front": ["price_usd_per_hour"]}, "states no price_usd_per_hour"),
    ({"search.front": ["joules_per_token"]}, "key search.front: 'joules_per_token': the device of"),
]
ROWS = [({**CLUSTER, "search": {}}, {**SEARCHED, **changes}, told) for changes, told in REFUSED]
ROWS += [(BOUGHT, *row) for row in UNBUYABLE]


@pytest.mark.parametrize(("content", "changes", "sentence"), ROWS, ids=lambda each: str(each)[-40:])
def test_a_wrong_cluster_is_one_sentence(
    content: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        search(Cluster.of(content).with_(**changes), say)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_input_that_cannot_be_larger_has_a_range_that_ends_there() -> None:
    """Of 95 % misses there are no 10 % more, and of a tenth of them the tenth is the end."""
    unlikely = Cluster.of(CLUSTER).with_(**{"search.schedules": ["chain"], "acceptance.beta": 0.05})
    rows = {row.key: row for row in sensitivities(search(unlikely, say), say)}
    misses = rows["scale.misses"]
    assert (misses.axis.low, misses.axis.high) == (0.1, 1.0)
    assert misses.up is None
    assert misses.down < 0
    assert rows["scale.stages"].up > 0


LOADED: dict[str, Any] = {
    "search.limits": {"request_latency_ms": 5.0},
    "workload.arrivals": {"process": "poisson", "rate_per_s": 5.0},
}
NO_ANALYSIS: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    (
        "sensitivity",
        ("schedule.gamma",),
        {},
        "--break-even schedule.gamma: needs an input, e.g. sc",
    ),
    ("sensitivity", ("scale.latency=3",), {}, "a range looks like scale.latency=0.5:20"),
    ("sensitivity", ("scale.latency=3:1",), {}, "a range goes from a positive number to a larger"),
    (
        "sensitivity",
        ("workload.concurrency=1:8",),
        {},
        "workload.concurrency=1:8: takes whole numbers",
    ),
    # A range helps only where the key takes numbers at all.
    (
        "sensitivity",
        ("links.default.jitter_ms",),
        {},
        "give a range, links.default.jitter_ms=LOW:H",
    ),
    (
        "sensitivity",
        ("acceptance.beta=0.5:2",),
        {},
        "tries such values; acceptance.beta=LOW:HIGH b",
    ),
    ("sensitivity", ("emulate=1:2",), {}, "must be true or false (--break-even emulate=1:2 tries"),
    ("sensitivity", ("workload.prompts",), {}, "a valid string (--break-even workload.prompts"),
    ("sensitivity", ("scale.bogus=1:2",), {}, "(--break-even scale.bogus=1:2 tries such values)"),
    ("sensitivity", ("scale.latency", "scale.latency=1:2"), {}, "an input is given twice"),
    ("capacity", (), {"search.limits": {"throughput_tokens_s": 5.0}}, "is no limit that more load"),
    ("capacity", (), {"search.limits": {}}, "--capacity needs a limit to keep"),
    ("capacity", (), {"workload.arrivals": None}, "--capacity needs workload.arrivals.rate_per_s"),
]


@pytest.mark.parametrize(("name", "given", "changes", "sentence"), NO_ANALYSIS)
def test_an_analysis_that_cannot_be_is_refused_before_the_search(
    name: str, given: tuple[str, ...], changes: dict[str, Any], sentence: str
) -> None:
    content = Cluster.of(CLUSTER).with_(**{**LOADED, **changes})
    with pytest.raises(UserError) as refused:
        ANALYSES[name].finding.check(content, given)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
