"""Traces of every format, written by hand as published files look, read as requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, assert_refused
from tests.worlds.traces import CSV, MOONCAKE, SESSIONS, VLLM
from treepipe.core.errors import UserError
from treepipe.profiles.workloads import WorkloadTrace, read_workload
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import draw_requests, trace_warnings
from treepipe.sim.predict import predict


def read(folder: Path, text: str) -> WorkloadTrace:
    path = folder / "trace"
    path.write_text(text)
    return read_workload(path)


def told(trace: WorkloadTrace) -> list[tuple[float | None, ...]]:
    return [
        (round(r.at_s, 6), r.prompt_tokens, r.new_tokens, r.after, r.delay_s, r.known)
        for r in trace.requests
    ]


SAMPLES = {
    "treepipe CSV": (CSV, [(1, 9, 5, None, None, 0), (2, 8, 4, 0, 0.5, 3)], 0),
    "Mooncake, AIPerf mooncake_trace": (
        MOONCAKE,
        [
            (0, 1100, 5, None, None, 0),
            (0.5, 1024, 6, None, None, 1023),
            (1.5, 1300, 7, None, None, 512),
        ],
        0,
    ),
    "vllm bench serve": (
        json.dumps(VLLM, indent=2),
        [(0, 8, 4, None, None, 0), (0.5, 7, 5, None, None, 0)],
        1,
    ),
}


@pytest.mark.parametrize("form", SAMPLES)
def test_every_format_is_told_by_its_content(tmp_path: Path, form: str) -> None:
    text, expected, failed = SAMPLES[form]
    found = read(tmp_path, text)
    assert (found.name, found.failed) == (form, failed)
    assert told(found) == expected


def test_a_turn_with_a_delay_alone_comes_after_the_turn_above(tmp_path: Path) -> None:
    assert told(read(tmp_path, SESSIONS)) == [
        (0, 10, 5, None, None, 0),
        (0.1, 9, 7, None, None, 0),
        (0.25, 45, 6, 0, 0.25, 14),
    ]


def test_turns_of_a_session_add_to_it_or_are_whole(tmp_path: Path) -> None:
    """AIPerf's conversation context modes."""
    whole = SESSIONS.replace("}", ', "context_mode": "message_array_with_responses"}')
    assert told(read(tmp_path, whole))[2] == (0.25, 30, 6, 0, 0.25, 0)


def test_files_as_other_programs_write_them(tmp_path: Path) -> None:
    """Numbers with a point, spaces; texts that hold other line ends; a failed request."""
    odd = CSV.replace("\n1,9", "\n1.0,9.0").replace(",", ", ")
    assert told(read(tmp_path, odd)) == SAMPLES["treepipe CSV"][1]
    texts = MOONCAKE.replace("{", '{"text_input": "a\u2028b\x85c", ')
    assert told(read(tmp_path, texts)) == SAMPLES["Mooncake, AIPerf mooncake_trace"][1]
    without = read(tmp_path, MOONCAKE.replace('"output_length": 5', '"output_length": 0'))
    assert (without.failed, [each.at_s for each in without.requests]) == (1, [0, 1.0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CSV.replace("2,8,", "2,8x,"), 'trace:3: key prompt_tokens = "8x"'),
        (MOONCAKE + '{"timestamp": 9,', "trace:4: is not valid JSON"),
        (
            MOONCAKE.replace('"output_length": 6', '"output_length": -6'),
            "trace:2: key output_length",
        ),
        (SESSIONS.replace('"timestamp": 1000, ', ""), "trace:1: key timestamp is missing, and no"),
        (json.dumps(VLLM | {"output_lens": [5, -1, 0]}), "request 1: key output_lens = -1"),
        (json.dumps(VLLM | {"itls": []}), "must be equally long, not"),
        ('{"a": 1}\n', "trace:1: has the keys of no workload"),
        (MOONCAKE.replace(" 500,", " 1e300,"), "trace:2: key timestamp = 1e+300"),
        (
            MOONCAKE.replace(" 500,", " NaN,"),
            "trace:2: is not valid JSON: key timestamp = NaN is not",
        ),
        ("[" + MOONCAKE.replace("\n", ","), "…' (key workload.trace)"),
        (json.dumps(VLLM) + "\n" + json.dumps(VLLM), "holds 2 results of vllm bench serve"),
        (CSV.replace("session", "delay_s"), "names a column twice"),
        (CSV.replace(",3\n", ",9\n"), "trace:3: key known_tokens = 9: the prompt has 8"),
        (CSV.replace("session", "sesion"), "its first line names sesion; there may be"),
        (json.dumps(VLLM | {"output_lens": [0, 0, 0]}), "holds no request"),
    ],
)
def test_a_bad_line_is_told_with_its_field(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, text)
    assert sentence in str(refused.value)


# --- in scenarios --------------------------------------------------------------------------------


def one_stage(folder: Path, *settings: str, name: str = "pp") -> Scenario:
    content = {
        "name": "served",
        "target": {"layers": 1},
        "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0, 2000: 2009.0}}}]}],
        "schedule": {"name": name, "prefill_chunk": 2000},
        "workload": {"trace": str(folder / "trace")},
    }
    path = folder / "scenario.json"
    return Scenario.of(content, path).with_(**dict(json.loads(f"[{','.join(settings)}]")))


def test_windows_and_rates(tmp_path: Path) -> None:
    read(tmp_path, MOONCAKE)
    scenario = one_stage(tmp_path, '["workload.window_s", [0.4, 9]]', '["workload.rate_scale", 2]')
    expected = [(1024, 6, 50.0), (1300, 7, 550.0)]
    asked = draw_requests(scenario, 0)
    found = [(len(r.prompt), r.max_new_tokens, r.arrival_ms) for r in asked]
    assert found == [pytest.approx(each) for each in expected]
    (first,) = draw_requests(one_stage(tmp_path, '["workload.window_s", 0.1]'), 0)
    assert first == RequestSpec((0,) * 1100, 5, arrival_ms=0.0)
    read(tmp_path, SESSIONS)
    later = one_stage(tmp_path, '["workload.window_s", [0.2, 9]]')
    assert draw_requests(later, 0)[0].arrival_ms == pytest.approx(50), "its first turn is before"
    read(tmp_path, MOONCAKE)
    warm = one_stage(tmp_path, '["workload.warmup_requests", 2]')
    assert len(draw_requests(warm, 0)) == 3
    with pytest.raises(UserError, match="= 3 leaves nothing of the 3 requests"):
        draw_requests(one_stage(tmp_path, '["workload.warmup_requests", 3]'), 0)
    with pytest.raises(UserError, match="has no request in it"):
        draw_requests(one_stage(tmp_path, '["workload.window_s", [7, 9]]'), 0)


def test_a_turn_waits_for_the_one_before_and_its_delay(tmp_path: Path) -> None:
    read(tmp_path, SESSIONS)
    (trace,) = predict(one_stage(tmp_path))
    a, b, later = trace.requests
    assert (a.started_ms, b.started_ms) == (0.0, pytest.approx(100.0))
    assert later.started_ms == pytest.approx(a.finished_ms + 250.0)


def test_known_prefixes_are_not_computed_again(tmp_path: Path) -> None:
    read(tmp_path, MOONCAKE)
    scenario = one_stage(tmp_path)
    (trace,) = predict(scenario)
    first, _, third = trace.requests
    # A pass of n rows takes 9 + n ms, a message 0.2 ms.
    assert first.first_token_ms == pytest.approx(0.2 + 9 + 1100 + 0.2)
    assert third.first_token_ms == pytest.approx(1500 + 0.2 + 9 + (1300 - 512) + 0.2)
    rows = [span.tokens for span in trace.spans if span.kind == "compute"]
    assert sum(rows) == 1100 + 1 + 788 + (5 + 6 + 7 - 3)
    (warning,) = trace_warnings(scenario)
    assert "44.8% of prompt tokens are prefixes" in warning


def test_a_trace_and_arrivals_are_refused_together(scenario: Path) -> None:
    (scenario.parent / "a.csv").write_text(CSV)
    scenario.write_text(
        SCENARIO + 'trace = "a.csv"\narrivals = { process = "poisson", rate_per_s = 5 }\n'
    )
    assert_refused(scenario, "runs=1", "leave one out")
