"""Studies of SpecPipe and PipeDec: end to end with tiny settings, their keys, their clusters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds.written_studies import say
from treepipe.sim.pool import Pool
from treepipe.studies import pipedec as pipedec_stages
from treepipe.studies import specpipe as specpipe_width
from treepipe.studies.layered import POOL, Effort, Level, Levels, acceptance, build, cards, plain_ms
from treepipe.studies.study import StudyResult

pytestmark = pytest.mark.processes

LEVELS = Levels(
    Level(1.3, 0.6), (Level(2.0, 2.4), Level(0.8, 0.1)), {"specinfer": 120.0, "specpipe": 55.0}
)


def keys_of(result: StudyResult) -> dict[str, float]:
    """The predicted figures; every key is there once, and every plot on the page."""
    found = {row.key: row.predicted or 0.0 for row in result.rows}
    assert len(found) == len(result.rows)
    assert all(name in result.page() for name in result.figures)
    return found


def test_specpipe_is_faster_than_a_static_tree_and_that_than_none() -> None:
    settings = specpipe_width.Settings(Effort(3, 24), (8, 64, 80), (4,), (1, 2), 8, LEVELS)
    result = specpipe_width.study(settings, say)
    found = keys_of(result)
    for server in ("one-server", "two-server"):
        names = ("specpipe", "specinfer", "pp")
        times = [found[f"{server}/{name}/time_between_tokens_ms"] for name in names]
        assert 0 < times[0] < times[1] < times[2]
        assert 1 < found[f"{server}/over_pp/low"] < found[f"{server}/over_pp/high"]
    assert found["width=64/hit_rate"] > found["width=8/hit_rate"]
    alone = found["one-server/specpipe/time_between_tokens_ms"]
    assert found["batch=2/specpipe_db/throughput_tokens_s"] > 1e3 / alone / 2
    rows = {row.key.removesuffix("/time_between_tokens_ms"): row for row in result.rows}
    row = rows["one-server/eagle"]
    logs = np.log([120.0 / 117.92, 55.0 / 54.67])  # what was left out, and its prediction
    half = 4.303 * np.sqrt(np.mean(logs**2))  # Student's t, two degrees of freedom
    assert np.log(row.high / row.predicted) >= half * 0.999
    assert np.log(row.predicted / row.low) >= half * 0.999
    assert {rows[f"one-server/{name}"].role for name in ("specinfer", "pp")} == {"calibrated"}


def test_pipedec_serves_one_after_another_and_is_faster_on_more_stages() -> None:
    """The ends of its intervals are those of the levels."""
    tiny = Effort(2, 24)
    settings = pipedec_stages.Settings(tiny, tiny, (8, 32), (2, 16), (1, 2), 2, 8, LEVELS)
    found = keys_of(pipedec_stages.study(settings, say))
    alone, two = (found[f"k={k}/pipedec/throughput_tokens_s"] for k in (1, 2))
    assert two == pytest.approx(alone)
    assert found["k=2/pp/throughput_tokens_s"] > 1.8 * found["k=1/pp/throughput_tokens_s"]
    assert found["14-stage/over_pp/mean"] > found["7-stage/over_pp/mean"]
    for over in ("over_pp", "over_stpp"):
        low, mean, high = (found[f"14-stage/{over}/{which}"] for which in ("low", "mean", "high"))
        assert low < mean < high
    assert found["gain_7_to_14"] > 0


def test_clusters_hold_the_whole_target_and_meet_the_plain_pipeline() -> None:
    assert plain_ms(build("one-server")) == pytest.approx(302.39, rel=1e-3)
    clusters = {"one-server": 8, "two-server": 8, "fourteen": 14, "twenty-one": 21}
    for name, stages in clusters.items():
        assert sum(card.layers for card in cards(name)) == 80
        assert len(cards(name)) == stages


def test_a_level_has_two_numbers_of_which_the_rest_moves_more() -> None:
    """Tails move two to four times where first candidates hardly move (SpecPipe, 3.3.1)."""
    code = Level(1.4, 0.4)
    harder = code.at(1.4 * 1.27)
    assert 2 < harder.rest / code.rest < 4
    assert harder.first / code.first == 1.27
    ratio = acceptance(code)["acceptance"]["hit_ratio"]
    assert ratio == {1: 1 - 1.4 * 0.19, 8: 1 - 0.4 * 0.01}


def test_a_sharpened_pool_is_surer_and_proposes_the_same() -> None:
    """Off the path it is sharpened otherwise."""
    recorded = Pool.load(Path(POOL))
    changed, sharpened = recorded.sharpened(2.25, 0.1), recorded.sharpened(2.25)
    here, off = slice(0, len(recorded)), slice(len(recorded), None)
    assert np.array_equal(changed.vectors[here], sharpened.vectors[here])
    assert np.diff(changed.vectors[off]) == pytest.approx(0.1 * np.diff(recorded.vectors[off]))
    assert recorded.ranks == sharpened.ranks
    gaps, wider = (np.diff(pool.vectors[here], axis=1) for pool in (recorded, sharpened))
    assert wider == pytest.approx(2.25 * gaps)
    assert np.exp(sharpened.vectors[here]).sum(axis=1) == pytest.approx(1)
    sure, right = np.exp(sharpened.vectors[here, 0]).mean(), recorded.hit_ratio(1)
    assert sure == pytest.approx(right, abs=0.02)
