"""What is asked and when: drawn repeatably, read from traces, and refused if it makes no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO, assert_refused
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import draw_requests
from treepipe.sim.predict import predict

HEADER = "arrival_s,prompt_tokens,new_tokens\n"
POISSON = 'workload.arrivals={process="poisson",rate_per_s=5}'
TRACE = 'workload.trace="arrivals.csv"'
LOGNORMAL = '={distribution="lognormal",mean=200,cv=0.8}'


def draw(
    scenario: Path, *settings: str, seed: int = 7, requests: int = 40
) -> tuple[RequestSpec, ...]:
    overrides = (f"workload.requests={requests}", *settings)
    return draw_requests(Scenario.load(scenario, overrides), seed)


def prompts(requests: tuple[RequestSpec, ...]) -> list[int]:
    return [len(request.prompt) for request in requests]


def gaps_s(scenario: Path, arrivals: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    requests = draw(scenario, f"workload.arrivals={arrivals}", requests=20_000)
    times = [request.arrival_ms for request in requests if request.arrival_ms is not None]
    assert len(times) == 20_000
    return np.diff([0.0, *times]) / 1e3


# --- drawing -------------------------------------------------------------------------------------


def test_the_same_seed_is_the_same_workload_whatever_the_schedule(scenario: Path) -> None:
    settings = (f"workload.prompt_tokens{LOGNORMAL}", f"workload.new_tokens{LOGNORMAL}", POISSON)
    deployments = [
        deploy(Scenario.load(scenario, (f"schedule.name={name}", *settings)), seed)
        for name, seed in (("flowspec", 7), ("pp", 7), ("pp", 8))
    ]
    assert deployments[0].requests == deployments[1].requests
    assert deployments[0].requests != deployments[2].requests


def test_a_stream_for_each_concern_and_more_requests_begin_with_the_same_ones(
    scenario: Path,
) -> None:
    lengths = f"workload.prompt_tokens{LOGNORMAL}"
    both = draw(scenario, lengths, POISSON)
    assert prompts(draw(scenario, lengths)) == prompts(both)
    arrivals = [request.arrival_ms for request in both]
    assert [request.arrival_ms for request in draw(scenario, POISSON)] == arrivals
    for process in (POISSON, 'workload.arrivals={process="gamma",rate_per_s=5,cv=3}'):
        longer = draw(scenario, lengths, process, requests=100)
        assert longer[:40] == draw(scenario, lengths, process)


def test_without_arrivals_and_distributions_it_is_the_closed_loop_of_equal_requests(
    scenario: Path,
) -> None:
    assert draw(scenario, requests=3) == (RequestSpec((0,) * 32, 12),) * 3


@pytest.mark.parametrize(
    ("table", "mean", "cv"),
    [
        ("{distribution='uniform',min=10,max=90}", 50.0, np.sqrt((81**2 - 1) / 12) / 50),
        ("{distribution='lognormal',mean=200,cv=0.8}", 200.0, 0.8),
        ("{distribution='geometric',mean=40}", 40.0, np.sqrt(1 - 1 / 40)),
    ],
)
def test_lengths_have_the_mean_and_spread_asked_for(
    scenario: Path, table: str, mean: float, cv: float
) -> None:
    lengths = prompts(draw(scenario, f"workload.prompt_tokens={table}", requests=20_000))
    assert np.mean(lengths) == pytest.approx(mean, rel=0.03)
    assert np.std(lengths) / np.mean(lengths) == pytest.approx(cv, rel=0.05)


def test_lengths_stay_within_their_bounds(scenario: Path) -> None:
    table = "{distribution='lognormal',mean=50,cv=2,min=20,max=60}"
    lengths = prompts(draw(scenario, f"workload.prompt_tokens={table}", requests=1000))
    assert (min(lengths), max(lengths)) == (20, 60)
    assert len(set(lengths)) > 20


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ("{process='poisson',rate_per_s=5}", 1.0),
        ("{process='gamma',rate_per_s=5,cv=0.3}", 0.3),
        ("{process='gamma',rate_per_s=5,cv=2.5}", 2.5),
    ],
)
def test_arrivals_have_the_rate_and_burstiness_asked_for(
    scenario: Path, arrivals: str, cv: float
) -> None:
    gaps = gaps_s(scenario, arrivals)
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


# --- traces --------------------------------------------------------------------------------------


def test_a_trace_is_taken_as_it_is(scenario: Path) -> None:
    lines = "new_tokens, arrival_s, prompt_tokens\n5,0.25,30\n\n6,0.25,7\n7,1e1,8\n"
    (scenario.parent / "arrivals.csv").write_text("\ufeff" + lines, encoding="utf-8")
    expected = (
        RequestSpec((0,) * 30, 5, arrival_ms=250.0),
        RequestSpec((0,) * 7, 6, arrival_ms=250.0),
        RequestSpec((0,) * 8, 7, arrival_ms=10_000.0),
    )
    assert draw(scenario, TRACE, requests=2) == expected[:2]
    scenario.write_text(SCENARIO.replace("requests = 2\n", ""))
    assert draw_requests(Scenario.load(scenario, (TRACE,)), 0) == expected


BAD_TRACES = [
    ("", "its first line must name the columns arrival_s, prompt_tokens, new_tokens, not nothing"),
    ("1.0,3,4\n", "must name the columns arrival_s, prompt_tokens, new_tokens, not '1.0, 3, 4'"),
    ("arrival_ms,prompt_tokens,new_tokens\n1,2,3\n", "not 'arrival_ms, prompt_tokens, new_tokens'"),
    (HEADER, "holds no request, only the line with the columns"),
    (f"{HEADER}1,2,3\n-1,2,3\n", 'arrivals.csv:3: key arrival_s = "-1": input should be greater'),
    (f"{HEADER}1,2,3\n0.5,2,3\n", "arrivals.csv:3: key arrival_s = 0.5 is before the line above"),
    (f"{HEADER}nan,2,3\n", 'arrivals.csv:2: key arrival_s = "nan": input should be a finite'),
    (f"{HEADER}1,2.5,3\n", 'arrivals.csv:2: key prompt_tokens = "2.5": input should be a valid'),
    (f"{HEADER}1,2,0\n", 'arrivals.csv:2: key new_tokens = "0": input should be greater'),
    (f"{HEADER}1,2\n", "arrivals.csv:2: has 2 values for 3 columns"),
    (f"{HEADER}1,2,3\n", "key workload.requests = 2, but arrivals.csv holds 1 requests"),
    (None, "arrivals.csv: there is no such file (key workload.trace)"),
    ("\udcff", "arrivals.csv: cannot be read (key"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD_TRACES)
def test_a_bad_trace_is_one_sentence_with_the_line(
    scenario: Path, text: str | None, sentence: str
) -> None:
    if text is not None:
        content = text.encode("utf-8", "surrogateescape")
        (scenario.parent / "arrivals.csv").write_bytes(content)
    assert_refused(scenario, TRACE, sentence)


def test_keys_that_arrivals_leave_without_effect_are_warned_about(scenario: Path) -> None:
    (scenario.parent / "arrivals.csv").write_text(f"{HEADER}0,9,5\n0,8,6\n")
    trace = predict(Scenario.load(scenario, (TRACE, "workload.concurrency=2")))[0]
    told = [warning for warning in trace.warnings if "no effect" in warning]
    assert sorted(each.partition(" has")[0] for each in told if "workload" in each) == [
        "key workload.concurrency",
        "key workload.new_tokens",
    ]
    lengths = [(each.prompt_tokens, len(each.tokens)) for each in trace.requests]
    assert lengths == [(9, 5), (8, 6)]
