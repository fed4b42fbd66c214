"""``treepipe validate``: errors and their parts, scenarios in a few figures, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal, run_with
from tests.worlds.made_runs import judged, made_deployment
from treepipe.physics.timing import Factor, HostTimes, TimeTable
from treepipe.results.trace import Span
from treepipe.scenario.deployment import Machine
from treepipe.studies.workshop.grid_report import against, changes
from treepipe.validation.judgement import METRIC
from treepipe.validation.validation import (
    SCHEMA,
    entry,
    explain,
    validation,
)

SLOW = "links.default={ latency_ms = 9.0 }"


def cell(name: str, predicted: float, measured: float, replayed: float = 10.0) -> dict[str, Any]:
    """An entry with the errors of ``METRIC`` and one device, off by a tenth."""
    errors = {
        "predicted": predicted,
        "measured": measured,
        "error": (predicted - measured) / measured,
        "duration_error": (replayed - measured) / measured,
        "acceptance_error": (predicted - replayed) / measured,
    }
    share = {"predicted": 0.5, "replayed": 0.5, "measured": 0.6}
    return {"scenario": name, "metrics": {METRIC: errors}, "utilization": {"draft0": share}}


def test_the_parts_of_an_error_add_up() -> None:
    found = entry(judged(made_deployment(SLOW)))
    for each in found["metrics"].values():
        if each["error"] is not None:
            parts = each["duration_error"] + each["acceptance_error"]
            assert each["error"] == pytest.approx(parts, abs=1e-12)
    time = found["metrics"][METRIC]
    assert time["duration_error"] < -0.1
    assert time["measured"] == found["measurement"]["metrics"][METRIC]["mean"]
    assert time["predicted"] == found["prediction"]["metrics"][METRIC]["mean"]
    assert set(found["utilization"]) == {"draft0", *(f"pipeline0.stage{n}" for n in (1, 2, 3, 4))}
    assert found["metrics"]["tokens_per_round"]["duration_error"] == 0


def test_the_explanation_names_the_work_that_took_longer() -> None:
    slow = "drafts.0.device={ draft_ms = 6.0, evaluate_ms = 1.0, decide_ms = 2.0, prune_ms = 0.5 }"
    slow = slow.replace("draft_ms = 6.0", "draft_ms = { 1 = 6.0 }")
    slow = slow.replace("evaluate_ms = 1.0", "evaluate_ms = { 1 = 1.0, 64 = 2.0 }")
    sentences = explain(entry(judged(made_deployment(slow))))
    (draft,) = [each for each in sentences if each.startswith("draft:")]
    assert "6.00 ms measured, 3.1" in draft
    assert not [each for each in sentences if each.startswith(("compute:", "prune:"))]
    assert "every text equals plain greedy decoding" in sentences


def test_the_explanation_says_so_if_no_work_took_longer() -> None:
    row = judged(made_deployment())
    assert not any("waiting between pieces of work" in each for each in explain(entry(row)))
    late = {name: 1.1 * value for name, value in row.measured_metrics.items()}
    sentences = explain(entry(replace(row, measured_metrics=late, lossless=None)))
    assert "every text equals plain greedy decoding" not in sentences, "they were sampled"
    assert any("all work took what its profile says" in each for each in sentences)
    assert any("tokens per round predicted" in each for each in sentences)


def test_the_machine_s_drift_is_taken_off_and_told() -> None:
    """By hand: the fixed piece of work took 2 ms when the host was measured, and takes 2.5 ms."""
    row = judged(made_deployment(SLOW))
    assert not any("calibrated: with that" in each for each in explain(entry(row)))
    raw = entry(row)["metrics"][METRIC]["duration_error"]
    gauged = Span("draft0", "gauge", 0.0, 9.0, 0), Span("draft0", "gauge", 9.0, 11.5, 0, tokens=1)
    row.execution.spans = [*row.execution.spans, *gauged]
    free, alike = TimeTable({1: 0.0}), Factor({})
    costs = HostTimes(free, free, 0.0, free, alike, 0.0, alike, gauge=2.0)
    row.replay.machines = (Machine("host", ("draft0",), costs=costs),)
    found = entry(row)
    assert found["drift"] == 1.25
    assert found["metrics"][METRIC]["duration_error"] == raw
    corrected = 1.25 * (1 + raw) - 1
    assert found["drift_corrected_duration_error"] == pytest.approx(corrected)
    (said,) = (each for each in explain(found) if "calibrated: with that" in each)
    assert said.startswith("this machine took 1.25 times as long")
    assert f"{corrected:+.1%} by durations" in said


def test_many_scenarios_in_a_few_figures() -> None:
    entries = [cell("a", 11, 10), cell("b", 19, 20), cell("c", 36, 30)]
    found = validation(entries)["summary"]
    error = found["error"]
    assert error["bias"] == pytest.approx((0.1 - 0.05 + 0.2) / 3)
    assert (error["median"], error["worst"]) == (pytest.approx(0.1), pytest.approx(0.2))
    assert error["worst_at"] == "c"
    assert found["pearson_r"] == pytest.approx(0.97908, abs=1e-4)
    assert found["utilization"]["bias"] == pytest.approx(-0.1)
    assert found["utilization"]["worst_at"].endswith(": draft0")


def test_one_scenario_stands_at_the_top_and_has_no_correlation() -> None:
    found = validation([cell("a", 11, 10)])
    assert found["scenario"] == found["scenarios"][0]["scenario"] == "a"
    assert found["summary"]["pearson_r"] is None
    assert "scenario" not in validation([cell("a", 11, 10), cell("b", 11, 10)])


def test_an_earlier_file_tells_what_got_better_or_worse() -> None:
    earlier = [cell("a", 12, 10), cell("b", 10, 10), cell("c", 9, 10), cell("gone", 1, 1)]
    now = [cell("a", 10.5, 10), cell("b", 8, 10), cell("c", 11.05, 10), cell("new", 1, 1)]
    found = against(validation(earlier), validation(now))
    verdicts = {name: each["error"]["verdict"] for name, each in found["scenarios"].items()}
    assert verdicts == {"a": "better", "b": "worse", "c": "same"}
    assert (found["only_earlier"], found["only_now"]) == (["gone"], ["new"])
    assert found["summary"]["error"]["worst"]["earlier"] == pytest.approx(0.2)
    sentences = changes(found)
    assert sentences[0].startswith("a: better, error +20.0% earlier, +5.0% now")
    assert "1 of 3 scenarios as far off as earlier" in sentences[2]
    assert sentences[3:] == ["only earlier: gone", "new: new"]


# --- the command ------------------------------------------------------------------------------


def scenario_file(folder: Path, name: str, changes: Mapping[str, str]) -> Path:
    path = run_with(folder, "reference", "reference")
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


CALIBRATED = {
    '[acceptance]\nsource = "bernoulli"\nbeta = 0.7\n': "",
    "new_tokens = 12": "new_tokens = 6",
}


@pytest.mark.processes
def test_validate_end_to_end(terminal: Terminal) -> None:
    given = scenario_file(terminal.folder, "given.toml", {"new_tokens = 12": "new_tokens = 8"})
    calibrated = scenario_file(terminal.folder, "calibrated.toml", CALIBRATED)
    prompts = ["def add(a, b):\n    return", "class Point:\n    x: int\n"]
    Path("prompts.json").write_text(json.dumps(prompts))
    options = ["--json", "v.json", "--timelines", "pictures"]
    assert "2 scenarios" in terminal.succeeds("validate", calibrated, given, *options)
    content = json.loads(Path("v.json").read_text())
    assert content["schema"] == SCHEMA
    assert [each["scenario"] for each in content["scenarios"]] == ["calibrated", "given"]
    assert all(each["lossless"] for each in content["scenarios"])
    pp = content["scenarios"][0]["metrics"][METRIC]
    assert pp["predicted"] > 0 < pp["measured"]
    assert {path.name for path in Path("pictures").iterdir()} == {
        *("calibrated.png", "calibrated-trace.json", "given.png", "given-trace.json")
    }
    options = ["--calibrate-on", "prompts.json", "--quiet", "--json", "-"]
    again = json.loads(terminal.succeeds("validate", calibrated, *options))
    assert again["prediction"]["metrics"][METRIC]["mean"] != pp["predicted"], "other calibration"


REPLAYED = {'"bernoulli"\nbeta = 0.7': '"replay"\nfile = "run.json"'}
OTHER = '[[drafts]]\nsource = "ngram"\ndevice = "emulated-20ms"\n[[drafts]]\n'
UNLIKE = {**CALIBRATED, "[[drafts]]\n": OTHER}
OWN = {**CALIBRATED, "requests = 2": 'requests = 1\nprompts = "own.json"'}


@pytest.mark.parametrize(
    ("changes", "arguments", "sentence"),
    [
        (REPLAYED, (), "cannot be predicted before it runs"),
        (UNLIKE, (), "the draft servers differ"),
        ({}, ("given.toml",), "is given twice"),
        ({}, ("--timelines", "given.toml/x"), "cannot be made"),
        ({}, ("--set", "workload.new_tokens=1"), "no text has a second token"),
        (OWN, ("--calibrate-on", "own.json"), "none is left to calibrate"),
        (OWN, ("--calibrate-on", "absent.json"), "there is no such file"),
        ({}, ("absent.toml",), "absent.toml"),
    ],
)
def test_bad_input_is_one_sentence(
    changes: dict[str, str], arguments: tuple[str, ...], sentence: str, terminal: Terminal
) -> None:
    scenario_file(terminal.folder, "given.toml", changes)
    Path("own.json").write_text(json.dumps(["only this"]))
    terminal.refuses(sentence, "validate", "given.toml", *arguments)
