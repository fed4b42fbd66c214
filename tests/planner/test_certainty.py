"""How sure a plan says it is: of two runs, of equal runs, of few cases, on a narrow terminal."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.worlds.command_line import Terminal
from tests.worlds.searches import CLUSTER, METRIC
from tests.worlds.written_studies import say
from treepipe import Scenario
from treepipe.files.toml_file import toml_text
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import SearchResult
from treepipe.planner.limits import Miss
from treepipe.planner.plan import search
from treepipe.planner.report import by_inputs, plan_content, plan_screen, ranking_table
from treepipe.results.show import print_screen
from treepipe.sim.predict import predict

UNLIKE = {
    "workload.requests": 1,
    "workload.new_tokens": 10,
    "search.schedules": ["pp", "chain", "pearl", "specpipe"],
    "search.cases": 0,
}
PLAIN: dict[str, Any] = {
    "name": "plain",
    "runs": 2,
    "target": {"layers": 8},
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    "links": {"default": {"latency_ms": 1.0}},
    "workload": {"new_tokens": 4},
    "search": {"schedules": ["pp"]},
}  # fmt: skip


@cache
def found(runs: int) -> SearchResult:
    return search(Cluster.of(CLUSTER).with_(runs=runs, **UNLIKE), say)


def shown(result: SearchResult, width: int) -> str:
    """All that ``--verbose`` shows."""
    console = Console(width=width, markup=False, emoji=False)
    with console.capture() as captured:
        print_screen(plan_screen(result), verbose=True, shown=console)
    return captured.get()


def test_two_runs_bound_nothing_and_call_no_plan_worse() -> None:
    """The first sentence held a number of 150 digits, of an interval of two unlike runs."""
    ranked = found(2)
    content = plan_content(ranked)
    for each in content["ranking"]:
        gap = each["relative_to_best"] or {"low": None, "high": None}
        ends = [values[end] for values in (each[METRIC], gap) for end in ("low", "high")]
        assert ends == [None] * 4
    text = " ".join([shown(ranked, 120), *plan_screen(ranked).lines()])
    assert "beyond doubt" not in text
    assert "as good as far as" not in text
    assert "2 runs cannot tell whether" in text
    assert "(maybe) are worse; 3 or more may (--runs)" in " ".join(text.split())
    assert "yes" not in [row[-1] for row in ranking_table(ranked).texts]
    assert not re.search(r"[\d,]{12}", text)
    assert "2 runs tell no interval; it takes 3 or more (--runs)" in text


def test_a_plan_whose_figures_are_drawn_of_nothing_is_exact_and_the_worse_one_is_worse() -> None:
    """Plain decoding on stages and links of constant times; a link with jitter is not."""
    links = {"search.grid": {"links.default.latency_ms": [1.0, 2.0, 2.5]}}
    jitter = Cluster.of(PLAIN).with_(**links, **{"links.default.jitter_ms": 0.5})
    assert "yes" not in [row[-1] for row in ranking_table(search(jitter, say)).texts]
    ranked = search(Cluster.of(PLAIN).with_(**links), say)
    assert len(ranked.ranking) == 3
    for each in ranked.ranking:
        value = each.outcome.metrics[METRIC]
        assert (value.low, value.fixed) == (None, "exact")
        again = predict(each.candidate.scenario.with_(seed=77, runs=1))[0]
        assert again.requests[0].finished_ms == each.outcome.metrics["request_latency_ms"].mean
    assert [row[-1] for row in ranking_table(ranked).texts] == ["best", "yes", "yes"]
    assert "exact)" in shown(ranked, 120)


def test_few_cases_give_no_range_and_no_per_cent() -> None:
    cluster = Cluster.of(CLUSTER).with_(runs=3, **UNLIKE, **{"acceptance.uncertainty": 0.3})
    few, enough = (search(cluster.with_(**{"search.cases": n}), say) for n in (4, 20))
    ends = [plan_content(each)["uncertain_inputs"]["plans"]["chain"] for each in (few, enough)]
    assert [each[METRIC]["low"] is None for each in ends] == [True, False]
    said, known = by_inputs(few)[-1], by_inputs(enough)[-1]
    assert "4 cases give no range (search.cases: 20 or more)" in said
    assert re.search(r" in \d(, \w+ in \d)* of 4 cases", said)
    assert re.search(r" … .* in \d+%.* of 20 cases", known)


def test_inputs_that_do_not_move_a_figure_are_not_told_as_an_interval_or_as_what_it_hangs_on() -> (
    None
):
    """The share of promises that are all kept; it has no unit."""
    promised: dict[str, Any] = {
        "serving.slo": {"request_latency_ms": 1e6},
        "search.goal": "slo_attainment",
    }
    promised |= {"search.cases": 20, "search.schedules": ["pp", "chain"]}
    cluster = Cluster.of(CLUSTER).with_(runs=3, **UNLIKE, **{"acceptance.uncertainty": 0.3})
    every = search(cluster.with_(**promised), say)
    (plans,) = [plan_content(every)["uncertain_inputs"]["plans"]]
    assert {(p["slo_attainment"]["low"], p["slo_attainment"]["high"]) for p in plans.values()} == {
        (None, None)
    }
    lines = " ".join([shown(every, 200), *plan_screen(every).lines(200)])
    assert "share of promises kept 1 of 1" in lines
    assert "hangs most" not in lines
    assert "20 cases give no range;" in by_inputs(every)[-1]


def test_a_limit_and_its_miss_have_no_power_of_ten() -> None:
    miss = Miss("throughput_tokens_s", 63.02, 1e6, 1e6 / 63.02 - 1)
    assert str(miss) == (
        "throughput is 63.02 tokens/s, below search.limits.throughput_tokens_s = 1,000,000 (by a "
        "factor of 15,868)"
    )


def test_what_is_taken_as_exact_stands_before_every_figure() -> None:
    for width in (80, 120):
        text = shown(found(2), width)
        assert text.startswith("Taking acceptance (beta = 0.6) as exact: ")
    (sentence,) = plan_content(found(2))["taken_as_exact"]
    assert "acceptance.uncertainty" in sentence
    sure = Cluster.of(CLUSTER).with_(**{"acceptance.uncertainty": 0.3, **UNLIKE}, runs=2)
    assert plan_content(search(sure, say))["taken_as_exact"] == []


def test_the_same_command_twice_replaces_its_own_plan_and_no_edited_one(
    terminal: Terminal,
) -> None:
    path, best = Path("plain.toml"), Path("plain-best.toml")
    path.write_text(toml_text(PLAIN))
    for _ in range(2):
        terminal.succeeds("plan", path, "--quiet")
    assert Scenario.load(best).schedule.name == "pp"
    best.write_text(best.read_text().replace("latency_ms = 1.0", "latency_ms = 9.0"))
    terminal.refuses("plain-best.toml: there is such a file already", "plan", path, "--quiet")
    best.write_text('name = "mine"\n')
    terminal.refuses("plain-best.toml: there is such a file already", "plan", path, "--quiet")
    terminal.succeeds("plan", path, "--out", "named.toml", "--quiet")
    terminal.refuses("--out named.toml: there is such a file", "plan", path, "--out", "named.toml")


def test_a_ratio_is_written_alike_in_sentence_table_and_file() -> None:
    content = json.dumps(plan_content(found(3)))
    assert not re.search(r"\d{25}|e\+[2-9]\d|e\+1\d\d", content)
    for text in (shown(found(3), 120), *plan_screen(found(3)).lines()):
        assert not re.search(r"[\d,]{12}", text)
