"""Prediction against run, with simulated runs in the place of real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.made_runs import POOL, SMALL, judged, made_deployment, say
from treepipe.core.draft_work import Turn
from treepipe.core.requests import RequestTrace
from treepipe.executor.run.launch import shared_roles
from treepipe.executor.wire.processor import Processor, is_this_machine
from treepipe.results.metrics import run_metrics
from treepipe.results.trace import Span, Trace, steady
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import (
    Case,
    _by_cluster,
    _prepare,
    _timed,
    compare,
    predict_case,
)
from treepipe.validation.demo import SCENARIO
from treepipe.validation.judgement import METRIC, overruns
from treepipe.validation.validation import entry


def test_a_run_with_the_predicted_durations_has_no_duration_error() -> None:
    row = judged(made_deployment())
    assert row.duration_error == pytest.approx(0, abs=1e-12)
    assert row.error == row.error_of(METRIC) != 0
    assert row.lossless
    assert row.warnings == ()
    assert row.predicted.low is not None
    assert row.measured_over_requests.mean == pytest.approx(row.measured)
    share = entry(row)["utilization"]["draft0"]
    assert share["replayed"] == pytest.approx(share["measured"])


def test_slower_links_are_a_duration_error() -> None:
    slow = judged(made_deployment("links.default={ latency_ms = 9.0 }"))
    assert slow.duration_error < -0.1
    assert slow.lossless


@pytest.mark.parametrize("fault", ["another token", "too short"])
def test_a_wrong_text_is_noticed(fault: str) -> None:
    def spoil(executed: Trace) -> None:
        last = executed.requests[-1]
        end = (10**6,) if fault == "another token" else ()
        executed.requests[-1] = replace(last, tokens=(*last.tokens[:-1], *end))

    assert not judged(made_deployment(), spoil=spoil).lossless


OWN = """
name = "own"
[target]
profile = "llama-2-7b"
[[drafts]]
device = "DEVICE"
model.profile = "llama-2-7b"
[[pipelines]]
stages = [{ device = "DEVICE", count = 2 }]
[schedule]
name = "pp"
"""


def test_work_slower_than_its_profile_is_warned_of() -> None:
    def trace(draft_ms: float) -> Trace:
        spans = [Span("draft0", "draft", 0, draft_ms, 1), Span("s", "compute", 0, 20, 1)]
        return Trace(("draft0", "s"), spans)

    assert overruns(trace(3.1), trace(3.0), "emulated") == []
    (warning,) = overruns(trace(12.0), trace(3.0), "emulated")
    assert "draft: 12.0 ms in the median, 3.0 ms by the profile" in warning
    assert "this host is slower at it than the device that it emulates" in warning
    # A machine is not slower than itself: what is longer is not in its own profile.
    (warning,) = overruns(trace(12.0), trace(3.0), "here")
    assert "serving adds what no profile holds" in warning
    (warning,) = overruns(trace(12.0), trace(3.0), "elsewhere")
    assert "which was not measured on this machine" in warning
    # What takes longer by too little to notice is not worth a word.
    long = Trace(("s",), [Span("s", "compute", 0, 20, 1), Span("s", "prune", 20, 20.2, 1)])
    short = Trace(("s",), [Span("s", "compute", 0, 20, 1), Span("s", "prune", 20, 20.1, 1)])
    assert overruns(long, short, "here") == []
    (warning,) = overruns(trace(12.0), trace(0.0), "here")
    assert "which states no time for it (it is not calibrated)" in warning


def test_a_profile_of_this_machine_is_known_as_such(tmp_path: Path) -> None:
    ours = Processor.here().described(3)
    assert is_this_machine(ours)
    assert not is_this_machine("NVIDIA Jetson Orin Nano, 1 of 6 cores, aarch64")
    profile = (Path(__file__).parents[2] / "profiles/devices/rtx-3090.toml").read_text()
    before = next(line for line in profile.splitlines() if line.startswith("hardware"))
    (tmp_path / "own.toml").write_text(profile.replace(before, f'hardware = "{ours}"'))
    for device, real in (("./own.toml", "here"), ("rtx-3090", "elsewhere")):
        text = OWN.replace("DEVICE", device)
        (tmp_path / "scenario.toml").write_text(text)
        for emulate, timed in (("false", real), ("true", "emulated")):
            scenario = Scenario.load(tmp_path / "scenario.toml", [f"emulate={emulate}"])
            assert _timed(scenario) == timed


def test_predictions_do_not_end_at_a_token_that_is_a_rank() -> None:
    ended = (replace(r, end_tokens=frozenset({0})) for r in made_deployment().requests)
    ending = replace(made_deployment(), requests=tuple(ended))
    found = predict_case(ending, Scenario.load(SCENARIO, SMALL), POOL, say)
    assert [len(request.tokens) for request in found.trace.requests] == [12, 12, 12]


def test_cases_share_a_cluster_where_the_workers_are_the_same() -> None:
    changes: dict[str, tuple[str, ...]] = {
        "flowspec": (),
        "wide": ("schedule.name=specpipe", "schedule.width=64", "schedule.ends=draft"),
        "busy": ("workload.concurrency=2", "workload.requests=2", "serving.admission=2"),
        "groups": ("schedule.name=pipedec", "schedule.groups=2", "schedule.ends=draft"),
        "ends": ("schedule.ends=pipeline",),
        "queue": ("serving.queue=weighted_fair",),
        "links": ("links.default={ latency_ms = 3.0 }",),
        "wide, slow": (
            "links.default={ latency_ms = 3.0 }",
            'schedule={name="specpipe",ends="draft"}',
        ),
    }
    prepared = [
        _prepare(Case(label, Scenario.load(SCENARIO, (*SMALL, *o)))) for label, o in changes.items()
    ]
    groups = _by_cluster(prepared)
    assert [[each.label for each in group] for group in groups] == [
        ["flowspec", "wide", "busy"],
        ["groups"],
        ["ends"],
        ["queue"],
        ["links", "wide, slow"],
    ]
    roles = shared_roles([each.launch for each in groups[0]])
    for place, role in enumerate(roles):
        alone = [each.launch.roles[place].capacity for each in groups[0]]
        assert role.capacity == max(alone) > min(alone)


def test_every_case_is_predicted_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class StartedError(Exception):
        pass

    def listen(what: str, steps: int) -> None:
        said.append(what.split()[0] if what else "")
        if what.startswith("starting"):
            raise StartedError

    monkeypatch.setattr(
        "treepipe.validation.comparison.calibrate",
        lambda cases, _: {each.label: POOL for each in cases},
    )
    cases = [
        Case("one", Scenario.load(SCENARIO, SMALL)),
        Case("two", Scenario.load(SCENARIO, (*SMALL, "schedule.name=chain"))),
    ]
    with pytest.raises(StartedError):
        next(compare(cases, listen))
    assert said[:7] == ["predicting"] + [""] * 6
    assert said[-1] == "starting"


# --- the steady part --------------------------------------------------------------------------


def made_request(session: int, pipeline: int, times: tuple[float, ...]) -> RequestTrace:
    emitted = tuple((time, 2) for time in times)
    tokens = tuple(range(2 * len(times)))
    return RequestTrace(
        session, 4, times[0] - 5, times[-1], emitted, tokens, (), "length", pipeline
    )


def test_steady_keeps_what_lies_between_the_last_start_and_the_first_end() -> None:
    requests = [made_request(1, 0, (10, 20, 30)), made_request(2, 1, (18, 28, 38))]
    requests.append(made_request(3, 0, (34, 36)))
    turns = [Turn(0, 0, time, time, time + 4) for time in (10, 19, 30, 34)]
    spans = [Span("draft0", "draft", time, time + 4, 1) for time in (10, 19, 30, 40)]
    part = steady(Trace(("draft0",), spans, requests, turns))
    assert [request.emitted for request in part.requests] == [
        ((20, 2), (30, 2)),
        ((18, 2), (28, 2)),
        ((34, 2), (36, 2)),
    ]
    assert part.requests[0].tokens == (2, 3, 4, 5)
    assert [request.started_ms for request in part.requests] == [18, 18, 29]
    assert [request.finished_ms for request in part.requests] == [30, 36, 36]
    assert [turn.started_ms for turn in part.turns] == [19, 30]
    assert [span.start_ms for span in part.spans] == [19, 30]
    assert run_metrics(part)["throughput_tokens_s"] == pytest.approx(1e3 * 12 / 18)


def test_a_run_without_a_steady_part_is_refused() -> None:
    requests = [made_request(1, 0, (10, 20)), made_request(2, 1, (30, 40))]
    with pytest.raises(ValueError, match="never all at work"):
        steady(Trace(("draft0",), [], requests))
    with pytest.raises(ValueError, match="no request"):
        steady(Trace(("draft0",)))
