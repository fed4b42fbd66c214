"""The study ``starsd-threshold``: what a column says, fits that find what made it, its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.written_studies import say, written
from treepipe.studies import starsd as threshold
from treepipe.studies.starsd_fit import (
    METRICS,
    Column,
    Effort,
    SecondServer,
    Simulated,
    calibrate,
    columns,
    linear,
    simulate_columns,
)
from treepipe.studies.starsd_fit import Testbed as Bed

BED = Bed(step_ms=1.4, service_ms=10.4, cold=1.6, return_ms=31.0, tokens=4.0, turns=400)


def as_column(seen: Simulated) -> Column:
    """What a paper would print of it, without ratios of its own."""
    n, rounds, step_ms = seen.targets, seen.rounds.mean, 1.4 * seen.service.mean / 10.4
    times = step_ms, seen.wait.mean, seen.idle.mean
    return Column(n, 4.0 * rounds, 4.0 * rounds / n, *times, rounds, rounds / n, seen.load.mean)


def test_a_column_says_what_a_round_is_made_of() -> None:
    column = columns()[3]
    turn = 1e3 / 72.26
    assert column.service_ms == pytest.approx(turn - 3.4)
    assert column.return_ms == pytest.approx(3 * turn - column.service_ms - 0.6)
    assert [c.deployment for c in columns().values()][2:] == ["one server", "two servers"]
    assert columns()[4].figures["draft_idle_ms"] == 0.6


def test_load_is_of_the_passes_in_every_column_and_full_without_idle_time() -> None:
    for column in columns().values():
        assert column.passes_load == pytest.approx(column.draft_load, rel=0.035)
    assert replace(columns()[4], draft_idle_ms=0.0).passes_load == 1.0
    assert columns()[1].passes_load == pytest.approx(7 * 2.24 / (7 * 2.24 + 30.6))


def test_beyond_the_columns_the_draft_slows_by_its_last_idle_time_at_most() -> None:
    """So that its rounds do not become fewer than in the last column (section 5.2)."""
    middle, least, most = threshold.slowing(columns())
    assert least == 1.0 < middle < most
    assert most * columns()[4].service_ms == pytest.approx(1e3 / 81.54)


@pytest.mark.processes
def test_simulated_without_jitter_is_the_closed_form() -> None:
    seen = simulate_columns(replace(BED, cold=1.0), [1, 3, 5], 1, say)
    for n, each in seen.items():
        cycle = BED.cycle()
        assert each.rounds.mean == pytest.approx(cycle.draft_rounds(n), rel=0.01)
        assert each.wait.mean == pytest.approx(cycle.wait_ms(n), abs=0.4)
        assert each.idle.mean == pytest.approx(cycle.idle_ms(n) / n, abs=0.1)


@pytest.mark.processes
def test_a_long_gap_slows_the_draft_and_a_short_one_does_not() -> None:
    seen = simulate_columns(BED, [1, 2], 1, say)
    assert seen[1].service.mean > 1.55 * 10.4
    assert seen[2].service.mean == pytest.approx(10.4, rel=0.01)


def test_targets_behind_the_network_are_the_fourth_and_further_ones() -> None:
    bed = replace(BED, uneven_ms=1.0, second=SecondServer(1.1, 2.0, 5.0))
    assert bed.returns_ms(2) == [31.0, 30.0]
    assert bed.returns_ms(5) == [33.0, 32.0, 32.0, 38.0, 38.0]


@pytest.mark.processes
def test_a_calibration_finds_the_testbed_that_made_the_columns() -> None:
    made = replace(BED, uneven_ms=1.5, jitter_ms=1.5, turns=500)
    seen = simulate_columns(made, [1, 2, 3], 1, say)
    found = calibrate([as_column(each) for each in seen.values()], say, Effort(1, 500, 3))
    assert found.bed.service_ms == pytest.approx(10.4, rel=0.01)
    assert found.bed.return_ms == pytest.approx(31.0, rel=0.02)
    assert found.bed.cold == pytest.approx(1.6, rel=0.05)
    assert found.yields["one server"].attended == pytest.approx(1.0)
    again = simulate_columns(replace(found.bed, turns=500), [2, 3], 1, say)
    for n in (2, 3):
        assert again[n].wait.mean == pytest.approx(seen[n].wait.mean, rel=0.25)


def test_the_trivial_predictor_scales_rates_from_the_nearest_column() -> None:
    given = columns()
    guess = linear([given[1], given[3]], 2)
    assert guess["draft_rounds_s"] == pytest.approx(2 * 20.90)
    assert guess["draft_wait_ms"] == 0.01
    assert linear([given[3]], 6)["draft_load"] == 1.0


@pytest.mark.processes
def test_end_to_end(tmp_path: Path) -> None:
    settings = threshold.Settings((1, 2, 4, 5), 2, (4,), 120, Effort(1, 120, 1))
    rows = written(threshold.study(settings, say), tmp_path / "out")
    for n in settings.targets:
        for metric in METRICS:
            row = rows[f"n={n}/{metric}"]
            assert row["predicted"] is not None
            assert (row["published"] is None) == (n > 4)
            assert row["role"] == ("calibrated" if n <= 4 else "predicted")
    idle, load = (rows[f"n=5/{each}"]["predicted"] for each in ("draft_idle_ms", "draft_load"))
    passes = 7 * rows["n=5/t_s_ms"]["predicted"]
    assert load == pytest.approx(passes / (passes + idle))
    assert rows["n=5/draft_rounds_s"]["low"] < rows["n=5/draft_rounds_s"]["high"]
    assert rows["n_full"]["predicted"] == 4
    assert rows["n_max"]["low"] <= rows["n_max"]["predicted"]
    assert rows["left-out/n=4/draft_rounds_s"]["role"] == "predicted"
