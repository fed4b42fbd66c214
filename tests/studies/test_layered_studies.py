"""Studies of SpecPipe and PipeDec: end to end with tiny settings, their keys, their clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from treepipe.sim.pool import Pool
from treepipe.studies.layered import (
    POOL,
    Effort,
    Levels,
    build,
    cards,
    plain_ms,
    solve_all,
)
from treepipe.studies.pipedec import run as pipedec_stages
from treepipe.studies.specpipe import run as specpipe_width
from treepipe.studies.study import STUDIES, StudyResult

pytestmark = pytest.mark.processes

LEVELS = Levels(0.6, (1.6, 0.4), {"specinfer": 120.0, "specpipe": 55.0})


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from, or left in, the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def _unseen(title: str, steps: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def specpipe() -> StudyResult:
    settings = specpipe_width.Settings(Effort(2, 24), (8, 64, 80), (4,), (1, 2), 8, LEVELS)
    return specpipe_width.study(settings, _unseen)


def test_specpipe_has_the_promised_keys(specpipe: StudyResult) -> None:
    keys = {row.key for row in specpipe.rows}
    assert len(keys) == len(specpipe.rows)
    for cluster in ("one-server", "two-server"):
        for schedule in ("pp", "specinfer", "eagle", "specpipe"):
            assert f"{cluster}/{schedule}/time_between_tokens_ms" in keys
        assert {f"{cluster}/over_pp/low", f"{cluster}/over_pp/high"} <= keys
    assert {"best_width", "width=64/time_between_tokens_ms", "width=64/hit_rate"} <= keys
    assert "batch=2/specpipe_db/throughput_tokens_s" in keys


def test_specpipe_states_what_it_rests_on(specpipe: StudyResult) -> None:
    assert specpipe.study in STUDIES
    assert list(specpipe.sections) == [
        "Calibrated on",
        "True predictions",
        "Assumptions",
        "Not predicted, and why",
    ]
    assert all(name in specpipe.page() for name in specpipe.figures)
    assert not specpipe.faults


def test_specpipe_is_faster_than_a_static_tree_and_that_than_none(specpipe: StudyResult) -> None:
    found = {row.key: row.predicted or 0.0 for row in specpipe.rows}
    times = [found[f"one-server/{n}/time_between_tokens_ms"] for n in ("specpipe", "specinfer")]
    assert 0 < times[0] < times[1] < found["one-server/pp/time_between_tokens_ms"]
    assert found["batch=2/specpipe_db/throughput_tokens_s"] > 1e3 / times[0] / 2


@pytest.fixture(scope="module")
def pipedec() -> StudyResult:
    tiny = Effort(2, 24)
    settings = pipedec_stages.Settings(tiny, tiny, (8, 32), (2, 16), (1, 2), 2, 8, LEVELS)
    return pipedec_stages.study(settings, _unseen)


def test_pipedec_has_the_promised_keys(pipedec: StudyResult) -> None:
    keys = {row.key for row in pipedec.rows}
    assert len(keys) == len(pipedec.rows)
    for stages in ("7-stage", "14-stage", "21-stage"):
        for over in ("over_pp", "over_stpp"):
            assert {f"{stages}/{over}/{which}" for which in ("mean", "low", "high")} <= keys
    assert {"gain_7_to_14", "best_width", "best_children"} <= keys
    assert "k=2/pipedec/throughput_tokens_s" in keys


def test_pipedec_serves_one_after_another(pipedec: StudyResult) -> None:
    found = {row.key: row.predicted or 0.0 for row in pipedec.rows}
    alone, two = (found[f"k={k}/pipedec/throughput_tokens_s"] for k in (1, 2))
    assert two == pytest.approx(alone)
    assert found["k=2/pp/throughput_tokens_s"] > 1.8 * found["k=1/pp/throughput_tokens_s"]


def test_more_stages_are_faster_and_its_ends_are_those_of_the_levels(pipedec: StudyResult) -> None:
    found = {row.key: row.predicted or 0.0 for row in pipedec.rows}
    assert found["14-stage/over_pp/mean"] > found["7-stage/over_pp/mean"]
    low, mean, high = (found[f"14-stage/over_pp/{which}"] for which in ("low", "mean", "high"))
    assert low < mean < high
    assert found["gain_7_to_14"] > 0
    assert set(pipedec.sections) == {
        "Calibrated on",
        "True predictions",
        "Assumptions",
        "Not predicted, and why",
    }


def test_the_plain_pipeline_is_met() -> None:
    assert plain_ms(build("one-server")) == pytest.approx(302.39, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "stages"),
    [("one-server", 8), ("two-server", 8), ("fourteen", 14), ("twenty-one", 21)],
)
def test_clusters_hold_the_whole_target(name: str, stages: int) -> None:
    assert sum(card.layers for card in cards(name)) == 80
    assert len(cards(name)) == stages


def test_a_predicted_time_s_interval_holds_what_was_left_out(specpipe: StudyResult) -> None:
    rows = {row.key: row for row in specpipe.rows}
    row = rows["one-server/eagle/time_between_tokens_ms"]
    assert row.low is not None
    assert row.high is not None
    assert row.predicted is not None
    logs = np.log([120.0 / 117.92, 55.0 / 54.67])
    half = 4.303 * np.sqrt(np.mean(logs**2))  # Student's t, two degrees of freedom
    assert np.log(row.high / row.predicted) >= half * 0.999
    assert np.log(row.predicted / row.low) >= half * 0.999
    assert {rows[f"one-server/{n}/time_between_tokens_ms"].role for n in ("specinfer", "pp")} == {
        "calibrated"
    }


def test_a_level_between_two_curves_serves_both() -> None:
    curves = {level: 100.0 * level for level in (0.5, 1.0, 2.0)}
    assert solve_all([(curves, 80.0), (curves, 125.0)]) == pytest.approx(1.0, abs=0.01)


def test_off_the_path_a_pool_is_sharpened_otherwise() -> None:
    recorded = Pool.load(Path(POOL))
    changed, alike = recorded.sharpened(2.25, 0.1), recorded.sharpened(2.25)
    here, off = slice(0, len(recorded)), slice(len(recorded), None)
    assert np.array_equal(changed.vectors[here], alike.vectors[here])
    assert np.diff(changed.vectors[off]) == pytest.approx(0.1 * np.diff(recorded.vectors[off]))


def test_a_sharpened_pool_is_surer_and_proposes_the_same() -> None:
    recorded, sharpened = Pool.load(Path(POOL)), Pool.load(Path(POOL)).sharpened(2.25)
    assert recorded.ranks == sharpened.ranks
    here = slice(0, len(recorded))
    gaps, wider = (np.diff(pool.vectors[here], axis=1) for pool in (recorded, sharpened))
    assert wider == pytest.approx(2.25 * gaps)
    assert np.exp(sharpened.vectors[here]).sum(axis=1) == pytest.approx(1)
    sure, right = np.exp(sharpened.vectors[here, 0]).mean(), recorded.hit_ratio(1)
    assert sure == pytest.approx(right, abs=0.02)
