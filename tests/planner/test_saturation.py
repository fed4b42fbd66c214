"""How many targets a shared draft feeds, against StarSD's formulas by hand; its words."""

from __future__ import annotations

import json
from math import ceil, floor
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.files.toml_file import toml_text
from treepipe.planner.cluster import Cluster
from treepipe.planner.saturation import Saturation

STAR: dict[str, Any] = {
    "name": "star",
    "target": {"layers": 4},
    "drafts": [
        {
            "device": {
                "draft_ms": {1: 3.0, 64: 3.0},
                "evaluate_ms": {1: 1.1, 9: 1.1},
                "decide_ms": 2.0,
            }
        }
    ],
    "pipelines": [{"count": 4, "stages": [{"device": {"stage_ms": {1: 40.0, 9: 40.0}}}]}],
    "links": {"default": {"latency_ms": 1.0}},
    "acceptance": {"source": "bernoulli", "beta": 0.7, "uncertainty": 0.3},
    "schedule": {"ends": "draft"},
}


def star(**changes: Any) -> Saturation:
    return Saturation.of(Cluster.of({**STAR, **changes}))


def test_both_thresholds_are_the_papers_by_hand() -> None:
    """S is d passes and the verification, Z the way to the target, its pass and the way back (eq. 5
    and 6); N_full is eq. 12; N_max compares a target's share of a full draft (eq. 11) with a token
    per pass and verification (section 4.2)."""
    found = star()
    assert [*found.stated] == [*range(1, 9)]
    for drafted in found.stated:
        service, back = 3.0 * drafted + 3.1, 1.0 + 40.0 + 1.0
        tokens = sum(0.7**n for n in range(drafted + 1))
        assert found.number(drafted, "n_full").mean == ceil(back / service) + 1
        slow = tokens * 43.1 < back + service
        assert found.number(drafted, "n_max").mean == (
            0 if slow else floor(tokens * 43.1 / service)
        )
    assert (found.number(4, "n_full").mean, found.number(4, "n_max").mean) == (4, 7)


def test_an_uncertain_acceptance_moves_n_max_alone() -> None:
    """By hand at the ends of 95 % of the cases: misses of 0.3 times 1.3, and over it."""
    found = star(schedule={"ends": "draft", "gamma": 4})
    assert [*found.stated] == [4] == [found.fastest]
    assert found.number(4, "n_full").low is None
    ends = [floor(sum(b**n for n in range(5)) * 43.1 / 15.1) for b in (1 - 0.39, 1 - 0.3 / 1.3)]
    low, high = map(round, found.number(4, "n_max").ends)
    assert ends[0] <= low < 7 < high <= ends[1]
    assert star(search={"cases": 0}).number(4, "n_max").low is None


def test_what_the_equations_do_not_hold_for_is_refused() -> None:
    with pytest.raises(UserError, match="chains of constant depth"):
        star(schedule={"branching": [2, 2]})
    with pytest.raises(UserError, match="one draft and equal targets"):
        star(pipelines=STAR["pipelines"] * 2)
    with pytest.raises(UserError, match="takes no time"):
        star(drafts=[{"device": {"draft_ms": {1: 0.0}}}])


def test_a_file_without_drafts_has_the_default_one() -> None:
    without = Cluster.of({key: value for key, value in STAR.items() if key != "drafts"})
    assert Saturation.of(without).stated == star(drafts=[{}]).stated


def test_the_answer_comes_first_and_its_table_is_short(terminal: Terminal) -> None:
    (terminal.folder / "c.toml").write_text(toml_text(STAR), "utf-8")
    said = terminal.succeeds("plan", "c.toml", "--question", "saturation", "--json", "s.json")
    assert said.index("is always busy from") < said.index("drafted  tokens")
    rows = [line for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 8 <= 12
    entry = json.loads((terminal.folder / "s.json").read_text("utf-8"))["saturation"][3]
    assert entry["n_max"]["mean"] == 7
