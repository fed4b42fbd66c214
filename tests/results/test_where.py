"""Where each worker's time went: shares of its wall time, in both worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal
from treepipe.core.requests import RequestTrace
from treepipe.results.trace import Span, Trace
from treepipe.results.where import shares


def test_what_no_span_names_is_said_to_be_so() -> None:
    request = RequestTrace(1, 4, 0.0, 10.0, ((10.0, 1),), (3,), (), "length")
    spans = [Span("a", "compute", 0.0, 5.0, 1), Span("b", "draft", 1.0, 2.0, 1)]
    trace = Trace(("a", "b"), [*spans, Span("a", "wait", 5.0, 20.0, 0)], [request])
    assert shares([trace])["a"] == {"compute": 0.5, "wait": 0.5}, "until the last request's end"
    trace.spans[-1] = Span("a", "wait", 6.0, 20.0, 0)
    assert shares([trace])["a"] == pytest.approx({"compute": 0.5, "wait": 0.4, "unnamed": 0.1})
    assert shares([trace])["b"] == pytest.approx({"draft": 0.1, "idle": 0.9})


def test_the_simulator_names_what_a_profile_has(scenario: Path, terminal: Terminal) -> None:
    asked = ["--verbose", "--json", "r.json"]
    assert "where time goes" in terminal.succeeds("simulate", scenario, *asked)
    workers = json.loads(Path("r.json").read_text())["where_time_goes"]["workers"]
    assert set(workers) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    for parts in workers.values():
        assert sum(parts.values()) == pytest.approx(1.0)
        assert set(parts) <= {"compute", "draft", "evaluate", "decide", "prune", "idle"}
