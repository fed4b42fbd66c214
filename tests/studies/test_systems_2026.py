"""The study of SPD's and engines' figures: what is solved for, and what follows."""

from __future__ import annotations

import pytest

from treepipe.results.metrics import run_metrics
from treepipe.sim.predict import predict
from treepipe.studies.reproduction import published
from treepipe.studies.systems_2026 import (
    SHORT,
    cycles,
    engine_scenario,
    hit_of,
    serial_ms,
    spd_scenario,
    stages_of,
    wall_of,
)


def test_a_row_by_hand() -> None:
    """4B, T = 0, 4 stages: 2.64 = 4 / (1 + 3 (1 - p)); a cycle is 7.09 ms of layers, 0.77 ms of
    messages (9.25 - 8.05 - 0.43), and 0.43 ms to verify in 0.66 of all cycles."""
    row, (cycle, *_) = "4b/t0/n4-ls4", cycles()
    assert hit_of(row) == pytest.approx(1 - (4 / 2.64 - 1) / 3)
    wall = 2.64 * 7.09 / (7.09 + 0.77 + 0.66 * 0.43)
    assert wall_of(row, spd_scenario(row, cycle, SHORT)) == pytest.approx(wall, rel=1e-3)


@pytest.mark.parametrize("row", published()["spd"]["theoretical"])
def test_rows_follow_from_the_theoretical_speed_up(row: str) -> None:
    """By the law alone: the longer of draft and stage, messages, a verification per token."""
    (cycle, *_), facts = cycles(), published()["spd"]
    per_cycle, part = facts["theoretical"][row] / stages_of(row), serial_ms(row) / stages_of(row)
    longer = max(cycle.draft_ms(row), part) + cycle.messages_ms(row)
    law = serial_ms(row) * per_cycle / (longer + per_cycle * facts["profile_ms"]["n4"]["verify"])
    assert wall_of(row, spd_scenario(row, cycle, SHORT)) == pytest.approx(law, rel=5e-3)


def test_a_draft_hides_behind_stages_of_one_layer_more() -> None:
    """SPD's rule: three layers hide behind eighths of 32, four do not."""
    middle, fast, slow = cycles()
    assert middle.draft_ms("4b/t0/n8-ls3") < serial_ms("4b/t0/n8-ls3") / 8
    assert middle.draft_ms("4b/t0/n8-ls4") > serial_ms("4b/t0/n8-ls4") / 8
    assert middle.draft_ms("4b/t0/n8-ls4") == pytest.approx(4.15)
    assert fast.draft_ms("4b/t0/n8-ls4") == pytest.approx(3.5)
    assert slow.draft_ms("4b/t0/n8-ls3") == pytest.approx(serial_ms("4b/t0/n8-ls3") / 8)


def test_the_published_walls_follow_without_a_fit() -> None:
    for row, wall in published()["spd"]["wall"].items():
        cell = wall_of(row, spd_scenario(row, cycles()[0], SHORT))
        assert cell == pytest.approx(wall, rel=0.02)


def test_an_engine_pays_its_fixed_time_in_every_round() -> None:
    """One stream by hand: 1.93 tokens in 16.3 + 25 ms."""
    (trace, *_) = predict(engine_scenario(1, SHORT))
    rate = run_metrics(trace)["throughput_tokens_s"]
    assert rate == pytest.approx(1.93e3 / (16.3 + 25.0), rel=0.03)
