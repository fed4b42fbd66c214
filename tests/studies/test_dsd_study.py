"""The study ``dsd-region``: its formula, its map, the claims by hand, and the rule it measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.written_studies import say, written
from treepipe.studies import dsd as region
from treepipe.studies.dsd import (
    Cell,
    Network,
    Saving,
    accepted_for,
    in_region,
    simulate_cells,
    table3,
)


def test_the_formula_gives_k_everywhere_if_drafting_and_windows_cost_nothing() -> None:
    for nodes, ratio in ((2, 0.1), (4, 5.0), (12, 50.0)):
        cell = Cell(nodes, ratio, beta=0.6, window=1.0)
        assert cell.gain == pytest.approx(cell.tokens)
    costly = Cell(2, 1.0, beta=0.6, window=1.5)
    assert costly.gain == pytest.approx(costly.tokens * 2 / 2.5)


@pytest.mark.processes
def test_the_expected_gain_is_the_simulated_one_and_below_the_formula() -> None:
    """Links that vary are slower for plain decoding, too."""
    cell, varying = Cell(4, 1.0, beta=0.6), Cell(3, 3.0, beta=0.6, network=Network(jitter=0.5))
    cells = simulate_cells([cell, varying], 4, 400, say)
    seen = cells[cell.label]
    assert seen.gain.low < seen.gain.mean == pytest.approx(cell.expected_gain, rel=0.05)
    assert seen.saving.mean == pytest.approx(1 - 1 / cell.tokens, rel=0.05)
    assert cell.expected_gain < cell.gain
    assert cells[varying.label].gain.mean == pytest.approx(varying.expected_gain, rel=0.15)


def test_only_the_product_of_links_and_latency_matters() -> None:
    cells = [Cell(2, 6.0, 0.6), Cell(4, 2.0, 0.6), Cell(7, 1.0, 0.6)]
    gains = [cell.expected_gain for cell in cells]
    assert gains == pytest.approx([gains[0]] * 3)


def test_acceptance_is_found_from_a_gain() -> None:
    cell = Cell(4, 5.0, beta=0.7)
    assert accepted_for(cell.expected_gain, replace(cell, beta=0.1)) == pytest.approx(0.7, abs=1e-3)


def test_table_3_asks_for_windows_of_n_tokens() -> None:
    assert [round(row.tokens_of_communication) for row in table3()] == [3, 4, 8]
    row = Saving(3, 3.0, 0.5)
    assert row.tokens_of_communication == 2
    assert row.tokens_of_time == pytest.approx(1 / (1 - 0.5 * 7 / 6))


def test_the_claimed_region() -> None:
    inside = [in_region(Cell(n, r, 0.5)) for n, r in ((3, 3.0), (8, 10.0), (9, 5.0), (4, 11.0))]
    assert inside == [True, True, False, False]


@pytest.mark.processes
def test_end_to_end(tmp_path: Path) -> None:
    settings = region.Settings(
        nodes=(3, 4, 12),
        ratios=(1.0, 3.0, 5.0),
        runs=3,
        tokens=24,
        taus=(0.0, 1.0),
        prompts=1,
        new_tokens=12,
    )
    rows = written(region.study(settings, say), tmp_path / "out")
    for n in settings.nodes:
        for ratio in settings.ratios:
            for what in ("gain", "saving"):
                row = rows[f"n={n}/ratio={ratio:g}/{what}"]
                assert row["low"] <= row["predicted"] <= row["high"]
    assert rows["n=4/ratio=5/gain"]["role"] == "calibrated"
    assert rows["n=4/ratio=5/gain"]["published"] == 2.15
    assert rows["n=3/ratio=3/saving"]["published"] == 0.67
    assert rows["adaptive/tau_max=0/differing_share"]["measured"] == 0, "exact decoding is exact"
    assert rows["adaptive/tau_max=0/speed_up"]["measured"] == 1
    assert rows["adaptive/tau_max=1/speed_up"]["measured"] > 0
