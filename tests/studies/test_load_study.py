"""The study load in a tiny size, and its errors by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.made_runs import judged, made_deployment
from tests.worlds.written_studies import say, written
from treepipe.results.statistics import Interval
from treepipe.studies.workshop import load
from treepipe.studies.workshop.load import Loaded, Settings, study


def loaded(schedule: str, predicted: float, replayed: float) -> Loaded:
    """A case whose median latency was 100 ms."""
    name, row = "p50_request_latency_ms", judged(made_deployment())
    seen = Interval(predicted, predicted - 10.0, predicted + 10.0)
    made = replace(
        row,
        metrics={name: seen},
        of_a_run={name: seen},
        measured_metrics={name: 100.0, "goodput_requests_s": 0.0},
        replayed_metrics={name: replayed},
    )
    return Loaded("emulated", schedule, 0.6, 5.0, made)


def test_errors_are_signed_with_the_interval_of_a_run() -> None:
    """By hand: +20 % and -4 %, of which durations are +2 % and -1 %."""
    found = [loaded("pp", 120.0, 102.0), loaded("chain", 96.0, 99.0)]
    entries = {each.key: each for one in found for each in one.entries()}
    assert entries["emulated/pp/load=0.6/rate_s"].predicted == 3.0
    error = entries["emulated/pp/load=0.6/p50_request_latency_ms/error"]
    assert (error.predicted, error.low, error.high) == pytest.approx((0.2, 0.1, 0.3))
    key = "emulated/chain/load=0.6/p50_request_latency_ms"
    assert entries[f"{key}/duration_error"].predicted == pytest.approx(-0.01)
    assert (entries[key].low, entries[key].high, entries[key].measured) == (86.0, 106.0, 100.0)
    summary = {each.key: each for each in load._summary("emulated", found)}
    assert summary["emulated/p50/error/worst"].predicted == pytest.approx(0.2)
    assert summary["emulated/p50/error/worst"].published == 0.05
    assert summary["emulated/p50/error/mean"].predicted == pytest.approx(0.08)
    assert summary["emulated/p50/duration_error/median"].predicted == pytest.approx(0.015)
    assert "at most 5% for 1 of 2 figures" in load._finding("emulated", found)
    assert load._held(found) == "1 of 2"


@pytest.mark.processes
def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "EACH", 2)
    monkeypatch.setattr(load, "NEW_TOKENS", {"distribution": "uniform", "min": 2, "max": 6})
    settings = Settings({"emulated": 20}, ("pp", "specpipe_db"), (0.5,), 3)
    result = study(settings, say)
    rows = written(result, tmp_path / "out")
    for schedule in settings.schedules:
        key = f"emulated/{schedule}/load=0.5"
        latency = rows[f"{key}/p95_request_latency_ms"]
        if schedule == "pp":  # the same in every run
            assert latency["low"] is latency["high"] is None
        else:
            assert latency["low"] < latency["predicted"] < latency["high"]
        error = rows[f"{key}/p95_request_latency_ms/error"]["predicted"]
        assert error == pytest.approx(latency["predicted"] / latency["measured"] - 1)
        # Acceptance and arrivals are the run's own, and an emulated device is at most as fast as
        # its profile; how much slower it is depends on the machine's other work.
        assert rows[f"{key}/p50_request_latency_ms/duration_error"]["predicted"] < 0.05
    assert not [text for text in result.warnings if "no effect" in text]
    assert json.loads((tmp_path / "out" / "load.json").read_text())["findings"]
