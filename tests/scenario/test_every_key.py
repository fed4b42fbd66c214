"""A simulation ignores no key in silence: each has an effect, a warning or a refusal.

The law goes through every key of the schema: two of its values differ in a figure, a warning or a
refusal where the key is meant to be read, and where a scenario reads few keys the key is told of.
"""

from __future__ import annotations

import functools
import json

import pytest

from tests.worlds.every_key import (
    PLAIN,
    USUAL,
    Key,
    Outcome,
    check_heard,
    every_key,
    situated,
)
from treepipe.core.errors import RunError, UserError
from treepipe.results.metrics import run_metrics, utilization
from treepipe.results.result import make_result
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

KEYS = every_key(USUAL)


@functools.cache
def simulated(content: str) -> Outcome:
    try:
        scenario = Scenario.of(json.loads(content))
        traces = predict(scenario)
    except (RunError, UserError) as error:
        return "", str(error)
    figures: list[object] = [scenario.name]
    for trace in traces:
        figures += [(s.device, s.kind, s.start_ms, s.end_ms, s.tokens) for s in trace.spans]
        figures += [run_metrics(trace), utilization(trace)]
    warmup = scenario.workload.warmup_requests
    if warmup is not None or scenario.serving.slo is not None:
        figures.append(make_result("simulation", "", 0, traces, warmup=warmup).metrics)
    return repr(figures), repr(traces[0].warnings)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_is_heard_where_it_is_meant_to_be_read(key: Key) -> None:
    check_heard(simulated, key, situated(key))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_is_heard_or_told_of_in_plain_decoding(key: Key) -> None:
    if str(key) != "seed":  # nothing is drawn
        check_heard(simulated, key, PLAIN, refused=True)
