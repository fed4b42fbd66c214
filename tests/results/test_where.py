"""Where each worker's time went: shares of its wall time, in both worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import assert_sentence, call
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


def test_the_simulator_names_what_a_profile_has(
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    json_path, picture = tmp_path / "r.json", tmp_path / "r.png"
    asked = ["--where-time-goes", "--json", json_path, "--plot", picture]
    assert call(monkeypatch, "simulate", scenario, *asked) == 0
    assert "where time goes" in capsys.readouterr().out
    assert (tmp_path / "r-where-time-goes.png").stat().st_size > 1000
    workers = json.loads(json_path.read_text())["where_time_goes"]["workers"]
    assert set(workers) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    for parts in workers.values():
        assert sum(parts.values()) == pytest.approx(1.0)
        assert set(parts) <= {"compute", "draft", "evaluate", "decide", "prune", "idle"}


@pytest.mark.parametrize("command", ["simulate", "run"])
def test_its_picture_whose_name_nobody_gave_overwrites_nothing(
    command: str,
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    beside = tmp_path / "r-where-time-goes.png"
    beside.write_bytes(b"mine")
    asked = ["--where-time-goes", "--plot", tmp_path / "r.png", "--quiet"]
    assert call(monkeypatch, command, scenario, *asked) == 2
    said = f"--where-time-goes {beside}: there is such a file already; --force overwrites it"
    assert_sentence(capsys.readouterr().err, said)
    assert beside.read_bytes() == b"mine"
    if command == "simulate":
        assert call(monkeypatch, command, scenario, *asked, "--force") == 0
        assert beside.stat().st_size > 1000


def test_two_scenarios_are_not_told_apart(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--where-time-goes", "--versus-set", "seed=4"]
    assert call(monkeypatch, "simulate", scenario, *asked) == 2
    assert_sentence(capsys.readouterr().err, "--where-time-goes shows one scenario")
