"""The planner's partitions: layers dealt to unequal devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.written_studies import say
from treepipe.core.layers import StageCost, deal
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.planner.plan import search
from treepipe.planner.report import verdict

UNEQUAL = """
name = "unequal"
[target]
profile = "llama-2-7b"
[[drafts]]
device = "rtx-3090"
model.profile = "llama-3.2-1b"
[[pipelines]]
stages = [{ device = "jetson-orin-nano-8gb", count = 2 }, { device = "rtx-3090" }]
[search]
schedules = ["pp"]
"""


def loaded(tmp_path: Path, *settings: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(UNEQUAL)
    return Cluster.load(path, settings)


COSTS = st.lists(
    st.builds(
        StageCost,
        call_ms=st.floats(0, 5),
        layer_ms=st.floats(0.1, 5),
        most=st.none() | st.integers(1, 6),
        layers=st.none() | st.none() | st.integers(1, 2),
    ),
    min_size=1,
    max_size=4,
)


@given(COSTS, st.integers(1, 9))
def test_dealt_layers_are_the_best_of_all(stages: list[StageCost], total: int) -> None:
    def times(counts: Iterable[int]) -> list[float]:
        return [s.call_ms + s.layer_ms * n for s, n in zip(stages, counts, strict=True)]

    choices = [
        [stage.layers] if stage.layers else range(1, min(stage.most or total, total) + 1)
        for stage in stages
    ]
    possible = [counts for counts in itertools.product(*choices) if sum(counts) == total]
    for rule, cost in (("balanced", max), ("fastest_first", sum)):
        dealt = deal(rule, stages, total)  # type: ignore[arg-type]
        if not possible:
            assert dealt is None
            continue
        assert tuple(dealt) in possible
        best = min(cost(times(counts)) for counts in possible)
        assert cost(times(dealt)) == pytest.approx(best)


@pytest.mark.long
def test_unequal_devices_are_dealt_layers_by_their_speed(tmp_path: Path) -> None:
    cluster = loaded(tmp_path)
    layers = {each.partition: each.layers[0] for each in find_candidates(cluster)[0]}
    assert layers["even"] == (10, 11, 11)
    slow, same, fast = layers["balanced"]
    assert 0 <= slow - same <= 1
    assert fast > 4 * slow
    found = search(cluster, say)
    assert found.winner.candidate.partition == "fastest_first", "one token visits every stage"
    assert verdict(found)[0].endswith("; its layers per stage: 1 1 30.")


def test_a_full_device_leaves_layers_to_others(tmp_path: Path) -> None:
    limit = "search.limits.memory_share=0.4"
    candidates, refused = find_candidates(loaded(tmp_path, limit))
    layers = {each.partition: each.layers[0] for each in candidates}
    assert set(layers) == {"balanced", "fastest_first"}
    assert layers["fastest_first"] == (6, 2, 24)  # the last one has the output projection, too
    assert sum(layers["balanced"]) == 32
    assert max(layers["balanced"]) <= 24
    assert [each.partition for each in refused] == ["even"]
    assert "search.limits.memory_share = 0.4 may be taken" in refused[0].reason


def test_a_last_stage_that_also_drafts_has_fewer_layers(tmp_path: Path) -> None:
    """Engines draft there (``engine_pp``): four equal devices, 32 layers. The draft's three passes
    take as long as several layers, and no layer more would fit before another stage is slower."""
    path = tmp_path / "cluster.toml"
    found = {}
    for host in ("last", "own"):
        path.write_text(f"""
name = "last stage"
[target]
profile = "llama-2-7b"
[[drafts]]
device = "rtx-3090"
model.profile = "llama-3.2-1b"
host = "{host}"
[[pipelines]]
stages = [{{ device = "rtx-3090", count = 3 }}, {{ device = "rtx-3090", host = "last" }}]
[hosts.{host}]
[acceptance]
source = "bernoulli"
beta = 0.7
[search]
schedules = ["engine_pp"]
grid."schedule.gamma" = [3]
""")
        candidates, _ = find_candidates(Cluster.load(path))
        found[host] = {each.partition: each.layers for each in candidates}
    assert set(found["own"]) == {"even"}
    layers = found["last"]["balanced"][0]
    assert sum(layers) == 32
    assert max(layers[:3]) - min(layers[:3]) <= 1
    assert layers[3] < min(layers[:3])
