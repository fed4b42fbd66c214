"""Traces, or a closed form, -> the result file (``treepipe.result/1``); see ``docs/files.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from treepipe.files.outputs import STANDARD_OUTPUT, write_file, write_standard_output
from treepipe.results.estimates import Estimates, observe
from treepipe.results.metrics import UNITS
from treepipe.results.statistics import Interval
from treepipe.results.trace import Trace

SCHEMA = "treepipe.result/1"


def make_result(
    source: Literal["simulation", "execution"],
    scenario: str,
    seed: int,
    traces: Sequence[Trace],
    *,
    lossless: bool = True,
    memory: Mapping[str, int] | None = None,
    warmup: int | None = None,
    estimates: Estimates | None = None,
) -> dict[str, Any]:
    """The content of a result file.

    Args:
        traces: one per run.
        lossless: whether the schedule and its verification rule keep the target's text.
        memory: peak resident bytes per device, if it was measured.
        warmup: requests to leave out of each run; None: found in the runs.
        estimates: of the traces, if they were made already; ``warmup`` is theirs then.
    """
    if estimates is None:
        estimates = observe(traces, warmup)
    metrics, shares = estimates.intervals
    shown: dict[str, Any] = {
        name: {**interval.as_dict(), "unit": UNITS[name]} for name, interval in metrics.items()
    }
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "source": source,
        "scenario": scenario,
        "seed": seed,
        "runs": len(traces),
        "intervals_over": estimates.over,
        "warmup_requests": estimates.warmup,
        "metrics": shown,
        "utilization": {name: interval.as_dict() for name, interval in shares.items()},
        "sessions": _session(traces[0]) if traces else [],
        "lossless": lossless,
        "complete": True,
        "warnings": sorted({*(w for trace in traces for w in trace.warnings), *estimates.warnings}),
    }
    if memory is not None:
        result["memory"] = {
            name: {"peak_memory_bytes": size, "unit": "bytes"} for name, size in memory.items()
        }
    return result


def make_incomplete_result(
    scenario: str, seed: int, done: int, failure: str, ended: Trace
) -> dict[str, Any]:
    """The content of a result file of runs that failed: no metrics, but every text.

    Args:
        done: how many runs ended well before.
        failure: the sentence that says why the next one did not.
        ended: that run: finished requests, and the open ones with what they had.
    """
    texts = [list(request.tokens) for request in ended.requests]
    return {
        "schema": SCHEMA,
        "source": "execution",
        "scenario": scenario,
        "seed": seed,
        "runs": done,
        "intervals_over": None,
        "warmup_requests": 0,
        "metrics": {},
        "utilization": {},
        "sessions": [
            {**session, "tokens": text}
            for session, text in zip(_session(ended), texts, strict=True)
        ],
        "lossless": False,
        "complete": False,
        "failure": failure,
        "warnings": list(ended.warnings),
    }


def make_theory_result(
    scenario: str,
    seed: int,
    form: str,
    metrics: Mapping[str, float],
    utilization: Mapping[str, float],
    terms: Mapping[str, float],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The content of a result file without runs: expected values, so no intervals.

    Args:
        form: source of the formulas.
        terms: the formulas' own quantities, units in their names.
    """
    return {
        "schema": SCHEMA,
        "source": "theory",
        "scenario": scenario,
        "seed": seed,
        "runs": 0,
        "intervals_over": None,
        "warmup_requests": 0,
        "metrics": {
            name: {**_exactly(metrics[name]), "unit": unit}
            for name, unit in UNITS.items()
            if name in metrics
        },
        "utilization": {name: _exactly(share) for name, share in utilization.items()},
        "sessions": [],
        "lossless": True,
        "warnings": list(warnings),
        "closed_form": {"source": form, "terms": dict(terms)},
    }


def _exactly(value: float) -> dict[str, float | None]:
    return Interval(value, None, None).as_dict()


def _session(trace: Trace) -> list[dict[str, Any]]:
    """The first run's requests."""
    return [
        {
            "session": request.session,
            "prompt_tokens": request.prompt_tokens,
            "new_tokens": len(request.tokens),
            "time_to_first_token_ms": (
                request.first_token_ms - request.started_ms if request.emitted else None
            ),
            "request_latency_ms": request.finished_ms - request.started_ms,
            "rounds": len(request.rounds),
            "finished": request.reason,
            "pipeline": request.pipeline,
        }
        for request in trace.requests
    ]


def write_json(content: Mapping[str, Any], target: str, option: str = "--json") -> None:
    """Write to a file, or to standard output for "-".

    Raises ``WriteError`` if it cannot be written; ``option`` is what asked for it.
    """
    text = json.dumps(content, indent=2) + "\n"
    if target == STANDARD_OUTPUT:
        write_standard_output(text, option)
    else:
        write_file(Path(target), text, option)
