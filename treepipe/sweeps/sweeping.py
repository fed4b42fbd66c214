"""Simulation of a sweep's missing scenarios, batch by batch, on an engine.

Invariant: each batch is written as soon as it is done, so an interrupted sweep repeats no more than
the unfinished batches, one per worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joblib import delayed  # type: ignore[import-untyped]

from treepipe.core.errors import RunError, UserError
from treepipe.extras import need_parquet
from treepipe.results.estimates import find_warmup, observe
from treepipe.results.metric import Floats
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.sim.engine import run_jobs
from treepipe.sim.predict import alike, predict_alike
from treepipe.sweeps.columns import KeyColumns
from treepipe.sweeps.grid import Sweep, changed, hashed
from treepipe.sweeps.store import Store, parquet_bytes


@dataclass(frozen=True)
class SweepResult:
    """Results of a finished sweep.

    Attributes:
        simulated: scenarios that were simulated now; the others were there.
        rows: number of rows in all files.
        refused: scenarios that were refused.
        reasons: number of refusals by reason, the most frequent first.
    """

    store: Store = field(repr=False)
    simulated: int
    rows: int
    refused: int
    reasons: Mapping[str, int]

    @property
    def out(self) -> Path:
        """The folder with the Parquet files."""
        return self.store.out

    @property
    def scenarios(self) -> int:
        """Number of the sweep's scenarios."""
        return len(self.store.sweep)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows (of these columns) as a ``pyarrow.Table``, in the scenarios' order."""
        return self.store.table(columns)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.sweep/1``."""
        return {
            **self.store.manifest,
            "simulated": self.simulated,
            "rows": self.rows,
            "refused": self.refused,
            "reasons": dict(self.reasons),
        }


def carry_out(
    sweep: Sweep, out: Path, say: Callable[[str, int], None], *, force: bool = False
) -> SweepResult:
    """Simulate a sweep's missing scenarios into the folder ``out``, on the current engine.

    Raises:
        UserError: the folder holds something else, or the extra 'sweep' is not installed.
        RunError: a file could not be written, or a cluster failed.
    """
    need_parquet()
    store = Store.open(out, sweep, force=force)
    keys, missing = KeyColumns.of(sweep), store.missing
    simulated = sum(len(store.scenarios(batch)) for batch in missing)
    say(f"{simulated} scenarios", simulated)
    jobs = (
        delayed(_batch)(
            batch,
            dict(sweep.base),
            [(index, sweep.changes(index)) for index in store.scenarios(batch)],
            sweep.path,
            keys,
        )
        for batch in missing
    )
    for batch, data in run_jobs(jobs, ordered=False, together=1):
        store.write(batch, data)
        say("", len(store.scenarios(batch)))
    errors = store.table(["error"])["error"].to_pylist()
    reasons = Counter(each for each in errors if each is not None)
    refused = sum(reasons.values())
    return SweepResult(store, simulated, len(errors), refused, dict(reasons.most_common()))


def _batch(
    batch: int,
    base: Mapping[str, Any],
    scenarios: Sequence[tuple[int, Mapping[str, Any]]],
    path: Path,
    keys: KeyColumns,
) -> tuple[int, bytes]:
    """Make a batch's Parquet file."""
    rows = []
    made = batch_rows(base, [changes for _, changes in scenarios], path)
    for (index, _), (content, replications) in zip(scenarios, made, strict=True):
        row = {**keys.row(content), "scenario_index": index}
        rows += [{**row, **each} for each in replications]
    return batch, parquet_bytes(keys, rows)


def batch_rows(
    base: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], path: Path
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each scenario's content, and the rows of its replications without the keys.

    A metric is that of one run, as ``treepipe simulate`` computes it, without the warm-up of all
    runs. The row of a refused scenario has no number of a replication.
    """
    contents, found = list[dict[str, Any]](), dict[int, list[dict[str, Any]]]()
    scenarios = dict[int, Scenario]()
    for number, each in enumerate(changes):
        contents.append(dict(base))
        try:
            contents[number] = changed(base, each, path)
            scenarios[number] = Scenario.of(contents[number], path)
        except UserError as error:
            found[number] = _refused(error, path)
    numbers = [*scenarios]
    for group in alike([*scenarios.values()]):
        members = [numbers[each] for each in group]
        predicted = predict_alike([scenarios[number] for number in members])
        for number, traces in zip(members, predicted, strict=True):
            found[number] = _scenario_rows(scenarios[number], traces)
    return [
        (content, [{"scenario_hash": hashed(content), **row} for row in found[number]])
        for number, content in enumerate(contents)
    ]


def _scenario_rows(
    scenario: Scenario, traces: list[Trace] | UserError | RunError
) -> list[dict[str, Any]]:
    if isinstance(traces, Exception):
        return _refused(traces, scenario.path)
    try:
        warmup = scenario.workload.warmup_requests
        if warmup is None:
            warmup = find_warmup(traces)[0]
        return [{**_row(trace, warmup), "replication": run} for run, trace in enumerate(traces)]
    except UserError as error:
        return _refused(error, scenario.path)


def _refused(error: Exception, path: Path) -> list[dict[str, Any]]:
    return [{"error": str(error).removeprefix(f"{path}: "), "replication": None}]


def _row(trace: Trace, warmup: int) -> dict[str, Any]:
    """Make the row of one replication."""
    figures, told = None, trace.warnings
    if trace.figures is not None and not warmup:
        figures = trace.figures()
    if figures is None:
        found = observe([trace], warmup, batches=1)
        told = told + found.warnings
        figures = _single(found.metrics), _single(found.utilization)
    metrics, shares = figures
    return {**metrics, "utilization": sorted(shares.items()), "warnings": sorted({*told})}


def _single(values: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(each.item()) for name, each in values.items()}
