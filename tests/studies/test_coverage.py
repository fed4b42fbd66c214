"""The study of intervals: a tiny size, what it splits, and what its replays go through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds.written_studies import say, written
from treepipe.core.protocol import DraftPass
from treepipe.profiles.pool_file import PoolFile
from treepipe.results.statistics import Interval
from treepipe.sim.acceptance import TextSource
from treepipe.studies import coverage
from treepipe.validation.cells import Size

SMALL = Size(requests=3, new_tokens=6, runs=3)


def _file() -> PoolFile:
    return coverage._recorded("reference-model")


def test_coverage_end_to_end(tmp_path: Path) -> None:
    found = coverage.study(coverage.Settings(("chain", "starsd", "pp"), 1, ("model",), SMALL), say)
    rows = written(found, tmp_path / "out")
    assert rows["nominal"]["predicted"] == 0.95
    assert rows["cells"]["predicted"] == 2, "plain decoding has no acceptance"
    share = rows["covered_share"]
    assert 0 <= share["low"] <= share["predicted"] <= share["high"] <= 1
    assert rows["bias"]["low"] < rows["bias"]["high"]
    assert "What is tested" in (tmp_path / "out" / "coverage.md").read_text()


def test_a_single_cell_has_a_bias_without_an_interval() -> None:
    mean, run = Interval(10.0, 9.5, 10.5), Interval(10.0, 8.0, 12.0)
    one = coverage.Found("one", "chain", "model", mean, run, 8.0)
    assert coverage._findings([one], [])[-1] == "bias: +25.0%"
    assert coverage._findings([one, one], [one])[-2] == "bias: +25.0% (+25.0% to +25.0%)"


def test_no_text_is_both_calibrated_on_and_run() -> None:
    calibrated, others = coverage._split(_file(), SMALL, seed=3)
    assert (len(calibrated.lengths), len(others.lengths)) == (40, 3)
    assert {*calibrated.lengths, *others.lengths} == {6}
    seen = {calibrated.vectors[i : i + 6].tobytes() for i in range(0, 240, 6)}
    assert len(seen) == 40
    assert not any(others.vectors[i : i + 6].tobytes() in seen for i in range(0, 18, 6))


def test_a_replay_goes_through_the_recorded_texts() -> None:
    _, others = coverage._split(_file(), SMALL, seed=3)
    source = TextSource(others, seed=0)
    for request in (1, 2, 3, 4):
        oracle = source.open(request, prompt_tokens=5)
        first = 6 * ((request - 1) % 3)
        assert [oracle.truth(i) for i in range(6)] == others.ranks[first : first + 6]
        answer = oracle.draft(DraftPass(1, tuple(range(5)), (), (), True, 4))
        assert answer.log_probs[0] == pytest.approx(others.vectors[first, :4])


def test_a_run_outside_its_interval_is_seen() -> None:
    mean = Interval(10.0, 9.5, 10.5)
    inside, outside = (
        coverage.Found("", "chain", "model", mean, Interval(10.0, 8.0, 12.0), measured)
        for measured in (11.9, 12.1)
    )
    assert inside.is_covered
    assert not outside.is_covered
    assert coverage._share([inside, outside]).mean == 0.5
    halved, doubled = (
        coverage.Found("", "chain", "model", mean, Interval(10.0, 1.0, 99.0), measured)
        for measured in (5.0, 20.0)
    )
    assert coverage._bias([halved, doubled]).mean == pytest.approx(0.0)
    assert np.isclose(coverage._bias([halved]).mean, 1.0)
