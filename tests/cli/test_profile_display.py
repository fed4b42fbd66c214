"""What ``treepipe profiles`` shows: what was measured is told apart from what was not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.worlds.command_line import Terminal
from treepipe.cli.show_profiles import curves_of, show_profile, unmeasured
from treepipe.executor.measure.run import write_profile
from treepipe.physics.timing import JitterKind, LinkTimes
from treepipe.physics.transfers import Wire
from treepipe.profiles.library import LIBRARY, load_any
from treepipe.profiles.schema import DeviceProfile, LinkProfile

ORIGIN = {"source": "x", "date": "2026-01-01", "hardware": "x", "versions": "x"}
TIMES = {1: 1.0, 16: 1.5, 64: 3.0, 256: 9.0}


def _device() -> DeviceProfile:
    """As a calibration writes it: four contexts of a layer and of a draft pass, up to 256 rows."""
    contexts = {
        c: {n: ms * (1 + c / 4096) for n, ms in TIMES.items()} for c in (0, 256, 1024, 4096)
    }
    named = {"model": "llama-3.2-1b", "dtype": "float32"}
    return DeviceProfile.model_validate(
        {
            "origin": ORIGIN,
            "layer": [{**named, "ms": contexts}],
            "head": [{**named, "ms": {0: TIMES}}],
            "embedding": [{**named, "ms": {0: TIMES}}],
            "draft": [{**named, "ms": contexts}],
        }
    )


def _rows(profile: Any, path: Path) -> dict[str, list[list[str]]]:
    """Cells of all tables by what their rows begin with, and the last line under ``end``."""
    write_profile(profile, "a test", path)
    console = Console(width=200)
    with console.capture() as captured:
        show_profile(str(path), console)
    found: dict[str, list[list[str]]] = {}
    lines = captured.get().splitlines()
    for line in lines:
        cells = re.split(r"  +", line.strip())
        found.setdefault(cells[0], []).append(cells[1:])
    return found | {"end": [[lines[-1].strip()]]}


def test_times_beyond_the_measured_rows_are_marked(tmp_path: Path) -> None:
    rows = _rows(_device(), tmp_path / "device.toml")
    # Layer, draft pass, and what has one context only.
    assert [len(cells) for cells in rows["256"]] == [4, 4, 2]
    assert not any("~" in cell for cells in rows["256"] for cell in cells)
    assert all(cell.startswith("~") for cells in rows["2,048"] for cell in cells)
    assert rows["end"] == [["~ extrapolated"]]


def test_a_context_that_was_not_measured_is_marked() -> None:
    """Attention is added by the roofline, and it is said so."""
    kind, profile = load_any(LIBRARY / "devices" / "rtx-3090.toml")
    curves, notes = curves_of(profile, "rtx-3090")
    layer, _, head = next(iter(curves.values()))
    assert kind == "devices"
    assert not layer.measured(64)
    assert head.measured(64)
    assert "from peak figures" in unmeasured(profile, curves)
    assert any("added by the roofline" in note for note in notes)


def test_a_link_shows_its_mean_jitter_and_where_measuring_ended(tmp_path: Path) -> None:
    link = LinkProfile.model_validate(
        {
            "origin": ORIGIN,
            "latency_ms": 1.0,
            "bandwidth_mbit_s": 800.0,
            "jitter_ms": 0.5,
            "jitter": "exponential",
            "measured_to_bytes": 2**22,
        }
    )
    rows = _rows(link, tmp_path / "link.toml")
    assert rows["1,024"] == [["1.51", "1.01"]]
    assert rows["4,194,304"] == [["43.44", "42.94"]]
    assert rows["16,777,216"] == [["~169.3", "~168.8"]]


@pytest.mark.parametrize("jitter", ["half_normal", "exponential", "lognormal", "uniform"])
def test_the_mean_of_a_transfer_is_what_a_wire_takes(jitter: JitterKind) -> None:
    times = LinkTimes(1.0, 80.0, 0.5, 0.1, jitter=jitter, loss=0.05, retransmit_ms=7.0)
    wire = Wire(times, np.random.default_rng(5))
    taken = [due - now for now in range(0, 10**7, 1000) for due in [wire.transfer(now, 10_000)[2]]]
    error = np.std(taken) / math.sqrt(len(taken))
    assert np.mean(taken) == pytest.approx(times.mean_ms(10_000), abs=4 * error)


def test_estimates_are_told_as_such(terminal: Terminal) -> None:
    """In every title, and as a whole, so that no time of it is marked."""
    shown = terminal.succeeds("profiles", "wifi")
    assert "wifi: milliseconds, an estimate, ± 100%" in shown
    assert "~" not in shown


def test_the_times_of_a_sampling_rule_are_shown(tmp_path: Path) -> None:
    measured = {"vocabulary": 128256, "rule": "exact", "truncated": True, "judge_ms": 2.8}
    drawn = {**measured, "rule": "rejection", "draw_ms": {1: 0.25, 8: 0.5}}
    keys = _device().model_dump() | {"sampling": [measured, drawn]}
    rows = _rows(DeviceProfile.model_validate(keys), tmp_path / "device.toml")
    assert rows["exact"] == [["yes", "128,256", "2.8"]]
    assert rows["rejection"] == [["yes", "128,256", "2.8", "1: 0.25, 8: 0.5"]]


def test_a_hosts_costs_are_shown_at_their_own_knots_with_its_factors(
    tmp_path: Path, terminal: Terminal
) -> None:
    """All that the file holds, nothing that it does not."""
    path = tmp_path / "host.toml"
    origin = 'source = "s"\ndate = 2026-01-01\nhardware = "h"\nversions = "v"\n'
    tables = "send_ms = { 1024 = 0.031, 65536 = 0.12 }\ntogether = { 2 = 1.25 }\nprocessors = 2\n"
    path.write_text(f"{tables}draft_cold = {{ 1 = 1.4 }}\n[origin]\n{origin}")
    shown = terminal.succeeds("profiles", path)
    for key, values in (
        ("send_ms", "1,024: 0.031, 65,536: 0.12"),
        ("together", "2: 1.25"),
        ("draft_cold", "1: 1.4"),
        ("processors", "2.0"),
    ):
        assert re.search(rf"^{key}(: values)? +{re.escape(values)}[, ]", shown, re.M), key
    assert "not given" not in shown
    assert "receive_ms" not in shown
