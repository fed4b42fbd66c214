"""The Pareto front, what may be bought, and where a draft works: against values by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.worlds.examples import examples
from tests.worlds.greys import alike
from tests.worlds.searches import BOUGHT, KINDS, SLOW
from tests.worlds.searches import METRIC as TIME
from tests.worlds.written_studies import say
from treepipe.planner.candidates import Candidate, find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.front import Front, front_figure, pareto_front
from treepipe.planner.gaps import Simulated
from treepipe.planner.layouts import layouts
from treepipe.planner.page import plan_report
from treepipe.planner.plan import search
from treepipe.planner.report import plan_content, prices
from treepipe.report.page import report_html
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome


def cluster(**search: Any) -> Cluster:
    content = {**BOUGHT, "search": {**BOUGHT["search"], **search}}
    return Cluster.of(content)


# --- the front --------------------------------------------------------------------------------


def weighed(time: float, rate: float, price: float) -> Simulated:
    values = {TIME: time, "throughput_tokens_s": rate}
    outcome = Outcome(
        {name: Interval(value, None, None, "exact") for name, value in values.items()},
        {},
        observations={name: (value, value) for name, value in values.items()},
        exact=True,
    )
    scenario = Scenario.of({k: v for k, v in BOUGHT.items() if k != "search"} | {
        "schedule": {"name": "pp"}
    })  # fmt: skip
    return Simulated(Candidate("pp", {}, "even", ((4,),), scenario, {"price_usd": price}), outcome)


FIGURE = st.integers(1, 4).map(float)


@given(st.lists(st.tuples(FIGURE, FIGURE, FIGURE), min_size=1, max_size=6))
def test_a_plan_is_off_the_front_exactly_where_another_one_beats_it(
    rows: list[tuple[float, float, float]],
) -> None:
    """By the definition, one pair after the other; throughput is better large."""

    def beats(a: int, b: int) -> bool:
        one, other = rows[a], rows[b]
        no_worse = one[0] <= other[0] and one[1] >= other[1] and one[2] <= other[2]
        return no_worse and one != other

    found = pareto_front([weighed(*row) for row in rows], ())
    assert found.goals == (TIME, "throughput_tokens_s", "price_usd")
    everyone = range(len(rows))
    beaten = [b for b in everyone if any(beats(a, b) for a in everyone)]
    assert [each.plan for each in found.beaten] == beaten
    assert [*found.members] == [each for each in everyone if each not in beaten]
    for each in found.beaten:
        assert each.by in found.members
        assert beats(each.by, each.plan)
        assert each.beyond_doubt  # the runs do not vary
        gain = rows[each.plan][0] / rows[each.by][0] - 1
        assert each.relative[TIME] == pytest.approx(gain)


def _panels(front: Front) -> list[Any]:
    figure = front_figure(front, TIME, "plans")
    assert alike(figure) == []
    return [panel for panel in figure.axes if panel.get_visible()]


def test_a_picture_has_a_panel_per_further_goal_and_every_plan_in_it() -> None:
    """Two plans of the same figures share a mark's number; the third one is beaten."""
    rows = [(1.0, 2.0, 3.0), (1.0, 2.0, 3.0), (2.0, 2.0, 4.0)]
    panels = _panels(pareto_front([weighed(*row) for row in rows], ()))
    labels = [panel.get_xlabel() for panel in panels]
    assert labels == ["throughput (tokens/s), more is better", "price (USD), less is better"]
    for panel, across in zip(panels, (1, 2), strict=True):
        assert panel.get_ylabel().startswith("time between tokens (ms)")
        marks = {line.get_label(): line.get_xydata().tolist() for line in panel.get_lines()}
        on = [[rows[0][across], 1.0]] * 2
        assert marks == {"beaten": [[rows[2][across], 2.0]], "on the front": on}
        assert [text.get_text() for text in panel.texts] == ["1, 2", "3"]


@examples(40)
@given(st.lists(st.tuples(FIGURE, FIGURE, FIGURE), min_size=2, max_size=12), st.floats(0.001, 1))
def test_numbers_never_write_over_each_other(
    rows: list[tuple[float, float, float]], apart: float
) -> None:
    """Marks as near as one likes, measured as they are drawn; each plan has its number once."""
    near = [(100 + apart * a, 10 + apart * b, 5 + apart * c) for a, b, c in rows]
    near.append((300.0, 4.0, 30.0))
    figure = front_figure(pareto_front([weighed(*row) for row in near], ()), TIME, "plans")
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    for panel in figure.axes:
        boxes = [text.get_window_extent() for text in panel.texts]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        told = [part for text in panel.texts for part in text.get_text().split(", ")]
        ends = [(part.split("-")[0], part.split("-")[-1]) for part in told]
        plans = [plan for a, b in ends for plan in range(int(a), int(b) + 1)]
        assert len(plans) == len({*plans})


def test_of_many_plans_only_the_front_is_numbered_and_a_line_joins_one_of_two_goals() -> None:
    rows = [(1.0 + n, 10.0 - n, 1.0 + n) for n in range(20)]
    panels = _panels(pareto_front([weighed(*row) for row in rows], ()))
    assert {text.get_text() for panel in panels for text in panel.texts} == {"1"}
    rows = [(1.0, 1.0, 4.0), (2.0, 1.0, 2.0), (3.0, 1.0, 3.0)]
    (panel,) = _panels(pareto_front([weighed(*row) for row in rows], (TIME, "price_usd")))
    joined = panel.get_lines()[0]
    assert joined.get_xydata().tolist() == [[2.0, 2.0], [4.0, 1.0]]


# --- what to buy ------------------------------------------------------------------------------


def test_what_is_bought_by_hand() -> None:
    """A stage takes 20 or 10 ms whatever it holds: each kind alone is on the front, and two stages
    are slower and dearer than one. The cheapest plan, not the best by time, survives the rungs."""
    found = search(cluster(keep=5).with_(runs=4), say)
    scenario = found.winner.candidate.scenario
    assert scenario.pipelines[0].stages[0].host == scenario.drafts[0].host == "machine0"
    assert "search" not in scenario.content
    content = plan_content(found)
    figures = {
        plan["settings"]["devices"]: (plan[TIME]["mean"], plan["price_usd"])
        for plan in content["ranking"]
    }
    assert figures["1 fast"] == (pytest.approx(10), 3)
    assert figures["1 slow"] == (pytest.approx(20), 1)
    assert [plan["goals"] for plan in content["front"]] == [
        {TIME: pytest.approx(10), "price_usd": 3},
        {TIME: pytest.approx(20), "price_usd": 1},
    ]
    assert [(rung.candidates, rung.runs) for rung in found.rungs] == [(5, 2), (2, 4)]
    alone = search(cluster(keep=5, front=[TIME]).with_(runs=4), say)
    assert [rung.candidates for rung in alone.rungs] == [5, 1]


def test_what_is_too_dear_is_refused_with_what_it_is() -> None:
    candidates, refused = find_candidates(cluster(limits={"price_usd": 3.0}))
    assert {each.prices["price_usd"] for each in candidates} == {1.0, 2.0, 3.0}
    assert [each.reason for each in refused] == [
        "1 slow, 1 fast cost 4 USD, above search.limits.price_usd = 3",
        "2 fast cost 6 USD, above search.limits.price_usd = 3",
    ]


def test_devices_of_all_pipelines_and_drafts_are_paid_and_counted() -> None:
    """Two pipelines of one stage: two devices and one or two drafts; three fast ones are not to be
    had."""
    two = {**BOUGHT, "pipelines": [{**BOUGHT["pipelines"][0], "count": 2}]}
    two["search"] = {
        **BOUGHT["search"],
        "drafts": ["own", "shared", "stage"],
        "devices": {"kinds": KINDS, "counts": [1]},
    }
    found: dict[Any, dict[Any, Any]] = {"1 slow": {}, "1 fast": {}}
    for each in layouts(Cluster.of(two)):
        found[each.settings["devices"]][each.settings["draft"]] = each.price_usd
    own = {"slow, own device": 4, "fast, own device": 8}
    assert found == {
        "1 slow": {**own, "slow, shared": 3, "fast, shared": 5, "on a stage": 2},
        "1 fast": {"slow, own device": 8, "slow, shared": 7, "on a stage": 6},
    }


def test_a_draft_on_a_stage_shares_its_machine_and_one_of_its_own_does_not() -> None:
    """Of four pipelines with a request each: as many drafts as pipelines, or one that all wait for;
    on a stage a chain's draft and its target wait for each other."""
    content = {
        **BOUGHT,
        "drafts": [{"device": {"draft_ms": {1: 5.0}}}],
        "pipelines": [{"stages": [{"device": SLOW, "count": 2}], "count": 3}],
        "acceptance": {"source": "bernoulli", "beta": 0.5},
        "workload": {"requests": 3, "concurrency": 3, "new_tokens": 8},
        "search": {
            "schedules": ["chain"], "drafts": ["own", "shared", "stage"],
            "grid": {"schedule.gamma": [2], "serving.batch": [1]},
        },
    }  # fmt: skip
    candidates, refused = find_candidates(Cluster.of(content))
    assert not refused
    by = {each.settings["draft"]: each for each in candidates}
    drafts = {name: each.scenario.drafts for name, each in by.items()}
    assert [d.count for d in drafts["own device"]] == [3]
    assert [d.count for d in drafts["shared"]] == [1]
    hosts = [d.host for d in drafts["on a stage"]]
    placed = by["on a stage"].scenario.pipelines
    assert [p.stages[0].host for p in placed] == hosts
    assert len({*hosts}) == 3
    assert [[s.count for s in p.stages] for p in placed] == [[1, 1]] * 3
    assert all(each.layers == ((2, 2),) * 3 for each in candidates)


PRICED = """memory_mib = 1000
stage_ms = { 1 = 10.0 }
draft_ms = { 1 = 3.0 }
[price]
amount = 7.5
currency = "USD"
source = "a shop"
date = 2026-01-02
[origin]
source = "made"
date = 2026-01-01
hardware = "none"
versions = "none"
"""


def bought(folder: Path, **kind: Any) -> Cluster:
    """A cluster that buys a device whose profile states its price."""
    (folder / "priced.toml").write_text(PRICED, encoding="utf-8")
    kinds = [{"device": "./priced.toml", **kind}]
    search_for = {**BOUGHT["search"], "devices": {"kinds": kinds, "counts": [1, 2]}}
    return Cluster.of({**BOUGHT, "search": search_for}, folder / "cluster.toml")


def test_a_published_price_counts_where_the_cluster_states_none(tmp_path: Path) -> None:
    """With its source in the report; a price of the cluster's own goes first, also by the hour."""
    published = search(bought(tmp_path), say)
    assert {each["price_usd"] for each in plan_content(published)["ranking"]} == {7.5, 15.0}
    (told,) = prices(published)
    assert told == "price of ./priced.toml: 7.5 USD (a shop, 2026-01-02)"
    assert told in report_html(plan_report(published))
    own = search(bought(tmp_path, price_usd=5.0), say)
    assert {each["price_usd"] for each in plan_content(own)["ranking"]} == {5.0, 10.0}
    assert prices(own) == []
    hourly = {"profile": "./priced.toml", "price_usd_per_hour": 1.0}
    assert bought(tmp_path, device=hourly, name="rented").search.weighed[1] == "price_usd_per_hour"
