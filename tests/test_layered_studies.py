"""Studies of SpecPipe and PipeDec: end to end with tiny settings, their keys, their clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from treepipe.sim.pool import Pool
from treepipe.studies.layered import specpipe_width
from treepipe.studies.layered.calibration import POOL, Effort, Levels, build, plain_ms
from treepipe.studies.layered.cluster import Card, fourteen, one_server, twenty_one, two_servers
from treepipe.studies.study import STUDIES, StudyResult

LEVELS = Levels(0.6, (1.6, 0.4))


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


def test_the_plain_pipeline_is_met() -> None:
    assert plain_ms(build(one_server())) == pytest.approx(302.39, rel=1e-3)


@pytest.mark.parametrize("cards", [one_server(), two_servers(), fourteen(), twenty_one()])
def test_clusters_hold_the_whole_target(cards: tuple[Card, ...]) -> None:
    assert sum(card.layers for card in cards) == 80


def test_a_sharpened_pool_is_surer_and_proposes_the_same() -> None:
    recorded, sharpened = Pool.load(Path(POOL)), Pool.load(Path(POOL)).sharpened(2.25)
    assert recorded.ranks == sharpened.ranks
    here = slice(0, len(recorded))
    assert (sharpened.vectors[here, 0] >= recorded.vectors[here, 0] - 1e-12).all()
    assert np.exp(sharpened.vectors[here]).sum(axis=1) == pytest.approx(1)
    sure, right = np.exp(sharpened.vectors[here, 0]).mean(), recorded.hit_ratio(1)
    assert sure == pytest.approx(right, abs=0.02)
