"""The study of intervals: a tiny size, what it splits, and what its replays go through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.worlds.written_studies import say, written
from treepipe.core.protocol import DraftPass
from treepipe.results.estimates import summarize
from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import resolve
from treepipe.scenario.workload import draw_requests
from treepipe.sim.world import simulate
from treepipe.studies.workshop import coverage
from treepipe.studies.workshop.cells import Cell, Size, cases_of
from treepipe.studies.workshop.texts import TextSource

SMALL = Size(requests=3, new_tokens=6, runs=3)


def found(measured: float, group: int = 0) -> coverage.Found:
    """A run of so many milliseconds, predicted as 10 (8 to 12)."""
    mean, run = Interval(10.0, 9.5, 10.5), Interval(10.0, 8.0, 12.0)
    return coverage.Found("", "model", group, coverage.PROFILED, mean, run, measured)


def test_coverage_end_to_end(tmp_path: Path) -> None:
    settings = coverage.Settings(("chain", "starsd", "pp"), 2, ("model",), SMALL)
    result = coverage.study(settings, say)
    rows = written(result, tmp_path / "out")
    assert rows["nominal"]["predicted"] == 0.95
    assert rows["cells"]["predicted"] == 8, "two schedules, groups, worlds; plain has no acceptance"
    assert rows["groups"]["predicted"] == 2
    share = rows["covered_share"]
    assert 0 <= share["low"] <= share["predicted"] <= share["high"] <= 1
    for prefix in ("", "profiled/", "varying/"):
        assert rows[f"{prefix}bias"]["low"] is None, "two groups tell no interval"
    text = (tmp_path / "out" / "coverage.md").read_text()
    assert "What is tested" in text
    assert "cells are not independent" in text


def test_a_single_group_has_a_bias_without_an_interval() -> None:
    assert "bias: +25.0%" in coverage._page([found(8.0)], [])[""]
    said = coverage._page([found(8.0), found(8.0, 1)], [found(8.0)])[""]
    assert "bias: +25.0%" in said
    assert said[-1] == "on real processes it holds 1 of 1 runs"


def test_cells_of_one_group_are_not_counted_as_independent() -> None:
    """Ten cells of two groups, all alike within one, say as much as two cells."""
    few = [found(8.5), found(12.5, 1)]
    many = [found(8.5)] * 5 + [found(12.5, 1)] * 5
    assert coverage._bias(many) == coverage._bias(few)
    assert coverage._share(many) == coverage._share(few)
    assert coverage._share(few).mean == 0.5, "8.5 is inside, 12.5 is not"
    assert coverage._bias([found(5.0), found(20.0)]).mean == pytest.approx(0.0)


def test_a_share_of_all_cells_is_no_certainty() -> None:
    """Four groups that are inside throughout are four successes at least: 0.025 ** (1 / 4)."""
    all_inside = [found(10.0, group) for group in range(4) for _ in range(6)]
    share = coverage._share(all_inside)
    assert (share.mean, share.high) == (1.0, 1.0)
    assert share.low == pytest.approx(0.025 ** (1 / 4))


def test_cells_that_are_unlike_within_groups_count_as_cells() -> None:
    """The groups' shares 0.25, 0.75, 0.5, 0.5 vary less than those of four chances each."""
    inside = {0: 1, 1: 3, 2: 2, 3: 2}
    cells = [found(10.0 if n < inside[g] else 20.0, g) for g in inside for n in range(4)]
    expected = stats.binomtest(8, 16).proportion_ci(0.95)
    share = coverage._share(cells)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high))


def test_nothing_of_a_run_s_texts_is_calibrated_on() -> None:
    """Off the path as well: each pool has the vectors of its own texts, and no two groups meet."""
    drawn: set[bytes] = set()
    for group in (0, 1, 2):
        calibrated, others = coverage._split("model", SMALL, group)
        assert (len(calibrated.lengths), len(others.lengths)) == (57, 3)
        assert {*calibrated.lengths, *others.lengths} == {6}
        counts = [[n for _, n in each.off_path_rows] for each in (calibrated, others)]
        assert counts == [[57 * 32] * 3, [3 * 32] * 3]
        known = {calibrated.vectors[i : i + 6].tobytes() for i in range(0, 57 * 6, 6)}
        rows = {others.vectors[i : i + 6].tobytes() for i in range(0, 18, 6)}
        assert len(known) == 57
        assert not rows & (known | drawn)
        drawn |= rows


def test_vectors_off_a_text_go_with_the_text() -> None:
    """A text of n tokens has one behind every second of them, at every number of steps."""
    for draft in coverage.POOLS:
        file = coverage._recorded(draft)
        counts = [-(-len(each.known.ranks) // 2) for each in file.prompts]
        assert all(len(rows) == sum(counts) for rows in file.off_path.values())
        part = coverage.texts_of(file, [2, 0])
        for steps, rows in file.off_path.items():
            own = [rows[sum(counts[:2]) : sum(counts[:3])], rows[: counts[0]]]
            assert np.array_equal(part.off_path[steps], np.concatenate(own))
        assert [part.prompts[0], part.prompts[1]] == [file.prompts[2], file.prompts[0]]


def test_a_replay_goes_through_the_recorded_texts() -> None:
    _, others = coverage._split("model", SMALL, 0)
    source = TextSource(others, seed=0)
    for request in (1, 2, 3, 4):
        oracle = source.open(request, prompt_tokens=5)
        first = 6 * ((request - 1) % 3)
        assert [oracle.truth(i) for i in range(6)] == others.ranks[first : first + 6]
        answer = oracle.draft(DraftPass(1, tuple(range(5)), (), (), True, 4))
        assert answer.log_probs[0] == pytest.approx(others.vectors[first, :4])


def test_durations_vary_by_a_law_that_the_prediction_lacks() -> None:
    (case,) = cases_of([Cell("flowspec")], SMALL)
    deployment = resolve(case.scenario).asked(draw_requests(case.scenario, 0), 0)
    _, others = coverage._split("model", SMALL, 0)

    def time(actual: Deployment) -> float:
        metrics, _ = summarize([simulate(actual, TextSource(others, 0))])
        return metrics[METRIC].mean

    plain = time(deployment)
    assert time(coverage._varying(deployment, 0, 0.0, 0.0)) == pytest.approx(plain)
    speeds = [np.log(time(coverage._varying(deployment, n, 0.1, 0.0)) / plain) for n in range(12)]
    assert 0.02 < np.std(speeds) < 0.12, "a run is as fast as its machines"
    assert time(coverage._varying(deployment, 0, 0.0, 0.5)) > 1.02 * plain, "the slowest is awaited"
