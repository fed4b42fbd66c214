"""Open arrivals beyond what is served: the load found in a trace, against the closed form's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.theory_scenarios import CONSTANT, Written
from treepipe.results.load import ResourceLoad, bottleneck, overload_warnings
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.scenario.workload import effort_warnings

SHORT = ("workload.prompt_tokens=8", "workload.new_tokens=12", "workload.requests=40")
ONE_PLACE = (*SHORT, "serving.places=1")


def poisson(rate_per_s: float) -> str:
    return f'workload.arrivals={{process="poisson",rate_per_s={rate_per_s}}}'


def load_of(written: Written, traces: list[Trace] | None = None) -> ResourceLoad:
    traces = traces or written.simulated()
    found = bottleneck(written.scenario, deployment_of(written), traces)
    assert found is not None
    return found


def deployment_of(written: Written) -> Deployment:
    return deploy(written.scenario)


def overload(traces: list[Trace]) -> list[str]:
    return [w for trace in traces for w in trace.warnings if "faster than they are served" in w]


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_one_place_is_as_loaded_as_the_closed_form_says(rate: float) -> None:
    written = Written("pp", *ONE_PLACE, poisson(rate))
    traces = written.simulated()
    found = load_of(written, traces)
    assert found.load == pytest.approx(rate * service_s("pp"))
    assert found.at == "the 1 place for open requests"
    assert overload(traces) == []


def service_s(name: str) -> float:
    """How long a request takes alone."""
    return Written(name, *ONE_PLACE).expected().metrics["request_latency_ms"] / 1e3


def test_a_load_of_more_than_one_is_warned_of_once() -> None:
    written = Written("chain", *ONE_PLACE, poisson(4.0), "runs=3")
    traces = written.simulated()
    (sentence,) = overload(traces)
    assert sentence.startswith("load 2.")
    expected = 4.0 * service_s("chain")
    assert load_of(written, traces).load == pytest.approx(expected, rel=0.03), "acceptance is drawn"


def test_without_places_the_busiest_device_or_link_decides() -> None:
    """12 tokens, the prompt's pass among them, at 20 ms a stage: 0.24 s of work per request."""
    settings = (*SHORT, "pipelines=[{stages=[{device={stage_ms={1=20}},count=2}]}]")
    written = Written("pp", *settings, poisson(6.0))
    assert load_of(written) == ResourceLoad("pipeline0.stage1", 6.0, pytest.approx(240.0))
    (sentence,) = overload(written.simulated())
    assert "load 1.44 at pipeline0.stage1 (6 requests/s, 0.24 s of work each)" in sentence
    assert overload(Written("pp", *settings, poisson(4.0)).simulated()) == []
    air = "links.default={latency_ms=0.1,message_ms=30,medium='air'}"
    assert load_of(Written("pp", *settings, air, poisson(6.0))).at == "medium air"


def test_a_shared_machine_is_loaded_by_all_its_roles() -> None:
    stages = 'pipelines=[{stages=[{device={stage_ms={1=20}},count=2,host="box"}]}]'
    found = load_of(Written("pp", *SHORT, stages, poisson(3.0)))
    assert found == ResourceLoad("host box", 3.0, pytest.approx(480.0))


def test_a_closed_loop_is_never_overloaded() -> None:
    written = Written("pp", *SHORT, "workload.concurrency=30")
    assert bottleneck(written.scenario, deployment_of(written), written.simulated()) is None
    assert overload(written.simulated()) == []


def test_admission_refuses_what_else_would_wait() -> None:
    written = Written("pp", *SHORT, "serving.admission=3", poisson(20.0))
    (sentence,) = overload(written.simulated())
    assert "of 40 were refused (serving.admission)" in sentence
    assert "grow" not in sentence


@pytest.mark.parametrize(
    ("arrival", "count", "warned"),
    [(0.0, 9, False), (0.01, 9, True), (9.0, 9, False), (0.01, 2, False)],
)
def test_a_traces_rate_is_its_own(tmp_path: Path, arrival: float, count: int, warned: bool) -> None:
    lines = [f"{arrival * i},8,12" for i in range(count)]
    text = "arrival_s,prompt_tokens,new_tokens\n" + "\n".join(lines)
    (tmp_path / "a.csv").write_text(text)
    written = Written("pp", 'workload.trace="a.csv"', folder=tmp_path)
    found = overload_warnings(written.scenario, deployment_of(written), written.simulated())
    assert bool(found) == warned, "all at once is no rate, nor is one gap"


def test_a_long_simulation_is_told_beforehand(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Written("pp", "workload.requests=2000", "workload.new_tokens=5000")
    (sentence,) = effort_warnings(long.scenario)
    assert "10 million tokens" in sentence
    assert "workload.new_tokens" in sentence
    assert effort_warnings(Written("pp", "runs=9").scenario) == []
    Path("scenario.toml").write_text(CONSTANT)
    monkeypatch.setattr("treepipe.scenario.workload.MANY_TOKENS", 50)
    given = ("simulate", "scenario.toml", "--quiet", "--set", "workload.requests=2")
    terminal.fails("tokens are to be simulated", *given, code=0)
