"""How many groups of requests share a pipeline, and how many rows each has: the search tries
several, and the peak over rows per group comes out by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.written_studies import say
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import rank
from treepipe.planner.report import best_table, plan_content

PASS_MS = {1: 40.0, 16: 44.0, 32: 48.0, 64: 70.0}
"""Of each of two boxes, by rows."""
USERS = 64


def boxes(hop_ms: float, **changes: Any) -> Cluster:
    return Cluster.of(
        {
            "name": "two boxes",
            "runs": 2,
            "target": {"layers": 4, "hidden_size": 1000},
            "drafts": [{"device": {"draft_ms": {1: 5.0}}}],
            "pipelines": [{"stages": [{"device": {"stage_ms": PASS_MS}, "count": 2}]}],
            "links": {"default": {"latency_ms": hop_ms}},
            "workload": {
                "requests": USERS,
                "concurrency": USERS,
                "prompt_tokens": 1,
                "new_tokens": 12,
            },
            "search": {"schedules": ["pp"], "goal": "throughput_tokens_s"},
            **changes,
        }
    )


def by_hand(groups: int, hop_ms: float) -> float:
    """Tokens/s: a group's lap, or a box's work on all groups, whichever is longer."""
    pass_ms = PASS_MS[USERS // groups]
    return 1e3 * USERS / max(2 * pass_ms + 3 * hop_ms, groups * pass_ms)


@pytest.mark.parametrize(("hop_ms", "best"), [(0.5, 2), (50.0, 4)])
def test_the_peak_over_rows_per_group(hop_ms: float, best: int) -> None:
    """64 users of two boxes (as in unslothai/unsloth pull request 10323, where two contexts of 32
    rows beat one of 64): two groups of 32 where hops are short, four of 16 where they are long."""
    forms = {each.groups: each.by_form for each in find_candidates(boxes(hop_ms))[0]}
    hand = {(n, USERS // n): by_hand(n, hop_ms) for n in (1, 2, 4)}
    assert {key: forms[key] for key in hand} == pytest.approx(hand)
    found = rank(boxes(hop_ms), say)
    first = found.ranking[0]
    assert first.candidate.groups == (best, USERS // best) == max(hand, key=hand.__getitem__)
    assert first.outcome.metrics["throughput_tokens_s"].mean == pytest.approx(
        by_hand(best, hop_ms), rel=0.15
    )
    table = best_table(found)
    column = [each.name for each in table.columns].index("groups x rows")
    assert table.rows[0][column] == f"{best} x {USERS // best}"
    entry = plan_content(found)["ranking"][0]
    assert (entry["groups"], entry["rows"]) == (best, USERS // best)


def test_what_is_not_tried_or_shown() -> None:
    """One request has no groups; a batch that the file sets is the only one; those far behind the
    best one by their closed form are not simulated."""
    alone = boxes(0.5, workload={"requests": 1, "new_tokens": 4})
    (one,) = find_candidates(alone)[0]
    assert one.groups is None
    assert "groups" not in one.as_dict()
    assert "groups x rows" not in [each.name for each in best_table(rank(alone, say)).columns]
    (given,) = find_candidates(boxes(0.5, serving={"batch": 8}))[0]
    assert given.groups == (8, 8)
    found = rank(boxes(0.5), say)
    assert {each.settings["serving.batch"] for each in found.refused} == {1, 16, 64}
