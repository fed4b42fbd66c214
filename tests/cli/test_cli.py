"""The command line as a user meets it: results, and one sentence with exit code 2 for bad input."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.command_line import assert_sentence, call, run_with
from treepipe import Scenario, simulate
from treepipe.cli import main as cli


def test_simulate_writes_a_result_a_trace_and_a_picture(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, trace, plot = (tmp_path / name for name in ("r.json", "t.json", "p.png"))
    options = ["--json", result, "--trace", trace, "--plot", plot, "--quiet"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    content = json.loads(result.read_text())
    assert content["schema"] == "treepipe.result/1"
    assert (content["source"], content["runs"], content["seed"]) == ("simulation", 2, 3)
    assert set(content["utilization"]) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == set("XMsf")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rule", ["exact", "relaxed_best", "relaxed_top_p"])
def test_a_lossy_rule_is_reported_as_lossy(scenario: Path, rule: str) -> None:
    result = simulate(Scenario.load(scenario, [f"sampling.rule={rule}"]))
    assert result.to_json()["lossless"] is (rule == "exact")


def test_the_version_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--version") == 0
    versions = importlib.metadata.version("treepipe"), platform.python_version()
    assert capsys.readouterr().out == "treepipe {} (Python {})\n".format(*versions)


def test_keys_are_shown_below_a_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "keys", "pipelines.0.stages") == 0
    shown = capsys.readouterr().out
    assert "pipelines.stages.device.stage_ms" in shown
    assert "links.default" not in shown
    assert call(monkeypatch, "keys", "schedule.gama") == 2
    assert_sentence(capsys.readouterr().err, "did you mean 'gamma'?")


def test_run_without_the_extra_says_which(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    assert call(monkeypatch, "run", scenario) == 2
    assert_sentence(capsys.readouterr().err, "pip install 'treepipe[executor]'")


@pytest.mark.processes
def test_recorded_run_is_replayed_by_simulate(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_with(tmp_path, "reference", "reference")
    measured, predicted = tmp_path / "m.json", tmp_path / "p.json"
    options = ["--runs", 1, "--json", measured, "--recording", tmp_path / "rec.json", "--quiet"]
    assert call(monkeypatch, "run", path, *options) == 0
    path.write_text(
        path.read_text().replace('"bernoulli"\nbeta = 0.7', '"replay"\nfile = "rec.json"')
    )
    assert call(monkeypatch, "simulate", path, "--json", predicted, "--quiet") == 0
    one, two = (json.loads(file.read_text()) for file in (measured, predicted))
    assert one["metrics"]["tokens_per_round"] == two["metrics"]["tokens_per_round"]
    assert one["metrics"]["tokens_per_step"] == two["metrics"]["tokens_per_step"]
    assert set(one["memory"]) == set(one["utilization"])


def test_demo_does_not_touch_a_foreign_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert call(monkeypatch, "demo", "--out", tmp_path) == 2
    assert_sentence(capsys.readouterr().err, "holds something else than an earlier demonstration")


def test_profiles_are_listed_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "profiles") == 0
    assert "emulated-20ms" in capsys.readouterr().out
    assert call(monkeypatch, "profiles", "emulated-20ms") == 0
    assert "stage_ms" in capsys.readouterr().out
    assert call(monkeypatch, "profiles", "nothing") == 2
    assert_sentence(capsys.readouterr().err, "there is none of that name")


SCENARIOS = sorted((Path(cli.__file__).parents[1] / "studies" / "scenarios").glob("*.toml"))


SMALL = ["--set", "workload.requests=1", "--set", "workload.new_tokens=6", "--runs", "1"]


@pytest.mark.processes
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tmp_path / "result.json"
    assert call(monkeypatch, "run", path, *SMALL, "--json", result, "--quiet") == 0
    assert json.loads(result.read_text())["sessions"][0]["new_tokens"] == 6


def test_studies_are_listed_and_unknown_ones_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "study", "--list") == 0
    assert "which-system" in capsys.readouterr().out
    assert call(monkeypatch, "study", "which-sistem") == 2
    assert_sentence(capsys.readouterr().err, "did you mean 'which-system'?")
    assert call(monkeypatch, "study", "which-system", "--measure") == 2
    assert_sentence(capsys.readouterr().err, "specpipe-width and starsd-threshold have")
    assert call(monkeypatch, "study") == 2
    assert_sentence(capsys.readouterr().err, "treepipe study needs a name")


@pytest.mark.processes
def test_a_terminal_that_knows_only_ascii_is_shown_all_it_can(scenario: Path) -> None:
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = subprocess.run(
        [sys.executable, "-m", "treepipe", "simulate", str(scenario)],
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"small" in shown.stdout
