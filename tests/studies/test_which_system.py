"""The study which-system in a tiny size, and the cluster files that it and the planner ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.written_studies import say, written
from treepipe.core.schedules import systems
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.studies.which_system import (
    CLUSTERS,
    METRICS,
    PLACES,
    SHORT,
    Amount,
    Place,
    Settings,
    cluster,
    study,
)

FILES = sorted(CLUSTERS.glob("*.toml"))


@pytest.mark.processes
def test_which_system_end_to_end(tmp_path: Path) -> None:
    settings = Settings(
        {"latency": Amount(2, 10, 1), "throughput": Amount(2, 4, 4)},
        {"gamma": (2,), "width": (8,), "children": (8,)},
        [PLACES[1]],
        ("pp", "chain", "specpipe", "specpipe_db", "spd"),
    )
    result = study(settings, say)
    rows = written(result, tmp_path / "out")
    for place in settings.places:
        for goal, metric in METRICS.items():
            assert rows[f"{place.name}/{goal}/pp/over_pp"]["predicted"] == pytest.approx(1)
            gain = rows[f"{place.name}/{goal}/chain/over_pp"]
            assert gain["low"] <= gain["predicted"] <= gain["high"]
            assert rows[f"{place.name}/{goal}/chain/{metric}"]["predicted"] > 0
        assert f"{place.name}/latency/specpipe_db/over_pp" not in rows
    # 8 stages in lock-step: a token per step instead of one per 8 stages.
    assert rows["8 RTX 3090 in one server/latency/specpipe/over_pp"]["predicted"] > 1.1
    key = "8 RTX 3090 in one server/latency/spd/over_five"
    stated, better = (rows[f"{key}/{what}"]["predicted"] for what in ("as-stated", "both"))
    assert better > 2 * stated > 0, "its draft takes longer than a stage"
    assert [len(sheet.rows) for sheet in result.tables[:3]] == [2, 2, len(settings.schedules)]
    assert result.findings[0].startswith("no system of 2026 beats the best of the five beyond")
    assert "the best is spd with " in result.findings[0]
    assert any(f.startswith("latency, beyond doubt") for f in result.findings)
    panels = result.figures["which-system"].axes
    frames = [each for panel in panels for each in panel.patches if not each.get_fill()]
    best = [each for each in frames if each.get_linestyle() in ("-", "solid")]
    assert len(best) == len(settings.places) * 2, "one best system per place and goal"


@pytest.mark.long
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_clusters_can_be_planned(file: Path) -> None:
    few = ['search.schedules=["pp","chain","specpipe","flowspec"]', 'search.partitions=["even"]']
    tree = "tree_size=[48],expand_depth=[2],segment_tokens=[8]"
    grid = f"search.grid={{schedule={{width=[8],gamma=[2],{tree}}}}}"
    bought = ["search.devices.counts=[2]"] if "[search.devices]" in file.read_text() else []
    shipped = Cluster.load(file, [*few, *bought, grid])
    candidates, refused = find_candidates(shipped)
    assert {each.schedule for each in candidates} == {"pp", "chain", "specpipe", "flowspec"}
    open_layout = shipped.search.devices or shipped.search.drafts
    assert not refused or open_layout, "some of the layouts that are tried cannot be"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_every_place_has_every_system(place: Place) -> None:
    for goal in SHORT.amounts:
        names = cluster(SHORT, place, goal).search.schedules
        assert len(names) == len(systems()) - (goal == "latency")  # specpipe_db is for several
