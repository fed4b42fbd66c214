"""The measured column of a study: its points with the bundled pair on them, predicted and run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.made_runs import judged, made_deployment
from tests.worlds.written_studies import few_prompts, say, written
from treepipe.studies.layered import Card, CardCluster
from treepipe.studies.measured import Axis, MeasuredColumn, on_bundled_pair
from treepipe.studies.specpipe import measure_widths
from treepipe.studies.starsd import measure_targets
from treepipe.studies.starsd_fit import Testbed as Servers
from treepipe.studies.starsd_fit import simulate_columns
from treepipe.studies.study import Measuring, StudyResult
from treepipe.validation.judgement import METRIC

SMALL = Measuring(prompts=2, new_tokens=10, runs=2)
SERVERS = Servers(step_ms=1.4, service_ms=10.4, cold=1.6, return_ms=31.0, tokens=4.0, jitter_ms=0.5)


def test_devices_links_and_schedule_are_the_study_s() -> None:
    study = SERVERS.scenario(3, 1)
    made = on_bundled_pair(study, SMALL)
    assert made.emulate
    assert (made.runs, made.workload.requests, made.workload.new_tokens) == (2, 6, 10)
    assert (made.schedule, made.links) == (study.schedule, study.links)
    devices = [
        [draft.device for draft in each.drafts] + [p.stages[0].device for p in each.pipelines]
        for each in (made, study)
    ]
    assert devices[0] == devices[1]


def test_beside_the_worst_error_stands_the_signed_mean() -> None:
    """By hand: +20 % and -10 % of which durations are +10 % and -30 %."""
    made = judged(made_deployment())
    rows = {
        point: replace(
            made,
            measured_metrics={**made.measured_metrics, METRIC: made.predicted.mean / ratio},
            replayed_metrics={METRIC: replayed * made.predicted.mean / ratio},
        )
        for point, ratio, replayed in ((1, 1.2, 1.1), (2, 0.9, 0.7))
    }
    said = MeasuredColumn(Axis("width", "width"), rows, {METRIC: "time"}).finding()
    assert "to 20.0% at worst (width 1), +5.0% in the mean" in said
    assert said.endswith("durations alone to 30.0%, -10.0% in the mean")


@pytest.mark.processes
def test_slow_motion_is_a_factor_on_every_time() -> None:
    bed = replace(SERVERS, turns=100)
    once, slow = (
        simulate_columns(replace(bed, slow_motion=factor), [2], 1, say)[2] for factor in (1.0, 4.0)
    )
    assert slow.rounds.mean == pytest.approx(once.rounds.mean / 4)
    assert slow.service.mean == pytest.approx(4 * once.service.mean)
    assert slow.idle.mean == pytest.approx(4 * once.idle.mean)


@pytest.mark.processes
def test_widths_are_measured(tmp_path: Path) -> None:
    result = StudyResult("specpipe-width")
    cluster = CardCluster((Card("rtx-3090", 40),) * 2, {"rtx-3090": 0.2}, {1: 17.0})
    measure_widths(result, cluster, (1, 8), Measuring(1, 8, 2, few_prompts(tmp_path)), say)
    rows = written(result, tmp_path / "out")
    for key in ("width=1/hit_rate", "width=8/hit_rate", "width=8/time_between_tokens_ms"):
        assert rows[f"measured/{key}"]["predicted"] > 0 < rows[f"measured/{key}"]["measured"]
    assert rows["measured/best_width"]["measured"] in (1, 8)
    assert "time between tokens predicted to" in result.findings[0]


@pytest.mark.processes
def test_targets_are_measured(tmp_path: Path) -> None:
    result = StudyResult("starsd-threshold")
    measuring = replace(SMALL, calibrated_on=few_prompts(tmp_path))
    measure_targets(result, SERVERS, (1, 2), measuring, say)
    rows = written(result, tmp_path / "out")
    for n in (1, 2):
        for metric in ("draft_rounds_s", "draft_idle_ms"):
            assert rows[f"measured/n={n}/{metric}"]["measured"] > 0
    assert rows["measured/n_full"]["predicted"] is None, "two targets do not load it"
