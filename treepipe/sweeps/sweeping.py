"""Carrying a sweep out: what is missing of it, batch by batch, on an engine.

Law of this file: a batch is written as soon as it is done, so an interrupted sweep repeats no more
than the batches under way, one per worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joblib import delayed  # type: ignore[import-untyped]

from treepipe.extras import need_parquet
from treepipe.sim.engine import carried_out
from treepipe.sweeps.columns import KeyColumns
from treepipe.sweeps.grid import Sweep
from treepipe.sweeps.rows import scenario_rows
from treepipe.sweeps.store import Store, parquet_bytes


@dataclass(frozen=True)
class Swept:
    """What there is of a sweep when it is done.

    Attributes:
        simulated: scenarios that were simulated now; the others were there.
        rows: of all.
        refused: scenarios that were refused.
        reasons: how many were refused for which, the most frequent first.
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
        """How many scenarios the sweep has."""
        return len(self.store.sweep)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """All rows, or these columns of them, as a ``pyarrow.Table``, in the scenarios' order."""
        return self.store.table(columns)

    def to_json(self) -> dict[str, Any]:
        """The content of the file ``treepipe.sweep/1``."""
        return {
            **self.store.manifest,
            "simulated": self.simulated,
            "rows": self.rows,
            "refused": self.refused,
            "reasons": dict(self.reasons),
        }


def carry_out(
    sweep: Sweep, out: Path, say: Callable[[str, int], None], *, force: bool = False
) -> Swept:
    """Simulate what is missing of a sweep in the folder ``out``, on the engine around.

    Raises:
        UserError: the folder holds something else, or the extra 'sweep' is not installed.
        RunError: a file could not be written, or a cluster gave up.
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
    for batch, data in carried_out(jobs, ordered=False, together=1):
        store.write(batch, data)
        say("", len(store.scenarios(batch)))
    return _swept(store, simulated)


def _batch(
    batch: int,
    base: Mapping[str, Any],
    scenarios: Sequence[tuple[int, Mapping[str, Any]]],
    path: Path,
    keys: KeyColumns,
) -> tuple[int, bytes]:
    """A batch's Parquet file."""
    rows = []
    for index, changes in scenarios:
        content, replications = scenario_rows(base, changes, path)
        row = {**keys.row(content), "scenario_index": index}
        rows += [{**row, **each} for each in replications]
    return batch, parquet_bytes(keys, rows)


def _swept(store: Store, simulated: int) -> Swept:
    errors = store.table(["error"])["error"]
    reasons = Counter(each for each in errors.to_pylist() if each is not None)
    refused = sum(reasons.values())
    return Swept(store, simulated, len(errors), refused, dict(reasons.most_common()))
