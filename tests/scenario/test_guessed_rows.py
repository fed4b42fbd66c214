"""A table that is asked for rows that it does not hold says so in every answer that rests on it,
and its uncertainty reaches plans."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

import treepipe
from tests.worlds.few_streams import few_streams
from tests.worlds.made_runs import say
from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import Depths
from treepipe.planner.plan import search
from treepipe.planner.sensitivity import sensitivities
from treepipe.scenario.rows import GROWTH
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario

CHAIN: dict[str, Any] = {
    "name": "one point",
    "runs": 2,
    "target": {"layers": 4},
    "drafts": [{"device": {"draft_ms": {1: 2.0, 256: 2.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 22.6}}}]}],
    "links": {"default": {"latency_ms": 0.0}},
    "acceptance": {"source": "bernoulli", "beta": 0.8},
    "schedule": {"name": "chain", "gamma": 4},
    "workload": {"requests": 1, "prompt_tokens": 1, "new_tokens": 12},
}
GUESSED = "nobody measured or gave passes of pipeline0.stage1 (compute) over 2 to 5 rows: they may"
FLAT = {"pipelines": [{"stages": [{"device": {"stage_ms": {1: 22.6, 256: 22.6}}}]}]}
"""The same times, but stated for all rows."""
ROOFLINE = {"roofline": {"tflops": {"float16": 112}, "memory_gb_s": 900}}
V100 = {
    "target": {"profile": "llama-3.1-8b", "dtype": "int4"},
    "drafts": [{"device": ROOFLINE, "host": "pc", "model": {"profile": "llama-3.2-1b"}}],
    "pipelines": [{"stages": [{"device": ROOFLINE, "host": "pc"}]}],
}
ROWS, BOARD = Estimated("rows"), Estimated("device", "roofline 900 GB/s")
SEARCH = {
    "schedules": ["pp", "chain"], "partitions": ["even"], "grid": {"schedule.gamma": [4]}
}  # fmt: skip
METRIC = "time_between_tokens_ms"


def scenario(**changes: Any) -> Scenario:
    return Scenario.of({**CHAIN, **changes})


def cluster(**changes: Any) -> Cluster:
    content = {**CHAIN, **changes, "search": SEARCH}
    del content["schedule"]
    return Cluster.of(content)


def test_a_simulation_says_once_what_would_settle_it() -> None:
    told = [w for w in treepipe.simulate(scenario()).warnings if GUESSED in w]
    assert len(told) == 1
    assert "llama-bench -m MODEL.gguf -p 1,2,4,8,16 -o json" in told[0]
    flat = treepipe.simulate(scenario(**FLAT)).warnings
    assert not any("nobody measured" in w for w in flat)


def test_a_factor_on_such_rows_changes_nothing_else() -> None:
    """By hand: a round is 4 draft passes and one over 5 rows."""
    seen, grown = [treepipe.simulate(scenario(scale=scale)) for scale in ({}, {"rows": 2.0})]
    rounds = [each.metrics["tokens_per_round"].mean for each in (seen, grown)]
    assert rounds[0] == rounds[1]
    more = grown.metrics[METRIC].mean - seen.metrics[METRIC].mean
    assert more == pytest.approx(22.6 / rounds[0], rel=0.15)
    flat = [treepipe.simulate(scenario(**FLAT, scale=s)).metrics for s in ({}, {"rows": 2.0})]
    assert flat[0] == flat[1] == seen.metrics


def test_a_roofline_by_hand_is_an_estimate_and_told_once() -> None:
    result = treepipe.simulate(scenario(**V100))
    (estimates,) = [w for w in result.warnings if w.startswith("inputs are estimates")]
    assert f"{BOARD} ±100 %, {ROWS} ±95 %" in estimates
    (told,) = [w for w in result.warnings if "was measured there" in w]
    assert "no layer or output projection" in told
    assert "llama-3.2-1b in bfloat16, llama-3.1-8b in int4" in told
    whole = {**V100, "target": {"profile": "llama-3.1-8b"}}
    (estimates,) = [w for w in treepipe.simulate(scenario(**whole)).warnings if "estimates:" in w]
    assert f"{BOARD} ±40 %;" in estimates, "of 16 bits neither so unsure, nor of more rows"


def test_it_reaches_plans_their_order_and_what_they_hang_on() -> None:
    """A chain's passes over five rows may take 3.5 times as long; plain decoding has none."""
    found = search(cluster(), say)
    assert found.cases is not None
    assert dict(found.cases.inputs) == {ROWS: GROWTH}
    wide = {
        name: found.cases.widened(name, each.outcome.metrics[METRIC])
        for name, each in found.best_of_each.items()
    }
    width = {
        name: log(each.high / each.low) if each.high and each.low else 0.0
        for name, each in wide.items()
    }
    assert width["chain"] > log(1 + GROWTH) / 2 > width["pp"] + 0.3
    assert "scale.rows" in [row.key for row in sensitivities(found, say)]
    flat = search(cluster(**FLAT), say)
    assert flat.cases is None
    assert "scale.rows" not in [row.key for row in sensitivities(flat, say)]


def test_a_question_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    few_streams(monkeypatch)
    alone = Depths.of(cluster()).gain(1, 4)
    assert alone.low is not None
    assert alone.high is not None
    assert alone.low < 1.2 < 2 < alone.mean <= alone.high
    assert Depths.of(cluster(**FLAT)).gain(1, 4).low is None


def test_a_table_that_begins_late_says_so_below_its_first_row() -> None:
    late = {"pipelines": [{"stages": [{"device": {"stage_ms": {8: 30.0, 64: 40.0}}}]}]}
    result = treepipe.simulate(scenario(**late))
    assert any("pipeline0.stage1 (compute) over 1 to 5 rows" in w for w in result.warnings)
    far = {"pipelines": [{"stages": [{"device": {"stage_ms": {512: 3155.0}}}]}]}
    with pytest.raises(UserError, match="far outside their table, which begins at 512"):
        treepipe.simulate(scenario(**far))
