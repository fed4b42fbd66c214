"""What faults at a rate leave of a plan's figures: against simulated losses, and by hand."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.worlds.command_line import assert_sentence, call
from tests.worlds.searches import CLUSTER, METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.files.toml_file import read_toml, toml_text
from treepipe.planner.availability import time_shares
from treepipe.planner.break_even import axis_of, break_even
from treepipe.planner.cluster import Cluster
from treepipe.planner.report import plan_content, verdict, write_best
from treepipe.planner.sensitivity import sensitivities
from treepipe.results.estimates import observe
from treepipe.results.statistics import Interval
from treepipe.scenario.faults import MS_PER_HOUR, FaultPlan, Injected, Planned
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.rare_faults import predict_rare

pytestmark = pytest.mark.long

GOALS = (
    METRIC,
    "throughput_tokens_s",
    "request_latency_ms",
    "p95_request_latency_ms",
    "goodput_requests_s",
    "slo_attainment",
)
RATES = {"draft0": 900.0, "pipeline0.stage2": 300.0}
FAULTS: dict[str, Any] = {
    "timeout_ms": 1000,
    "restart_ms": 300,
    "spares": 1000,
    "inject": [
        {"worker": worker, "kind": kind, "rate_per_hour": rate}
        for (worker, rate), kind in zip(RATES.items(), ("kill", "stop"), strict=True)
    ],
}


RARE = {**FAULTS, "inject": [{**each, "rate_per_hour": 1.0} for each in FAULTS["inject"]]}
BASE: dict[str, Any] = {
    **{key: value for key, value in CLUSTER.items() if key != "search"},
    "schedule": {"name": "pp"},
    "serving": {"slo": {"request_latency_ms": 600.0}},
    "workload": {"requests": 20, "new_tokens": 4, "warmup_requests": 0},
}
"""A request takes 357 ms undisturbed, some 800 ms across a kill, and 1.6 s across a stop."""
ARRIVING = {
    "workload.requests": 40,
    "workload.arrivals": {"process": "poisson", "rate_per_s": 0.7},
}


AWAY: dict[str, Any] = {
    **BASE,
    "schedule": {"name": "chain", "branching": [1] * 5},
    "acceptance": {"source": "bernoulli", "beta": 1.0},
    "workload": {"requests": 20, "new_tokens": 18, "warmup_requests": 0},
}
STOPPED = {"worker": "draft0", "kind": "stop"}
"""Without a spare: noticed after 800 ms, and each restart takes 300."""


def weighed(scenario: Scenario) -> dict[str, Interval]:
    traces, disturbed = predict_rare(scenario)
    return observe(traces, disturbed=disturbed).intervals[0]


def long_run(scenario: Scenario, requests: int) -> tuple[dict[str, Interval], dict[str, Any]]:
    """The figures of one run with faults, and the faults at the rates that the run had, so that the
    chance of how many there are is not in it."""
    (trace,) = predict(scenario.with_(runs=1, **{"workload.requests": requests}))
    down_ms = sum((each.recovered_ms or 0.0) - (each.at_ms or 0.0) for each in trace.faults)
    up_hours = (max(each.finished_ms for each in trace.requests) - down_ms) / MS_PER_HOUR
    count = Counter(each.worker for each in trace.faults)
    had = [{**each, "rate_per_hour": count[each["worker"]] / up_hours} for each in FAULTS["inject"]]
    return observe([trace]).intervals[0], {**FAULTS, "inject": had}


@pytest.mark.parametrize(("changes", "apart"), [({}, 0.08), (ARRIVING, 0.2)])
def test_figures_with_rare_faults_are_those_of_a_long_run_with_losses(
    changes: dict[str, Any], apart: float
) -> None:
    """What is left of 100 losses is the chance of where in a request they fall, and, where
    requests arrive, in which queue: over seeds both signs come, and half as much."""
    plan = Scenario.of(BASE).with_(faults=FAULTS, **changes)
    whole, had = long_run(plan, 800)
    told = weighed(plan.with_(faults=had, runs=25))
    alone, _ = observe(predict(plan.with_(faults={}, runs=25))).intervals
    for goal in GOALS:
        assert told[goal].mean == pytest.approx(whole[goal].mean, rel=apart), goal
    for goal in ("p95_request_latency_ms", "goodput_requests_s"):
        assert abs(told[goal].mean / alone[goal].mean - 1) > apart, goal


def test_a_promise_is_kept_by_requests_without_a_loss() -> None:
    """By hand: a request of L ms meets no fault at the rate R with the probability exp(-R L). If
    nobody drafts, a loss costs a restart and at most the request again, and is met by 6 % of
    them: so the 95th percentile is one of those, and the median is not."""
    restart_ms, one_ms = 1000.0, 40.0
    rate = -log(0.94) / one_ms
    killed = {"worker": "pipeline0.stage1", "kind": "kill", "rate_per_hour": rate * MS_PER_HOUR}
    plan = Scenario.of(
        {
            "name": "four passes",
            "runs": 25,
            "target": {"layers": 1},
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0}}}]}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": {"name": "pp"},
            "serving": {"slo": {"request_latency_ms": 2 * one_ms}},
            "workload": {"requests": 40, "prompt_tokens": 1, "new_tokens": 4},
            "faults": {"restart_ms": restart_ms, "spares": 1000, "inject": [killed]},
        }
    )
    told = weighed(plan)
    assert told["slo_attainment"].mean == pytest.approx(0.94, abs=0.02)
    assert told["p50_request_latency_ms"].mean == pytest.approx(one_ms)
    assert 0 <= told["p95_request_latency_ms"].mean - restart_ms - one_ms <= one_ms
    per_request_s = (one_ms + 0.06 * restart_ms) / 1e3  # within a tenth, the request again
    assert told["goodput_requests_s"].mean == pytest.approx(0.94 / per_request_s, rel=0.1)


@pytest.mark.parametrize(
    ("for_ms", "per_hour", "requests", "by_hand"),
    [(20e3, 180.0, 900, 0.02), (2e3, 900.0, 900, 0.1)],
)
def test_a_draft_that_is_away_leaves_plain_decoding(
    for_ms: float, per_hour: float, requests: int, by_hand: float
) -> None:
    """A run takes 10 s, and the draft is away for longer, or for a part of one: the plan's figures
    against one long run with as many losses, and against the closed form, which knows rates of
    tokens alone, and not that a loss has a request's prompt and text read again, twice."""
    once = {**STOPPED, "for_ms": for_ms, "rate_per_hour": per_hour}
    faults = {"timeout_ms": 1000, "restart_ms": 300, "spares": 0, "inject": [once]}
    plan = Scenario.of(AWAY)
    (trace,) = predict(plan.with_(runs=1, faults=faults, **{"workload.requests": requests}))
    end_ms, losses = max(each.finished_ms for each in trace.requests), len(trace.faults)
    away_ms = sum((e.plain_until_ms or end_ms) - (e.at_ms or 0.0) for e in trace.faults)
    rate = losses / (end_ms - away_ms)
    had = {**faults, "inject": [{**once, "rate_per_hour": rate * MS_PER_HOUR}]}
    told, whole = weighed(plan.with_(faults=had, runs=16)), observe([trace]).intervals[0]
    for goal in GOALS:
        assert told[goal].mean == pytest.approx(whole[goal].mean, rel=0.06), goal

    drafted, _ = observe(predict(plan.with_(runs=8))).intervals
    plainly, _ = observe(predict(plan.with_(runs=2, schedule={"name": "pp"}))).intervals
    per_s, plain_ms = "throughput_tokens_s", for_ms - 800 - 300
    tokens = drafted[per_s].mean + rate * plain_ms * plainly[per_s].mean
    closed = tokens / (1 + rate * plain_ms + rate * (800 + 2 * 300))
    assert told[per_s].mean == pytest.approx(closed, rel=by_hand)
    assert drafted[per_s].mean > 1.08 * closed > 1.08 * 0.8 * plainly[per_s].mean

    cluster = Cluster.of({**AWAY, "search": {"schedules": ["chain"]}, "faults": had})
    shares = time_shares(cluster, plan)
    down = rate * (800 + 2 * 300)
    assert shares.plain == pytest.approx(rate * plain_ms / (1 + rate * plain_ms + down))
    assert shares.up == pytest.approx(1 - down / (1 + rate * plain_ms + down))


def test_a_plan_that_drafts_goes_on_without_a_spare_and_one_that_does_not_is_refused() -> None:
    once = {**STOPPED, "for_ms": 3.6e6, "rate_per_hour": 0.1}
    faults = {"timeout_ms": 1000, "restart_ms": 300, "inject": [once]}
    schedule, acceptance = AWAY["schedule"], AWAY["acceptance"]
    changes = {"schedule": schedule, "acceptance": acceptance, "search.schedules": ["chain", "pp"]}
    each = found(faults=faults, **changes)
    assert [refused.schedule for refused in each.refused] == ["pp"]
    assert "loss of draft0 ends the service" in each.refused[0].reason
    entry = plan_content(each)["ranking"][0]
    assert entry["plain_share"] == pytest.approx(0.1 / 1.1, rel=0.01)
    assert entry["up_share"] > 0.9999
    assert any("decoding plainly, 9.0" in line for line in verdict(each))


def test_runs_with_and_without_a_fault_have_together_as_many_as_come() -> None:
    """A Poisson process in 4000 runs: numbers and moments, of each worker, against its mean."""
    length, runs = 0.7 * MS_PER_HOUR, 4000
    injected = (Injected("a", "kill", None, 1.0), Injected("b", "stop", None, 0.5))
    plan = FaultPlan(injected=injected, first_within_ms=length)
    share, found = 1 - exp(-1.5 * 0.7), list[Planned]()
    for seed in range(runs):
        within = [*takewhile(lambda each: each.at_ms < length, plan.planned(seed))]
        assert within
        assert [each.at_ms for each in within] == sorted(each.at_ms for each in within)
        found += within
    for worker, rate in (("a", 1.0), ("b", 0.5)):
        times = [each.at_ms for each in found if each.worker == worker]
        assert share * len(times) / runs == pytest.approx(0.7 * rate, rel=0.05)
        assert fmean(times) == pytest.approx(length / 2, rel=0.03)


def test_a_year_without_a_loss_is_the_plan_undisturbed() -> None:
    once = {**FAULTS, "inject": [{**FAULTS["inject"][0], "rate_per_hour": 1e-9}]}
    alone, told = found().best.outcome, found(faults=once).best.outcome
    for name, value in alone.metrics.items():
        assert told.metrics[name].mean == pytest.approx(value.mean, rel=1e-6), name
    assert told.warnings == alone.warnings
    assert told.path == alone.path


def test_what_is_asked_of_a_plan_counts_its_faults(tmp_path: Path) -> None:
    each, without = found(faults=RARE), found()
    share = plan_content(each)["ranking"][0]["up_share"]
    assert 0.999 < share < 1
    assert any(f"at work {100 * share:.4g} % of the time" in line for line in verdict(each))
    assert plan_content(without)["ranking"][0]["up_share"] is None
    rows = {row.key: row.up for row in sensitivities(each, say)}
    alone = {row.key: row.up for row in sensitivities(without, say)}
    assert rows["scale.stages"] == pytest.approx(alone["scale.stages"], abs=0.002)
    even = break_even(each, axis_of("links.default.latency_ms", each.cluster), say)
    assert even.matters
    write_best(each, tmp_path / "best.toml")
    best = Scenario.load(tmp_path / "best.toml")
    assert best.faults == each.cluster.faults


def test_a_worker_that_a_plan_lacks_does_not_fail() -> None:
    counts = {"pipelines.0.stages.0.count": [1, 2]}
    each = found(**{"search.grid": counts, "search.first_runs": 3, "faults": FAULTS})
    up = {len(e["layers"][0]): e["up_share"] for e in plan_content(each)["ranking"]}
    assert 1 > up[1] > up[2] > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"spares": 0}, "the first loss of draft0 ends the service"),
        (
            {"spares": 0, "inject": [{**STOPPED, "rate_per_hour": 1}]},
            "leaves plain decoding for ever; for_ms",
        ),
        (
            {
                "spares": 0,
                "plain_without_draft": False,
                "inject": [{**STOPPED, "for_ms": 5e3, "rate_per_hour": 1}],
            },
            "the first loss of draft0 ends the service",
        ),
        (
            {"inject": [{"worker": "draft7", "kind": "kill", "rate_per_hour": 1}]},
            "no plan has such",
        ),
        ({"inject": [{"worker": "draft0", "kind": "kill", "at_ms": 5}]}, "a search weighs rates"),
    ],
)
def test_faults_that_cannot_be_weighed_are_refused(
    change: dict[str, object],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafting = {"schedule": AWAY["schedule"], "acceptance": AWAY["acceptance"]}
    if change.get("spares") == 0 and "inject" in change:
        drafting["search"] = {"schedules": ["chain"]}
    with pytest.raises(UserError, match=sentence):
        found(faults={**FAULTS, **change}, **drafting)
    path = tmp_path / "cluster.toml"
    path.write_text(toml_text({**CLUSTER, **drafting, "faults": {**FAULTS, **change}}, []))
    assert call(monkeypatch, "plan", path) == 2
    assert_sentence(capsys.readouterr().err, sentence)
    assert read_toml(path)["faults"] != FAULTS
