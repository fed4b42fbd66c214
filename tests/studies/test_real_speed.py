"""Plans beside ``generate()``: what the ratios say, and that both continue the same prompts."""

from __future__ import annotations

import pytest

from tests.worlds.written_studies import say
from treepipe.scenario.scenario import Scenario
from treepipe.studies.real_speed import AIMS, Speed, Speeds, speeds


def test_ratios_are_of_rounds_and_of_as_many_threads() -> None:
    """A machine that is twice as slow in the second round changes no ratio."""
    made = Speeds(
        {1: Speed("plain", 0, 1, (10.0, 5.0)), 2: Speed("plain", 0, 2, (16.0, 8.0))},
        Speed("assisted", 0, 1, (12.0, 6.0)),
        {
            1: [Speed("a", 1, 1, (18.0, 9.0)), Speed("b", 1, 1, (20.0, 10.0))],
            2: [Speed("c", 2, 1, (24.0, 12.0))],
        },
    )
    assert made.ratios == pytest.approx(
        {
            "best_over_generate": 2.0,
            "chosen_over_generate": 1.8,
            "best_over_assisted": 20 / 12,
            "chosen_over_best": 0.9,
            "two_stages_over_generate": 1.5,
            "two_stages_chosen_over_best": 1.0,
        }
    )
    aims = {entry.key: entry.published for entry in made.entries}
    assert aims == {f"speed/{what}": AIMS.get(what) for what in made.ratios}
    assert set(AIMS) < set(made.ratios)
    assert [row[-1] for row in made.sheet.rows] == pytest.approx([1, 1, 1.2, 1.8, 2.0, 1.5])
    assert made.finding.startswith("a, as planned for 1 stage, decodes 1.80 times as fast")
    assert "the fastest of 2 that were run, b, 2.00 times" in made.finding


@pytest.mark.processes
def test_side_by_side() -> None:
    stage = {"device": {"stage_ms": {1: 5.0, 8: 6.0}}}
    base = Scenario.of(
        {
            "name": "beside generate()",
            "emulate": False,
            "runs": 2,
            "target": {"checkpoint": "reference"},
            "drafts": [{"device": {"draft_ms": {1: 1.0}}, "model": {"checkpoint": "reference"}}],
            "pipelines": [{"stages": [stage]}],
            "acceptance": {"source": "profile", "name": "reference"},
            "schedule": {"name": "pp"},
            "workload": {"prompts": "reference:heldout:code", "requests": 2, "new_tokens": 6},
        }
    )
    found = speeds(base, 1, 1, say, {"cases": 0, "schedules": ["chain"], "grid": {}})
    assert [len(found.generate[n].rates) for n in (1, 2)] == [1, 1]
    for chosen, plain in found.plans.values():
        assert chosen.label.startswith("chain")
        assert plain.label == "pp", "always run beside"
    assert all(ratio > 0 for ratio in found.ratios.values())
