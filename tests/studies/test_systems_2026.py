"""The study of SPD's and engines' figures: what is solved for, and what follows."""

from __future__ import annotations

import pytest

from treepipe.results.metrics import run_metrics
from treepipe.sim.predict import predict
from treepipe.studies.reproduction import published
from treepipe.studies.systems_2026 import (
    FITTED,
    SHORT,
    engine_scenario,
    fitted_cycle,
    hit_of,
    serial_ms,
    spd_scenario,
    stages_of,
    wall_of,
)


def test_a_row_by_hand() -> None:
    """4B, T = 0, 4 stages: 2.64 = 4 / (1 + 3 (1 - p)), and 7.09 ms of layers in a cycle of 8.25."""
    assert hit_of(FITTED[0]) == pytest.approx(1 - (4 / 2.64 - 1) / 3)
    cycle = fitted_cycle()
    assert cycle.fixed_ms + cycle.share * 1e3 / 35.26 / 4 == pytest.approx(8.246, abs=1e-3)


@pytest.mark.parametrize("row", published()["spd"]["theoretical"])
def test_rows_follow_from_the_theoretical_speed_up(row: str) -> None:
    """By the law alone: theoretical times the layers' part of a cycle; a refill's empty stages
    cost no decisions on rows, so the closed form is a little faster."""
    cycle, part = fitted_cycle(), serial_ms(row) / stages_of(row)
    law = published()["spd"]["theoretical"][row] * part / (cycle.fixed_ms + cycle.share * part)
    assert wall_of(row, spd_scenario(row, cycle, SHORT)) == pytest.approx(law, rel=5e-3)


def test_an_engine_pays_its_fixed_time_in_every_round() -> None:
    """One stream by hand: 1.93 tokens in 16.3 + 25 ms."""
    (trace, *_) = predict(engine_scenario(1, SHORT))
    rate = run_metrics(trace)["throughput_tokens_s"]
    assert rate == pytest.approx(1.93e3 / (16.3 + 25.0), rel=0.03)
