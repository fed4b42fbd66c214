"""Requests that arrive by themselves at real processes: when they are asked for, and in what order.

That every worker is an emulated device makes the times of a run comparable to its replay's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.command_line import call, run_with
from tests.worlds.deployments import PROMPT, small_deployment
from tests.worlds.real_runs import assert_greedy, controller_of
from treepipe.executor.run.controller import Controller
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import bernoulli_pool
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate

pytestmark = pytest.mark.processes

ARRIVALS_MS = (0.0, 30.0, 30.0, 1500.0)
"""The last one comes when all others are over, if the host keeps up."""


@pytest.fixture(scope="module")
def controller(pair: tuple[Path, Path]) -> Iterator[Controller]:
    deployment = small_deployment("pp", ends="draft")
    with controller_of(pair, deployment) as running:
        running.run(deployment)  # a process's first passes take longer
        yield running


def arriving(name: str) -> Deployment:
    requests = tuple(
        RequestSpec(PROMPT[n : n + 9], 5, arrival_ms=time) for n, time in enumerate(ARRIVALS_MS)
    )
    return replace(small_deployment(name, ends="draft"), requests=requests)


@pytest.mark.parametrize("name", ["pipedec", "flowspec"])
def test_requests_are_asked_for_when_they_arrive(
    controller: Controller, pair: tuple[Path, Path], name: str
) -> None:
    deployment = arriving(name)
    trace, recording = controller.run(deployment)
    assert [request.started_ms for request in trace.requests] == pytest.approx(ARRIVALS_MS)
    assert_greedy(trace, deployment, pair[0])
    replay = simulate(deployment, ReplaySource(recording))
    assert [request.started_ms for request in replay.requests] == list(ARRIVALS_MS)
    # A busy host delays requests without bound, and may let one go before another, or the last one
    # come to others; but no request is served faster than by devices that have nothing else to do.
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        alone = replace(deployment, requests=(replace(spec, arrival_ms=None),))
        (best,) = simulate(alone, PoolSource(bernoulli_pool(1.0), 1, 0)).requests
        waited = request.first_token_ms - request.started_ms
        assert waited > 0.999 * (best.first_token_ms - best.started_ms)
    if name == "pipedec":  # it serves one request at a time: the others wait, and are in order
        first, second, third, _ = trace.requests
        assert second.first_token_ms > first.finished_ms > second.started_ms
        assert third.first_token_ms > second.finished_ms > third.started_ms


def test_a_turn_of_a_session_waits_for_the_one_before_and_its_delay(
    controller: Controller,
) -> None:
    deployment = arriving("pp")
    first, second, *_ = deployment.requests
    asked = replace(deployment, requests=(first, replace(second, after=0, delay_ms=250.0)))
    trace, recording = controller.run(asked)
    for found in (trace, simulate(asked, ReplaySource(recording))):
        before, turn = found.requests
        assert turn.started_ms == pytest.approx(before.finished_ms + 250.0)


def test_arrivals_beyond_admission_are_refused_and_the_next_ones_served(
    controller: Controller,
) -> None:
    deployment = changed(arriving("pp"), admission=1)
    requests = controller.run(deployment)[0].requests
    first, *_, last = requests
    served = "refused" if last.started_ms < first.finished_ms else "length"
    assert [each.reason for each in requests] == ["length", "refused", "refused", served]
    assert [each.started_ms for each in requests] == pytest.approx(ARRIVALS_MS)


def test_a_run_takes_a_traces_times_and_lengths_but_its_own_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_with(tmp_path, "reference", "reference")
    lines = "arrival_s,prompt_tokens,new_tokens,session,delay_s,known_tokens\n"
    lines += "0,9,3,a,,\n0.01,9,4,a,0.25,8\n"
    (tmp_path / "arrivals.csv").write_text(lines)
    options = ["--set", "workload.trace=arrivals.csv", "--runs", 1]
    assert call(monkeypatch, "run", path, *options, "--json", "-", "--quiet") == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["new_tokens"] for each in result["sessions"]] == [3, 4]
    assert all(each["prompt_tokens"] > 9 for each in result["sessions"])
    told = result["warnings"]
    assert (
        "key workload.new_tokens has no effect: it is read only where requests are of no trace "
        "(workload.trace)"
    ) in told
    assert (
        "prompts are those of workload.prompts, with their lengths; lengths and shared prefixes of "
        "prompts in arrivals.csv are for the simulator"
    ) in told
    # Two arrivals tell no rate.
    assert not [each for each in told if each.startswith("load ")]
