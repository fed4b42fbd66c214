"""The demo in a small size, with a simulated run in the place of processes."""

from __future__ import annotations

from collections.abc import Callable

from tests.worlds.recording_source import RecordingSource
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import simulate
from treepipe.validation.comparison import CalibratedAcceptance, predict_case
from treepipe.validation.demo import SCENARIO
from treepipe.validation.judgement import PlainText, Row, RunnerUp, judge

SMALL = ("workload.requests=3", "workload.new_tokens=12", "runs=3")

POOL = CalibratedAcceptance(hit_ratio_pool({1: 0.6, 8: 0.9}), 1)


def say(what: str, steps: int) -> None:
    assert what or steps


def made_deployment(*overrides: str) -> Deployment:
    scenario = Scenario.load(SCENARIO, (*SMALL, *overrides))
    prompts = tuple(RequestSpec((7,) * (9 + n), 12) for n in range(scenario.workload.requests))
    return resolve(scenario).asked(prompts)


def made_run(deployment: Deployment) -> tuple[Trace, Recording]:
    source = RecordingSource(PoolSource(POOL.pool, 1, 99))
    trace = simulate(deployment, source)
    return trace, source.recording(trace)


def judged(
    executed: Deployment,
    spoil: Callable[[Trace], None] = lambda trace: None,
) -> Row:
    """A run of ``executed``, held against predictions of the deployment without overrides, and
    against plain decoding's texts, which it had before ``spoil``."""
    deployment, run = made_deployment(), made_run(executed)
    prediction = predict_case(deployment, Scenario.load(SCENARIO, SMALL), POOL, say)
    texts = {
        (spec.prompt, spec.end_tokens): PlainText(
            trace.tokens, (RunnerUp(0, 9.0, 1e-4),) * len(trace.tokens)
        )
        for spec, trace in zip(deployment.requests, run[0].requests, strict=True)
    }
    spoil(run[0])
    return judge("made", "flowspec", deployment, prediction, run, texts)
