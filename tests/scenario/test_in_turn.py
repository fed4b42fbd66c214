"""Which schedules a head that drafts in turn with the target can serve, by what they are seen to
do; and what becomes of the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.searches import found
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.files.toml_file import toml_text
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name, system in systems().items() if system.drafts},
    "specinfer ahead": {"branching": [1, 1], "draft_ahead": True},
    "specinfer chain": {"branching": [1, 1]},
    **{name: {"segment_tokens": 2} for name in ("flowspec", "naive_pp", "pruned_pp")},
    "starsd tree": {"tree_size": 9},
}


def scenario(case: str, source: str = "model", **keys: Any) -> Scenario:
    return Scenario.of({
        "name": "turns",
        "target": {"layers": 8},
        "drafts": [{"device": {"draft_ms": {1: 1.0}}, "source": source}],
        "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
        "schedule": {"name": case.split()[0], **CASES[case], **keys},
        "acceptance": {"source": "bernoulli", "beta": 1.0},
        "workload": {"prompt_tokens": 4, "new_tokens": 40},
    })  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_drafts_ahead_if_it_is_seen_to(case: str) -> None:
    """Nothing is rejected here, so nothing that a stage computes is in vain."""
    made = scenario(case)
    (trace,) = predict(made)
    first = trace.requests[0].first_token_ms
    drafting = [s for s in trace.spans if s.kind == "draft"]
    verifying = [s for s in trace.spans if s.kind == "compute" and s.start_ms >= first]
    seen = any(d.start_ms < v.end_ms and v.start_ms < d.end_ms for d in drafting for v in verifying)
    assert seen == made.schedule.parameters.drafts_ahead


HEADS = [each.name for each in drafters().values() if each.in_turn]


@pytest.mark.parametrize("source", HEADS)
@pytest.mark.parametrize("case", CASES)
def test_a_head_in_turn_serves_chains_that_are_not_drafted_ahead(source: str, case: str) -> None:
    parameters = scenario(case).schedule.parameters
    trees = [most for most in parameters.candidates().values() if most > 1]
    if trees or parameters.drafts_ahead:
        with pytest.raises(UserError, match=f"drafts.source = '{source}'.*it serves no trees"):
            predict(scenario(case, source))
    else:
        assert predict(scenario(case, source))


def test_the_cycle_of_a_chain_is_the_sum_by_hand() -> None:
    """Three passes of 1 ms and both stages' 20: 4 tokens a round, if all are right. The first pass
    reads all accepted tokens anew, with the target's states."""
    made = scenario("chain", "mtp", gamma=3)
    (trace,) = predict(made.with_(**{"links.default.latency_ms": 0}))
    moments = [at for at, _ in trace.requests[0].emitted]
    gaps = [b - a for a, b in pairwise(moments[1:-1])]
    assert gaps == pytest.approx([43.0] * len(gaps))
    assert [count for _, count in trace.requests[0].emitted][1:-1] == [4] * (len(gaps) + 1)


def test_plans_offer_only_what_such_a_head_can_serve() -> None:
    result = found(**{
        "drafts.0.source": "mtp",
        "search.schedules": ["chain", "pearl", "eagle"],
        "search.grid": {"schedule.gamma": [2]},
    })  # fmt: skip
    assert {each.candidate.schedule for each in result.ranking} == {"chain"}
    assert {each.schedule for each in result.refused} == {"pearl", "eagle"}
    assert len({each.reason for each in result.refused}) == 1


def test_a_run_of_such_a_head_is_refused(terminal: Terminal) -> None:
    pytest.importorskip("torch")
    file = terminal.folder / "mtp.toml"
    file.write_text(toml_text(scenario("chain", "mtp").content, []), "utf-8")
    terminal.fails("is predicted only", "run", file)
