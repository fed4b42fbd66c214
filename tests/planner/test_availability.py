"""What faults at a rate leave of a plan's figures: against simulated losses, and by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import assert_sentence, call
from tests.worlds.searches import CLUSTER, METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.files.toml_file import read_toml, toml_text
from treepipe.planner.availability import stretch, weighed
from treepipe.planner.break_even import axis_of, break_even
from treepipe.planner.report import plan_content, verdict, write_best
from treepipe.planner.sensitivity import sensitivities
from treepipe.results.estimates import observe
from treepipe.results.statistics import Interval
from treepipe.scenario.faults import MS_PER_HOUR
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.sim.predict import predict

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


LONG = {"runs": 1, "workload.requests": 260}


def test_weighed_figures_are_those_of_a_long_run_with_losses() -> None:
    """Rates are those that the run had, so that the chance of its 60 losses is not in it."""
    plan = found().best.candidate.scenario
    (trace,) = predict(plan.with_(**LONG, faults=FAULTS))
    whole, _ = observe([trace]).intervals
    between, _ = observe(predict(plan.with_(**LONG))).intervals
    hours = sum(each.finished_ms - each.started_ms for each in trace.requests) / MS_PER_HOUR
    down_ms = sum(each.recovered_ms - each.at_ms for each in trace.faults)
    up_hours = hours - down_ms / MS_PER_HOUR
    count = Counter(each.worker for each in trace.faults)
    had = [{**each, "rate_per_hour": count[each["worker"]] / up_hours} for each in FAULTS["inject"]]
    each = found(faults={**FAULTS, "inject": had})
    longer = stretch(each.cluster, plan, each.best.outcome)
    assert longer > 1.15
    for goal, told in ((METRIC, longer), ("throughput_tokens_s", 1 / longer)):
        assert whole[goal].mean / between[goal].mean == pytest.approx(told, rel=0.02), goal
        alone = found().best.outcome.metrics[goal].mean
        assert each.best.outcome.metrics[goal].mean == pytest.approx(alone * told)


def test_only_means_that_stretch_are_weighed() -> None:
    names = (METRIC, "throughput_tokens_s", "p99_time_between_tokens_ms", "usd_per_million_tokens")
    outcome = Outcome(
        {name: Interval(10.0, 8.0, None) for name in names},
        {},
        observations=dict.fromkeys(names, (9.0, 11.0)),
    )
    closed = weighed(outcome, 2.0, arriving=False)
    assert [closed.metrics[name].mean for name in names] == [20.0, 5.0, 10.0, 20.0]
    assert closed.metrics[METRIC] == Interval(20.0, 16.0, None)
    assert closed.observations["throughput_tokens_s"] == (4.5, 5.5)
    arriving = weighed(outcome, 2.0, arriving=True)
    assert [arriving.metrics[name].mean for name in names] == [20.0, 10.0, 10.0, 10.0]


def test_what_is_asked_of_a_plan_counts_its_faults(tmp_path: Path) -> None:
    each, without = found(faults=FAULTS), found()
    share = plan_content(each)["ranking"][0]["up_share"]
    assert 0 < share < 0.95
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
        ({"spares": 0}, "without a spare"),
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
    with pytest.raises(UserError, match=sentence):
        found(faults={**FAULTS, **change})
    path = tmp_path / "cluster.toml"
    path.write_text(toml_text({**CLUSTER, "faults": {**FAULTS, **change}}, []))
    assert call(monkeypatch, "plan", path) == 2
    assert_sentence(capsys.readouterr().err, sentence)
    assert read_toml(path)["faults"] != FAULTS
