"""Results of benchmarks as measurements: figures by hand, and a simulation that measures itself."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.traces import MOONCAKE, VLLM
from treepipe.profiles.engines import read_export
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

CHAIN = """
name = "served"
runs = 3
[target]
layers = 1
[[drafts]]
device = { draft_ms = { 1 = 2.0 } }
[[pipelines]]
stages = [{ device = { stage_ms = { 1 = 10.0, 64 = 12.0 } } }]
[schedule]
name = "chain"
gamma = 2
[acceptance]
source = "hit_ratio"
table = { 1 = [0.8, 0.5] }
[workload]
requests = 40
new_tokens = 30
prompt_tokens = 16
concurrency = 2
"""


def bench(trace: Trace, rates: list[float]) -> dict[str, Any]:
    """What ``vllm bench serve`` would have written of a run: a chunk per emission."""
    requests = trace.requests
    return {
        "model_id": "m",
        "start_times": [r.started_ms / 1e3 for r in requests],
        "input_lens": [r.prompt_tokens for r in requests],
        "output_lens": [len(r.tokens) for r in requests],
        "ttfts": [(r.first_token_ms - r.started_ms) / 1e3 for r in requests],
        "itls": [[(b[0] - a[0]) / 1e3 for a, b in pairwise(r.emitted)] for r in requests],
        "spec_decode_num_drafts": 1000,
        "spec_decode_draft_tokens": 2000,
        "spec_decode_per_position_acceptance_rates": rates,
    }


def validated(terminal: Terminal, measured: str, *settings: str) -> dict[str, Any]:
    scenario, file = terminal.folder / "s.toml", terminal.folder / "measured"
    scenario.write_text(CHAIN)
    file.write_text(measured)
    options = [part for each in settings for part in ("--set", each)]
    shown = terminal.succeeds("validate", scenario, "--measured", file, "--json", "-", *options)
    found: dict[str, Any] = json.loads(shown)
    return found


def test_acceptance_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text(json.dumps(VLLM))
    found = read_export("vllm-bench", path)
    assert (found.shares, found.rounds, found.model) == ((0.6, 0.5), 10, "m")
    assert found.tokens == pytest.approx(1.9), "1 + accepted / drafts"
    path = tmp_path / "profile_export.jsonl"
    counts = {"num_spec_steps": 2, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2}
    record = {"engine": "vllm", "acceptance_histogram": [1, 0, 1], "num_spec_tokens": 2} | counts
    path.write_text(2 * (json.dumps({"spec_decode_acceptance": record}) + "\n"))
    found = read_export("aiperf", path)
    assert (found.shares, found.rounds) == ((0.5, 1.0), 4)


def test_a_simulation_with_other_acceptance_is_all_acceptance_error(terminal: Terminal) -> None:
    truth = terminal.folder / "truth.toml"
    truth.write_text(CHAIN)
    table = "acceptance.table={1=[0.5,0.4]}"
    (trace,) = predict(Scenario.load(truth, [table, "workload.requests=100", "runs=1"]))
    found = validated(terminal, json.dumps(bench(trace, [0.5, 0.2])), "runs=2")
    time = found["metrics"]["time_between_tokens_ms"]
    by_hand = sum(r.finished_ms - r.first_token_ms for r in trace.requests) / (100 * 29)
    assert time["measured"] == pytest.approx(by_hand)
    assert abs(time["duration_error"]) < 0.04
    assert time["acceptance_error"] < -0.15
    assert found["metrics"]["tokens_per_round"]["measured"] == pytest.approx(1.7)
    assert abs(found["metrics"]["time_to_first_token_ms"]["duration_error"]) < 0.05
    assert any("accepted, given all above: 0.5, 0.4" in each for each in found["told"])


def test_a_slower_engine_is_all_duration_error(terminal: Terminal) -> None:
    truth = terminal.folder / "truth.toml"
    truth.write_text(CHAIN)
    slower = ["scale.stages=1.5", "workload.requests=60", "runs=1"]
    (trace,) = predict(Scenario.load(truth, slower))
    found = validated(terminal, json.dumps(bench(trace, [0.8, 0.4])), "runs=2")
    time = found["metrics"]["time_between_tokens_ms"]
    assert time["duration_error"] == pytest.approx(14 / 19.5 - 1, abs=0.05)
    assert abs(time["acceptance_error"]) < 0.03


def test_the_benchmarks_load_is_taken_or_told(terminal: Terminal) -> None:
    times = {"start_times": [n / 10 for n in range(8)], "ttfts": [0.1] * 8, "itls": [[1.9]] * 8}
    records = json.dumps(VLLM | times | {"input_lens": [20] * 8, "output_lens": [4] * 8})
    found = validated(terminal, records)
    assert "workload.concurrency should be the benchmark's" in found["told"][-1]
    assert "measured by vllm bench serve: 8 requests" in found["told"][0]
    times = found["metrics"]["time_to_first_token_ms"]
    assert times["measured"] == pytest.approx(100.0)
    opened = validated(terminal, records, "workload.trace='measured'")
    assert "should be" not in opened["told"][-1]


def test_what_is_no_measurement_is_refused(terminal: Terminal) -> None:
    scenario, file = terminal.folder / "s.toml", terminal.folder / "m"
    scenario.write_text(CHAIN)
    file.write_text(MOONCAKE)
    command = ("validate", scenario, "--measured", file)
    terminal.refuses("mooncake_trace holds no time to the first token", *command)
    terminal.refuses("--timelines: has no effect with --measured", *command, "--timelines", "t")
    terminal.refuses("is of one scenario", *command, scenario)
    file.write_text(json.dumps(VLLM | {"itls": [[], [], []]}))
    terminal.refuses("holds no times between chunks", *command)
    file.write_text(json.dumps(VLLM))
    of_part = ("--set", "workload.trace='m'", "--set", "workload.rate_scale=2")
    terminal.refuses("key workload.rate_scale: has no effect with --measured", *command, *of_part)


def test_a_scenario_that_drafts_otherwise_than_the_file_is_told(terminal: Terminal) -> None:
    longer = validated(terminal, json.dumps(VLLM), "schedule.gamma=8")
    assert any("tells of 2 drafted tokens, the scenario drafts 8" in w for w in longer["warnings"])
    plain = validated(terminal, json.dumps(VLLM), "schedule={name='pp'}")
    assert any("1.9 tokens of a step are measured" in each for each in plain["warnings"])
