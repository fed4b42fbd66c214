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

from tests.worlds.command_line import SCENARIO, assert_sentence, call, run_with
from treepipe.cli import main as cli


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def test_simulate_writes_a_result_a_trace_and_a_picture(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, trace, plot = (tmp_path / name for name in ("r.json", "t.json", "p.png"))
    options = ["--json", result, "--trace", trace, "--plot", plot, "--quiet"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    content = json.loads(result.read_text())
    assert content["schema"] == "treepipe.result/1"
    assert (content["source"], content["runs"], content["seed"]) == ("simulation", 2, 3)
    metric = content["metrics"]["time_between_tokens_ms"]
    assert metric["low"] <= metric["mean"] <= metric["high"]
    assert set(content["utilization"]) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == set("XMsf")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_run_has_no_interval(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--runs", 1, "--json", "-", "--set", "schedule.name=naive_pp"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["metrics"]["tokens_per_round"]["low"] is None


def test_extrapolation_is_warned_about(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "-", "--set", "workload.prompt_tokens=90"]
    options += ["--set", "schedule.prefill_chunk=100"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("stage1: compute times were extrapolated to 90 tokens" in w for w in warnings)


def test_a_token_count_far_outside_the_table_is_refused(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = "pipelines.0.stages.0.device={stage_ms={1=5.0,2=6.0}}"
    options = ["--set", stage, "--set", "workload.prompt_tokens=150"]
    options += ["--set", "schedule.prefill_chunk=200"]
    assert call(monkeypatch, "simulate", scenario, *options) == 2
    assert "at 150 tokens, far outside their table, which ends at 2" in capsys.readouterr().err


def test_a_lossy_rule_is_reported_as_lossy(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule, lossless in [("exact", True), ("relaxed_best", False), ("relaxed_top_p", False)]:
        assert (
            call(monkeypatch, "simulate", scenario, "--json", "-", "--set", f"sampling.rule={rule}")
            == 0
        )
        assert json.loads(capsys.readouterr().out)["lossless"] is lossless


def test_a_key_without_effect_is_warned_about(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "-", "--set", "schedule.width=4"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert "key schedule.width has no effect on flowspec" in warnings


def test_requests_beyond_admission_are_refused_with_an_answer(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "-", "--set", "serving.admission=1", "--set", "workload.concurrency=2"]
    options += ["--set", "workload.requests=4"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    sessions = json.loads(capsys.readouterr().out)["sessions"]
    reasons = [session["finished"] for session in sessions]
    assert len(sessions) == 4
    assert set(reasons) == {"length", "refused"}


def test_the_version_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--version") == 0
    versions = importlib.metadata.version("treepipe"), platform.python_version()
    assert capsys.readouterr().out == "treepipe {} (Python {})\n".format(*versions)


def test_run_without_the_extra_says_which(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
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
def test_a_terminal_that_knows_only_ascii_is_shown_all_it_can(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = subprocess.run(
        [sys.executable, "-m", "treepipe", "simulate", str(path)],
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"small" in shown.stdout
