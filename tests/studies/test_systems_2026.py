"""The study of SPD's and engines' figures: what is solved for, and what follows."""

from __future__ import annotations

import pytest

from treepipe.results.metrics import run_metrics
from treepipe.sim.predict import predict
from treepipe.studies.reproduction import published
from treepipe.studies.systems_2026 import (
    FITTED,
    SHORT,
    ends_of,
    engine_scenario,
    fitted_cycle,
    hit_of,
    profiled_cycle,
    serial_ms,
    spd_scenario,
    stages_of,
    wall_of,
)


def test_a_row_by_hand() -> None:
    """4B, T = 0, 4 stages: 2.64 = 4 / (1 + 3 (1 - p)), and a cycle of 8.246 ms: a stage, 0.77 ms of
    messages (9.25 - 8.05 - 0.43), and 0.43 ms to verify in 0.66 of all cycles."""
    assert hit_of(FITTED[0]) == pytest.approx(1 - (4 / 2.64 - 1) / 3)
    stage_ms = 8.246 - 0.77 - 0.66 * 0.43
    assert fitted_cycle().stage_ms(FITTED[0]) == pytest.approx(stage_ms, abs=1e-3)
    assert fitted_cycle().share == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("row", published()["spd"]["theoretical"])
def test_rows_follow_from_the_theoretical_speed_up(row: str) -> None:
    """By the law alone: the longer of draft and stage, messages, a verification per token."""
    cycle, facts = fitted_cycle(), published()["spd"]
    per_cycle = facts["theoretical"][row] / stages_of(row)
    longer = max(cycle.draft_ms(row), cycle.stage_ms(row)) + cycle.messages_ms(row)
    law = serial_ms(row) * per_cycle / (longer + per_cycle * facts["profile_ms"]["n4"]["verify"])
    assert wall_of(row, spd_scenario(row, cycle, SHORT)) == pytest.approx(law, rel=5e-3)


def test_a_draft_hides_behind_stages_of_one_layer_more() -> None:
    """SPD's rule: three layers hide behind eighths of 32, four do not; ends are the profile's."""
    cycle, (fast, slow) = fitted_cycle(), ends_of(fitted_cycle())
    assert cycle.draft_ms("4b/t0/n8-ls3") < cycle.stage_ms("4b/t0/n8-ls3")
    assert cycle.draft_ms("4b/t0/n8-ls4") > cycle.stage_ms("4b/t0/n8-ls4")
    assert fast.draft_ms(FITTED[1]) == pytest.approx(3.5)
    assert fast.layer < cycle.layer < slow.layer


def test_the_profile_alone_meets_both_walls() -> None:
    """Before a wall is used: the cycle of the profile and of plain decoding, with the drain."""
    for row in FITTED:
        wall = wall_of(row, spd_scenario(row, profiled_cycle(), SHORT))
        assert wall == pytest.approx(published()["spd"]["wall"][row], rel=0.03)


def test_an_engine_pays_its_fixed_time_in_every_round() -> None:
    """One stream by hand: 1.93 tokens in 16.3 + 25 ms."""
    (trace, *_) = predict(engine_scenario(1, SHORT))
    rate = run_metrics(trace)["throughput_tokens_s"]
    assert rate == pytest.approx(1.93e3 / (16.3 + 25.0), rel=0.03)
