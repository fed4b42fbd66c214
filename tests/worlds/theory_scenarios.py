"""Scenarios in the closed forms' own assumptions, and both predictions of them; for tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from treepipe.core.requests import RequestTrace
from treepipe.files.toml_file import tomllib
from treepipe.results.metrics import run_metrics
from treepipe.results.statistics import Interval
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario, override_key
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import ClosedForm, closed_form

EXACTLY = 1e-9
"""Relative: what rounding of sums may do."""
CONSTANT = """
name = "constant times"
seed = 5
[target]
layers = 8
[[drafts]]
device = { draft_ms = { 1 = 3.0 }, evaluate_ms = { 1 = 2.0 }, decide_ms = 1.0 }
[[pipelines]]
[[pipelines.stages]]
count = 4
device = { stage_ms = { 1 = 20.0 }, prune_ms = 0.5, evaluate_ms = { 1 = 2.0 }, decide_ms = 1.0 }
[links]
default = { latency_ms = 1.5 }
[schedule]
name = "pp"
[acceptance]
source = "bernoulli"
beta = 0.7
[workload]
prompt_tokens = 150
new_tokens = 48
"""


_CHAIN = ("schedule.gamma=4",)
_LAYERS = ("schedule.width=8", "schedule.children=8")
_FREE = (*_LAYERS, "schedule.central_transfers=false")
_KEYS = {
    **dict.fromkeys(("chain", "dsd", "pearl", "ssd", "starsd"), _CHAIN),
    "pipedec": _FREE,
    "specpipe": _LAYERS,
    **dict.fromkeys(("engine_pp", "spd"), ()),
}
ENDS = ("draft", "pipeline")
"""Where the target's ends are; all of them take the same time at either place."""
SECTIONS = {name: (f"schedule.name={name}", *_KEYS.get(name, ())) for name in ("pp", *_KEYS)}
"""Settings that choose a schedule."""


class Written:
    """The scenario of constant times, changed by settings as on the command line.

    Files that a setting names are looked for in ``folder``.
    """

    def __init__(self, schedule: str, *settings: str, folder: Path = Path()) -> None:
        content = tomllib.loads(CONSTANT)
        for setting in (*SECTIONS[schedule], *settings):
            override_key(content, setting)
        self.scenario = Scenario.of(content, folder / "scenario.toml")

    def simulated(self) -> list[Trace]:
        return predict(self.scenario)

    def expected(self) -> ClosedForm:
        return closed_form(self.scenario)

    @property
    def bent(self) -> list[str]:
        return [*self.expected().warnings]


def draft_of(draft_ms: float) -> str:
    """The setting of one draft server that takes no other time."""
    return f"drafts=[{{ device = {{ draft_ms = {{ 1 = {draft_ms} }} }} }}]"


def stages_of(*times_ms: float, more: str = "") -> str:
    """The setting of one pipeline. Args: ``more``: keys of every device."""
    each = [f"{{ device = {{ stage_ms = {{ 1 = {ms} }}{more} }} }}" for ms in times_ms]
    return f"pipelines=[{{ stages = [{', '.join(each)}] }}]"


def links_of(default_ms: float, *between_ms: float) -> str:
    """The setting of a latency, and of others from each stage to the next."""
    pairs = [
        f'{{ ends = ["pipeline0.stage{n}", "pipeline0.stage{n + 1}"], latency_ms = {ms} }}'
        for n, ms in enumerate(between_ms, start=1)
    ]
    return f"links={{ default = {{ latency_ms = {default_ms} }}, pairs = [{', '.join(pairs)}] }}"


def targets_of(targets: int, stage_ms: float, *more: str) -> tuple[str, ...]:
    """Settings for StarSD with targets of one stage, links that take no time and no pruning: with
    4 draft passes of 3 ms, S = 12 ms and Z = ``stage_ms``."""
    return (
        draft_of(3.0),
        f"pipelines=[{{ count = {targets}, stages = [{{ device = {{ stage_ms = {{ 1 = {stage_ms} "
        "} } }] }]",
        "links.default={ latency_ms = 0.0 }",
        f"workload.concurrency={targets}",
        f"workload.requests={targets}",
        "workload.new_tokens=80",
        "workload.prompt_tokens=8",
        *more,
    )


def gaps(request: RequestTrace) -> list[float]:
    return [after - before for (before, _), (after, _) in itertools.pairwise(request.emitted)]


def assert_equal(written: Written) -> None:
    """All metrics, exactly."""
    (trace,) = written.simulated()
    expected = written.expected()
    metrics = run_metrics(trace)
    for name, value in expected.metrics.items():
        assert metrics[name] == pytest.approx(value, rel=EXACTLY, abs=EXACTLY), name


def assert_within(
    intervals: Mapping[str, Interval], expected: Mapping[str, float], most: float = 0.2
) -> None:
    """Every expected value lies in its interval, which is at most a share ``most`` of it long."""
    for name, value in expected.items():
        found = intervals[name]
        if found.fixed:  # what is constant has no interval
            assert found.mean == pytest.approx(value, rel=EXACTLY), name
            continue
        assert found.low is not None
        assert found.high is not None
        slack = EXACTLY * abs(value)
        assert found.low - slack <= value <= found.high + slack, name
        assert found.high - found.low <= most * abs(value), name
