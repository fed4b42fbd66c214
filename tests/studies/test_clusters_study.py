"""The study of other people's clusters: its keys, its one factor, shared tensors, its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import ROOT
from tests.worlds.written_studies import say
from treepipe.profiles.library import find_model, load_model
from treepipe.scenario.resolve import resolve
from treepipe.sim.points import Point, simulate_points
from treepipe.studies import people

PAGE = ROOT / "docs" / "studies" / "clusters" / "clusters.json"
TINY = people.Settings(cases=20, tokens=16)


def predicted(folder: Path, *keys: str) -> dict[str, float]:
    known = {key: cell for key, cell in people.cells().items() if key in keys}
    made = people.Clusters(folder, TINY)
    return {key: each.mean for key, each in people.predict_cells(made, known, TINY, say).items()}


def test_every_public_row_has_its_key() -> None:
    """The list of measurements: A1 to A19, B1 to B14, C2 to C4, D1, D2, without those withdrawn."""
    numbers = {
        "A": {*range(1, 20)} - {14},
        "B": {*range(1, 15)} - {13},
        "C": {2, 3, 4},
        "D": {1, 2},
    }
    rows = {f"{letter}{n}" for letter, own in numbers.items() for n in own}
    known = people.cells()
    assert {cell["id"] for cell in known.values()} == rows
    assert {"B1", "B2", "B4", "B5/n2", "B9/16K/n2", "A18/rows=64"} <= {*known}
    assert sum("tokens_s" in cell for cell in known.values()) == 14


def test_one_rate_sets_a_device_and_nothing_else(tmp_path: Path) -> None:
    """A box alone is predicted at its own rate, and over another one slower."""
    found = predicted(tmp_path, "C3/n0", "A2")
    assert found["C3/n0"] == pytest.approx(10.9, rel=1e-3)
    assert found["A2"] < 12.83


def test_a_row_that_sets_a_hop_is_predicted_by_the_others(tmp_path: Path) -> None:
    """Two Raspberry Pi with the hop that four ask for: 64 exchanges of a token, and the logits'."""
    known = {key: people.cells()[key] for key in ("D1/2", "D1/4")}
    made = people.Clusters(tmp_path, TINY)
    stated = people.predict_cells(made, known, TINY, say)
    ms = {key: 1e3 / rate.mean for key, rate in stated.items()}
    found = people.without_themselves(made, known, stated, say)
    off = 1e3 / known["D1/4"]["tokens_s"] - ms["D1/4"]
    assert 1e3 / found["D1/2"].mean == pytest.approx(ms["D1/2"] + off, rel=1e-3)
    low, high = found["D1/2"].ends
    assert low < found["D1/2"].mean < high


def test_shared_tensors_by_hand(tmp_path: Path) -> None:
    """Two Raspberry Pi: half of the layers and of the projection, 64 exchanges of 0.2 + 0.02 + 1.5
    ms and 8,192 * 0.53 bytes at 940 Mbit/s, and half of the logits likewise."""
    cell = people.cells()["D1/2"]
    deployment = resolve(people.Clusters(tmp_path, TINY).scenario(cell))
    times = deployment.roles.pipelines[0][0].times
    layers = 32 * (218_112_000 * 0.5625 + 36_864) / (17.1e6 * 0.63)
    exchange = 0.2 + 0.01 + 1.5 + 0.02 * 0.8 + 8192 * 0.53 * 8 / 940e3
    assert times.stage(1) == pytest.approx(2 + layers / 2 + 64 * exchange, rel=2e-3)
    head = 4096 * 128_256 * 2 / (17.1e6 * 0.7)
    gathered = exchange + (128_256 - 8192) * 0.53 * 8 / 940e3
    assert times.evaluate(1) == pytest.approx(2 + head / 2 + gathered, rel=2e-3)


def test_a_file_of_so_many_gib_is_read_but_for_its_embedding(tmp_path: Path) -> None:
    made = people.Clusters(tmp_path, TINY)
    section = made.scenario({"id": "x", "model": "qwen-3.6-27b", "gib": 16.4, "devices": ["gb10"]})
    model = load_model(tmp_path / str(section.target.profile))
    whole = find_model("qwen-3.6-27b", "test")
    read = model.layers * model.layer_bytes(model.dtype) + 2 * model.head_parameters
    share = 1 - whole.head_parameters / whole.parameters
    assert read == pytest.approx(16.4 * 2**30 * share, rel=0.02)


def test_drafting_shows_where_it_ends_to_pay(tmp_path: Path) -> None:
    """Two tokens beat none, by the same head, on one card and on two."""
    found = predicted(tmp_path, "B10/off", "B10/n2", "B1", "B2")
    assert found["B10/n2"] > 1.3 * found["B10/off"]
    assert found["B2"] > 1.3 * found["B1"]


def test_the_page_holds_what_is_predicted_now(tmp_path: Path) -> None:
    rows = {row["key"]: row for row in json.loads(PAGE.read_text())["rows"]}
    assert {*rows} == {f"{key}/tokens_s" for key in people.cells()}
    again = predicted(tmp_path, "A2", "D1/4", "B1")
    for key, rate in again.items():
        assert rows[f"{key}/tokens_s"]["predicted"] == pytest.approx(rate, rel=0.02)
    given = [row for row in rows.values() if row["published"] is not None]
    inside = [row for row in given if row["low"] <= row["published"] <= row["high"]]
    assert len(inside) >= 0.75 * len(given)


def test_all_scenarios_are_whole(tmp_path: Path) -> None:
    """Every cell is deployed, whatever its keys."""
    made = people.Clusters(tmp_path, TINY)
    known = people.cells()
    for key in ("A7", "A11", "A16/6gpu", "B8/n8", "C4/b5", "B12/tp", "A12"):
        scenario = made.scenario(known[key]).with_(runs=1)
        outcome = simulate_points([Point(key, scenario)], say, "")[key]
        assert outcome.metrics["time_between_tokens_ms"].mean > 0
