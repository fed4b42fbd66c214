"""A benchmark's result as the measurement of a scenario: ``treepipe validate --measured FILE``.

The file's requests are predicted twice, with the scenario's acceptance and with the file's own; the
second leaves errors of durations alone. Where the scenario's requests arrive by themselves, they
arrive as in the file; else they are asked for by its clients (``workload.concurrency``), since the
times of a closed loop are the measured system's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.requests import RequestTrace
from treepipe.profiles.chains import Imported
from treepipe.profiles.engines import NO_RANKS, read_export
from treepipe.profiles.workloads import Asked, WorkloadTrace, read_workload
from treepipe.progress import Progress
from treepipe.results.estimates import Estimates, observe
from treepipe.results.metrics import run_metrics
from treepipe.results.statistics import Interval
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay
from treepipe.scenario.workload import request_of
from treepipe.sim.predict import predict
from treepipe.validation.validation import errors_of, intervals_of

LOAD_DIFFERS = 0.1
"""Relative difference of open requests from which the load is said to differ."""


def measured_entry(scenario: Scenario, file: Path, say: Progress) -> dict[str, Any]:
    """Return the entry of a validation file for a scenario and what a benchmark measured of it."""
    trace = read_workload(file, "--measured")
    _check(scenario, trace, file)
    arrive = scenario.workload.arriving
    requests = tuple(
        request_of(each) if arrive else replace(request_of(each), arrival_ms=None, after=None)
        for each in trace.requests
    )
    say("predicting", 2 * scenario.runs)
    own, acceptance, warnings = _acceptance(scenario, file)
    predicted, of_a_run, simulated = _predicted(scenario, requests, say)
    replayed, _, _ = _predicted(own, requests, say)
    executed = Trace((), requests=[_request(n, each) for n, each in enumerate(trace.requests, 1)])
    executed.slo = resolve(scenario).service.slo
    measured = run_metrics(executed)
    if acceptance is not None:
        measured["tokens_per_round"] = acceptance.tokens
    again = {name: each.mean for name, each in replayed.items()}
    errors = errors_of(predicted, of_a_run, measured, again)
    return {
        "scenario": scenario.path.stem,
        "schedule": scenario.schedule.name,
        "prediction": {"metrics": intervals_of(predicted), "utilization": {}},
        "measurement": {
            "file": file.name,
            "metrics": intervals_of(
                {n: Interval(each, None, None) for n, each in measured.items()}
            ),
            "utilization": {},
        },
        "metrics": {name: asdict(each) for name, each in errors.items()},
        "utilization": {},
        "work": {},
        "drift": 1.0,
        "drift_corrected_duration_error": None,
        "lossless": None,
        "agreement": None,
        "told": [f"measured by {trace.summary}", *_told(acceptance, executed, simulated, arrive)],
        "warnings": [*simulated.warnings, *warnings],
    }


def _check(scenario: Scenario, trace: WorkloadTrace, file: Path) -> None:
    """Raise ``UserError`` if the file is no measurement, or the scenario is of none."""
    if any(each.first_s is None for each in trace.requests):
        raise UserError(
            f"{file}: {trace.name} holds no time to the first token of each request, so it is no "
            f"measurement (--measured)"
        )
    if not any(gap for each in trace.requests for gap in each.gaps_s):
        raise UserError(
            f"{file}: {trace.name} holds no times between chunks of a request, so it is no "
            f"measurement (--measured)"
        )
    if isinstance(scenario.acceptance, Replay):
        raise UserError(
            f"{scenario.path}: key acceptance.source = 'replay': is of a run, not of a file"
        )
    for key, default in (("rate_scale", 1.0), ("window_s", None)):
        if getattr(scenario.workload, key) != default:
            raise UserError(
                f"{scenario.path}: key workload.{key}: has no effect with --measured, whose "
                f"requests are all of the file's"
            )


def _acceptance(scenario: Scenario, file: Path) -> tuple[Scenario, Imported | None, list[str]]:
    """Return the scenario with the file's acceptance; unchanged where nothing is drafted, or where
    the file tells none, which is warned of."""
    drafts = scenario.schedule.system.drafts
    try:
        found = read_export("vllm-bench", file)
    except UserError as error:
        if not drafts:
            return scenario, None, []
        return (
            scenario,
            None,
            [f"{error}; so the error is not split, all of it counts as durations"],
        )
    if not drafts:
        warning = (
            f"{file}: {found.tokens:.3g} tokens of a step are measured, the scenario drafts nothing"
        )
        return scenario, None, [warning]
    notes = [*found.notes, *([] if scenario.schedule.system.chains else [NO_RANKS])]
    length = max(scenario.schedule.parameters.lengths().values(), default=0)
    if length > found.drafted:
        notes.append(
            f"{file} tells of {found.drafted} drafted tokens, the scenario drafts {length}: "
            f"below, each is taken to be accepted as the last one"
        )
    table = {"source": "hit_ratio", "table": {1: list(found.shares)}}
    return scenario.with_(acceptance=table), found, notes


def _predicted(
    scenario: Scenario, requests: Sequence[Any], say: Progress
) -> tuple[Mapping[str, Interval], Mapping[str, Interval], Trace]:
    """Return the metrics, those of a single run, and the first run's trace; no request is left out,
    as none is of the measurement."""
    traces = predict(scenario, lambda: say("", 1), asked=tuple(requests))
    found: Estimates = observe(traces, 0)
    return found.intervals[0], found.of_a_run, traces[0]


def _request(session: int, row: Asked) -> RequestTrace:
    """Make a request's trace. A chunk may hold several tokens; nothing tells which do, and neither
    the mean time between tokens nor its percentiles depend on it."""
    at_ms, left = 1e3 * row.at_s, row.new_tokens - 1
    now_ms = at_ms + 1e3 * (row.first_s or 0.0)
    emitted = [(now_ms, 1 if row.gaps_s else row.new_tokens)]
    for done, gap_s in enumerate(row.gaps_s):
        chunks = len(row.gaps_s) - done
        now_ms, count = now_ms + 1e3 * gap_s, -(-left // chunks)
        left -= count
        emitted.append((now_ms, count))
    text = (0,) * row.new_tokens
    sizes = session, row.prompt_tokens, at_ms, now_ms
    return RequestTrace(*sizes, tuple(emitted), text, (), "length")


def _told(
    acceptance: Imported | None, executed: Trace, simulated: Trace, arrive: bool
) -> list[str]:
    """Tell the measured acceptance, and the load of both."""
    found = []
    if acceptance is not None:
        shares = ", ".join(f"{share:.3g}" for share in acceptance.shares)
        found.append(f"accepted, given all above: {shares} (measured)")
    measured, predicted = _open(executed), _open(simulated)
    load = f"requests open on average: {predicted:.3g} predicted, {measured:.3g} measured"
    if not arrive and abs(predicted / measured - 1) > LOAD_DIFFERS:
        load += (
            "; workload.concurrency should be the benchmark's number of clients, or workload.trace "
            "this file if its requests arrived by themselves"
        )
    return [*found, load]


def _open(trace: Trace) -> float:
    """Return the mean number of open requests (Little's law)."""
    ends = [each.finished_ms for each in trace.requests]
    starts = [each.started_ms for each in trace.requests]
    return (sum(ends) - sum(starts)) / max(max(ends) - min(starts), 1e-9)
