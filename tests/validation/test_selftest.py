"""``treepipe calibrate selftest``: all parts on a CPU, and what is wrong with a device is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe.executor.measure import in_place
from treepipe.executor.models.static_pass import Buffers
from treepipe.testing.random_model import CONFIGS
from treepipe.validation import selftest as tried

pytestmark = pytest.mark.processes


def test_a_processor_passes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its short form; errors of predictions are figures, not faults."""
    whole = tried.selftest
    monkeypatch.setattr(tried, "selftest", lambda device, say: whole(device, say, 2.0))
    monkeypatch.setattr(in_place, "NEW_TOKENS", 6)
    terminal.succeeds("calibrate", "selftest", "--device", "cpu", "--out", "mine.json")
    content = json.loads((terminal.folder / "mine.json").read_text())
    assert (content["schema"], content["passed"], content["failed"]) == (tried.SCHEMA, True, [])
    assert [each["family"] for each in content["families"]] == list(CONFIGS)
    assert all(each["error"] < 1e-5 for each in content["families"])
    assert [each["rows"] for each in content["passes"]] == list(tried.ROWS)
    assert min(content["costs"].values()) > 0
    assert set(content["runs"]) == set(tried.SCHEDULES)
    assert all(each["lossless"] for each in content["runs"].values())
    terminal.refuses(
        "mine.json: there is such a file", "calibrate", "selftest", "--out", "mine.json"
    )
    terminal.refuses("--device tpu: must be one of", "calibrate", "selftest", "--device", "tpu")


def test_what_is_wrong_with_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that shows siblings; a part that breaks down; the others go on."""

    def sees_all(self: Buffers, window: int | None = None) -> Any:
        return (self.first <= self.orders[:, None]) & (self.last > 0)

    def breaks(*given: object) -> object:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(Buffers, "mask", sees_all)
    monkeypatch.setattr(tried, "DeviceSession", breaks)
    monkeypatch.setattr(tried, "CONFIGS", {"llama": {}})
    content = tried.selftest("cpu", lambda *_: None, 2.0)
    assert not content["passed"]
    states, passes, runs = content["failed"]
    assert "passes: RuntimeError: CUDA error: operation not permitted" in passes
    assert runs.startswith("runs: ")
    assert states.startswith("llama: off by ")
