"""A scenario of a sweep -> its rows: one per replication, or one that says why it was refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError, UserError
from treepipe.results.estimates import find_warmup, observe
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.admission import admitted
from treepipe.sweeps.grid import changed, hashed

OWN = ("scenario_index", "scenario_hash", "replication", "error", "warnings", "utilization")
"""Columns that are neither keys nor metrics."""


def scenario_rows(
    base: Mapping[str, Any], changes: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A scenario's content, and the rows of its replications without the keys.

    A metric is that of one run, as ``treepipe simulate`` has it; the warm-up of all is left out.
    """
    content = dict(base)
    try:
        content = changed(base, changes, path)
        scenario = admitted(Scenario.of(content, path))
        traces = predict(scenario)
        warmup = scenario.workload.warmup_requests
        if warmup is None:
            warmup = find_warmup(traces)[0]
        rows = [_row(trace, warmup) for trace in traces]
    except (UserError, RunError) as error:
        rows = [{"error": str(error).removeprefix(f"{path}: ")}]
    about = {"scenario_hash": hashed(content)}
    return content, [{**about, **row, "replication": run} for run, row in _numbered(rows)]


def _numbered(rows: list[dict[str, Any]]) -> list[tuple[int | None, dict[str, Any]]]:
    """Rows with the number of their replication; a scenario that was refused has none."""
    return [(None if "error" in row else run, row) for run, row in enumerate(rows)]


def _row(trace: Trace, warmup: int) -> dict[str, Any]:
    """What one replication tells."""
    estimates = observe([trace], warmup, batches=1)
    shares = {name: float(values.mean()) for name, values in estimates.utilization.items()}
    return {
        **{name: float(values.mean()) for name, values in estimates.metrics.items()},
        "utilization": sorted(shares.items()),
        "warnings": sorted({*trace.warnings, *estimates.warnings}),
    }
